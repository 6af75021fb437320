"""Executes a deployment plan, one transaction per contract; a process killed at any point can continue it.

The chain decides what is done: a contract whose code is at its address needs no transaction. The manifest is on disk
before the first transaction, and the outbox's journal has every transaction before it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from eth_hash.auto import keccak

from earnest.base.errors import EarnestError
from earnest.client.chain.answers import Receipt
from earnest.client.chain.contracts import Call
from earnest.client.chain.endpoints import Chain
from earnest.client.chain.outbox import IntentStore, Outbox, Status
from earnest.deploy.manifest import (
    Manifest,
    ManifestError,
    load_manifest,
    manifest_of_plan,
    plan_of_manifest,
    save_manifest,
    with_code_on_chain,
)
from earnest.deploy.plan import DeploymentPlan, PlannedContract


class DeploymentError(EarnestError):
    """The chain does not match the plan: another key, another nonce, or other code at a planned address."""


def run_plan(
    plan: DeploymentPlan,
    chain: Chain,
    outbox: Outbox,
    intents: IntentStore,
    path: Path,
    *,
    network: str,
    git: str,
    progress: Callable[[PlannedContract], None] = lambda step: None,
) -> Manifest:
    """Deploys the contracts that are missing and returns the complete manifest, which it also saves at `path`.

    `intents` is the outbox's store. A complete manifest with other addresses at `path` becomes history. `progress` is
    called before each contract. Raises ManifestError if another deployment at `path` is unfinished (continue it with
    `unfinished_plan`), DeploymentError if the deployer is not the outbox's or has sent other transactions, and
    the errors of the outbox. After any of these, the same call continues where this one stopped.
    """
    if (outbox.address, chain.chain_id) != (plan.deployer, plan.chain_id):
        raise DeploymentError(
            f"the plan is for {plan.deployer} on chain {plan.chain_id}, not {outbox.address} on {chain.chain_id}",
            "use the key and the network of the plan, or plan again",
        )
    manifest = _begin(plan, path, network, git)
    for planned in plan.contracts:
        if manifest.current.contracts[planned.name].runtime_hash is None:
            progress(planned)
            receipt = _ensure_created(planned, chain, outbox, intents)
            code = chain.code(planned.address, chain.head())
            if not planned.matches(code):
                raise DeploymentError(
                    f"the code at {planned.address} is not {planned.name}",
                    "move the manifest away and deploy again",
                )
            origin = (None, None) if receipt is None else (receipt.hash, receipt.block_number)
            manifest = with_code_on_chain(manifest, planned.name, "0x" + keccak(code).hex(), *origin)
            save_manifest(path, manifest)
    return manifest


def unfinished_plan(path: Path) -> DeploymentPlan | None:
    """Returns the plan of the interrupted deployment at `path`, None if there is none."""
    if not path.exists():
        return None
    manifest = load_manifest(path)
    return None if manifest.current.complete else plan_of_manifest(manifest)


def _begin(plan: DeploymentPlan, path: Path, network: str, git: str) -> Manifest:
    previous = load_manifest(path) if path.exists() else None
    fresh = manifest_of_plan(plan, network, git, previous)
    if previous is not None and _same(previous, fresh):
        return previous
    if previous is not None and not previous.current.complete:
        raise ManifestError(
            f"{path} is of an unfinished deployment",
            "finish it with `earnest deploy run`, or move the file away",
        )
    save_manifest(path, fresh)
    return fresh


def _same(one: Manifest, other: Manifest) -> bool:
    def code(manifest: Manifest) -> tuple[int, list[tuple[str, str]]]:
        contracts = manifest.current.contracts.values()
        return manifest.chain_id, [(contract.address, contract.initcode_hash) for contract in contracts]

    return code(one) == code(other)


def _ensure_created(
    planned: PlannedContract, chain: Chain, outbox: Outbox, intents: IntentStore
) -> Receipt | None:
    """Returns the receipt of the creation, sent now or earlier; None if the code is there and the journal has none."""
    intent = f"deploy/{chain.chain_id}/{planned.address}"
    known = intents.intent(intent)
    if known is None or known.status not in (Status.OPEN, Status.DONE):
        if chain.code(planned.address, chain.head()):
            return None
        nonce = chain.next_nonce(outbox.address)
        if nonce != planned.nonce:
            raise DeploymentError(
                f"{planned.name} is planned for nonce {planned.nonce} of {outbox.address}, whose next is {nonce}",
                "plan again, with a key that sends nothing else during the deployment",
            )
    call = Call(to="", data=planned.initcode, function=f"deploy {planned.name}", args=dict(planned.args))
    receipt = outbox.send(intent, call)
    if receipt is None:
        raise DeploymentError(f"{planned.name} is not mined yet", "run the same command again: it continues")
    return receipt
