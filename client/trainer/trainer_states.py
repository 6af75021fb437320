"""What a trainer carries from round to round, on disk, and what of it holds once the rounds' outcomes are known."""

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

MAX_MEMORY_BYTES = 1 << 40

MEMORY_ROUNDS = 8
"""Rounds that a trainer may miss before it starts with a fresh inner optimizer."""


class TrainerStates:
    """One trainer's memories of one run: by round, the one it started from and the one it ended with.

    `feedback` is the codec's error feedback; `decided(round)` the last round whose outcome is known when `round` is
    trained; `counted(round)` whether the trainer's update of a decided round changed the state.
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
        """What `round` starts with: what the last round it worked in left, without what came to nothing.

        A memory that is lost costs the inner optimizer's state and what error feedback owes: training starts afresh.
        """
        worked = self._worked(round)
        memory = (self._read(worked[0], "memory") if worked else None) or TrainerState()
        if self._feedback:
            self._take_back(memory, round, worked)
            self._write(round, "start", memory.to_bytes())
        return memory

    def end(self, round: int, memory: bytes) -> None:
        """Writes down what `round` ended with: TrainerState's bytes. What no later round asks for is removed."""
        self._write(round, "memory", memory)
        self._forget(round - MEMORY_ROUNDS)

    def _forget(self, before: int) -> None:
        """Removes the files of the rounds before: a few times a model's size each. Newer rounds may share one."""
        kept = self._roots(range(before, before + MEMORY_ROUNDS + 1))
        for root in self._roots(range(max(0, before - 2 * MEMORY_ROUNDS), before)) - kept:
            try:
                self._private.discard(root)
            except StorageError as error:
                log.warning("old optimizer state not removed", cause=error.cause)

    def _roots(self, rounds: range) -> set[bytes]:
        found = (
            self._journal.get(self._key(round, which)) for round in rounds for which in ("start", "memory")
        )
        return {root for root in found if root}

    def _worked(self, round: int) -> list[int]:
        """The rounds before that left a memory, newest first."""
        earlier = range(round - 1, max(-1, round - 1 - MEMORY_ROUNDS), -1)
        return [r for r in earlier if self._journal.get(self._key(r, "memory"))]

    def _take_back(self, memory: TrainerState, round: int, worked: list[int]) -> None:
        """Undoes in the error feedback what the rounds that have been decided since the last start did in vain.

        With overlap off that is the last round worked in. With overlap on its outcome may still be open, and that of
        the one before it was when it started.
        """
        since = 0
        for earlier in worked[:2]:
            known_then = earlier != worked[0] and earlier <= self._decided(worked[0])
            if earlier > self._decided(round) or known_then or self._counted(earlier):
                since += 1
                continue
            before, after = self._read(earlier, "start"), self._read(earlier, "memory")
            if after is not None:
                codec = before.codec if before else None
                memory.codec = undo_feedback(memory.codec, codec, after.codec, self._feedback, since)
            log.info("taken back", round=earlier, cause="the update was not counted")

    def _key(self, round: int, which: str) -> str:
        return f"{self._run}/{which}/{round}"

    def _read(self, round: int, which: str) -> TrainerState | None:
        root = self._journal.get(self._key(round, which))
        try:
            return TrainerState.from_bytes(self._private.get(root, MAX_MEMORY_BYTES)) if root else None
        except (StorageError, PayloadError) as error:
            log.error("optimizer state lost", round=round, cause=str(error))
            return None

    def _write(self, round: int, which: str, content: bytes) -> None:
        self._journal.put(self._key(round, which), self._private.put(content))
