"""The manifest: the record of a network's deployments, one JSON file per network, kept in version control.

It is written before the first transaction and after every contract. An interrupted deployment continues from it, and
`verify` needs nothing else. Its history only grows.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from earnest.base.errors import EarnestError
from earnest.base.strict_json import JsonError, read_json
from earnest.deploy.plan import DeploymentPlan, PlannedContract, make_plan

SCHEMA = 1


class ManifestError(EarnestError):
    """A manifest is missing, broken, or of another deployment."""


class ContractRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One contract in a manifest. `tx`, `block` and `runtime_hash` are None until the contract is on the chain."""

    address: str
    tx: str | None = None
    block: int | None = None
    deployer: str
    nonce: int
    salt: str | None = None  # reserved for CREATE2
    args: dict[str, str]
    args_abi: str
    integrity: str  # Vyper's hash of sources and settings
    initcode_hash: str
    runtime_hash: str | None = None  # of the code on chain, immutables included
    verified: list[str] = []  # explorers that show its source


class DeploymentRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One set of contracts that were deployed together."""

    git: str
    compiler: str
    evm: str
    contracts: dict[str, ContractRecord]

    @property
    def complete(self) -> bool:
        return all(contract.runtime_hash is not None for contract in self.contracts.values())


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A network's current deployment and the earlier ones, newest first."""

    schema: int = SCHEMA
    network: str
    chain_id: int
    current: DeploymentRecord
    history: list[DeploymentRecord] = []

    def address(self, name: str) -> str:
        """Returns a contract's address; for `Token`, the vault's token. Raises ManifestError for an unknown name."""
        contracts = self.current.contracts
        if name == "Token":
            return contracts["StakeVault"].args["token"]
        if name not in contracts:
            raise ManifestError(
                f"there is no {name} on {self.network}", f"choose one of {', '.join(contracts)}"
            )
        return contracts[name].address

    @property
    def first_block(self) -> int:
        """Number of the block that created the first contract. Event scans start there."""
        return min((c.block for c in self.current.contracts.values() if c.block is not None), default=0)


def manifest_of_plan(
    plan: DeploymentPlan, network: str, git: str, previous: Manifest | None = None
) -> Manifest:
    """Returns the manifest of a plan before any transaction. The previous deployment becomes history."""
    compiler = plan.contracts[0].artifact.compiler
    contracts = {planned.name: _record(planned, plan.deployer) for planned in plan.contracts}
    current = DeploymentRecord(
        git=git, compiler=compiler["version"], evm=compiler["evm"], contracts=contracts
    )
    history = [] if previous is None else [previous.current, *previous.history]
    return Manifest(network=network, chain_id=plan.chain_id, current=current, history=history)


def plan_of_manifest(manifest: Manifest) -> DeploymentPlan:
    """Recomputes the plan from the manifest's deployer, first nonce, token and sink, with the installed artifacts."""
    contracts = manifest.current.contracts
    first = min(contracts.values(), key=lambda contract: contract.nonce)
    vault = contracts["StakeVault"].args
    token = None if "PlayToken" in contracts else vault["token"]
    return make_plan(manifest.chain_id, first.deployer, first.nonce, token, vault["sink"])


def with_code_on_chain(
    manifest: Manifest, name: str, code_hash: str, tx: str | None, block: int | None
) -> Manifest:
    """Returns the manifest with one contract marked as created."""
    contracts = dict(manifest.current.contracts)
    contracts[name] = msgspec.structs.replace(contracts[name], runtime_hash=code_hash, tx=tx, block=block)
    return msgspec.structs.replace(
        manifest, current=msgspec.structs.replace(manifest.current, contracts=contracts)
    )


def load_manifest(path: Path) -> Manifest:
    """Reads a manifest. Raises ManifestError for a file that is missing, malformed or of another schema."""
    try:
        manifest = msgspec.convert(read_json(path.read_bytes()), Manifest)
    except FileNotFoundError:
        raise ManifestError(
            f"there is no manifest {path}", "deploy first: `earnest deploy run`, or give the right --manifest"
        ) from None
    except (JsonError, msgspec.MsgspecError) as error:
        raise ManifestError(f"{path} is not a manifest: {error}", "restore it from version control") from None
    if manifest.schema != SCHEMA:
        raise ManifestError(f"{path} has schema {manifest.schema}, not {SCHEMA}", "update earnest")
    return manifest


def save_manifest(path: Path, manifest: Manifest) -> None:
    """Writes the manifest atomically: a crash leaves the old file or the new one."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    with part.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _record(planned: PlannedContract, deployer: str) -> ContractRecord:
    return ContractRecord(
        address=planned.address,
        deployer=deployer,
        nonce=planned.nonce,
        args=dict(planned.args),
        args_abi="0x" + planned.args_abi.hex(),
        integrity=planned.artifact.integrity,
        initcode_hash=planned.initcode_hash,
    )
