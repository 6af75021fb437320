"""The validator node: mirror, judge, seal, reveal, settle, answer contests (docs/validator.md).

chain view -> revealed manifests -> payloads, mirrored by the end of the reveal window -> judgement -> report ->
journal (salt synced) -> sealed commit -> reveal -> next state, published -> settlement -> contest votes.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from earnest.base.errors import StorageError, Unavailable, WrongContent
from earnest.client.chain.blockref import BlockRef
from earnest.client.node.node import Node, NodeParts
from earnest.client.node.settler import TURN_S
from earnest.protocol.constants import ACTIVE_ROUNDS
from earnest.protocol.manifest import Manifest
from earnest.protocol.report import Report, report_commitment
from earnest.protocol.run import Role
from earnest.protocol.verdicts import Verdict
from earnest.training.codecs import Update
from earnest.training.diloco.state import RootedState
from earnest.training.tasks.task import Task
from earnest.validator.attested import Enclaves
from earnest.validator.judge import History, Judgement, Missing, RoundInputs, Submission, judge_round
from earnest.validator.payload import Rejection, check_payload
from earnest.validator.report import abstention, build_report
from earnest.validator.similarity import MEMORY_ROUNDS, PastUpdate, original_of

log = structlog.get_logger()

Lie = Callable[[Report], Report]
"""Turns an honest report into the one to submit: the identity for honest validators; the demo's liar has another."""

Judge = Callable[[RoundInputs], Judgement]

SEED_BLOCKS = 3
"""A seed can be stored from this many blocks after its request on (Protocol section 6)."""


