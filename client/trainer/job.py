"""One round's training in a separate thread, so that the node can send what is due on the chain meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import structlog

from earnest.training.diloco.engine import LocalTrainer

log = structlog.get_logger()


@dataclass(frozen=True)
class HonestWork:
    """The payload of an honest trainer before it commits, and what the manifest says about it."""

    round: int
    seat: int
    base_root: bytes
    sample_ids: tuple[int, ...]
    payload: bytes
    trainer_state: bytes
    tokens: int
    steps: int


@dataclass(frozen=True)
class Assignment:
    """A round to train, with its base state and samples. Equal assignments give the same update."""

    round: int
    seat: int
    base_root: bytes
    sample_ids: tuple[int, ...]


class Job:
    """One round's training in its own thread. `stop` abandons it; `hurry` ends it with the steps done so far."""

    def __init__(self, assignment: Assignment, work: Callable[[Job], HonestWork]) -> None:
        self.assignment = assignment
        self._stop, self._late = threading.Event(), threading.Event()
        self._result: HonestWork | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), name="training", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Job], HonestWork]) -> None:
        try:
            self._result = work(self)
        except BaseException as error:  # raised again by `result`
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def stopped(self) -> Callable[[], bool]:
        return self._stop.is_set

    @property
    def late(self) -> Callable[[], bool]:
        return self._late.is_set

    def stop(self) -> None:
        self._stop.set()

    def hurry(self) -> None:
        if not self._late.is_set():
            log.warning(
                "training cut short", round=self.assignment.round, cause="the commit window is nearly over"
            )
            self._late.set()

    def wait(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    @property
    def error(self) -> BaseException | None:
        """The error that ended the training; None while it runs and after a success."""
        return self._error

    def result(self) -> HonestWork:
        """Waits for the training and returns its work; raises what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


@runtime_checkable
class Interruptible(Protocol):
    """A LocalTrainer that polls, during a round, whether to stop and whether it is late."""

    def during(self, stop: Callable[[], bool], late: Callable[[], bool]) -> LocalTrainer: ...
