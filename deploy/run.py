"""Carries a plan out, one transaction per contract, and can be interrupted between any two instructions.

What has happened is asked of the chain, never remembered: a step whose address holds its code is done. The manifest
is on disk before the first transaction, and the outbox's journal knows every transaction before it leaves.
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
    plan_of,
    planned,
    recorded,
    save_manifest,
)
from earnest.deploy.plan import DeploymentStep, Plan


class DeploymentError(EarnestError):
    """The chain is not where the plan expects it, or holds something else at a planned address."""


def run_plan(
    plan: Plan,
    chain: Chain,
    outbox: Outbox,
    intents: IntentStore,
    path: Path,
    *,
    network: str,
    git: str,
    progress: Callable[[DeploymentStep], None] = lambda step: None,
) -> Manifest:
    """Deploys what of the plan is not on the chain yet and returns the complete manifest, also saved at `path`.

    `intents` is the outbox's store. A complete manifest of other addresses at `path` becomes history. `progress`
    hears of every step before it starts. Raises ManifestError if another deployment is unfinished there (go on
    with `unfinished_plan`), DeploymentError if the deployer is not the outbox's or has sent something else, and
    whatever the outbox raises; after any of them the same call goes on where this one stopped.
    """
    if (outbox.address, chain.chain_id) != (plan.deployer, plan.chain_id):
        raise DeploymentError(
            f"the plan is for {plan.deployer} on chain {plan.chain_id}, not {outbox.address} on {chain.chain_id}",
            "use the key and the network that were planned with",
        )
    manifest = _begin(plan, path, network, git)
    for step in plan.steps:
        if manifest.current.contracts[step.name].runtime_hash is None:
            progress(step)
            receipt = _ensure(step, chain, outbox, intents)
            code = chain.code(step.address, chain.head())
            if not step.matches(code):
                raise DeploymentError(f"{step.address} does not hold {step.name}", "plan again from here")
            where = (None, None) if receipt is None else (receipt.hash, receipt.block_number)
            manifest = recorded(manifest, step.name, "0x" + keccak(code).hex(), *where)
            save_manifest(path, manifest)
    return manifest


def unfinished_plan(path: Path) -> Plan | None:
    """The plan of an interrupted deployment, None if there is none at `path`."""
    if not path.exists():
        return None
    manifest = load_manifest(path)
    return None if manifest.current.complete else plan_of(manifest)


def _begin(plan: Plan, path: Path, network: str, git: str) -> Manifest:
    previous = load_manifest(path) if path.exists() else None
    fresh = planned(plan, network, git, previous)
    if previous is not None and _same(previous, fresh):
        return previous
    if previous is not None and not previous.current.complete:
        raise ManifestError(f"{path} is of an unfinished deployment", "finish it first, or move it away")
    save_manifest(path, fresh)
    return fresh


def _same(one: Manifest, other: Manifest) -> bool:
    def code(manifest: Manifest) -> tuple[int, list[tuple[str, str]]]:
        contracts = manifest.current.contracts.values()
        return manifest.chain_id, [(contract.address, contract.initcode_hash) for contract in contracts]

    return code(one) == code(other)


def _ensure(step: DeploymentStep, chain: Chain, outbox: Outbox, intents: IntentStore) -> Receipt | None:
    """The receipt of the step's transaction, sent now or before; None if only the chain remembers it."""
    intent = f"deploy/{chain.chain_id}/{step.address}"
    known = intents.intent(intent)
    if known is None or known.status not in (Status.OPEN, Status.DONE):
        if chain.code(step.address, chain.head()):
            return None
        nonce = chain.next_nonce(outbox.address)
        if nonce != step.nonce:
            raise DeploymentError(
                f"{step.name} is planned for nonce {step.nonce} of {outbox.address}, which is at {nonce}",
                "plan again; use a key that sends nothing else meanwhile",
            )
    call = Call(to="", data=step.initcode, function=f"deploy {step.name}", args=dict(step.args))
    receipt = outbox.send(intent, call)
    if receipt is None:
        raise DeploymentError(f"{step.name} is not mined yet", "run the same command again, it will go on")
    return receipt