class ValidatorNode(Node):
    """Judges every revealed update of a run and answers for it with one validator seat."""

    role = Role.VALIDATOR

    def __init__(
        self,
        parts: NodeParts,
        task: Task,
        *,
        patience: int = 0,
        lie: Lie | None = None,
        judge: Judge = judge_round,
    ) -> None:
        super().__init__(parts, patience)
        self._judge_round = judge
        self._task = task
        self._lie = lie or (lambda report: report)
        self._enclaves = Enclaves(parts.follower, parts.chain, parts.contracts.registry.address)
        self._memory: tuple[int, History] = (-1, History())
        self._reports: dict[int, Report] = {}

    def prepare(self, head: BlockRef) -> None:
        """Judges the round whose scores are due, without touching the chain."""
        for round in self._rounds(head):
            if self.seat_in(round) is None:
                continue
            if self.follower.schedule.reveal(round).contains(head.time):
                self.follower.mirror(round)
            if self.follower.schedule.report_commit(round).contains(head.time):
                self._write_report(round)
            self.reached(self.follower.state_after, round)  # which keeps it where others can fetch it

    def act(self, head: BlockRef) -> None:
        schedule = self.follower.schedule
        self._ask_back(head)
        for round in self._rounds(head):
            seat = self.seat_in(round)
            if seat is None:
                continue
            if schedule.report_commit(round).contains(head.time):
                self._seed(round, head)
                self._commit_report(round, seat)
            if schedule.report_reveal(round).contains(head.time):
                self._reveal_report(round, seat, head)
        self._answer_contests(head)

    def forget(self) -> None:
        self._reports.clear()
        self._memory = (-1, History())

    def turn(self, round: int) -> int:
        """Goes round: in round r it is the turn of seat r first, modulo the number of seats."""
        seat, count = self.seat_in(round), len(self.record.seats[Role.VALIDATOR])
        return count if seat is None else (seat - round) % count

    def next_due(self, now: int) -> int:
        """Sooner while a seed is awaited: blocks, not seconds, decide when it can be stored."""
        schedule = self.follower.schedule
        for round in range(max(0, schedule.round_at(now) - 1), self.record.planned_rounds + 1):
            if schedule.report_commit(round).contains(now) and self.record.round(round).seed is None:
                return now + 1
        return super().next_due(now)

    def times(self, round: int) -> tuple[int, ...]:
        schedule = self.follower.schedule
        reveal = schedule.reveal(round)
        return (
            reveal.start,
            (reveal.start + reveal.end) // 2,  # to mirror what trainers revealed as soon as they could
            schedule.report_commit(round).start,
            schedule.report_reveal(round).start,
            schedule.report_reveal(round).end,
        )

    def _rounds(self, head: BlockRef) -> range:
        newest = min(self.follower.schedule.round_at(head.time), self.record.planned_rounds)
        return range(max(0, newest - 1), newest + 1)

    # Seed

    def _seed(self, round: int, head: BlockRef) -> None:
        runs = self.parts.contracts.runs
        state = runs.seed_of(self.run, round, at=head)
        if state.seed is not None or (state.block and head.number < state.block + SEED_BLOCKS):
            return
        window = self.follower.schedule.report_commit(round)
        if head.time < window.start + min(self.turn(round) * TURN_S, (window.end - window.start) // 8):
            return
        self.submit(
            f"seed/{round}/{state.block}",
            runs.seed(self.run, round),
            lambda at: runs.seed_of(self.run, round, at=at) == state,
            window.end,
        )

    # Judging

    def _write_report(self, round: int) -> None:
        """Judges the round unless that is done, or its inputs are not all there yet."""
        if round in self._reports or self.parts.journal.commitment(self.run, round, self.role):
            return
        newest = self.reached(self.follower.newest, round)
        base = self.reached(self.follower.base, round)
        if newest is None or base is None:
            return
        if round == self.record.planned_rounds:
            self._reports[round] = Report(base.root, newest.root, bytes(32), ())
        elif (inputs := self._inputs(round, base, newest)) is not None:
            self._reports[round] = self._judge(inputs)
            self._warn_if_late(round)

    def _judge(self, inputs: RoundInputs) -> Report:
        """Judges, and abstains from every seat if this machine fails: that is no verdict on anybody."""
        try:
            judged = self._judge_round(inputs)
            measurements = self.parts.store.put(judged.measurements_file)
            self._remember(inputs.round, judged.memory)
            self._tell(inputs.round, judged)
        except (MemoryError, OSError, StorageError, RuntimeError, ValueError) as error:
            # RuntimeError: torch's word for a lack of memory. ValueError: numbers that no report can hold.
            log.error("abstaining", round=inputs.round, cause=str(error))
            return abstention(inputs)
        return build_report(judged, inputs.base_root, inputs.newest_root, measurements)

    def _warn_if_late(self, round: int) -> None:
        window = self.follower.schedule.report_commit(round)
        if self.parts.chain.head().time >= window.end:
            cause = f"judging took longer than what the report commit window of {window.end - window.start} s left"
            fix = "give this machine less else to do; the run's report_commit_s fits faster ones"
            log.warning("too late to report", round=round, cause=cause, fix=fix)

    def _tell(self, round: int, judged: Judgement) -> None:
        """Logs what came of each update, in the words of the evidence file."""
        for seat, vote in enumerate(judged.votes):
            if vote.verdict != Verdict.ABSENT:
                refusal = judged.refusals.get(seat)
                reason = {} if refusal is None else {"reason": refusal.reason}
                verdict = Verdict(vote.verdict).name.lower()
                log.info("judged", round=round, seat=seat, verdict=verdict, weight=vote.weight, **reason)

    def _inputs(self, round: int, base: RootedState, newest: RootedState) -> RoundInputs | None:
        """Everything that the judgement depends on; None while the seed or the samples are still to come."""
        seen, samples = self.record.round(round), self.follower.samples(round)
        if seen.seed is None or samples is None:
            return None
        recipe, params = self.follower.recipe, self.record.params
        return RoundInputs(
            recipe=recipe,
            codec=self.follower.codec,
            task=self._task,
            round=round,
            rounds=params.rounds,
            trainer_limit=params.trainer_limit,
            base_root=base.root,
            newest=newest.state,
            newest_root=newest.root,
            clip_norm=newest.state.clip_norm,
            seed=seen.seed,
            submissions=self._submissions(round),
            assigned={seat: samples.assigned.get(seat, ()) for seat in seen.manifests},
            held_out=samples.held_out(seen.seed),
            memory=self._memory_before(round),
            unattested=self._enclaves.unattested(round),
        )

    def _submissions(self, round: int) -> tuple[Submission, ...]:
        """What was revealed, with its payload or why there is none.

        A validator that got nobody's payload blames its own network: "unavailable" is then no verdict to give.
        """
        seen, payloads = self.record.round(round), self.follower.payloads(round)
        cut_off = not any(isinstance(found, bytes) for found in payloads.values())
        return tuple(
            Submission(
                seat,
                seen.manifests[seat],
                seen.commits[seat],
                found if isinstance(found, bytes) else self._missing(round, seat, found, cut_off),
            )
            for seat, found in payloads.items()
        )

    @staticmethod
    def _missing(round: int, seat: int, error: StorageError | OSError, cut_off: bool) -> Missing:
        unavailable = isinstance(error, Unavailable | WrongContent) and not cut_off
        log.warning("no payload", round=round, seat=seat, cause=str(error), abstaining=not unavailable)
        return Missing.UNAVAILABLE if unavailable else Missing.OWN_FAILURE

    # What goes from round to round: harm and likeness from the journal, earlier updates from the record

    def _memory_before(self, round: int) -> History:
        known, memory = self._memory
        if known == round - 1:
            return memory
        return self._kept_memory(round).with_earlier(self._published_before(round))

    def _kept_memory(self, round: int) -> History:
        """That of the last round judged, which this validator may have missed some rounds after."""
        for earlier in range(round - 1, max(-1, round - 1 - MEMORY_ROUNDS), -1):
            if kept := self.parts.journal.get(f"{self.run}/judged/{earlier}"):
                return History.from_bytes(kept)
        return History()

    def _remember(self, round: int, memory: History) -> None:
        self._memory = (round, memory)
        self.parts.journal.put(f"{self.run}/judged/{round}", memory.to_bytes())

    def _published_before(self, round: int) -> tuple[PastUpdate, ...]:
        """Updates of the rounds that a later one is compared with, as far as they are to be had."""
        rounds = range(max(0, round - MEMORY_ROUNDS), round)
        return tuple(one for earlier in rounds for one in self._published_in(earlier))

    def _published_in(self, round: int) -> list[PastUpdate]:
        """The round's sound updates, as `judge_round` would remember them."""
        seen, found = self.record.round(round), []
        for seat, payload in self.follower.payloads(round).items():
            manifest = seen.manifests[seat]
            checked = self._checked(payload, manifest) if isinstance(payload, bytes) else None
            if isinstance(checked, Update):
                at = seen.commits[seat]
                found.append(PastUpdate(round, seat, manifest.trainer, at, manifest.update, checked))
        return found

    def _checked(self, payload: bytes, manifest: Manifest) -> Update | Rejection:
        return check_payload(payload, manifest, self.follower.codec, self.follower.recipe.max_payload_bytes)

    # Sealed report

    def _commit_report(self, round: int, seat: int) -> None:
        journal, runs = self.parts.journal, self.parts.contracts.runs
        if self.record.round(round).seed is None:
            return
        saved = journal.commitment(self.run, round, self.role)
        if saved is None:
            if round not in self._reports:
                return
            report, salt = self._lie(self._reports[round]), self.parts.salt()
            digest = report_commitment(
                self.parts.chain.chain_id,
                runs.address,
                self.run,
                round,
                self.parts.owner,
                report.hash(),
                salt,
            )
            saved = journal.save_commitment(self.run, round, self.role, digest, salt, words=report.words())
        self.submit(
            f"report-commit/{round}",
            runs.report_commit(self.run, round, seat, saved.commitment),
            lambda at: not any(runs.commitment_of(self.run, self.role, seat, round, at=at)),
            self.follower.schedule.report_commit(round).end,
        )

    def _reveal_report(self, round: int, seat: int, head: BlockRef) -> None:
        saved = self.parts.journal.commitment(self.run, round, self.role)
        runs = self.parts.contracts.runs
        if saved is None:
            return
        sealed = runs.commitment_of(self.run, self.role, seat, round, at=head)
        if sealed[:28] != saved.commitment[:28]:
            return
        self.submit(
            f"report-reveal/{round}",
            runs.report_reveal(self.run, round, seat, list(saved.words), saved.salt),
            lambda at: not any(runs.report_hash(self.run, round, seat, at=at)),
            self.follower.schedule.report_reveal(round).end,
        )

    def _ask_back(self, head: BlockRef) -> None:
        """Asks back for a seat that rounds without a revealed report made inactive, as soon as the contract lets it."""
        round = self.follower.schedule.round_at(head.time)
        seat, last = self.seat_in(round), self.record.planned_rounds
        if seat is None or round >= last or self.record.validator_stakes(round)[seat]:
            return
        entered = self.record.newest_entry(seat, round + 1)
        bonded = self.record.seats[self.role][seat].stake.at(round + 1)
        if not bonded or entered is None or entered + ACTIVE_ROUNDS + 1 >= round:
            return
        runs = self.parts.contracts.runs
        self.submit(
            f"ask-back/{round}",
            runs.ask_back(self.run, seat),
            lambda at: self.follower.schedule.round_at(at.time) == round,
            self.follower.schedule.opens(round + 1),
        )

    # Contests

    def _answer_contests(self, head: BlockRef) -> None:
        """Looks again at each contested verdict of its own; votes only where it now thinks otherwise.

        A sealed verdict counts as a vote by itself, so agreeing needs no transaction.
        """
        for penalty, seen in self.record.penalties.items():
            round, window = seen["round"], self.follower.schedule.contest(seen["round"])
            seat = self.seat_in(round)
            if seen["status"] != "contested" or head.time >= window.end or seat is None:
                continue
            if not self.record.validator_stakes(round)[seat]:
                continue
            sealed, now = self._sealed_verdict(seen, seat), self._verdict_again(seen)
            if now is None or (sealed == seen["verdict"]) == (now == seen["verdict"]):
                continue
            self.submit(
                f"vote/{penalty.hex()}",
                self.parts.contracts.settlement.vote(penalty, now == seen["verdict"]),
                lambda at: True,
                window.end,
            )

    def _sealed_verdict(self, penalty: dict[str, int], seat: int) -> int | None:
        report = self.record.reports(penalty["round"])[seat]
        if report is None or penalty["seat"] >= len(report.votes):
            return None
        return report.votes[penalty["seat"]].verdict

    def _verdict_again(self, penalty: dict[str, int]) -> int | None:
        """The verdict that the payload deserves on a second look: facts only, no measurement is repeated."""
        round, seat = penalty["round"], penalty["seat"]
        if penalty["verdict"] not in (Verdict.MALFORMED, Verdict.COPIED):
            return None
        manifest = self.record.round(round).manifests[seat]
        try:
            checked = self._checked(self.follower.payload(round, seat), manifest)
        except (StorageError, OSError):
            return None
        if penalty["verdict"] == Verdict.MALFORMED:
            return checked.verdict if isinstance(checked, Rejection) else Verdict.ACCEPTED
        if isinstance(checked, Rejection):
            return checked.verdict
        others = [*self._published_before(round), *self._published_in(round)]
        mine = next((one for one in others if (one.round, one.seat) == (round, seat)), None)
        if mine is None:
            return None
        return Verdict.COPIED if original_of(mine, others) else Verdict.ACCEPTED
