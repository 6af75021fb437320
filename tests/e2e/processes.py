"""Real processes for the end-to-end tests: a chain, its accounts, and access to what the chain records.

Windows are long enough for any machine; the chain's clock is moved on once everything that a window is for has
happened, so that nobody waits for time to pass. Everything else is as in the wild: blocks come by themselves.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from eth_hash.auto import keccak

from earnest.cli import main
from earnest.client.account.account import DeployedContracts
from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.contracts import Contracts
from earnest.client.chain.endpoints import Chain
from earnest.client.chain.scanner import Event
from earnest.client.chain.signer import Signer, import_key
from earnest.client.run.record import RunRecord
from earnest.deploy.devnet.chain import account
from earnest.deploy.manifest import load_manifest
from tests.anvil import KEY as ANVIL_KEY
from tests.anvil import anvil_command, free_port

ROOT = Path(__file__).parents[2]
PASSWORD = "a good password"
PATIENCE_S = 1_200.0  # ends a test that hangs; on a slow machine everything takes longer
GWEI, COIN = 10**9, 10**18


def wait_until(so: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """Waits until it is so; fails with `what` was waited for."""
    give_up = time.monotonic() + within_s
    while not so():
        assert time.monotonic() < give_up, f"waited {within_s:g} s in vain until {what}"
        time.sleep(0.1)


_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["earnest.cli.commands.run", "earnest.cli.commands.keys", "torch"])


def _run_earnest(argv: list[str], out: Path, err: Path, environment: Mapping[str, str]) -> None:
    """Becomes the command `earnest ...` in a forked process: folder, environment and streams as a shell sets them."""
    os.setsid()
    os.chdir(out.parent)
    os.environ.clear()
    os.environ.update(environment)
    for path, stream in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.exit(main(argv))


def run_in_fork(
    name: str, folder: Path, argv: list[str], environment: Mapping[str, str]
) -> tuple[int, str, str]:
    """Runs `earnest ...` to its end in a process forked from one that has imported it; exit code, stdout, stderr.

    Importing web3 and torch takes a command six seconds of computing, the command itself a fraction of one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    process = _forks.Process(target=_run_earnest, args=(argv, out, err, dict(environment)))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode, out.read_text(), err.read_text()


