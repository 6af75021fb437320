"""The node's side of a parallel trainer: starts torchrun, gives the processes their rounds, notices when they die.

The node is not one of the processes: whatever happens to them, it lives, commits what it has and starts them anew.
A round is a function of what the node sends (state, ids, optimizer state), so one that was broken off is simply done
again, to the same bits.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from torch import Tensor

from earnest.base.errors import EarnestError
from earnest.protocol.recipe import Recipe
from earnest.training.diloco.engine import LocalRound, TrainerState, TrainingDiverged, TrainingStopped, never
from earnest.training.diloco.precision import DeviceError
from earnest.training.diloco.state import State
from earnest.training.parallel.frames import Disconnected, digest, receive_frame, send_frame
from earnest.training.parallel.layout import Layout, LayoutError
from earnest.training.tasks.task import TaskError, without_secrets

log = structlog.get_logger()

POLL_S = 0.2
GRACE_S = 15.0
SAID = {kind.__name__: kind for kind in (TrainingDiverged, LayoutError, TaskError, DeviceError)}


class WorkersFailed(EarnestError):
    """The processes of a parallel trainer died, or said nothing for too long; the next round starts new ones."""


@dataclass(frozen=True)
class Hosts:
    """Where the processes run: `here` on the node's host, the rest on others that dial `address`:`port`.

    With one host `here` is all. `address` is a name or IP of this host in the private network that the
    hosts share: what they say to each other is neither encrypted nor authenticated.
    """

    count: int = 1
    here: int = 0
    address: str = ""
    port: int = 29500


class ParallelTrainer:
    """The engine's LocalTrainer, done by `layout.processes` processes. Close it, or use it in a `with`.

    Processes are started by the first round, and again by the first round after they died. Several trainers (other
    recipes, other layouts of as many processes) may take turns on the same `processes`. When `stop()` comes true a
    round is given up after the step that it is in, and its processes are ended; once `late()` is true, it ends with
    the steps that it has, at least one. A trainer node says both for each of its rounds (`during`).
    """

    def __init__(
        self,
        recipe: Recipe,
        rounds: int,
        layout: Layout,
        processes: Processes | None = None,
        *,
        device: str = "auto",
        threads: int = 1,
        stop: Callable[[], bool] = never,
        late: Callable[[], bool] = never,
    ) -> None:
        if recipe.data == "private":
            raise LayoutError(
                "private data is handed to one process", "train runs with private data without a layout"
            )
        self.recipe, self.rounds, self.layout = recipe, rounds, layout
        self.processes = processes or Processes(Hosts(here=layout.processes))
        self._device, self._threads = device, threads
        self._stop, self._late = stop, late
        self._held: dict[str, bytes] = {}

    def __enter__(self) -> ParallelTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def train(self, state: State, ids: Sequence[int], round: int, memory: TrainerState) -> LocalRound:
        """As LocalTrainer.train. Raises WorkersFailed, TrainingStopped and what the processes say."""
        self._load(state)
        inner = {name: value for name, value in memory.inner.items() if not name.startswith("scaler/")}
        answer, tensors = self._do({"do": "train", "ids": list(ids), "round": round}, inner)
        gradient, inner = _folders(tensors, "gradient/", "inner/")
        memory.inner = inner
        return LocalRound(gradient, answer["losses"], len(answer["losses"]), answer["tokens"])

    def during(self, stop: Callable[[], bool], late: Callable[[], bool]) -> ParallelTrainer:
        """This trainer, with `stop` and `late` for the rounds to come, in place of those that it had."""
        self._stop, self._late = stop, late
        return self

    def advance(self, outer_gradient: Mapping[str, Tensor], lr: float, momentum: float) -> None:
        """Every stage takes the outer step on its own part of the state that it holds.

        Afterwards `train` with the state that follows sends nothing: the parts already are that state. What differs
        from it is sent, so nobody depends on this having been called.
        """
        answer, _ = self._do({"do": "outer", "lr": lr, "momentum": momentum}, outer_gradient)
        self._held = {name: bytes.fromhex(value) for name, value in answer["digests"].items()}

    def state(self) -> State:
        """The state that the stages hold, put together."""
        answer, tensors = self._do({"do": "read"})
        parameters, momentum = _folders(tensors, "parameter/", "momentum/")
        return State(parameters, momentum, float.fromhex(answer["clip_norm"]))

    def close(self) -> None:
        """Ends the processes."""
        self.processes.close()

    def _load(self, state: State) -> None:
        """Sends what the processes do not hold of `state` yet."""
        self._begin()
        wanted = {name: digest(value, state.momentum[name]) for name, value in state.parameters.items()}
        missing = [name for name, value in wanted.items() if self._held.get(name) != value]
        tensors = {f"{name}/parameter": state.parameters[name] for name in missing}
        tensors |= {f"{name}/momentum": state.momentum[name] for name in missing}
        log.debug("state handed to the stages", tensors=len(missing))
        self._do({"do": "load", "clip_norm": state.clip_norm.hex()}, tensors)
        self._held = wanted

    def _begin(self) -> None:
        """Has the processes serve this trainer, new ones if need be. Nobody holds any state then."""
        if self.processes.serving is self:
            return
        self._held, self.processes.serving = {}, None
        command = {
            "do": "begin",
            "recipe": self.recipe.to_json().decode(),
            "layout": str(self.layout),
            "rounds": self.rounds,
            "device": self._device,
            "threads": self._threads,
        }
        self.processes.ask(command, None, self._stop)
        self.processes.serving = self
        log.info("processes ready", layout=str(self.layout), processes=self.layout.processes)

    def _do(
        self, command: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        self._begin()
        return self.processes.ask(command, tensors, self._stop, self._late)


class Processes:
    """As many processes as `hosts` says, started when they are needed, and again after they died.

    `timeout_s`: a process that says nothing for so long is dead; it must exceed the slowest step. `start_s`: how long
    they may take to come together, on all hosts. `serving`: whom they do rounds for, None after they were started.
    """

    def __init__(self, hosts: Hosts, timeout_s: float = 300.0, start_s: float = 600.0) -> None:
        self.hosts, self.timeout_s, self.start_s = hosts, timeout_s, start_s
        self.serving: object = None
        self._crew: _Crew | None = None

    @property
    def pids(self) -> list[int]:
        """The processes on this host, in the order of their ranks; none before they are needed."""
        return list(self._crew.pids) if self._crew else []

    def ask(
        self,
        command: Mapping[str, Any],
        tensors: Mapping[str, Tensor] | None = None,
        stop: Callable[[], bool] = never,
        late: Callable[[], bool] = never,
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One command and its answer. Raises what the processes say, WorkersFailed where they cannot say anything.

        Raises TrainingStopped when `stop()` comes true before the answer is there. Once `late()` is true, a round ends
        with the steps that it has.
        """
        try:
            self._crew = self._crew or _Crew(self.hosts, self.timeout_s, self.start_s, stop)
            answer, back = self._crew.ask(command, tensors, stop, late)
        except BaseException:
            self.close()
            raise
        if "error" in answer:
            raise SAID.get(answer["error"], EarnestError)(answer["cause"], answer["fix"])
        return answer, back

    def close(self) -> None:
        """Ends the processes."""
        if self._crew:
            self._crew.close()
        self._crew = self.serving = None


