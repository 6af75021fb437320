"""The trainer node: one round is one call after the other (docs/trainer.md).

chain view -> base state -> H inner steps -> pseudo-gradient -> codec -> payload -> manifest -> journal (salt synced)
-> commit; when the commit window has closed: publish -> reveal; then whatever settling is due.

Training runs in a thread of its own. The node goes on with what is due on the chain, and looks now and then whether the
work is done: with overlap, a round is revealed while the next one trains.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import structlog

from earnest.base.errors import EarnestError, Reverted, StorageError
from earnest.client.chain.blockref import BlockRef
from earnest.client.node.node import Node, NodeParts
from earnest.client.run.outcome import outcome, reason
from earnest.client.storage.journal import SavedCommitment
from earnest.client.trainer.attested_rounds import AttestedRounds
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
"""How often a round is begun again after a failure that is not the training's own."""

LATE_SHARE = 1 / 50
"""Share of a commit window that is left for encoding and committing: then training ends with the steps it has."""

LATE_S = 5
"""The least of that share, seconds."""

CLOSE_S = 30.0
"""What a step may still take when the node is closed, seconds; the process does not wait for a training that hangs."""

KEY_S = 200
"""What registering a key may take, seconds: a quote, its collateral, a transaction."""


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


class PrivateDataMissing(EarnestError):
    """The run trains on private data, and none was given; or the other way round."""


@dataclass(frozen=True)
class Assignment:
    """A round to train: where from and on what. Two are equal only if they give the same update."""

    round: int
    seat: int
    base_root: bytes
    sample_ids: tuple[int, ...]