class Process:
    """A process in a group of its own; its streams are files, so that they outlive it."""

    def __init__(self, name: str, folder: Path, command: list[str], environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self._popen = subprocess.Popen(
                command, stdout=out, stderr=err, cwd=folder, env=dict(environment), start_new_session=True
            )

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def document(self) -> dict[str, Any]:
        """The one document on stdout; waits for it while the process lives."""
        wait_until(lambda: self.out.endswith("}\n") or not self.running, f"{self.name} says something")
        return json.loads(self.out)

    def says(self, text: str) -> None:
        """Waits until the process has said this on stderr."""
        wait_until(lambda: text in self.err or not self.running, f"{self.name} says {text!r}")
        assert text in self.err, f"{self.name} ended without saying {text!r}:\n{self.err}"

    def kill(self) -> None:
        """SIGKILL to the whole group: nothing is flushed, nothing is said."""
        if self.running:
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()

    def stop(self) -> int:
        """SIGTERM, as an operator would; the exit code."""
        self._popen.terminate()
        return self.ended()

    def ended(self) -> int:
        """Waits for the end; the exit code."""
        return self._popen.wait(PATIENCE_S)


@dataclass
class Actor:
    """Somebody with a key file, a data folder and an address to serve on.

    Nodes are started as a shell would start them, commands in forked processes.
    """

    name: str
    folder: Path
    environment: dict[str, str]
    start: Callable[..., Process]
    address: str = ""
    runs: int = field(default=0)

    def spawn(self, *argv: str, **settings: str) -> Process:
        """Starts `earnest ...`; `settings` are EARNEST_* variables in lower case."""
        command = [sys.executable, "-m", "earnest.cli", *argv, "--json"]
        return self.start(self._next(argv), self.folder, command, self._with(settings))

    def earnest(self, *argv: str, code: int = 0, **settings: str) -> dict[str, Any]:
        """Runs a command to its end; its document. Fails unless it exits with `code`."""
        ended, out, err = run_in_fork(self._next(argv), self.folder, [*argv, "--json"], self._with(settings))
        assert ended == code, f"earnest {' '.join(argv)}:\n{out}{err}"
        return json.loads(out)

    def _next(self, argv: Sequence[str]) -> str:
        """A name for the streams of the next command."""
        self.runs += 1
        return f"{self.name}-{self.runs}-{'-'.join(argv[:2])}"

    def _with(self, settings: Mapping[str, str]) -> dict[str, str]:
        return self.environment | {f"EARNEST_{key.upper()}": value for key, value in settings.items()}


@dataclass
class Town:
    """A chain as a process, and everybody's processes; all of them end with it."""

    folder: Path
    network: str
    url: str = ""
    processes: list[Process] = field(default_factory=list)

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.json"

    @property
    def chain_id(self) -> int:
        return {"devnet": 1337, "anvil": 31337}[self.network]

    @property
    def sponsor_key(self) -> bytes:
        """Of the account that has the chain's coins."""
        return ANVIL_KEY if self.network == "anvil" else bytes(account(b"devnet", 0).key)

    def start(self, name: str, folder: Path, command: list[str], environment: Mapping[str, str]) -> Process:
        process = Process(name, folder, command, environment)
        self.processes.append(process)
        return process

    def actor(self, name: str, url: str | None = None) -> Actor:
        """Somebody new, without a key so far. `url` is the endpoint, if not the chain's own."""
        folder = self.folder / name
        password = self.folder / "password"
        password.write_text(PASSWORD)
        settings = {
            "network": self.network,
            "rpc": url or self.url,
            "manifest": str(self.manifest),
            "data_dir": str(folder / "data"),
            "password_file": str(password),
        }
        plain = {key: value for key, value in os.environ.items() if not key.startswith("EARNEST_")}
        ours = {f"EARNEST_{key.upper()}": value for key, value in settings.items()}
        return Actor(name, folder, plain | ours, self.start)

    def resident(self, name: str, url: str | None = None) -> Actor:
        """Somebody with a key of its own, weakly encrypted so that it opens fast, who serves on a free port."""
        found = self.actor(name, url)
        key_file = found.folder / "data/keys/mine.json"
        found.address = import_key(key_file, PASSWORD, keccak(name.encode()), scrypt_n=2).address
        found.environment["EARNEST_SERVE"] = f"127.0.0.1:{free_port()}"
        return found

    def sponsor(self) -> Actor:
        """Whoever has the chain's coins: deploys, mints, opens runs. Its key is public, so it is easy to open."""
        found = self.actor("sponsor")
        key_file = found.folder / "data/keys/mine.json"
        found.address = import_key(key_file, PASSWORD, self.sponsor_key, scrypt_n=2).address
        return found

    def ask(self, method: str, *params: Any) -> Any:
        """A raw JSON-RPC request."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = requests.post(self.url, json=body, timeout=30).json()
        assert "error" not in answer, answer
        return answer["result"]

    def send(self, transfers: Sequence[tuple[str, int, bytes]]) -> None:
        """Sends (to, coins in wei, data) from the sponsor's account, all at once; waits until all are mined."""
        signer = Signer(self.sponsor_key)
        nonce = self.nonce(signer.address)
        plain = {"type": 2, "chainId": self.chain_id, "gas": 100_000}
        fees = {"maxFeePerGas": 10 * GWEI, "maxPriorityFeePerGas": GWEI}
        for to, value, data in transfers:
            signed = signer.sign({**plain, **fees, "nonce": nonce, "to": to, "value": value, "data": data})
            self.ask("eth_sendRawTransaction", "0x" + signed.raw.hex())
            nonce += 1
        wait_until(lambda: self.nonce(signer.address) == nonce, "the sponsor's transfers are mined")

    def deployment(self) -> DeployedContracts:
        """The contracts that the sponsor has deployed."""
        manifest, chain = load_manifest(self.manifest), Chain([self.url], self.chain_id)
        contracts = Contracts.at(chain, manifest.address("TrainingRuns"), chain.head())
        return DeployedContracts(chain, contracts, manifest.first_block)

    def nonce(self, address: str) -> int:
        """Transactions of the account that are mined."""
        return int(self.ask("eth_getTransactionCount", address, "latest"), 16)

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()

    def logs(self, lines: int = 60) -> str:
        """The ends of what the processes said on stderr."""
        tails = ((process.name, process.err.splitlines()[-lines:]) for process in self.processes)
        return "\n".join(f"--- {name}\n" + "\n".join(tail) for name, tail in tails if tail)


@contextmanager
def town(folder: Path, network: str, block_time_s: float) -> Iterator[Town]:
    """A chain that mines by itself; with it all processes end."""
    made = Town(folder, network)
    try:
        (_start_anvil if network == "anvil" else _start_devnet)(made, block_time_s)
        yield made
    finally:
        made.close()


def _start_devnet(made: Town, block_time_s: float) -> None:
    keeper = made.actor("chain", "http://127.0.0.1:9")
    served = keeper.spawn("devnet", "--port", "0", "--block-time", str(block_time_s), "--accounts", "1")
    made.url = served.document["url"]


def _start_anvil(made: Town, block_time_s: float) -> None:
    port = free_port()
    made.url = f"http://127.0.0.1:{port}"
    command = anvil_command(port, "--block-time", f"{block_time_s:g}")
    anvil = made.start("anvil", made.folder, command, os.environ)

    def answers() -> bool:
        assert anvil.running, anvil.err
        try:
            return made.ask("eth_chainId") == hex(made.chain_id)
        except requests.ConnectionError:
            return False

    wait_until(answers, "anvil answers")


class Watch:
    """One run as the chain tells it. `until` looks until something is so; `jump` moves the chain's clock."""

    def __init__(self, town: Town, run: int) -> None:
        self.town, self.deployment = town, town.deployment()
        self.record = RunRecord(run)
        self._scanner = self.deployment.scanner()
        self.look()

    @property
    def contracts(self) -> Contracts:
        return self.deployment.contracts

    def look(self) -> BlockRef:
        """Reads on; the newest block."""
        head = self.deployment.chain.head()
        self.record.apply(self._scanner.poll(head))
        return head

    def until(self, so: Callable[[RunRecord], bool], what: str) -> BlockRef:
        """Looks until it is so; the block at which it was."""
        head = self.look()

        def now() -> bool:
            nonlocal head
            head = self.look()
            return so(self.record)

        wait_until(now, what)
        return head

    def jump(self, to: int) -> None:
        """Moves the chain's clock on to `to` (unix seconds), and waits for the block that has it."""
        ahead = to - self.look().time
        if ahead > 0:
            self.town.ask("evm_increaseTime", ahead)
        wait_until(lambda: self.look().time >= to, f"the chain's clock is {to}")

    def events(self, name: str, **args: Any) -> list[Event]:
        """The run's events of this name with these arguments."""
        named = (event for event in self.record.events if event.name == name)
        return [event for event in named if args.items() <= event.args.items()]

    def time_of(self, block: int) -> int:
        return self.deployment.chain.block(block).time
