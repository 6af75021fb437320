"""The common answer of all verifiers: each check with its result and reason. Protocol section 11."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """One check of a verification; `reason` says what was found, whether it passed or not."""

    name: str
    passed: bool
    reason: str = ""


@dataclass(frozen=True)
class Verification:
    """Result of verifying a quote, report or token. A field is None if the format lacks it or it cannot be read."""

    accepted: bool
    """Genuine and fresh: every signature up to the pinned root holds, nothing has expired or is revoked."""

    policy_accepted: bool
    """Accepted, and all checks of the policy passed."""

    checks: tuple[Check, ...]
    """In the order made. Checks that could not be made because an earlier one failed are left out."""

    status: str | None = None
    """TCB status, as Intel names it."""

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
    """keccak256 of the report data: equal for a replay and its original, however the bytes were altered."""

    unchecked: tuple[str, ...] = ()
    """Checks that matter for trust and were not made."""

    unusable: bool = False
    """The input could not be read."""

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def reason(self) -> str:
        """The first failed check and its reason, or an empty string."""
        return next((f"{check.name}: {check.reason}" for check in self.failed), "")

    def as_json(self) -> dict[str, Any]:
        """Returns the fields as plain values, bytes as 0x-prefixed hexadecimal."""
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


def conclude(
    genuine: Iterable[Check], policy: Iterable[Check] = (), *, unusable: bool = False, **facts: Any
) -> Verification:
    """Builds the verification that follows from the checks.

    It is `accepted` if all of `genuine` passed, and `policy_accepted` if those of `policy` passed too. `facts` are
    further fields of Verification.
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
