"""The record of a deployment: one JSON file per network, checked in, whose history only grows.

It is written before the first transaction and after every step, so that it is also what an interrupted deployment
goes on from, and everything `verify` needs to know of it.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from earnest.base.errors import EarnestError
from earnest.deploy.plan import DeploymentStep, Plan, make_plan

SCHEMA = 1


class ManifestError(EarnestError):
    """A manifest that is missing, broken, or of another deployment."""


class Deployed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One contract. `tx`, `block` and `runtime_hash` are None until it is on the chain."""

    address: str
    tx: str | None = None
    block: int | None = None
    deployer: str
    nonce: int
    salt: str | None = None  # reserved for CREATE2
    args: dict[str, str]
    args_abi: str
    integrity: str  # Vyper's hash over sources and settings
    initcode_hash: str
    runtime_hash: str | None = None  # of the code on chain, immutables included
    verified: list[str] = []  # explorers that show its source


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One set of contracts that belong together."""

    git: str
    compiler: str
    evm: str
    contracts: dict[str, Deployed]

    @property
    def complete(self) -> bool:
        return all(contract.runtime_hash is not None for contract in self.contracts.values())


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A network's current deployment and, newest first, those before it."""

    schema: int = SCHEMA
    network: str
    chain_id: int
    current: Deployment
    history: list[Deployment] = []

    def address(self, name: str) -> str:
        """Where a contract is; `Token` gives the vault's token. Raises ManifestError if it isn't there."""
        contracts = self.current.contracts
        if name == "Token":
            return contracts["StakeVault"].args["token"]
        if name not in contracts:
            raise ManifestError(f"no {name} on {self.network}", f"it has {', '.join(contracts)}")
        return contracts[name].address

    @property
    def first_block(self) -> int:
        """The block in which the first contract appeared: where event scans begin."""
        return min((c.block for c in self.current.contracts.values() if c.block is not None), default=0)


def planned(plan: Plan, network: str, git: str, previous: Manifest | None = None) -> Manifest:
    """The manifest of a plan of which nothing is on chain yet; the previous deployment becomes history."""
    compiler = plan.steps[0].artifact.compiler
    contracts = {step.name: _deployed(step, plan.deployer) for step in plan.steps}
    current = Deployment(git=git, compiler=compiler["version"], evm=compiler["evm"], contracts=contracts)
    history = [] if previous is None else [previous.current, *previous.history]
    return Manifest(network=network, chain_id=plan.chain_id, current=current, history=history)


def plan_of(manifest: Manifest) -> Plan:
    """The plan that the manifest's deployer, first nonce, token and sink give with the artifacts of today."""
    contracts = manifest.current.contracts
    first = min(contracts.values(), key=lambda contract: contract.nonce)
    vault = contracts["StakeVault"].args
    token = None if "PlainToken" in contracts else vault["token"]
    return make_plan(manifest.chain_id, first.deployer, first.nonce, token, vault["sink"])


def recorded(manifest: Manifest, name: str, code_hash: str, tx: str | None, block: int | None) -> Manifest:
    """The manifest once a contract is on the chain."""
    contracts = dict(manifest.current.contracts)
    contracts[name] = msgspec.structs.replace(contracts[name], runtime_hash=code_hash, tx=tx, block=block)
    return msgspec.structs.replace(
        manifest, current=msgspec.structs.replace(manifest.current, contracts=contracts)
    )


def load_manifest(path: Path) -> Manifest:
    """Reads a manifest. Raises ManifestError if it is missing, not one, or of a newer schema."""
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise ManifestError(f"no manifest {path}", "deploy first, or give the right path") from None
    except msgspec.MsgspecError as error:
        raise ManifestError(f"{path} is not a manifest: {error}", "restore it from version control") from None
    if manifest.schema != SCHEMA:
        raise ManifestError(f"{path} has schema {manifest.schema}, not {SCHEMA}", "update earnest")
    return manifest


def save_manifest(path: Path, manifest: Manifest) -> None:
    """Writes it whole or not at all."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    with part.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _deployed(step: DeploymentStep, deployer: str) -> Deployed:
    return Deployed(
        address=step.address,
        deployer=deployer,
        nonce=step.nonce,
        args=dict(step.args),
        args_abi="0x" + step.args_abi.hex(),
        integrity=step.artifact.integrity,
        initcode_hash=step.initcode_hash,
    )
