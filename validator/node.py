"""The validator node: mirrors payloads, judges, reports, settles and answers contests (docs/validator.md).

record -> payloads, mirrored by the end of the reveal window -> judgement -> report and salt in the journal (synced) ->
report commit -> report reveal -> next state, published -> settlement -> votes on contests.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from earnest.base.errors import EarnestError, StorageError
from earnest.client.chain.blockref import BlockRef
from earnest.client.node.node import Node, NodeParts
from earnest.client.node.settler import TURN_S
from earnest.client.run.seed_check import seed_of_headers
from earnest.protocol.constants import ACTIVE_ROUNDS, WEIGHT_ONE
from earnest.protocol.report import Report, report_commitment
from earnest.protocol.run import Role
from earnest.protocol.seed import SEED_DELAY
from earnest.protocol.verdicts import Verdict
from earnest.protocol.weights import POOLED_ROUNDS
from earnest.training.codecs import PayloadError, Update
from earnest.training.diloco.state import RootedState
from earnest.training.tasks.task import Task
from earnest.validator.attested import Enclaves
from earnest.validator.judge import History, Judgement, RoundInputs, Submission, judge_round
from earnest.validator.payload import Rejection, check_update, check_updates
from earnest.validator.report import abstention, build_report
from earnest.validator.round import past_update
from earnest.validator.similarity import COMPARED_ROUNDS, PastUpdate, original_of

log = structlog.get_logger()

Lie = Callable[[Report], Report]
"""Turns an honest report into the one to submit: the identity, except for the lying validator of the demo."""

Judge = Callable[[RoundInputs], Judgement]

SEED_BLOCKS = SEED_DELAY + 1
"""Blocks between the request of a seed and the first block that can store it (Protocol section 6)."""


class ValidatorNode(Node):
    """A node that judges every revealed update of a run, for one validator seat."""

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
        self._history: tuple[int, History] = (-1, History())
        self._reports: dict[int, Report] = {}

    def prepare(self, head: BlockRef) -> None:
        """Mirrors payloads and judges the round whose report is due; sends no transaction."""
        for round in self._rounds(head):
            if self.seat_in(round) is None:
                continue
            if self.follower.schedule.reveal(round).contains(head.time):
                self.follower.mirror(round)
            if self.follower.schedule.report_commit(round).contains(head.time):
                self._write_report(round)
            self.reached(self.follower.state_after, round)  # stores it, so that others can fetch it

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
        self._history = (-1, History())

    def turn(self, round: int) -> int:
        """Number of seats ahead of this one: in round r, seat r modulo the number of seats is first."""
        seat, count = self.seat_in(round), len(self.record.seats[Role.VALIDATOR])
        return count if seat is None else (seat - round) % count

    def next_due(self, now: int) -> int:
        """Returns the next due time: a second later while a round waits for its seed, which depends on blocks."""
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
            (reveal.start + reveal.end) // 2,  # to mirror early reveals
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
        """Judges the round, unless it is judged or its inputs are not complete yet."""
        if round in self._reports or self.parts.journal.salts.find(self.run, round, self.role):
            return
        newest = self.reached(self.follower.newest, round)
        base = self.reached(self.follower.base, round)
        if newest is None or base is None:
            return
        if round == self.record.planned_rounds:
            self._reports[round] = Report(base.root, newest.root, bytes(32), ())
        elif (inputs := self._inputs(round, base, newest, self._history_before(round))) is not None:
            self._warn_if_seed_differs(round)
            self._reports[round] = self._judge(inputs)
            self._warn_if_late(round)

    def _warn_if_seed_differs(self, round: int) -> None:
        """Warns if two headers give another seed: an endpoint lies, or the chain's `mixHash` is not its randomness."""
        try:
            recomputed = seed_of_headers(self.parts.chain, self.record, round)
        except EarnestError:  # the blocks are not available; judging does not depend on them
            return
        if recomputed not in (None, self.record.round(round).seed):
            cause = "an endpoint lies, or this chain's mixHash is not its randomness"
            fix = "compare with another endpoint; docs/security.md says how random a seed is"
            log.warning("seed differs from the block headers", round=round, cause=cause, fix=fix)

    def _judge(self, inputs: RoundInputs) -> Report:
        """Judges, or abstains on every seat if this machine fails: its failure is no verdict on a trainer."""
        try:
            judged = self._judge_round(inputs)
            measurements = self.parts.store.put(judged.measurements_file)
            self._save_history(inputs.round, judged.history)
            self._log(inputs.round, judged)
        except (MemoryError, OSError, StorageError, RuntimeError, ValueError) as error:
            # torch raises RuntimeError when memory is short; ValueError: a number does not fit into a report.
            log.error("abstaining", round=inputs.round, cause=str(error))
            return abstention(inputs)
        return build_report(judged, inputs.base_root, inputs.newest_root, measurements)

    def _warn_if_late(self, round: int) -> None:
        window = self.follower.schedule.report_commit(round)
        if self.parts.chain.head().time >= window.end:
            cause = f"judging took longer than the rest of the report commit window ({window.end - window.start} s)"
            fix = "run fewer other jobs on this machine, or use a faster one"
            log.warning("too late to report", round=round, cause=cause, fix=fix)

    def _log(self, round: int, judged: Judgement) -> None:
        """Logs verdict, weight (0 to 1) and reason of each update."""
        for seat, vote in enumerate(judged.votes):
            if vote.verdict != Verdict.ABSENT:
                rejection = judged.rejections.get(seat)
                reason = {} if rejection is None else {"reason": rejection.reason}
                verdict = Verdict(vote.verdict).name.lower()
                weight = float(f"{vote.weight / WEIGHT_ONE:.4g}")
                log.info("judged", round=round, seat=seat, verdict=verdict, weight=weight, **reason)

    def _inputs(
        self, round: int, base: RootedState, newest: RootedState, history: History
    ) -> RoundInputs | None:
        """Returns the inputs of the judgement, or None while the seed or the assignment is not known."""
        seen, samples = self.record.round(round), self.follower.samples(round)
        if seen.seed is None or samples is None:
            return None
        recipe, params = self.follower.recipe, self.record.params
        return RoundInputs(
            recipe=recipe,
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
            history=history,
            unattested=self._enclaves.unattested(round),
        )

    def _submissions(self, round: int) -> tuple[Submission, ...]:
        """Returns all revealed updates, or the verdict in place of one that is missing or malformed."""
        updates = check_updates(round, self.follower.updates(round))
        return tuple(self._submission(round, seat, update) for seat, update in updates.items())

    def _submission(self, round: int, seat: int, update: Update | Rejection) -> Submission:
        seen = self.record.round(round)
        return Submission(seat, seen.manifests[seat], seen.commits[seat], update)

    # Carried from round to round: harm and likeness from the journal, earlier updates from the record

    def _history_before(self, round: int) -> History:
        known, history = self._history
        if known == round - 1:
            return history
        known, history = self._saved_history(round)
        for missed in range(max(known + 1, round - POOLED_ROUNDS + 1), round):
            history = self._catch_up(missed, history)
        return history.with_earlier(self._updates_before(round))

    def _saved_history(self, round: int) -> tuple[int, History]:
        """Returns the last round that was judged here, if that is at most 8 rounds ago, and the history after it."""
        for earlier in range(round - 1, max(-1, round - 1 - COMPARED_ROUNDS), -1):
            if saved := self.parts.journal.get(f"{self.run}/judged/{earlier}"):
                return earlier, History.from_bytes(saved)
        return -1, History()

    def _catch_up(self, missed: int, history: History) -> History:
        """Judges a round that was missed, for its margins; returns the history as it is where that cannot be done."""
        try:
            base, newest = self.follower.base(missed), self.follower.newest(missed)
            if base is None or newest is None:
                return history
            history = history.with_earlier(self._updates_before(missed))
            inputs = self._inputs(missed, base, newest, history)
            return history if inputs is None else self._judge_round(inputs).history
        except (MemoryError, OSError, StorageError, RuntimeError, ValueError) as error:
            log.warning("missed round not judged", round=missed, cause=str(error))
            return history

    def _save_history(self, round: int, history: History) -> None:
        self._history = (round, history)
        self.parts.journal.put(f"{self.run}/judged/{round}", history.to_bytes())

    def _updates_before(self, round: int) -> tuple[PastUpdate, ...]:
        """Returns the updates of earlier rounds that one of `round` is compared with, where they are available."""
        rounds = range(max(0, round - COMPARED_ROUNDS), round)
        return tuple(past for earlier in rounds for past in self._updates_in(earlier))

    def _updates_in(self, round: int) -> list[PastUpdate]:
        """Returns the round's updates that decode, as `judge_round` keeps them in its history."""
        past: list[PastUpdate] = []
        for seat, result in self.follower.updates(round).items():
            update = check_update(result) if isinstance(result, Update) else None
            if isinstance(update, Update):
                past.append(past_update(self._submission(round, seat, update), update))
        return past

    # Report

    def _commit_report(self, round: int, seat: int) -> None:
        journal, runs = self.parts.journal, self.parts.contracts.runs
        if self.record.round(round).seed is None:
            return
        saved = journal.salts.find(self.run, round, self.role)
        if saved is None:
            if round not in self._reports or not self.record.seats[self.role][seat].stake.at(round):
                return  # a seat that joined counts from its second round on
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
            saved = journal.salts.save(self.run, round, self.role, digest, salt, words=report.words())
        self.submit(
            f"report-commit/{round}",
            runs.report_commit(self.run, round, seat, saved.commitment),
            lambda at: not any(runs.commitment_of(self.run, self.role, seat, round, at=at)),
            self.follower.schedule.report_commit(round).end,
        )

    def _reveal_report(self, round: int, seat: int, head: BlockRef) -> None:
        saved = self.parts.journal.salts.find(self.run, round, self.role)
        runs = self.parts.contracts.runs
        if saved is None:
            return
        committed = runs.commitment_of(self.run, self.role, seat, round, at=head)
        if committed[:28] != saved.commitment[:28]:
            return
        self.submit(
            f"report-reveal/{round}",
            runs.report_reveal(self.run, round, seat, list(saved.words), saved.salt),
            lambda at: not any(runs.report_hash(self.run, round, seat, at=at)),
            self.follower.schedule.report_reveal(round).end,
        )

    def _ask_back(self, head: BlockRef) -> None:
        """Asks back for a seat that became inactive by missing reports, as soon as the contract accepts it."""
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
        """Checks contested verdicts again, and votes where the result differs from its own report.

        The verdict in the report counts as a vote, so agreeing needs no transaction.
        """
        for penalty, seen in self.record.penalties.items():
            round, window = seen["round"], self.follower.schedule.contest(seen["round"])
            seat = self.seat_in(round)
            if seen["status"] != "contested" or head.time >= window.end or seat is None:
                continue
            if not self.record.validator_stakes(round)[seat]:
                continue
            reported = self._reported_verdict(seen, seat)
            now = self._verdict_again(seen)
            if now is None or (reported == seen["verdict"]) == (now == seen["verdict"]):
                continue
            self.submit(
                f"vote/{penalty.hex()}",
                self.parts.contracts.settlement.vote(penalty, now == seen["verdict"]),
                lambda at: True,
                window.end,
            )

    def _reported_verdict(self, penalty: dict[str, int], seat: int) -> int | None:
        report = self.record.reports(penalty["round"])[seat]
        if report is None or penalty["seat"] >= len(report.votes):
            return None
        return report.votes[penalty["seat"]].verdict

    def _verdict_again(self, penalty: dict[str, int]) -> int | None:
        """Returns the verdict that follows from the payloads now; None if that takes a measurement."""
        round, seat = penalty["round"], penalty["seat"]
        if penalty["verdict"] not in (Verdict.MALFORMED, Verdict.COPIED):
            return None
        result = self.follower.updates(round)[seat]
        if not isinstance(result, Update | PayloadError):
            return None
        update = check_update(result)
        if isinstance(update, Rejection):
            return update.verdict
        late = past_update(self._submission(round, seat, update), update)
        base_round = self.follower.schedule.base_round(round)
        original = original_of(late, self._updates_before(round), base_round)
        copied = penalty["verdict"] == Verdict.COPIED and original
        return Verdict.COPIED if copied else Verdict.ACCEPTED
