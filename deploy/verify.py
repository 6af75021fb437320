"""Checks a deployment by reading the chain. It trusts neither the manifest nor its author, and sends nothing.

Deployer, nonce, token and sink determine the plan. The plan determines addresses, constructor arguments and code,
immutables included. The chain must match all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eth_abi.abi import decode
from eth_abi.exceptions import DecodingError
from eth_hash.auto import keccak

from earnest.base.errors import Reverted
from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.endpoints import Chain, RpcErrorAnswer
from earnest.deploy.manifest import ContractRecord, Manifest, plan_of_manifest
from earnest.deploy.plan import DeploymentPlan, PlannedContract
from earnest.protocol.constants import PROTOCOL_VERSION

GETTERS = {
    "token": "TOKEN",
    "sink": "SINK",
    "vault": "VAULT",
    "terms": "TERMS",
    "settlement": "SETTLEMENT",
    "runs": "RUNS",
    "registry": "REGISTRY",
}


@dataclass(frozen=True)
class ContractCheck:
    """One property of a contract: its expected value and the actual one."""

    contract: str
    name: str
    expected: str
    actual: str

    @property
    def ok(self) -> bool:
        return self.expected == self.actual


def verify(manifest: Manifest, chain: Chain, at: BlockRef) -> list[ContractCheck]:
    """Checks every contract of the current deployment at one block. Sends nothing.

    Raises ManifestError or KeyError for a manifest without a vault, and ChainError if the chain cannot be read.
    """
    plan = plan_of_manifest(manifest)
    return [
        check
        for planned in plan.contracts
        for check in _checks(planned, plan, manifest.current.contracts.get(planned.name), chain, at)
    ]


def _checks(
    planned: PlannedContract,
    plan: DeploymentPlan,
    recorded: ContractRecord | None,
    chain: Chain,
    at: BlockRef,
) -> Iterator[ContractCheck]:
    if recorded is None:
        yield ContractCheck(planned.name, "recorded", "yes", "no")
        return
    yield from _record(planned, recorded, plan)
    code = chain.code(planned.address, at)
    yield ContractCheck(planned.name, "code", "as compiled", _judge(planned, code))
    yield ContractCheck(planned.name, "code hash", "0x" + keccak(code).hex(), str(recorded.runtime_hash))
    if recorded.tx is not None:
        receipt = chain.receipt(recorded.tx)
        yield ContractCheck(
            planned.name, "created by its transaction", planned.address, str(receipt and receipt.contract)
        )
    if code:
        yield from _wiring(planned, chain, at)


def _record(
    planned: PlannedContract, recorded: ContractRecord, plan: DeploymentPlan
) -> Iterator[ContractCheck]:
    """Compares the manifest with the plan."""
    yield ContractCheck(planned.name, "address", planned.address, recorded.address)
    yield ContractCheck(planned.name, "deployer", plan.deployer, recorded.deployer)
    yield ContractCheck(planned.name, "arguments", str(dict(planned.args)), str(recorded.args))
    yield ContractCheck(planned.name, "encoded arguments", "0x" + planned.args_abi.hex(), recorded.args_abi)
    yield ContractCheck(planned.name, "source integrity", planned.artifact.integrity, recorded.integrity)
    yield ContractCheck(planned.name, "creation code hash", planned.initcode_hash, recorded.initcode_hash)


def _judge(planned: PlannedContract, code: bytes) -> str:
    if not code:
        return "no code"
    if planned.matches(code):
        return "as compiled"
    return "immutables differ" if code.startswith(planned.artifact.runtime) else "other code"


def _wiring(planned: PlannedContract, chain: Chain, at: BlockRef) -> Iterator[ContractCheck]:
    """Compares the addresses and the protocol version that the contract itself returns."""
    views = {entry.get("name") for entry in planned.artifact.abi}
    for argument, getter in GETTERS.items():
        if argument in planned.args and getter in views:
            actual = _view(chain, planned.address, getter, "address", at)
            yield ContractCheck(planned.name, f"{getter}()", planned.args[argument].lower(), actual)
    if "PROTOCOL_VERSION" in views:
        actual = _view(chain, planned.address, "PROTOCOL_VERSION", "uint256", at)
        yield ContractCheck(planned.name, "PROTOCOL_VERSION()", str(PROTOCOL_VERSION), actual)


def _view(chain: Chain, address: str, name: str, kind: str, at: BlockRef) -> str:
    try:
        return str(decode([kind], chain.call(address, keccak(f"{name}()".encode())[:4], at))[0])
    except (
        Reverted,
        RpcErrorAnswer,
        DecodingError,
    ) as error:  # foreign code may also break the rules of the EVM
        return f"no answer ({type(error).__name__})"
