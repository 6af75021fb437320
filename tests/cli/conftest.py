"""A served devnet with the contracts on it, a small run, and the command run in this process."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog

from earnest.cli import main
from earnest.cli.environment import Environment
from earnest.cli.settings import Settings
from earnest.client.chain.signer import import_key
from earnest.deploy.devnet.chain import Devnet, account
from earnest.deploy.devnet.server import serve

SEED = b"cli tests"
PASSWORD = "a good password"
BEAT_S = 0.05
COIN = 10**18
ROLES = ("sponsor", "trainer", "validator", "stranger", "latecomer", "operator", "newcomer")
ADDRESS = {role: account(SEED, index).address for index, role in enumerate(ROLES)}

RUN_FILE = """
rounds = 4
start_in_s = 5_000_000
trainers = 4
validators = 2
[pool]
trainer = "40"
validator = 12
[bond]
trainer = "100"
validator = "1000"
[windows]
commit_s = 1800
reveal_s = 300
report_commit_s = 900
report_reveal_s = 300
settle_s = 900
contest_s = 900
exit_delay_s = 172800
[admission]
open_trainers = true
validators = ["{validator}"]
[recipe]
task = "earnest.training.tasks.shakespeare:Shakespeare"
[recipe.task_options]
layers = 1
width = 8
context = 8
[recipe.inner]
steps = 2
batch = 4
[recipe.scoring]
held_out = 8
own = 8
""".format(**ADDRESS)


@dataclass
class Result:
    """What a command line came to. `document` is all of stdout, read as one JSON document."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        return self.document["error"]


def quick(seconds: float) -> None:
    """Sleeps as long as a block takes, whatever was asked."""
    time.sleep(min(seconds, BEAT_S))


def stopped() -> threading.Event:
    """A stop that was asked for before anything began."""
    event = threading.Event()
    event.set()
    return event


@dataclass(frozen=True)
class TestEnvironment(Environment):
    """The machine as tests have it: no waiting, and whatever serves stops at once."""

    __test__ = False
    sleep: Callable[[float], None] = quick
    make_stop: Callable[[], threading.Event] = stopped
    present: bool = False
    """Whether somebody is there to be asked."""

    @property
    def interactive(self) -> bool:
        return self.present


@dataclass
class Place:
    """The served chain, and the files that the commands use."""

    devnet: Devnet
    url: str
    folder: Path
    run_file: Path = field(init=False)

    def __post_init__(self) -> None:
        self.run_file = self.folder / "run.toml"
        self.run_file.write_text(RUN_FILE)
        (self.folder / "password").write_text(PASSWORD + "\n")
        for index, role in enumerate(ROLES):
            if not self.key(role).exists():
                import_key(self.key(role), PASSWORD, bytes(account(SEED, index).key), scrypt_n=2)

    def key(self, role: str) -> Path:
        return self.folder / "keystores" / f"{role}.json"

    def reading(self, url: str | None = None) -> list[str]:
        """Flags of a command that only reads the chain."""
        return ["--rpc", url or self.url, "--data-dir", str(self.folder / "data")]

    def acting(self, role: str, url: str | None = None) -> list[str]:
        """Flags of a command that speaks for the role's key."""
        key = ["--keystore", str(self.key(role)), "--password-file", str(self.folder / "password")]
        return [*self.reading(url), *key]


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command sends the process's logs to its own stderr; the next test has another one."""
    yield
    structlog.reset_defaults()
    logging.basicConfig(force=True)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment and a working folder without any of our settings."""
    monkeypatch.chdir(tmp_path)
    for name in [*Settings.model_fields, "rpc_devnet", "rpc_sepolia"]:
        monkeypatch.delenv(f"EARNEST_{name.upper()}", raising=False)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A chain without our contracts."""
    yield from _served(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def place(deployed: tuple[Place, int], tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The deployed chain as it was at first, with files of its own: modules do not see what others did."""
    original, snapshot = deployed
    original.devnet.revert(snapshot)
    folder = tmp_path_factory.mktemp("place") / "files"
    shutil.copytree(original.folder, folder)
    return Place(original.devnet, original.url, folder)


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, int]]:
    """A chain with the contracts, where everyone but stranger and operator has 10,000 tokens, and its snapshot.

    Run 1 is open and starts in the far future.
    """
    for served in _served(tmp_path_factory.mktemp("deployed")):
        _must(["deploy", "run", *served.acting("sponsor")])
        for role in ("sponsor", "trainer", "validator", "latecomer", "newcomer"):
            _must(["token", "mint", "10000", "--to", ADDRESS[role], *served.acting("sponsor")])
        _must(["run", "create", str(served.run_file), *served.acting("sponsor")])
        yield served, served.devnet.snapshot()


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs a command line in this process."""

    def run(*argv: str, environment: Environment | None = None) -> Result:
        capfd.readouterr()
        code = main(argv, environment or TestEnvironment())
        out, err = capfd.readouterr()
        return Result(int(code), out, err)

    return run


def _served(folder: Path) -> Iterator[Place]:
    devnet = Devnet({ADDRESS[role]: 100 * COIN for role in ROLES if role != "stranger"})
    with serve(devnet, port=0, block_time_s=BEAT_S, clock=time.time) as server:
        yield Place(devnet, server.url, folder)


def _must(argv: list[str]) -> None:
    assert main(argv, TestEnvironment()) == 0, argv
