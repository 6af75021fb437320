"""Transactions that narrow an attestation policy, and that revoke keys which it no longer accepts.

Only the policy's guardian can narrow it, and only permanently; anyone may revoke a key (Protocol section 11). The
registry stores a policy by its hash, so what is denied is denied in every run that chose the same one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from earnest.base.errors import EarnestError
from earnest.client.account.transactions import PlannedCall
from earnest.protocol.attestation import Policy, key_entry
from earnest.protocol.constants import ZERO_ADDRESS
from earnest.protocol.registry import bond_unit

if TYPE_CHECKING:
    from earnest.attestation.policy_file import PolicyFile
    from earnest.client.chain.blockref import BlockRef
    from earnest.client.chain.contracts import Contracts, Registry
    from earnest.client.run.record import KeyRegistration

Kind = Literal["workload", "platform", "pck", "root-id", "key"]
WORDS: Final[dict[Kind, str]] = {
    "workload": "workload",
    "platform": "platform",
    "pck": "PCK key",
    "root-id": "root",
    "key": "enclave key",
}


class NarrowingError(EarnestError):
    """The registry would refuse the call, or it would change nothing; raised before a transaction is paid for."""


@dataclass(frozen=True)
class RevocationReason:
    """The reason for revoking a key: a denied `entry` that it depends on or, without one, growth of its trainer's bond.

    `live_bond`: that bond; `counted`: the bond counted for the key's platform; both in wei.
    """

    kind: Kind | None = None
    entry: bytes | None = None
    live_bond: int = 0
    counted: int = 0


def entries(key: KeyRegistration) -> dict[Kind, bytes]:
    """Returns the deny-list entries that end the key, by kind, in the registry's order."""
    return {
        "workload": key.workload,
        "platform": key.platform,
        "pck": key.pck,
        "root-id": key.root_id,
        "key": key_entry(key.key),
    }


def kind_of(entry: bytes, keys: Iterable[KeyRegistration], policy: Policy | None) -> Kind | None:
    """Returns the kind of an entry known from the policy or the registered keys; None for an unknown one."""
    if policy is not None and entry == policy.root_id:
        return "root-id"
    if policy is not None and entry in policy.workloads:
        return "workload"
    return next((kind for key in keys for kind, own in entries(key).items() if own == entry), None)


def floor_of(policy_file: PolicyFile) -> int:
    """Returns the lowest TCB evaluation number that the policy itself accepts, without its guardian's changes."""
    return max(policy_file.policy.evaluation_floor, policy_file.document.evaluation_floor)


def deny_calls(
    registry: Registry,
    policy: Policy,
    kind: Kind,
    entry: bytes,
    keys: Iterable[KeyRegistration],
    account: str,
    at: BlockRef,
) -> list[PlannedCall]:
    """Denies an entry permanently. `keys` are those of the run, used to identify it. Raises NarrowingError."""
    _check_guardian(policy, account)
    known = kind_of(entry, keys, policy)
    if known not in (None, kind):
        raise NarrowingError(
            f"0x{entry.hex()} is a {WORDS[known]}, not a {WORDS[kind]}",
            f"give it as --{known} if you mean to deny it",
        )
    if known is None and kind in ("workload", "root-id"):
        raise NarrowingError(
            f"the policy does not accept the {WORDS[kind]} 0x{entry.hex()} anyway",
            "copy the value from `earnest attest show RUN --json`",
        )
    if registry.denied(policy.hash(), entry, at):
        raise NarrowingError(f"this {WORDS[kind]} is denied already", "there is nothing to do")
    return [PlannedCall("deny", f"deny the {WORDS[kind]} permanently", registry.deny(policy, entry))]


def raise_floor_calls(
    registry: Registry, policy_file: PolicyFile, number: int, account: str, at: BlockRef
) -> list[PlannedCall]:
    """Raises the evaluation floor permanently. Raises NarrowingError."""
    policy = policy_file.policy
    _check_guardian(policy, account)
    floor = max(floor_of(policy_file), registry.raised_floor(policy.hash(), at))
    if number <= floor:
        raise NarrowingError(f"the floor is {floor} already and can only be raised", "choose a higher number")
    return [
        PlannedCall(
            "raise-floor", f"raise the floor to {number} permanently", registry.raise_floor(policy, number)
        )
    ]


def revoke_calls(
    contracts: Contracts, run: int, policy: Policy, key: KeyRegistration, at: BlockRef
) -> tuple[list[PlannedCall], RevocationReason]:
    """Revokes a trainer's newest key; returns the call and its reason. Raises NarrowingError."""
    live = contracts.runs.enclave_key(run, key.trainer, at)
    if live is None or live.address != key.key:
        raise NarrowingError(
            f"{key.trainer} has registered another key since", "run the same command again in some blocks"
        )
    cutoff = contracts.runs.attestation(run, at).narrows_at
    if live.expiry <= cutoff:
        state = "was revoked already" if key.revoked is not None else "expires before it could be revoked"
        raise NarrowingError(f"the key {key.key} {state}", "there is nothing to do")
    reason = _denied(contracts.registry, policy, key, at) or _outgrown(contracts, run, policy, key, at)
    if reason is None:
        raise NarrowingError(
            f"the key {key.key} may not be revoked: nothing that it depends on is denied,"
            " and the bond behind it did not grow beyond what was counted for its platform",
            "the policy's guardian can deny what it depends on: `earnest attest deny`",
        )
    call = contracts.registry.revoke(run, key.trainer, policy, key.workload, key.platform, key.pck)
    return [PlannedCall("revoke", "revoke the key", call)], reason


def _check_guardian(policy: Policy, account: str) -> None:
    if policy.guardian == ZERO_ADDRESS:
        raise NarrowingError(
            "this policy has no guardian: nobody can narrow it",
            "name one with `earnest attest policy --guardian` for the next run",
        )
    if policy.guardian.lower() != account.lower():
        raise NarrowingError(
            f"the guardian of this policy is {policy.guardian}, not {account}", "use that account's key"
        )


def _denied(
    registry: Registry, policy: Policy, key: KeyRegistration, at: BlockRef
) -> RevocationReason | None:
    for kind, entry in entries(key).items():
        if registry.denied(policy.hash(), entry, at):
            return RevocationReason(kind, entry)
    return None


def _outgrown(
    contracts: Contracts, run: int, policy: Policy, key: KeyRegistration, at: BlockRef
) -> RevocationReason | None:
    """Compares bonds as the registry counts them: in units, rounded down."""
    if policy.platform_bond == 0:
        return None
    unit = bond_unit(policy.platform_bond)
    platform_keys = contracts.registry.platform_keys(run, key.platform, at)
    counted = next((other.bond for other in platform_keys if other.trainer.lower() == key.trainer.lower()), 0)
    live_bond = contracts.vault.live_bond(contracts.settlement.address, run, key.trainer, at)
    if live_bond // unit <= counted // unit:
        return None
    return RevocationReason(live_bond=live_bond, counted=counted)
