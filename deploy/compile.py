"""Compiles the contracts into `contracts/artifacts/`, with the same bytes on every machine.

python -m earnest.deploy.compile            write the artifacts
python -m earnest.deploy.compile --check    fail if they differ from the sources, or are too large for a chain
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import vyper
from vyper.compiler import compile_from_file_input
from vyper.compiler.input_bundle import FilesystemInputBundle
from vyper.exceptions import VyperException

import earnest.contracts

RUNTIME_LIMIT = 24_576  # bytes, EIP-170
COMPILER = "0.4.3"
FORMATS = ["abi", "bytecode", "bytecode_runtime", "layout", "integrity", "settings_dict"]


def sources(contracts: Path) -> Iterator[Path]:
    """Yields every contract that can be deployed, relative to `contracts`."""
    yield from sorted(p.relative_to(contracts) for p in contracts.glob("[A-Z]*.vy"))


def compile_contract(contracts: Path, source: Path) -> dict[str, Any]:
    """Compiles one file with the settings of its pragmas. Raises vyper's VyperException."""
    bundle = FilesystemInputBundle([contracts])
    file = bundle.load_file(source)
    out = compile_from_file_input(file, input_bundle=bundle, output_formats=FORMATS)  # pyright: ignore
    settings = out["settings_dict"]
    return {
        "name": source.stem,
        "compiler": {"version": vyper.__version__, "evm": settings.pop("evm_version"), "settings": settings},
        "integrity": out["integrity"],
        "layout": out["layout"],
        "abi": out["abi"],
        "bytecode": out["bytecode"],
        "runtime": out["bytecode_runtime"],
    }


def compile_all(contracts: Path) -> dict[str, dict[str, Any]]:
    """Compiles every deployable contract. Returns the artifacts by name. Raises vyper's VyperException."""
    return {source.stem: compile_contract(contracts, source) for source in sources(contracts)}


def runtime_size(artifact: dict[str, Any]) -> int:
    """Returns the size in bytes on the chain: the runtime code and the immutables behind it."""
    return len(artifact["runtime"]) // 2 - 1 + _immutables_size(artifact["layout"].get("code_layout", {}))


def _immutables_size(layout: dict[str, Any]) -> int:
    if isinstance(layout.get("length"), int):
        return layout["length"]
    return sum(_immutables_size(entry) for entry in layout.values())


def encode(artifact: dict[str, Any]) -> str:
    """Returns the text of the artifact's file."""
    return json.dumps(artifact, indent=1) + "\n"


def write(artifacts: dict[str, dict[str, Any]], folder: Path) -> None:
    """Writes these artifacts into `folder` and deletes all others there."""
    folder.mkdir(exist_ok=True)
    for name in _names(folder) - set(artifacts):
        (folder / f"{name}.json").unlink()
    for name, artifact in artifacts.items():
        (folder / f"{name}.json").write_text(encode(artifact))


def problems(artifacts: dict[str, dict[str, Any]], folder: Path) -> list[str]:
    """Lists the differences between `folder` and what was compiled, and contracts over the size limit."""
    lines = [f"{name}: no such contract; delete its artifact" for name in _names(folder) - set(artifacts)]
    for name, artifact in artifacts.items():
        path = folder / f"{name}.json"
        if not path.exists() or path.read_text() != encode(artifact):
            lines.append(
                f"{name}: differs from what the source compiles to; run python -m earnest.deploy.compile"
            )
        if (size := runtime_size(artifact)) >= RUNTIME_LIMIT:
            lines.append(f"{name}: {size} bytes on chain, the limit is {RUNTIME_LIMIT}; make it smaller")
    return lines


def _names(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.json")}


def main(arguments: Sequence[str]) -> int:
    """Writes or checks the artifacts and prints their sizes. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="earnest.deploy.compile", description="Compile the contracts.")
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    check = parser.parse_args(arguments).check
    if vyper.__version__ != COMPILER:
        print(f"vyper {vyper.__version__} is installed; install vyper=={COMPILER}", file=sys.stderr)
        return 1
    contracts = Path(earnest.contracts.__path__[0]).resolve()
    try:
        artifacts = compile_all(contracts)
    except VyperException as error:
        print(error, file=sys.stderr)
        return 1
    folder = contracts / "artifacts"
    if not check:
        write(artifacts, folder)
    for name, artifact in artifacts.items():
        print(f"{name:16} {runtime_size(artifact):6} of {RUNTIME_LIMIT} bytes")
    lines = problems(artifacts, folder)
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
