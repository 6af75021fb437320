"""The node's side of a parallel trainer: starts torchrun, sends rounds to the workers, detects when they die.

The node is not a worker: it survives them, and starts new ones. A round is a function of what the node sends
(parameters, ids, optimizer state), so an interrupted round is repeated with the same bits.
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
from collections.abc import Callable, Mapping, Sequence
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
from earnest.training.parallel.frames import (
    Disconnected,
    in_folder,
    out_of_folders,
    receive_frame,
    send_frame,
)
from earnest.training.parallel.layout import Layout, LayoutError
from earnest.training.tasks.task import TaskError, without_secrets

log = structlog.get_logger()

POLL_S = 0.2
GRACE_S = 15.0
"""Seconds for torchrun to end its workers."""

WORKER_ERRORS = {kind.__name__: kind for kind in (TrainingDiverged, LayoutError, TaskError, DeviceError)}


class WorkersFailed(EarnestError):
    """The workers of a parallel trainer died, or did not answer in time; the next round starts new ones."""


@dataclass(frozen=True)
class Rendezvous:
    """Number of hosts, workers on the node's own host, and where the workers of other hosts connect.

    `address`: a name or IP address of the node's host in a private network: torch's traffic between workers is neither
    encrypted nor authenticated. With one host, `address` and `port` are not used.
    """

    hosts: int = 1
    local_processes: int = 0
    address: str = ""
    port: int = 29500


class ParallelTrainer:
    """A LocalTrainer of `layout.processes` workers. Close it, or use it as a context manager.

    The first round starts the workers, and so does the first round after they died. Several trainers (other recipes,
    other layouts of as many processes) may take turns on the same `workers`. When `stop()` returns true, the round ends
    after the current step with TrainingStopped and the workers are ended; once `late()` returns true, it ends after the
    current step with the steps taken. A trainer node sets `stop` and `late` for each round with `during`.
    """

    def __init__(
        self,
        recipe: Recipe,
        rounds: int,
        layout: Layout,
        workers: WorkerGroup | None = None,
        *,
        device: str = "auto",
        threads: int = 1,
        stop: Callable[[], bool] = never,
        late: Callable[[], bool] = never,
    ) -> None:
        if recipe.data == "private":
            raise LayoutError(
                "private data is read by one process", "train runs with private data without a layout"
            )
        self.recipe, self.rounds, self.layout = recipe, rounds, layout
        self.workers = workers or WorkerGroup(Rendezvous(local_processes=layout.processes))
        self._device, self._threads = device, threads
        self._stop, self._late = stop, late

    def __enter__(self) -> ParallelTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def train(self, state: State, ids: Sequence[int], round: int, trainer_state: TrainerState) -> LocalRound:
        """Trains one round: see LocalTrainer. Raises WorkersFailed, TrainingStopped and the workers' own errors."""
        self._begin()
        inner = {name: value for name, value in trainer_state.inner.items() if not name.startswith("scaler/")}
        tensors = in_folder("parameter/", state.parameters) | in_folder("inner/", inner)
        command = {"do": "train", "ids": list(ids), "round": round}
        answer, results = self.workers.ask(command, tensors, self._stop, self._late)
        gradient, trainer_state.inner = out_of_folders(results, "gradient/", "inner/")
        return LocalRound(gradient, answer["losses"], len(answer["losses"]), answer["tokens"])

    def during(self, stop: Callable[[], bool], late: Callable[[], bool]) -> ParallelTrainer:
        """Replaces `stop` and `late` for the next rounds; returns this trainer."""
        self._stop, self._late = stop, late
        return self

    def close(self) -> None:
        """Ends the workers."""
        self.workers.close()

    def _begin(self) -> None:
        """Sends recipe and layout to the workers, starting them if needed, unless they already serve this trainer."""
        if self.workers.serving is self:
            return
        self.workers.serving = None
        command = {
            "do": "begin",
            "recipe": self.recipe.to_json().decode(),
            "layout": str(self.layout),
            "rounds": self.rounds,
            "device": self._device,
            "threads": self._threads,
        }
        self.workers.ask(command, None, self._stop)
        self.workers.serving = self
        log.info("workers ready", layout=str(self.layout), processes=self.layout.processes)


