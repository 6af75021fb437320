"""The trainer node: the steps of one round, in order (docs/trainer.md).

chain view -> base state -> H inner steps -> pseudo-gradient -> codec -> payload -> manifest -> journal (salt synced)
-> commit; when the commit window has closed: publish -> reveal; then the settlement calls that are due.

Training runs in its own thread. Meanwhile the node sends what is due on the chain and polls whether the training is
done: with overlap, a round is revealed while the next one trains. Late commitments: `commit_deadline.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog

from earnest.base.errors import EarnestError, Reverted, StorageError
from earnest.client.chain.blockref import BlockRef
from earnest.client.node.node import Node, NodeParts
from earnest.client.run.outcome import outcome, reason
from earnest.client.storage.salts import SavedCommitment
from earnest.client.trainer.attested_rounds import AttestedRounds
from earnest.client.trainer.commit_deadline import absence, commit_is_near, must_finish, reveal_is_near
from earnest.client.trainer.job import Assignment, HonestWork, Interruptible, Job
from earnest.client.trainer.timesheet import TRAINING, Timesheet
from earnest.client.trainer.trainer_states import TrainerStates
from earnest.protocol.manifest import Manifest, commitment
from earnest.protocol.merkle import samples_root
from earnest.protocol.run import Level, Role
from earnest.protocol.verdicts import Verdict
from earnest.training.codecs import Update, inner_steps
from earnest.training.diloco.checkpoint import Checkpoints
from earnest.training.diloco.engine import (
    CPU,
    LocalTrainer,
    Machine,
    SingleProcess,
    TrainerState,
    TrainingDiverged,
    TrainingStopped,
)
from earnest.training.diloco.overlap import local_start
from earnest.training.diloco.precision import Precision, choose_device
from earnest.training.diloco.state import State
from earnest.training.diloco.tensorfile import PayloadError
from earnest.training.privacy import UpdateFilter, noise_secret, privacy_filter
from earnest.training.tasks.task import PrivateData, Task

log = structlog.get_logger()

ZERO = bytes(32)

TRIES = 3
"""Attempts at a round whose training fails for another reason than divergence."""

CLOSE_S = 30.0
"""Seconds to wait for the current training step when the node is closed; then the thread is abandoned."""


Forge = Callable[[HonestWork], bytes | None]
"""Turns honest work into the payload to submit; None submits nothing. The identity for honest trainers."""


class PrivateDataMissing(EarnestError):
    """The run trains on private data and none was given, or data was given and the run uses none."""


class TrainerNode(Node):
    """Trains, commits, reveals and serves one trainer seat. `forge` exists for the demo's attackers.

    `machine` is the device of this process; `trainer` replaces in-process training (by several processes, for example).
    `private` is the trainer's own data, for runs on private data. `finish` changes an update before it is encoded; the
    default is the recipe's clipping and noise. `attested_rounds` signs updates inside a TEE, for runs that accept
    attestations. `clock` is monotonic, in seconds.

    Raises PrivateDataMissing, and DeviceError for a machine that cannot train as the recipe says.
    """

    role = Role.TRAINER

    def __init__(
        self,
        parts: NodeParts,
        task: Task,
        *,
        patience: int = 0,
        forge: Forge | None = None,
        machine: Machine = CPU,
        trainer: LocalTrainer | None = None,
        private: PrivateData | None = None,
        finish: UpdateFilter | None = None,
        attested_rounds: AttestedRounds | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(parts, patience)
        recipe = self.follower.recipe
        if (recipe.data == "private") != (private is not None):
            raise PrivateDataMissing(
                f"this run's recipe says data = {recipe.data!r}",
                "give the node its own data if that is private, and none if it is assigned",
            )
        if trainer is None:
            Precision(
                choose_device(machine.device), recipe.inner.precision
            )  # now, not in the middle of a round
        self._task = task
        self._forge = forge or (lambda work: work.payload)
        self._machine, self._trainer = machine, trainer
        self._private, self._finish = private, finish or self._privacy()
        self.attested_rounds = attested_rounds
        self._skipped: set[int] = set()
        self._decided: set[int] = set()
        self._work: dict[int, HonestWork] = {}
        self._job: Job | None = None
        self._failures: dict[int, int] = {}
        self.timesheet = Timesheet(clock)
        folder = parts.private.folder
        self._checkpoints = folder and Checkpoints(folder / f"training-{self.run}", clock=clock)
        self._trainer_states = TrainerStates(
            self.run,
            parts.journal,
            parts.private,
            recipe.codec.error_feedback,
            self.follower.schedule.base_round,
            self._counted,
        )

    def _privacy(self) -> UpdateFilter | None:
        """Returns the recipe's clipping and noise; the secret of the noise is kept in the journal."""
        recipe, parts = self.follower.recipe, self.parts
        if recipe.privacy.clip == 0:
            return None
        secret = noise_secret(parts.journal, lambda size: parts.salt()[:size])
        context = f"{parts.chain.chain_id}/{parts.contracts.runs.address}/{self.run}".encode()
        return privacy_filter(recipe.privacy, secret, context)

    # Training

    def prepare(self, head: BlockRef) -> None:
        """Trains the round whose commitment is due, without touching the chain; `act_on` then has it ready."""
        self.begin(head)
        if self._job is not None:
            self._job.wait()
            self.begin(head)

    def begin(self, head: BlockRef) -> None:
        """Starts the training that is due, collects a finished one, stops one that is no longer wanted."""
        due = self._due(head)
        if (job := self._job) is not None and job.done:
            self._job = None
            if due == job.assignment:
                self._collect(job)
                due = self._due(head)
        if self._job is not None:
            self._supervise(self._job, due)
        elif isinstance(due, Assignment):
            self._start(due)
        else:
            self.timesheet.now(due)

    def act(self, head: BlockRef) -> None:
        schedule = self.follower.schedule
        if self.attested_rounds is not None and self._has_time(head):
            self.attested_rounds.keep_key(head)
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
        self._log_outcomes(head)

    def _log_outcomes(self, head: BlockRef) -> None:
        """Logs the outcome of each own update once, as soon as its round is decided."""
        newest = min(self.follower.schedule.round_at(head.time), self.record.planned_rounds - 1)
        for round in range(max(0, newest - 2), newest + 1):
            seat = self.seat_in(round)
            if seat is None or round in self._decided or not self.follower.closed(round):
                continue
            self._decided.add(round)
            if seat in self.record.round(round).manifests:
                self._log_outcome(round, seat)
            elif self.parts.journal.salts.find(self.run, round, self.role) is not None:
                log.warning(
                    "absent", round=round, seat=seat, cause=absence(seat in self.record.round(round).commits)
                )

    def _log_outcome(self, round: int, seat: int) -> None:
        result = outcome(self.record, round, seat)
        if result.void:
            fix = "ask the validators; nobody is paid for this round and no bond is touched"
            log.warning("round void", round=round, seat=seat, cause=result.text, fix=fix)
            return
        weight, why = float(f"{result.weight:.3f}"), result.why_unpaid
        if result.verdict not in (Verdict.ACCEPTED, None):
            rejection = reason(self.follower, round, seat, result.verdict)
            why = rejection or "no validator's measurements file can be fetched"
        details = {"round": round, "seat": seat, "verdict": result.text, "weight": weight}
        if why:
            log.warning("outcome", **details, reason=why)
        else:
            log.info("outcome", **details)

    def forget(self) -> None:
        self._work.clear()
        self._decided.clear()

    def close(self) -> None:
        """Stops the training; a restart continues from its checkpoint."""
        if (job := self._job) is not None:
            job.stop()
            job.wait(CLOSE_S)
            if not job.done:
                cause = f"a step takes longer than {CLOSE_S} s"
                log.error("training abandoned", round=job.assignment.round, cause=cause)

    def figures(self) -> dict[str, Any]:
        """Returns `time` (see Timesheet) and, where the node attests, the failures as `attestation`."""
        attested = {} if self.attested_rounds is None else {"attestation": self.attested_rounds.figures()}
        return {"time": self.timesheet.as_dict(), **attested}

    def next_due(self, now: int) -> int:
        return now + 1 if self._job is not None else super().next_due(now)

    def _due(self, head: BlockRef) -> Assignment | str:
        """Returns the assignment to train at `head`, or what the node waits for."""
        schedule = self.follower.schedule
        round = schedule.round_at(head.time)
        if head.time < schedule.start or round >= self.record.planned_rounds:
            return "the run to start" if head.time < schedule.start else "the run to end"
        seat = self.seat_in(round)
        if seat is None or not self.record.may_commit(seat, round):
            return "a seat"
        if not schedule.commit(round).contains(head.time) or self._has_worked(round):
            return "the next round"
        if self._is_denied(round):
            return "an enclave key that counts"
        base, samples = self.reached(self.follower.base, round), self.follower.samples(round)
        if base is None or samples is None:
            return "the base state" if base is None else "the samples"
        return Assignment(round, seat, base.root, samples.assigned[seat])

    def _is_denied(self, round: int) -> bool:
        """Returns True if the run requires an enclave key and ours is denied, so that the round would not be paid."""
        key = self.record.newest_key(self.parts.owner)
        if key is None or self.record.params.level != Level.ATTESTED:
            return False
        return not key.depends_on.isdisjoint(self.record.denied_in(round))

    def _has_worked(self, round: int) -> bool:
        done = round in self._skipped or round in self._work
        return done or self.parts.journal.salts.find(self.run, round, self.role) is not None

    def _start(self, due: Assignment) -> None:
        base = self.follower.base(due.round)
        assert base is not None and base.root == due.base_root
        start = local_start(self.follower.recipe, base.state, self._pending(due.round))
        state = self._trainer_states.start(due.round)
        self.timesheet.now(TRAINING)
        self._job = Job(due, lambda job: self._train(job, due, start, state))

    def _supervise(self, job: Job, due: Assignment | str) -> None:
        """Stops a job whose round is over or whose base state changed, and cuts short one that would be late."""
        if due != job.assignment:
            job.stop()
            return
        window = self.follower.schedule.commit(job.assignment.round)
        if must_finish(window, self.parts.chain.head().time):
            job.hurry()

    def _collect(self, job: Job) -> None:
        """Keeps the work of a finished job, or logs its error: earlier rounds must be revealed all the same."""
        round, error = job.assignment.round, job.error
        if error is None:
            self._work = {round: job.result()}
        elif isinstance(error, TrainingStopped):
            log.info("training stopped", round=round, cause=error.cause)
        elif isinstance(error, TrainingDiverged):
            log.error("nothing to submit", round=round, cause=error.cause, fix=error.fix)
            self._skipped.add(round)
        else:
            cause = error.cause if isinstance(error, EarnestError) else f"{type(error).__name__}: {error}"
            log.error("training failed", round=round, cause=cause, fix=getattr(error, "fix", ""))
            self._failures[round] = self._failures.get(round, 0) + 1
            if self._failures[round] == TRIES:
                self._skipped.add(round)

    def _train(self, job: Job, due: Assignment, start: State, state: TrainerState) -> HonestWork:
        """Trains and encodes, in the job's thread; touches neither journal nor chain."""
        recipe = self.follower.recipe
        steps = inner_steps(recipe, state.codec)
        ids = due.sample_ids[: steps * recipe.inner.batch]
        try:
            local = self._local_trainer(job).train(start, ids, due.round, state)
            gradient = local.pseudo_gradient
            if self._finish is not None:
                gradient = self._finish(gradient, due.round)
            encoded = self.follower.codec.encode(gradient, state.codec)
        finally:
            self.timesheet.now("the commitment")
        state.codec = encoded.state
        log.info(
            "trained",
            round=due.round,
            seat=due.seat,
            steps=local.steps,
            loss=local.losses[-1],
            bytes=len(encoded.payload),
            idle=round(self.timesheet.as_dict()["idle_share"], 4),
        )
        return HonestWork(
            round=due.round,
            seat=due.seat,
            base_root=due.base_root,
            sample_ids=ids[: local.steps * recipe.inner.batch],
            payload=encoded.payload,
            trainer_state=state.to_bytes(),
            tokens=local.tokens,
            steps=local.steps,
        )

    def _local_trainer(self, job: Job) -> LocalTrainer:
        if isinstance(self._trainer, Interruptible):
            return self._trainer.during(job.stopped, job.late)
        return self._trainer or SingleProcess(
            self._task,
            self.follower.recipe,
            self.record.params.rounds,
            self._machine,
            self._private,
            self._checkpoints,
            job.stopped,
            job.late,
        )

    def _pending(self, round: int) -> Update | None:
        """Returns the own update of the previous round, as committed, while that round is not decided."""
        if self.follower.recipe.overlap != "eager" or self.follower.schedule.base_round(round) == round - 1:
            return None
        seat = self.seat_in(round - 1)
        saved = self.parts.journal.salts.find(self.run, round - 1, self.role)
        if seat is None or saved is None or saved.manifest is None:
            return None
        if seat not in self.record.round(round - 1).commits:
            return None
        try:
            payload = self.parts.private.get(saved.manifest.update, self.follower.recipe.max_payload_bytes)
            return self.follower.codec.decode(payload)
        except (StorageError, PayloadError) as error:
            log.warning("training starts without the own last update", round=round, cause=str(error))
            return None

    def _counted(self, round: int) -> bool:
        """Returns True if the own update of a decided round has weight, and so changed the state."""
        seat, weights = self.seat_in(round), self.record.settled(round).consensus
        return seat is not None and seat < len(weights) and weights[seat] > 0

    # Commit

    def _commit(self, round: int, seat: int) -> None:
        if not self.record.may_commit(seat, round):
            return
        saved = self.parts.journal.salts.find(self.run, round, self.role)
        if saved is None and round in self._work:
            saved = self._save_commitment(round, self._work[round])
            del self._work[round]  # only after it is saved: a full disk may have room later
        if saved is None:
            return
        runs = self.parts.contracts.runs
        self.submit(
            f"commit/{round}",
            runs.commit(self.run, round, seat, saved.commitment),
            lambda at: (
                runs.commitment_of(self.run, self.role, seat, round, at=at)[:28] != saved.commitment[:28]
            ),
            self.follower.schedule.commit(round).end,
        )

    def _save_commitment(self, round: int, work: HonestWork) -> SavedCommitment | None:
        """Saves manifest and salt, synced, before anything is sent; returns None if there is nothing to submit."""
        parts, payload = self.parts, self._forge(work)
        self._trainer_states.end(round, work.trainer_state)
        if payload is None:
            self._skipped.add(round)
            return None
        manifest = Manifest(
            run=self.run,
            round=round,
            trainer=parts.owner,
            base_state=work.base_root,
            update=parts.private.put(payload),
            samples=self._private.root if self._private else samples_root(work.sample_ids),
            trace=ZERO,
            steps=work.steps,
            tokens=work.tokens,
            size=len(payload),
        )
        salt, runs = parts.salt(), parts.contracts.runs.address
        digest = commitment(parts.chain.chain_id, runs, self.run, round, parts.owner, manifest.hash(), salt)
        if self.attested_rounds is not None:
            self.attested_rounds.sign(round, manifest.hash(), self.follower.schedule.opens(round))
        saved = parts.journal.salts.save(self.run, round, self.role, digest, salt, manifest=manifest)
        if self._checkpoints:
            self._checkpoints.clear()
        return saved

    # Reveal

    def _reveal(self, round: int, seat: int, head: BlockRef) -> None:
        saved = self.parts.journal.salts.find(self.run, round, self.role)
        runs = self.parts.contracts.runs
        if saved is None or saved.manifest is None:
            return
        on_chain = runs.commitment_of(self.run, self.role, seat, round, at=head)
        if on_chain[:28] != saved.commitment[:28]:
            return
        self._publish(round, saved.manifest)
        attestation = self._attestation(round, saved.manifest)
        if attestation and self._open(round, seat, saved.manifest, saved.salt, attestation):
            return
        self._open(round, seat, saved.manifest, saved.salt)

    def _attestation(self, round: int, manifest: Manifest) -> bytes:
        if self.attested_rounds is None:
            return b""
        return self.attested_rounds.signature(round, manifest.hash(), self.follower.schedule.opens(round))

    def _open(self, round: int, seat: int, manifest: Manifest, salt: bytes, attestation: bytes = b"") -> bool:
        """Reveals; returns False if the contract refuses, so that the caller can retry without the attestation."""
        runs, refusals = self.parts.contracts.runs, list[Reverted]()
        self.submit(
            f"attested-reveal/{round}" if attestation else f"reveal/{round}",
            runs.reveal(seat, manifest, salt, attestation),
            lambda at: not runs.revealed(self.run, round, at=at) >> seat & 1,
            self.follower.schedule.reveal(round).end,
            refusals.append,
        )
        if attestation and refusals and self.attested_rounds is not None:
            self.attested_rounds.refused(round, refusals[0])
        return not refusals

    # Attestation

    def _has_time(self, head: BlockRef) -> bool:
        """Returns True if a key can be registered now, which can take minutes, without delaying anything due."""
        now, last = max(0, self.follower.schedule.round_at(head.time)), self.record.planned_rounds
        if now >= last or (self.seat_in(now) is None and self.seat_in(now + 1) is None):
            return False
        return not any(self._is_pressed(round, head.time) for round in range(max(0, now - 1), now + 1))

    def _is_pressed(self, round: int, time: int) -> bool:
        """Returns True if registering a key at `time` could delay the round's commitment or reveal."""
        schedule, seat, recorded = self.follower.schedule, self.seat_in(round), self.record.round(round)
        if seat in recorded.commits or self.parts.journal.salts.find(self.run, round, self.role) is not None:
            return reveal_is_near(schedule.reveal(round), time) and seat not in recorded.manifests
        return seat is not None and commit_is_near(schedule.commit(round), time)

    def _publish(self, round: int, manifest: Manifest) -> None:
        """Puts the payload into the served store.

        If the payload is lost, the manifest is revealed all the same: an update that nobody can fetch earns nothing,
        but a commitment that is not revealed costs bond.
        """
        try:
            if not self.parts.store.has(manifest.update):
                self.parts.store.put(self.parts.private.get(manifest.update, manifest.size))
        except (StorageError, OSError) as error:
            log.error("payload not published", round=round, cause=str(error))
