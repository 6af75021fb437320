"""The command as a separate process: what it prints while it serves, and how signals end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import BEAT_S, Place, Result, TestEnvironment

Cli = Callable[..., Result]
PATIENCE_S = 240.0


@contextmanager
def process(folder: Path, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """The command line running on its own, its streams in files `out` and `err` of the folder."""
    folder.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EARNEST_")}
    command = [sys.executable, "-m", "earnest.cli", *argv]
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        started = subprocess.Popen(command, stdout=out, stderr=err, cwd=folder, env=environment, text=True)
        try:
            yield started
        finally:
            started.kill()
            started.wait()


def wait_for(what: Callable[[], bool], told: Path) -> None:
    """Waits until it is so; shows what the process said otherwise."""
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, told.read_text()
        time.sleep(0.05)


def whole(path: Path) -> bool:
    """Whether the file holds one JSON document."""
    try:
        return isinstance(json.loads(path.read_text()), dict)
    except (OSError, ValueError):
        return False


def test_devnet_prints_its_document_serves_and_ends_at_sigterm(
    tmp_path: Path, cli: Cli, place: Place
) -> None:
    folder = tmp_path / "devnet"
    with process(
        folder, "devnet", "--port", "0", "--block-time", "0.1", "--accounts", "1", "--json"
    ) as served:
        wait_for(lambda: whole(folder / "out"), folder / "err")
        url = json.loads((folder / "out").read_text())["url"]
        flags = ["--rpc", url, "--keystore", str(place.key("trainer"))]
        planned = cli("deploy", "plan", *flags, "--data-dir", str(tmp_path / "data"), "--json")
        assert planned.document["chain_id"] == 1337
        served.send_signal(signal.SIGTERM)
        assert served.wait(PATIENCE_S) == 0
    assert whole(folder / "out")


def test_two_nodes_with_one_key_and_a_node_that_is_killed(place: Place, tmp_path: Path, cli: Cli) -> None:
    assert cli("run", "join", "1", "--role", "trainer", *place.acting("trainer")).code == 0
    start = ["trainer", "start", "1", "--serve", "127.0.0.1:0", *place.acting("trainer"), "--json"]
    first, second = tmp_path / "first", tmp_path / "second"
    with process(first, *start) as node:
        wait_for(lambda: "round 0 starts in" in (first / "err").read_text(), first / "err")
        elsewhere = [str(tmp_path / "data") if flag.endswith("/data") else flag for flag in start]
        manifest = ["--manifest", str(place.folder / "data/manifests/devnet.json")]
        with process(second, *elsewhere, *manifest) as rival:
            assert rival.wait(PATIENCE_S) == 5
        error = json.loads((second / "out").read_text())["error"]
        assert error["code"] == "journal_locked"
        assert f"process {node.pid}" in error["cause"]
        node.send_signal(signal.SIGKILL)
        node.wait(PATIENCE_S)
    assert (first / "out").read_text() == ""
    with process(first, *start) as node:
        wait_for(lambda: "at work" in (first / "err").read_text(), first / "err")
        node.send_signal(signal.SIGTERM)
        assert node.wait(PATIENCE_S) == 0
    assert json.loads((first / "out").read_text())["finished"] is False
    assert "Traceback" not in (first / "err").read_text()


@pytest.mark.parametrize("naps", range(1, 5))
def test_an_interrupted_command_deposits_once_when_repeated(naps: int, place: Place, cli: Cli) -> None:
    def idle() -> int:
        return int(cli("stake", "show", *place.acting("validator"), "--json").document["idle"])

    left = iter(range(1, naps))

    def interrupt(seconds: float) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        time.sleep(BEAT_S)

    before = idle()
    command = ["stake", "deposit", "1", *place.acting("validator"), "--json"]
    result = cli(*command, environment=TestEnvironment(sleep=interrupt))
    if result.code == 0:
        return
    assert result.code == 130
    assert result.error["code"] == "interrupted"
    assert "continues where it stopped" in result.error["fix"]
    again = cli(*command)
    assert again.code == 0, again
    assert again.document["transactions"][-1]["step"] == "deposit"
    assert idle() == before + 1