class WorkerGroup:
    """The workers of `rendezvous`, started when they are needed, and again after they died.

    `timeout_s`: a worker that does not answer for so long counts as dead; it must exceed the slowest step. `start_s`:
    time for all hosts to connect. `serving`: the trainer whose recipe the workers have loaded.
    """

    def __init__(self, rendezvous: Rendezvous, timeout_s: float = 300.0, start_s: float = 600.0) -> None:
        self.rendezvous, self.timeout_s, self.start_s = rendezvous, timeout_s, start_s
        self.serving: object = None
        self._torchrun: _Torchrun | None = None

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers on this host, by rank; none before they are started."""
        return list(self._torchrun.pids) if self._torchrun else []

    def ask(
        self,
        command: Mapping[str, Any],
        tensors: Mapping[str, Tensor] | None = None,
        stop: Callable[[], bool] = never,
        late: Callable[[], bool] = never,
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Sends one command and returns its answer.

        Raises the workers' own errors, WorkersFailed if they die, TrainingStopped if `stop()` returns true before the
        answer arrives. Once `late()` returns true, a round ends after the current step.
        """
        try:
            self._torchrun = self._torchrun or _Torchrun(self.rendezvous, self.timeout_s, self.start_s, stop)
            answer, results = self._torchrun.ask(command, tensors, stop, late)
        except BaseException:
            self.close()
            raise
        if "error" in answer:
            raise WORKER_ERRORS.get(answer["error"], EarnestError)(answer["cause"], answer["fix"])
        return answer, results

    def close(self) -> None:
        """Ends the workers."""
        if self._torchrun:
            self._torchrun.close()
        self._torchrun = self.serving = None


class _Torchrun:
    """One torchrun process and the socket to its first worker."""

    def __init__(
        self, rendezvous: Rendezvous, timeout_s: float, start_s: float, stop: Callable[[], bool]
    ) -> None:
        self.pids: list[int] = []
        self._timeout_s = timeout_s
        self._folder = Path(tempfile.mkdtemp(prefix="earnest-"))  # only this user can enter it
        self._log = self._folder / "log"
        path = str(self._folder / "socket")
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(path)
            listening.listen(1)
            listening.settimeout(POLL_S)
            self._process = self._start(rendezvous, path)
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
        """Raises WorkersFailed if the workers died, or did not answer within the timeout."""
        assert self._socket is not None
        try:
            self._socket.settimeout(self._timeout_s)
            send_frame(self._socket, command, tensors)
            hurried = False
            while True:
                answer, results = receive_frame(self._socket)
                if "progress" not in answer:
                    return answer, results
                if stop():
                    raise TrainingStopped("training of the round was stopped", "start the node again")
                if not hurried and late():
                    hurried = True
                    send_frame(self._socket, {"hurry": True})
        except TimeoutError as error:
            raise self._failed(f"did not answer for {self._timeout_s:.0f} s") from error
        except Disconnected as error:
            self._wait(GRACE_S)
            raise self._failed("died") from error

    def close(self) -> None:
        """Ends every process that this torchrun started on this host, hung ones included."""
        if self._socket:
            self._socket.close()
        if self._process and self._running():
            for pid in self.pids:
                _kill(pid)  # workers have nothing to save, and a hung one would ignore a request
            self._process.terminate()
            self._wait(GRACE_S)
        if self._process and self._running():
            self._process.kill()
            self._wait(GRACE_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, rendezvous: Rendezvous, path: str) -> subprocess.Popen[bytes]:
        meeting = ["--standalone"]
        if rendezvous.hosts > 1:
            meeting = ["--nnodes", str(rendezvous.hosts), "--node-rank", "0"]
            meeting += ["--master-addr", rendezvous.address, "--master-port", str(rendezvous.port)]
        run = [sys.executable, "-m", "torch.distributed.run", *meeting]
        run += ["--nproc-per-node", str(rendezvous.local_processes)]
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
                raise TrainingStopped(
                    "training was stopped before the workers started", "start the node again"
                )
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                if not self._running():
                    raise self._failed("died before they connected") from None
                continue
            connection.settimeout(start_s)
            hello, _ = receive_frame(connection)
            self.pids = hello["pids"]
            return connection
        raise self._failed(f"did not connect within {start_s:.0f} s")

    def _running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _wait(self, seconds: float) -> None:
        """Waits for torchrun to end by itself."""
        if self._process:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)

    def _failed(self, how: str) -> WorkersFailed:
        output = _tail(self._log)
        log.error("the trainer's workers failed", how=how, log=output)
        reason = _reason(output)
        return WorkersFailed(
            f"the trainer's workers {how}{': ' + reason if reason else ''}",
            "read the node's log; the next round starts new workers",
        )


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _tail(path: Path, size: int = 8_000) -> str:
    """Returns the end of a log file; empty if there is none."""
    try:
        return path.read_bytes()[-size:].decode(errors="replace")
    except OSError:
        return ""


def _reason(text: str) -> str:
    """Returns which worker ended first and why, from torchrun's summary and the worker's last error."""
    match = re.search(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", text, re.DOTALL)
    if not match:
        return ""
    errors = re.findall(rf"^\[rank{match[1]}\]: (\w[\w.]*(?:Error|Exception): .*)$", text, re.MULTILINE)
    return f"process {match[1]} ended with code {match[2]}" + (f", {errors[-1][:200]}" if errors else "")
