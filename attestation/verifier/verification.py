"""The answer of every verifier of evidence: what holds, what does not, and why. Protocol section 11."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """One thing looked at; `reason` says what was found, in plain words, passed or not."""

    name: str
    passed: bool
    reason: str = ""


@dataclass(frozen=True)
class Verification:
    """Verdict on one piece of evidence. A field is None where the evidence is too broken, or of a kind, to have it."""

    accepted: bool
    """Genuine and fresh: every signature up to the pinned root holds, nothing has expired or is revoked."""

    policy_accepted: bool
    """Accepted, and nothing that the policy asks for is missing."""

    checks: tuple[Check, ...]
    """In the order made. What could not be looked at because an earlier check failed is left out."""

    status: str | None = None
    """TCB status in Intel's words."""

    tee: str | None = None
    root_id: bytes | None = None
    """keccak256 of the uncompressed public key x || y of the root that was pinned."""

    evaluation_number: int | None = None
    expires: int | None = None
    """Unix second from which some piece of the collateral or chain is no longer valid."""

    advisories: tuple[str, ...] = ()
    workload: bytes | None = None
    platform: bytes | None = None
    report_data: bytes | None = None
    replay_key: bytes | None = None
    """What a replay has in common with the original, however its bytes were altered: keccak256 of the report data."""

    unchecked: tuple[str, ...] = ()
    """What matters and was not looked at."""

    unusable: bool = False
    """The input is not evidence at all: it could not be read."""

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def reason(self) -> str:
        """The first failed check and what was found, or nothing."""
        return next((f"{check.name}: {check.reason}" for check in self.failed), "")

    def as_json(self) -> dict[str, Any]:
        """Plain values, bytes as 0x-prefixed hexadecimal."""
        return {
            "accepted": self.accepted,
            "status": self.status,
            "policy_accepted": self.policy_accepted,
            "checks": [
                {"name": check.name, "passed": check.passed, "reason": check.reason} for check in self.checks
            ],
            "tee": self.tee,
            "root_id": _hex(self.root_id),
            "evaluation_number": self.evaluation_number,
            "expires": self.expires,
            "advisories": list(self.advisories),
            "workload": _hex(self.workload),
            "platform": _hex(self.platform),
            "report_data": _hex(self.report_data),
            "replay_key": _hex(self.replay_key),
            "unchecked": list(self.unchecked),
        }


def verdict(
    genuine: Iterable[Check], policy: Iterable[Check] = (), *, unusable: bool = False, **facts: Any
) -> Verification:
    """The verdict that follows from the checks: `accepted` of all that make evidence genuine, `policy_accepted` of all.

    `facts` are fields of Verification.
    """
    genuine, policy = tuple(genuine), tuple(policy)
    accepted = bool(genuine) and all(check.passed for check in genuine)
    return Verification(
        accepted=accepted,
        policy_accepted=accepted and all(check.passed for check in policy),
        checks=genuine + policy,
        unusable=unusable,
        **facts,
    )


def _hex(value: bytes | None) -> str | None:
    return None if value is None else f"0x{value.hex()}"
