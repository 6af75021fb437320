"""The contracts' build artifacts, as `earnest.deploy.compile` wrote them and CI reproduces them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

if __name__ != "earnest.contracts":  # one import path: docs/decisions/import-path.md
    raise ImportError("contracts is imported as earnest.contracts")


_FOLDER = files(__name__) / "artifacts"
ARTIFACTS = tuple(sorted(f.name.removesuffix(".json") for f in _FOLDER.iterdir() if f.name.endswith(".json")))


@dataclass(frozen=True)
class Artifact:
    """One compiled contract. On chain, the immutables follow `runtime`, at the positions in `layout`."""

    name: str
    abi: list[dict[str, Any]]
    bytecode: bytes  # creation code, without constructor arguments
    runtime: bytes
    compiler: dict[str, Any]  # version, evm, settings
    integrity: str  # Vyper's hash over sources and settings, hex
    layout: dict[str, Any]  # storage_layout, code_layout (immutables: byte offset, length), transient


def load_artifact(name: str) -> Artifact:
    """Returns the artifact of a contract, e.g. `StakeVault`. Raises LookupError for a name not in `ARTIFACTS`."""
    if name not in ARTIFACTS:
        raise LookupError(f"no artifact {name}; there are {', '.join(ARTIFACTS)}")
    fields = json.loads((_FOLDER / f"{name}.json").read_text())
    for key in ("bytecode", "runtime"):
        fields[key] = bytes.fromhex(fields[key].removeprefix("0x"))
    return Artifact(**fields)
