"""Harm: two e-processes per trainer, carried from round to round. Protocol section 7.

The arithmetic, its derivation and its sources are in `earnest.protocol.harm`. A test belongs to the trainer, not to its
seat: an account that takes over a seat starts with a new test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from earnest.protocol.harm import EProcess, HarmTerms, HarmTest
from earnest.validator.gain import Losses


@dataclass(frozen=True)
class HarmFinding:
    """E-values of one trainer after a round, and the threshold that both have to exceed for a verdict."""

    held_out: float
    own: float
    threshold: float

    @property
    def harmful(self) -> bool:
        """True if the smaller e-value exceeds the threshold."""
        return min(self.held_out, self.own) > self.threshold

    def __str__(self) -> str:
        return (
            f"e-values {self.held_out:.3g} (fresh) and {self.own:.3g} (own), threshold {self.threshold:.3g}"
        )


@dataclass(frozen=True)
class HarmBook:
    """The harm tests of all trainers."""

    tests: Mapping[str, HarmTest] = field(default_factory=dict)

    def after(
        self, round_: int, gains: Mapping[str, tuple[Losses, Losses]], terms: HarmTerms, threshold: float
    ) -> tuple[HarmBook, dict[str, HarmFinding]]:
        """Returns the book after one round, and the finding on each trainer in `gains`.

        `gains` holds the (fresh, own) gains by trainer, in draw order. Round 0 is skipped. A test that led to a verdict
        restarts. A trainer without gains keeps its test as it is.
        """
        if round_ == 0:
            return self, {}
        tests, findings = dict(self.tests), {}
        for trainer, (fresh, own) in gains.items():
            test = tests.get(trainer, HarmTest()).update_round(round_, fresh.tolist(), own.tolist(), terms)
            findings[trainer] = HarmFinding(test.held_out.wealth, test.own.wealth, threshold)
            tests[trainer] = test.restarted() if findings[trainer].harmful else test
        return HarmBook(tests), findings

    def as_json(self) -> dict[str, Any]:
        """Returns plain values that `from_json` reads back to the last bit."""
        return {trainer: asdict(test) for trainer, test in sorted(self.tests.items())}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> HarmBook:
        """Reads the output of `as_json`."""
        return cls(
            {
                trainer: HarmTest(EProcess(**test["held_out"]), EProcess(**test["own"]), test["window"])
                for trainer, test in saved.items()
            }
        )
