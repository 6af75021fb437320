"""The trainer node: one round is one call after the other (docs/trainer.md).

chain view -> base state -> H inner steps -> pseudo-gradient -> codec -> payload -> manifest -> journal (salt synced)
-> commit; when the commit window has closed: publish -> reveal; then whatever settling is due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from earnest.client.chain.blockref import BlockRef
from earnest.client.diloco.engine import TrainerMemory, TrainingDiverged, train_round
from earnest.client.errors import StorageError
from earnest.client.follower import Standing
from earnest.client.node import Node, NodeParts
from earnest.client.storage.journal import SavedCommitment
from earnest.client.tasks.task import Task
from earnest.protocol.manifest import Manifest, commitment
from earnest.protocol.merkle import samples_root
from earnest.protocol.verdicts import Role

log = structlog.get_logger()

ZERO = bytes(32)
MAX_MEMORY_BYTES = 1 << 40

MEMORY_ROUNDS = 8
"""Rounds that a trainer may miss before it starts with a fresh inner optimizer."""


@dataclass(frozen=True)
class HonestWork:
    """What an honest trainer has in hand before it commits: its payload and what it was made from."""

    round: int
    seat: int
    base_root: bytes
    sample_ids: tuple[int, ...]
    payload: bytes
    memory: bytes
    tokens: int
    steps: int


Forge = Callable[[HonestWork], bytes | None]
"""Turns honest work into the payload to submit; None submits nothing. The identity for honest trainers."""


class TrainerNode(Node):
    """Trains, commits, reveals and serves one trainer seat. `forge` exists for the demo's attackers."""

    role = Role.TRAINER

    def __init__(
        self, parts: NodeParts, task: Task, *, patience: int = 0, forge: Forge | None = None
    ) -> None:
        super().__init__(parts, patience)
        self._task = task
        self._forge = forge or (lambda work: work.payload)
        self._skipped: set[int] = set()
        self._work: dict[int, HonestWork] = {}

    def prepare(self, head: BlockRef) -> None:
        """Trains the round whose commitment is due, without touching the chain; `step` then has it ready."""
        schedule = self.follower.schedule
        round = schedule.round_at(head.time)
        seat = self.seat_in(round)
        if seat is None or not schedule.commit(round).contains(head.time) or not self._due(round, seat):
            return
        base, samples = self.reached(self.follower.base, round), self.follower.samples(round)
        if base is None or samples is None:
            return
        try:
            self._work = {round: self._train(round, seat, base, samples.assigned[seat])}
        except TrainingDiverged as error:
            log.error("nothing to submit", round=round, cause=error.cause, fix=error.fix)
            self._skipped.add(round)

    def act(self, head: BlockRef) -> None:
        schedule = self.follower.schedule
        for round in range(max(0, schedule.round_at(head.time) - 1), self.record.planned_rounds):
            seat = self.seat_in(round)
            if schedule.commit(round).start > head.time:
                break
            if seat is None:
                continue
            if schedule.commit(round).contains(head.time):
                self._commit(round, seat)
            elif schedule.reveal(round).contains(head.time):
                self._reveal(round, seat, head)

    def forget(self) -> None:
        self._work.clear()

    # Commit

    def _commit(self, round: int, seat: int) -> None:
        if not self.record.may_commit(seat, round):
            return
        saved = self.parts.journal.commitment(self.run, round, self.role)
        if saved is None and round in self._work:
            saved = self._claim(round, self._work.pop(round))
        if saved is None:
            return
        runs = self.parts.contracts.runs
        self.submit(
            f"commit/{round}",
            runs.commit(self.run, seat, saved.commitment),
            lambda at: (
                runs.commitment_of(self.run, self.role, seat, round, at=at)[:28] != saved.commitment[:28]
            ),
            self.follower.schedule.commit(round).end,
        )

    def _due(self, round: int, seat: int) -> bool:
        return (
            round < self.record.planned_rounds
            and round not in self._skipped
            and round not in self._work
            and self.record.may_commit(seat, round)
            and self.parts.journal.commitment(self.run, round, self.role) is None
        )

    def _claim(self, round: int, work: HonestWork) -> SavedCommitment | None:
        """Writes manifest and salt down, synced, before anything is sent; None if there is nothing to submit."""
        parts, payload = self.parts, self._forge(work)
        self._remember(round, work.memory)
        if payload is None:
            self._skipped.add(round)
            return None
        manifest = Manifest(
            run=self.run,
            round=round,
            trainer=parts.account,
            base_state=work.base_root,
            update=parts.private.put(payload),
            samples=samples_root(work.sample_ids),
            trace=ZERO,
            steps=work.steps,
            tokens=work.tokens,
            size=len(payload),
        )
        salt, runs = parts.salt(), parts.contracts.runs.address
        digest = commitment(parts.chain.chain_id, runs, self.run, round, parts.account, manifest.hash(), salt)
        return parts.journal.save_commitment(self.run, round, self.role, digest, salt, manifest=manifest)

    def _train(self, round: int, seat: int, base: Standing, ids: tuple[int, ...]) -> HonestWork:
        recipe = self.follower.recipe
        memory = self._memory(round)
        local = train_round(self._task, recipe, base.state, ids, round, self.record.params.rounds, memory)
        encoded = self.follower.codec.encode(local.pseudo_gradient, memory.codec or None)
        memory.codec = encoded.residual or {}
        log.info("trained", round=round, seat=seat, loss=local.losses[-1], bytes=len(encoded.payload))
        return HonestWork(
            round=round,
            seat=seat,
            base_root=base.root,
            sample_ids=ids,
            payload=encoded.payload,
            memory=memory.to_bytes(),
            tokens=local.tokens,
            steps=local.steps,
        )

    def _memory(self, round: int) -> TrainerMemory:
        """What the last round it worked in left behind, unless that is lost: training then starts afresh."""
        for earlier in range(round - 1, max(-1, round - 1 - MEMORY_ROUNDS), -1):
            if root := self.parts.journal.get(f"{self.run}/memory/{earlier}"):
                try:
                    return TrainerMemory.from_bytes(self.parts.private.get(root, MAX_MEMORY_BYTES))
                except StorageError as error:
                    log.error("optimizer state lost", round=earlier, cause=error.cause)
        return TrainerMemory()

    def _remember(self, round: int, memory: bytes) -> None:
        self.parts.journal.put(f"{self.run}/memory/{round}", self.parts.private.put(memory))

    # Reveal

    def _reveal(self, round: int, seat: int, head: BlockRef) -> None:
        saved = self.parts.journal.commitment(self.run, round, self.role)
        runs = self.parts.contracts.runs
        if saved is None or saved.manifest is None:
            return
        on_chain = runs.commitment_of(self.run, self.role, seat, round, at=head)
        if on_chain[:28] != saved.commitment[:28]:
            return
        self._publish(round, saved.manifest)
        self.submit(
            f"reveal/{round}",
            runs.reveal(seat, saved.manifest, saved.salt),
            lambda at: not runs.revealed(self.run, round, at=at) >> seat & 1,
            self.follower.schedule.reveal(round).end,
        )

    def _publish(self, round: int, manifest: Manifest) -> None:
        """Puts the payload where others fetch it. If it is lost, the manifest is revealed all the same.

        An update that is not there earns nothing; a commitment that is not revealed costs bond.
        """
        try:
            if not self.parts.store.has(manifest.update):
                self.parts.store.put(self.parts.private.get(manifest.update, manifest.size))
        except (StorageError, OSError) as error:
            log.error("payload not published", round=round, cause=str(error))