class Job:
    """One round's training in a thread of its own. `stop` gives it up, `hurry` ends it with the steps it has."""

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
        except BaseException as error:  # handed to whoever asks for the result
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
            log.warning("late", round=self.assignment.round, cause="the commit window is nearly over")
            self._late.set()

    def wait(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    @property
    def error(self) -> BaseException | None:
        """What ended the training, once it is done; None if it came to its end."""
        return self._error

    def result(self) -> HonestWork:
        """What the training made, once it is done; raises what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


@runtime_checkable
class Interruptible(Protocol):
    """A LocalTrainer that can be told of each round when it is no longer wanted, and when it is late."""

    def during(self, stop: Callable[[], bool], late: Callable[[], bool]) -> LocalTrainer: ...


class TrainerNode(Node):
    """Trains, commits, reveals and serves one trainer seat. `forge` exists for the demo's attackers.

    `machine` says how this process trains; `trainer` replaces it by something else that does (several processes, say).
    `private` is the trainer's own data, for runs on private data; `finish` is done to an update before it is encoded:
    by default what the recipe's privacy asks for. `attested_rounds` signs updates inside a TEE, where possible.
    `clock` is monotonic, seconds.

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
        """Clipping and noise as the recipe has them; the noise's secret is in the journal."""
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
        """Begins to train what is due, takes what is done, ends what is no longer wanted."""
        due = self._due(head)
        if (job := self._job) is not None and job.done:
            self._job = None
            if due == job.assignment:
                self._take(job)
                due = self._due(head)
        if self._job is not None:
            self._mind(self._job, due)
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
        self._tell(head)

    def _tell(self, head: BlockRef) -> None:
        """Logs once what came of each own update, as soon as its round is decided."""
        newest = min(self.follower.schedule.round_at(head.time), self.record.planned_rounds - 1)
        for round in range(max(0, newest - 2), newest + 1):
            seat = self.seat_in(round)
            if seat is None or round in self._decided or not self.follower.closed(round):
                continue
            self._decided.add(round)
            if seat in self.record.round(round).manifests:
                self._tell_outcome(round, seat)

    def _tell_outcome(self, round: int, seat: int) -> None:
        found = outcome(self.record, round, seat)
        if found.void:
            fix = "ask the validators; nobody is paid for this round and no bond is touched"
            log.warning("round void", round=round, seat=seat, cause=found.words, fix=fix)
        elif found.verdict in (Verdict.ACCEPTED, None):
            weight, told = float(f"{found.weight:.3f}"), log.info if found.weight else log.warning
            told("outcome", round=round, seat=seat, verdict=found.words, weight=weight)
        else:
            why = (
                reason(self.follower, round, seat, found.verdict) or "no validator's evidence can be fetched"
            )
            log.warning("outcome", round=round, seat=seat, verdict=found.words, weight=0, reason=why)

    def forget(self) -> None:
        self._work.clear()
        self._decided.clear()

    def close(self) -> None:
        """Gives up the round in training; its checkpoint leads on."""
        if (job := self._job) is not None:
            job.stop()
            job.wait(CLOSE_S)
            if not job.done:
                log.error(
                    "left behind", round=job.assignment.round, cause=f"a step takes longer than {CLOSE_S} s"
                )

    def figures(self) -> dict[str, Any]:
        """`time`: where the node's seconds went (Timesheet); `attestation`, where it attests: what did not work."""
        attested = {} if self.attested_rounds is None else {"attestation": self.attested_rounds.figures()}
        return {"time": self.timesheet.as_dict(), **attested}

    def next_due(self, now: int) -> int:
        return now + 1 if self._job is not None else super().next_due(now)

    def _due(self, head: BlockRef) -> Assignment | str:
        """What to train at `head`, or what is waited for."""
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
        """Whether the run asks for an enclave key and ours was denied: known a round before, and nobody would pay."""
        key = self.record.newest_key(self.parts.owner)
        if key is None or self.record.params.level != Level.ATTESTED:
            return False
        return not key.rests_on.isdisjoint(self.record.denied_in(round))

    def _has_worked(self, round: int) -> bool:
        done = round in self._skipped or round in self._work
        return done or self.parts.journal.commitment(self.run, round, self.role) is not None

    def _start(self, due: Assignment) -> None:
        base = self.follower.base(due.round)
        assert base is not None and base.root == due.base_root
        memory, pending = self._trainer_states.start(due.round), self._pending(due.round)
        start = local_start(self.follower.recipe, base.state, pending)
        self.timesheet.now(TRAINING)
        self._job = Job(due, lambda job: self._train(job, due, start, memory))

    def _mind(self, job: Job, due: Assignment | str) -> None:
        """Stops a job whose round is over or whose base is gone, and hurries one that would be late."""
        if due != job.assignment:
            job.stop()
            return
        window = self.follower.schedule.commit(job.assignment.round)
        if self.parts.chain.head().time >= window.end - max(LATE_S, (window.end - window.start) * LATE_SHARE):
            job.hurry()

    def _take(self, job: Job) -> None:
        """What came of a job. Whatever a task, torch or the machine raised: the rounds before have to be revealed."""
        round, error = job.assignment.round, job.error
        if error is None:
            self._work = {round: job.result()}
        elif isinstance(error, TrainingStopped):
            log.info("given up", round=round, cause=error.cause)
        elif isinstance(error, TrainingDiverged):
            log.error("nothing to submit", round=round, cause=error.cause, fix=error.fix)
            self._skipped.add(round)
        else:
            cause = error.cause if isinstance(error, EarnestError) else f"{type(error).__name__}: {error}"
            log.error("training failed", round=round, cause=cause, fix=getattr(error, "fix", ""))
            self._failures[round] = self._failures.get(round, 0) + 1
            if self._failures[round] == TRIES:
                self._skipped.add(round)

    def _train(self, job: Job, due: Assignment, start: State, memory: TrainerState) -> HonestWork:
        """In the job's thread: nothing here touches journal or chain."""
        recipe = self.follower.recipe
        steps = inner_steps(recipe, memory.codec)
        ids = due.sample_ids[: steps * recipe.inner.batch]
        try:
            local = self._local_trainer(job).train(start, ids, due.round, memory)
            gradient = local.pseudo_gradient
            if self._finish is not None:
                gradient = self._finish(gradient, due.round)
            encoded = self.follower.codec.encode(gradient, memory.codec)
        finally:
            self.timesheet.now("the commitment")
        memory.codec = encoded.state
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
            memory=memory.to_bytes(),
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
        """The own update of the round before, as it was sent, where its outcome is still open."""
        if self.follower.recipe.overlap != "eager" or self.follower.schedule.base_round(round) == round - 1:
            return None
        seat = self.seat_in(round - 1)
        saved = self.parts.journal.commitment(self.run, round - 1, self.role)
        if seat is None or saved is None or saved.manifest is None:
            return None
        if seat not in self.record.round(round - 1).commits:
            return None
        try:
            payload = self.parts.private.get(saved.manifest.update, self.follower.recipe.max_payload_bytes)
            return self.follower.codec.decode(payload)
        except (StorageError, PayloadError) as error:
            log.warning("no preview: the own update is lost", round=round, cause=str(error))
            return None

    def _counted(self, round: int) -> bool:
        """Whether the own update of a decided round changed the state."""
        seat, weights = self.seat_in(round), self.record.settled(round).consensus
        return seat is not None and seat < len(weights) and weights[seat] > 0

    # Commit

    def _commit(self, round: int, seat: int) -> None:
        if not self.record.may_commit(seat, round):
            return
        saved = self.parts.journal.commitment(self.run, round, self.role)
        if saved is None and round in self._work:
            saved = self._claim(round, self._work[round])
            del self._work[round]  # not before it is written down: a full disk may have room again
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

    def _claim(self, round: int, work: HonestWork) -> SavedCommitment | None:
        """Writes manifest and salt down, synced, before anything is sent; None if there is nothing to submit."""
        parts, payload = self.parts, self._forge(work)
        self._trainer_states.end(round, work.memory)
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
        saved = parts.journal.save_commitment(self.run, round, self.role, digest, salt, manifest=manifest)
        if self._checkpoints:
            self._checkpoints.clear()
        return saved

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
        attestation = self._attestation(round, saved.manifest)
        if attestation and self._open(round, seat, saved.manifest, saved.salt, attestation):
            return
        self._open(round, seat, saved.manifest, saved.salt)

    def _attestation(self, round: int, manifest: Manifest) -> bytes:
        if self.attested_rounds is None:
            return b""
        return self.attested_rounds.signature(round, manifest.hash(), self.follower.schedule.opens(round))

    def _open(self, round: int, seat: int, manifest: Manifest, salt: bytes, attestation: bytes = b"") -> bool:
        """Reveals. False if the contract does not take it, so that it can be done without the attestation."""
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
        """Whether a key may be registered now, which can take minutes: nothing that is due has to wait for it."""
        now, last = max(0, self.follower.schedule.round_at(head.time)), self.record.planned_rounds
        if now >= last or (self.seat_in(now) is None and self.seat_in(now + 1) is None):
            return False
        return not any(self._is_pressed(round, head.time) for round in range(max(0, now - 1), now + 1))

    def _is_pressed(self, round: int, time: int) -> bool:
        """Whether the round's reveal would have to wait, or its commitment in the second half of its window."""
        schedule, seat, seen = self.follower.schedule, self.seat_in(round), self.record.round(round)
        window, reveal = schedule.commit(round), schedule.reveal(round)
        if seat in seen.commits or self.parts.journal.commitment(self.run, round, self.role) is not None:
            near = time >= reveal.start or 2 * (time + KEY_S) >= reveal.start + reveal.end
            return near and time < reveal.end and seat not in seen.manifests
        late = window.contains(time) and 2 * time >= window.start + window.end
        return late and seat is not None and seat not in seen.commits

    def _publish(self, round: int, manifest: Manifest) -> None:
        """Puts the payload where others fetch it. If it is lost, the manifest is revealed all the same.

        An update that is not there earns nothing; a commitment that is not revealed costs bond.
        """
        try:
            if not self.parts.store.has(manifest.update):
                self.parts.store.put(self.parts.private.get(manifest.update, manifest.size))
        except (StorageError, OSError) as error:
            log.error("payload not published", round=round, cause=str(error))
