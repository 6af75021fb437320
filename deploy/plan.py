"""The plan of a deployment: addresses, constructor arguments, code and gas, computed before anything is sent.

A plan is a pure function of the chain id, the deployer, its next nonce, the token and the sink. The contracts know
each other by constructor arguments only, so two addresses are predicted: RunTerms and Settlement take the future
address of TrainingRuns, and TrainingRuns that of the AttestationRegistry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import rlp
from eth_abi.abi import encode
from eth_hash.auto import keccak
from eth_utils.address import to_canonical_address, to_checksum_address

from earnest.contracts import Artifact, load_artifact

SINK = "0x000000000000000000000000000000000000dEaD"
TOKEN_NAME = "Earnest Play Token"  # noqa: S105
TOKEN_SYMBOL = "PLAY"  # noqa: S105
CONTRACTS = ("StakeVault", "RunTerms", "Settlement", "TrainingRuns", "AttestationRegistry")
CONSTRUCTOR_GAS = 250_000  # allowance for a constructor, without storing its code


@dataclass(frozen=True)
class PlannedContract:
    """One contract of a plan: the deployer's transaction with this nonce creates it at this address."""

    name: str
    address: str
    nonce: int
    args: Mapping[str, str]
    args_abi: bytes
    immutables: Mapping[str, bytes]  # by name: 32-byte words, for those that follow from the plan
    artifact: Artifact

    @property
    def initcode(self) -> bytes:
        """Data of the transaction that creates the contract."""
        return self.artifact.bytecode + self.args_abi

    @property
    def initcode_hash(self) -> str:
        return "0x" + keccak(self.initcode).hex()

    @property
    def gas(self) -> int:
        """Upper bound of the gas, and the transaction's gas limit (EIP-170, 2028, 3860, 7623)."""
        tokens = sum(1 if byte == 0 else 4 for byte in self.initcode)
        code = len(self.artifact.runtime) + sum(slot.length for slot in immutable_slots(self.artifact.layout))
        cost = 53_000 + 4 * tokens + 2 * (-(-len(self.initcode) // 32)) + 200 * code + CONSTRUCTOR_GAS
        return max(cost, 21_000 + 10 * tokens)

    def matches(self, code: bytes) -> bool:
        """Returns True if `code` is the artifact's runtime code followed by the planned immutables."""
        slots = immutable_slots(self.artifact.layout)
        size = len(self.artifact.runtime)
        runtime, tail = code[:size], code[size:]
        known = [slot for slot in slots if slot.name in self.immutables]
        return (
            runtime == self.artifact.runtime
            and len(tail) == sum(slot.length for slot in slots)
            and all(slot.read(tail) == self.immutables[slot.name] for slot in known)
        )


@dataclass(frozen=True)
class ImmutableSlot:
    """Position of an immutable behind the runtime code; offset and length in bytes."""

    name: str
    offset: int
    length: int

    def read(self, tail: bytes) -> bytes:
        return tail[self.offset : self.offset + self.length]


@dataclass(frozen=True)
class DeploymentPlan:
    """All contracts in order of creation; the first one uses the deployer's nonce `first_nonce`."""

    chain_id: int
    deployer: str
    first_nonce: int
    token: str
    sink: str
    contracts: tuple[PlannedContract, ...]

    @property
    def gas(self) -> int:
        """Upper bound of the gas of all transactions together."""
        return sum(contract.gas for contract in self.contracts)

    def address(self, name: str) -> str:
        """Returns a contract's future address. Raises KeyError for one that the plan does not deploy."""
        return {contract.name: contract.address for contract in self.contracts}[name]


def make_plan(
    chain_id: int, deployer: str, nonce: int, token: str | None = None, sink: str = SINK
) -> DeploymentPlan:
    """Plans a deployment for `token`; without one, the play token is deployed first (local chains only).

    `nonce` is the deployer's next. Raises ValueError for a malformed address, KeyError for a constructor parameter
    that the plan does not know.
    """
    names = [*(["PlayToken"] if token is None else []), *CONTRACTS]
    addresses = {name: create_address(deployer, nonce + i) for i, name in enumerate(names)}
    known = {
        "token": to_checksum_address(token) if token is not None else addresses["PlayToken"],
        "sink": to_checksum_address(sink),
        "vault": addresses["StakeVault"],
        "terms": addresses["RunTerms"],
        "settlement": addresses["Settlement"],
        "runs": addresses["TrainingRuns"],
        "registry": addresses["AttestationRegistry"],
        "minter": to_checksum_address(deployer),
        "name": TOKEN_NAME,
        "symbol": TOKEN_SYMBOL,
    }
    contracts = tuple(
        _planned(load_artifact(name), addresses[name], nonce + i, known) for i, name in enumerate(names)
    )
    return DeploymentPlan(chain_id, known["minter"], nonce, known["token"], known["sink"], contracts)


def create_address(deployer: str, nonce: int) -> str:
    """Returns the address that CREATE gives: the last 20 bytes of keccak256(rlp([deployer, nonce]))."""
    return to_checksum_address(keccak(rlp.encode([to_canonical_address(deployer), nonce]))[12:])


def immutable_slots(layout: Mapping[str, Any]) -> list[ImmutableSlot]:
    """Lists the immutables of an artifact's layout, including those of its modules."""
    return list(_slots(layout.get("code_layout", {})))


def _slots(entries: Mapping[str, Any]) -> list[ImmutableSlot]:
    slots: list[ImmutableSlot] = []
    for name, entry in entries.items():
        if isinstance(entry.get("offset"), int):
            slots.append(ImmutableSlot(name, entry["offset"], entry["length"]))
        else:
            slots += _slots(entry)
    return slots


def _planned(artifact: Artifact, address: str, nonce: int, known: Mapping[str, str]) -> PlannedContract:
    """Fills the constructor's parameters by name, ignoring the trailing underscore that Vyper requires of some."""
    inputs = next((entry["inputs"] for entry in artifact.abi if entry["type"] == "constructor"), [])
    names = [parameter["name"].rstrip("_") for parameter in inputs]
    args = {name: known[name] for name in names}
    return PlannedContract(
        name=artifact.name,
        address=address,
        nonce=nonce,
        args=args,
        args_abi=encode([parameter["type"] for parameter in inputs], list(args.values())),
        immutables={
            slot.name: to_canonical_address(known[slot.name.lower()]).rjust(32, b"\0")
            for slot in immutable_slots(artifact.layout)
            if slot.name.lower() in known
        },
        artifact=artifact,
    )