class _Crew:
    """One torchrun and the socket to its first process."""

    def __init__(self, hosts: Hosts, timeout_s: float, start_s: float, stop: Callable[[], bool]) -> None:
        self.pids: list[int] = []
        self._timeout_s = timeout_s
        self._folder = Path(tempfile.mkdtemp(prefix="earnest-"))  # only this user can enter it
        self._log = self._folder / "log"
        path = str(self._folder / "socket")
        self._socket: socket.socket | None = None
        self._torchrun: subprocess.Popen[bytes] | None = None
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(path)
            listening.listen(1)
            listening.settimeout(POLL_S)
            self._torchrun = self._start(hosts, path)
            self._socket = self._accept(listening, start_s, stop)
        except BaseException:
            self.close()
            raise
        finally:
            listening.close()

    def ask(
        self,
        command: Mapping[str, Any],
        tensors: Mapping[str, Tensor] | None,
        stop: Callable[[], bool],
        late: Callable[[], bool],
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Raises WorkersFailed when the processes are gone, or silent for longer than the timeout."""
        assert self._socket is not None
        try:
            self._socket.settimeout(self._timeout_s)
            send_frame(self._socket, command, tensors)
            hurried = False
            while True:
                answer, back = receive_frame(self._socket)
                if "progress" not in answer:
                    return answer, back
                if stop():
                    raise TrainingStopped("the round was given up", "start the node again")
                if not hurried and late():
                    hurried = True
                    send_frame(self._socket, {"hurry": True})
        except TimeoutError as error:
            raise self._failed(f"said nothing for {self._timeout_s:.0f} s") from error
        except Disconnected as error:
            self._wait(GRACE_S)
            raise self._failed("died") from error

    def close(self) -> None:
        """Ends every process that this crew started here, those that do not listen included."""
        if self._socket:
            self._socket.close()
        if self._torchrun and self._running():
            for pid in self.pids:
                _kill(pid)  # they have nothing to save, and one that is stuck would not hear a request
            self._torchrun.terminate()
            self._wait(GRACE_S)
        if self._torchrun and self._running():
            self._torchrun.kill()
            self._wait(GRACE_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, hosts: Hosts, path: str) -> subprocess.Popen[bytes]:
        place = ["--standalone"]
        if hosts.count > 1:
            place = ["--nnodes", str(hosts.count), "--node-rank", "0"]
            place += ["--master-addr", hosts.address, "--master-port", str(hosts.port)]
        run = [sys.executable, "-m", "torch.distributed.run", *place, "--nproc-per-node", str(hosts.here)]
        worker = ["-m", "earnest.training.parallel", "--socket", path, "--timeout", str(self._timeout_s)]
        with self._log.open("wb") as output:
            return subprocess.Popen(  # noqa: S603 - our own interpreter, no shell, no password
                [*run, *worker],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=without_secrets(os.environ),
            )

    def _accept(self, listening: socket.socket, start_s: float, stop: Callable[[], bool]) -> socket.socket:
        for _ in range(math.ceil(start_s / POLL_S)):
            if stop():
                raise TrainingStopped("the processes are no longer wanted", "start the node again")
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                if not self._running():
                    raise self._failed("died before they began") from None
                continue
            connection.settimeout(start_s)
            hello, _ = receive_frame(connection)
            self.pids = hello["pids"]
            return connection
        raise self._failed(f"did not come together within {start_s:.0f} s")

    def _running(self) -> bool:
        return self._torchrun is not None and self._torchrun.poll() is None

    def _wait(self, seconds: float) -> None:
        """Gives torchrun so long to end by itself."""
        if self._torchrun:
            with suppress(subprocess.TimeoutExpired):
                self._torchrun.wait(seconds)

    def _failed(self, how: str) -> WorkersFailed:
        said = _tail(self._log)
        log.error("the trainer's processes failed", how=how, log=said)
        reason = _reason(said)
        return WorkersFailed(
            f"the trainer's processes {how}{': ' + reason if reason else ''}",
            "look at the log of the node; the next round starts new ones",
        )


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _tail(path: Path, size: int = 8_000) -> str:
    """The end of a log, as far as there is one."""
    try:
        return path.read_bytes()[-size:].decode(errors="replace")
    except OSError:
        return ""


def _reason(text: str) -> str:
    """Which process ended first and why, out of torchrun's summary and what the process last said."""
    found = re.search(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", text, re.DOTALL)
    if not found:
        return ""
    said = re.findall(rf"^\[rank{found[1]}\]: (\w[\w.]*(?:Error|Exception): .*)$", text, re.MULTILINE)
    return f"process {found[1]} ended with code {found[2]}" + (f", {said[-1][:200]}" if said else "")


def _folders(tensors: Mapping[str, Tensor], *folders: str) -> Iterator[dict[str, Tensor]]:
    """For each folder its tensors, by their names in it."""
    for folder in folders:
        yield {name[len(folder) :]: value for name, value in tensors.items() if name.startswith(folder)}
