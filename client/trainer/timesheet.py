"""Accounting of a trainer's time: seconds of training, and seconds of waiting by reason."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

TRAINING = "training"
NOT_IDLE = frozenset({TRAINING, "the run to start", "the run to end"})
"""Time that does not count as idle: training, and the time before the first round and after the last."""


class Timesheet:
    """A stopwatch that is always on; `now(what)` names what the time from now on is spent on. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._spent: dict[str, float] = {}
        self._what: str | None = None
        self._since = clock()

    def now(self, what: str) -> None:
        """Starts counting for `what`: TRAINING, or the reason for waiting."""
        with self._lock:
            time = self._clock()
            if self._what is not None:
                self._spent[self._what] = self._spent.get(self._what, 0.0) + time - self._since
            self._what, self._since = what, time

    def as_dict(self) -> dict[str, Any]:
        """Returns seconds of training, idle seconds, the idle share, and seconds of waiting by reason."""
        with self._lock:
            spent = dict(self._spent)
            if self._what is not None:
                spent[self._what] = spent.get(self._what, 0.0) + self._clock() - self._since
        training = spent.get(TRAINING, 0.0)
        waits = {what: seconds for what, seconds in sorted(spent.items()) if what != TRAINING}
        idle = sum(seconds for what, seconds in waits.items() if what not in NOT_IDLE)
        share = idle / (training + idle) if training + idle else 0.0
        return {"training_s": training, "idle_s": idle, "idle_share": share, "waiting_for": waits}
