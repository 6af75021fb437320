"""What a deployment will do, before it does anything: addresses, constructor arguments, code and gas.

A plan is a pure function of the chain id, the deployer, its next nonce, the token and the sink. The contracts
know each other by constructor arguments alone, so two addresses are predicted: Settlement is told where
TrainingRuns will be, and TrainingRuns where the AttestationRegistry will be.
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
CONSTRUCTOR_GAS = 250_000  # what a constructor may spend beside storing its code


@dataclass(frozen=True)
class DeploymentStep:
    """One contract: a transaction from the deployer with this nonce creates it at this address."""

    name: str
    address: str
    nonce: int
    args: Mapping[str, str]
    args_abi: bytes
    immutables: Mapping[str, bytes]  # 32-byte words, by name, of those that follow from the plan
    artifact: Artifact

    @property
    def initcode(self) -> bytes:
        """The transaction's data."""
        return self.artifact.bytecode + self.args_abi

    @property
    def initcode_hash(self) -> str:
        return "0x" + keccak(self.initcode).hex()

    @property
    def gas(self) -> int:
        """An upper bound of the gas, used as the transaction's limit (EIP-170, 2028, 3860, 7623)."""
        tokens = sum(1 if byte == 0 else 4 for byte in self.initcode)
        code = len(self.artifact.runtime) + sum(place.length for place in immutables(self.artifact.layout))
        spent = 53_000 + 4 * tokens + 2 * (-(-len(self.initcode) // 32)) + 200 * code + CONSTRUCTOR_GAS
        return max(spent, 21_000 + 10 * tokens)

    def matches(self, code: bytes) -> bool:
        """Whether this is the step's contract: the artifact's runtime, then immutables as planned."""
        places = immutables(self.artifact.layout)
        runtime, tail = code[: len(self.artifact.runtime)], code[len(self.artifact.runtime) :]
        known = [place for place in places if place.name in self.immutables]
        return (
            runtime == self.artifact.runtime
            and len(tail) == sum(place.length for place in places)
            and all(place.read(tail) == self.immutables[place.name] for place in known)
        )


@dataclass(frozen=True)
class Immutable:
    """Where an immutable lies behind the runtime code, in bytes."""

    name: str
    offset: int
    length: int

    def read(self, tail: bytes) -> bytes:
        return tail[self.offset : self.offset + self.length]


@dataclass(frozen=True)
class Plan:
    """Steps in order; `first_nonce` is the deployer's nonce that the first one uses."""

    chain_id: int
    deployer: str
    first_nonce: int
    token: str
    sink: str
    steps: tuple[DeploymentStep, ...]

    @property
    def gas(self) -> int:
        """What all steps may use together."""
        return sum(step.gas for step in self.steps)

    def address(self, name: str) -> str:
        """Where a contract will be. Raises KeyError for one that the plan does not deploy."""
        return {step.name: step.address for step in self.steps}[name]


def make_plan(chain_id: int, deployer: str, nonce: int, token: str | None = None, sink: str = SINK) -> Plan:
    """Plans the contracts around `token`; without one, a token of our own is deployed first.

    `nonce` is the deployer's next. Callers leave `token` out on local chains only. Raises ValueError for an
    address that is none, KeyError if a constructor asks for something that no plan knows.
    """
    names = [*(["PlainToken"] if token is None else []), *CONTRACTS]
    addresses = {name: create_address(deployer, nonce + i) for i, name in enumerate(names)}
    known = {
        "token": to_checksum_address(token) if token is not None else addresses["PlainToken"],
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
    steps = tuple(
        _step(load_artifact(name), addresses[name], nonce + i, known) for i, name in enumerate(names)
    )
    return Plan(chain_id, known["minter"], nonce, known["token"], known["sink"], steps)


def create_address(deployer: str, nonce: int) -> str:
    """Where a transaction creates its contract: the last 20 bytes of keccak256(rlp([deployer, nonce]))."""
    return to_checksum_address(keccak(rlp.encode([to_canonical_address(deployer), nonce]))[12:])


def immutables(layout: Mapping[str, Any]) -> list[Immutable]:
    """The immutables of an artifact's layout, those of its modules included."""
    return list(_places(layout.get("code_layout", {})))


def _places(entries: Mapping[str, Any]) -> list[Immutable]:
    found: list[Immutable] = []
    for name, entry in entries.items():
        if isinstance(entry.get("offset"), int):
            found.append(Immutable(name, entry["offset"], entry["length"]))
        else:
            found += _places(entry)
    return found


def _step(artifact: Artifact, address: str, nonce: int, known: Mapping[str, str]) -> DeploymentStep:
    """A constructor says by its parameters' names what it wants; a trailing underscore is Vyper's need."""
    inputs = next((entry["inputs"] for entry in artifact.abi if entry["type"] == "constructor"), [])
    args = {given["name"].rstrip("_"): known[given["name"].rstrip("_")] for given in inputs}
    return DeploymentStep(
        name=artifact.name,
        address=address,
        nonce=nonce,
        args=args,
        args_abi=encode([given["type"] for given in inputs], list(args.values())),
        immutables={
            place.name: to_canonical_address(known[place.name.lower()]).rjust(32, b"\0")
            for place in immutables(artifact.layout)
            if place.name.lower() in known
        },
        artifact=artifact,
    )
