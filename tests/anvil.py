"""Starts anvil, if it is installed, with the rules of Osaka, which include the P-256 precompile."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

HARDFORK = "osaka"
KEY = bytes.fromhex("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80")
"""The first account of anvil's published test mnemonic: funded there, worth nothing anywhere."""

_MODULES = Path(__file__).parents[1] / "node_modules/.bin"
_PATIENCE_S = 240.0


def search_path() -> str:
    """Where anvil is looked for."""
    return f"{os.environ.get('PATH', '')}:{_MODULES}"


def anvil_path() -> str:
    """Where anvil is. Skips the test where it is not installed, except in CI."""
    found = shutil.which("anvil", path=search_path())
    if found is None and os.environ.get("CI") == "true":
        pytest.fail("CI has to test against anvil: npm install @foundry-rs/anvil")
    return found or pytest.skip("anvil is not installed: npm install --no-save @foundry-rs/anvil")


def anvil_command(port: int, *options: str) -> list[str]:
    """What starts one. Skips as `anvil_path` does."""
    return [anvil_path(), "--port", str(port), "--hardfork", HARDFORK, "--silent", *options]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def anvil(*options: str) -> Iterator[str]:
    """The URL of one that mines a block for each transaction. Ends with it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(anvil_command(port, *options), stdout=subprocess.DEVNULL)
    try:
        _wait_for(process, url)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(process: subprocess.Popen[bytes], url: str) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    question = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
    while True:
        assert process.poll() is None, f"anvil ended with {process.returncode}"
        try:
            requests.post(url, json=question, timeout=1).raise_for_status()
            return
        except requests.ConnectionError:
            assert time.monotonic() < give_up, "anvil does not answer"
            time.sleep(0.05)
