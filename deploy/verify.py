"""Checks a deployment from the outside: reads only, trusts neither the manifest nor whoever wrote it.

Deployer, nonce, token and sink give the plan; the plan gives addresses, arguments and code, immutables included;
and the chain has to agree with all of it.
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
from earnest.deploy.manifest import Deployed, Manifest, plan_of
from earnest.deploy.plan import DeploymentStep, Plan
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
class Comparison:
    """One question asked of a contract, the answer that was expected, and the one that was found."""

    contract: str
    question: str
    expected: str
    found: str

    @property
    def ok(self) -> bool:
        return self.expected == self.found


def verify(manifest: Manifest, chain: Chain, at: BlockRef) -> list[Comparison]:
    """Every check of every contract of the current deployment, read at one block. Never writes.

    Raises ManifestError or KeyError for a manifest that names no vault, and whatever the chain raises when it
    cannot be read.
    """
    plan = plan_of(manifest)
    return [
        check
        for step in plan.steps
        for check in _checks(step, plan, manifest.current.contracts.get(step.name), chain, at)
    ]


def _checks(
    step: DeploymentStep, plan: Plan, recorded: Deployed | None, chain: Chain, at: BlockRef
) -> Iterator[Comparison]:
    if recorded is None:
        yield Comparison(step.name, "recorded", "yes", "no")
        return
    yield from _record(step, recorded, plan)
    code = chain.code(step.address, at)
    yield Comparison(step.name, "code", "as compiled", _judge(step, code))
    yield Comparison(step.name, "code hash", "0x" + keccak(code).hex(), str(recorded.runtime_hash))
    if recorded.tx is not None:
        receipt = chain.receipt(recorded.tx)
        yield Comparison(
            step.name, "created by its transaction", step.address, str(receipt and receipt.contract)
        )
    if code:
        yield from _wiring(step, chain, at)


def _record(step: DeploymentStep, recorded: Deployed, plan: Plan) -> Iterator[Comparison]:
    """Whether the manifest says what the plan says."""
    yield Comparison(step.name, "address", step.address, recorded.address)
    yield Comparison(step.name, "deployer", plan.deployer, recorded.deployer)
    yield Comparison(step.name, "arguments", str(dict(step.args)), str(recorded.args))
    yield Comparison(step.name, "encoded arguments", "0x" + step.args_abi.hex(), recorded.args_abi)
    yield Comparison(step.name, "source integrity", step.artifact.integrity, recorded.integrity)
    yield Comparison(step.name, "creation code hash", step.initcode_hash, recorded.initcode_hash)


def _judge(step: DeploymentStep, code: bytes) -> str:
    if not code:
        return "no code"
    if step.matches(code):
        return "as compiled"
    return "immutables differ" if code.startswith(step.artifact.runtime) else "other code"


def _wiring(step: DeploymentStep, chain: Chain, at: BlockRef) -> Iterator[Comparison]:
    """What the contract itself says it is wired to, and which protocol it speaks."""
    views = {entry.get("name") for entry in step.artifact.abi}
    for argument, getter in GETTERS.items():
        if argument in step.args and getter in views:
            found = _view(chain, step.address, getter, "address", at)
            yield Comparison(step.name, f"{getter}()", step.args[argument].lower(), found)
    if "PROTOCOL_VERSION" in views:
        found = _view(chain, step.address, "PROTOCOL_VERSION", "uint256", at)
        yield Comparison(step.name, "PROTOCOL_VERSION()", str(PROTOCOL_VERSION), found)


def _view(chain: Chain, address: str, name: str, kind: str, at: BlockRef) -> str:
    try:
        return str(decode([kind], chain.call(address, keccak(f"{name}()".encode())[:4], at))[0])
    except (Reverted, RpcErrorAnswer, DecodingError) as error:  # other code may break the machine's rules too
        return f"no answer ({type(error).__name__})"
