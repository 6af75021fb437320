"""Does a trainer do harm? Protocol section 7: two e-processes per trainer, carried from round to round.

The arithmetic, its derivation and its sources are in `earnest.protocol.harm`; here it meets the
measurements. Evidence belongs to the trainer, not to its seat: who takes over a seat starts clean.
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
        """Whether the smaller e-value exceeds the threshold."""
        return min(self.held_out, self.own) > self.threshold

    def __str__(self) -> str:
        return (
            f"e-values {self.held_out:.3g} (fresh) and {self.own:.3g} (own), threshold {self.threshold:.3g}"
        )


@dataclass(frozen=True)
class HarmBook:
    """Every trainer's harm test so far."""

    tests: Mapping[str, HarmTest] = field(default_factory=dict)

    def after(
        self, round_: int, gains: Mapping[str, tuple[Losses, Losses]], terms: HarmTerms, threshold: float
    ) -> tuple[HarmBook, dict[str, HarmFinding]]:
        """The book after one round's (fresh, own) gains by trainer, in draw order, and what it says of each.

        Round 0 is evidence of nothing. A test that led to a verdict starts again. Trainers without gains keep
        theirs.
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
        """Plain values that `from_json` reads back to the last bit."""
        return {trainer: asdict(test) for trainer, test in sorted(self.tests.items())}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> HarmBook:
        """What `as_json` gave."""
        return cls(
            {
                trainer: HarmTest(EProcess(**test["held_out"]), EProcess(**test["own"]), test["window"])
                for trainer, test in saved.items()
            }
        )
