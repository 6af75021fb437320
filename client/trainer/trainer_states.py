"""Optimizer state and error feedback that a trainer carries from round to round, corrected for uncounted updates."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from earnest.base.errors import StorageError
from earnest.client.storage.journal import Journal
from earnest.client.storage.objects import ObjectStore
from earnest.training.codecs import undo_feedback
from earnest.training.diloco.engine import TrainerState
from earnest.training.diloco.tensorfile import PayloadError

log = structlog.get_logger()

MAX_STATE_BYTES = 1 << 40

ROUNDS_KEPT = 8
"""Rounds that a trainer may miss before it starts with a fresh inner optimizer."""


class TrainerStates:
    """One trainer's states in one run: for each round, the state it started from and the state it ended with.

    `feedback` is the codec's error feedback. `decided(round)` is the last round whose outcome is known when `round` is
    trained. `counted(round)` is whether the trainer's update of a decided round had weight.
    """

    def __init__(
        self,
        run: int,
        journal: Journal,
        private: ObjectStore,
        feedback: float,
        decided: Callable[[int], int],
        counted: Callable[[int], bool],
    ) -> None:
        self._run, self._journal, self._private = run, journal, private
        self._feedback, self._decided, self._counted = feedback, decided, counted

    def start(self, round: int) -> TrainerState:
        """Returns the state to start `round` with: that of the last trained round, corrected for uncounted updates.

        If the state is lost, training starts with a new inner optimizer and no error feedback.
        """
        worked = self._worked(round)
        state = (self._read(worked[0], "end") if worked else None) or TrainerState()
        if self._feedback:
            self._restore_feedback(state, round, worked)
            self._write(round, "start", state.to_bytes())
        return state

    def end(self, round: int, state: bytes) -> None:
        """Saves the state that `round` ended with, as TrainerState's bytes, and removes states that are too old."""
        self._write(round, "end", state)
        self._forget(round - ROUNDS_KEPT)

    def _forget(self, before: int) -> None:
        """Removes files of rounds before `before`, unless a newer round shares them; each has a few model sizes."""
        kept = self._roots(range(before, before + ROUNDS_KEPT + 1))
        for root in self._roots(range(max(0, before - 2 * ROUNDS_KEPT), before)) - kept:
            try:
                self._private.discard(root)
            except StorageError as error:
                log.warning("old optimizer state not removed", cause=error.cause)

    def _roots(self, rounds: range) -> set[bytes]:
        roots = (self._journal.get(self._key(round, which)) for round in rounds for which in ("start", "end"))
        return {root for root in roots if root}

    def _worked(self, round: int) -> list[int]:
        """Returns the earlier rounds that left a state, newest first."""
        earlier = range(round - 1, max(-1, round - 1 - ROUNDS_KEPT), -1)
        return [r for r in earlier if self._journal.get(self._key(r, "end"))]

    def _restore_feedback(self, state: TrainerState, round: int, worked: list[int]) -> None:
        """Restores error feedback, as if the uncounted rounds that were decided since the last start had not happened.

        With overlap off, that can only be the last trained round. With overlap on, that round may be undecided, and the
        round before it was undecided when it started.
        """
        since = 0
        for earlier in worked[:2]:
            known_then = earlier != worked[0] and earlier <= self._decided(worked[0])
            if earlier > self._decided(round) or known_then or self._counted(earlier):
                since += 1
                continue
            before, after = self._read(earlier, "start"), self._read(earlier, "end")
            if after is not None:
                codec = before.codec if before else None
                state.codec = undo_feedback(state.codec, codec, after.codec, self._feedback, since)
            log.info("error feedback restored", round=earlier, cause="the update has no weight in the state")

    def _key(self, round: int, which: str) -> str:
        return f"{self._run}/{which}/{round}"

    def _read(self, round: int, which: str) -> TrainerState | None:
        root = self._journal.get(self._key(round, which))
        try:
            return TrainerState.from_bytes(self._private.get(root, MAX_STATE_BYTES)) if root else None
        except (StorageError, PayloadError) as error:
            log.error("optimizer state lost", round=round, cause=str(error))
            return None

    def _write(self, round: int, which: str, content: bytes) -> None:
        self._journal.put(self._key(round, which), self._private.put(content))
