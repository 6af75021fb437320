"""What anyone may do for a run: settle rounds, pay, charge, lock and settle penalties (Protocol sections 5, 8, 9).

`duties` only says what is due; a node sends each through its outbox, which asks `still_needed` again right before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.contracts import Call, Runs, Settlement
from earnest.client.record import RunRecord
from earnest.protocol.consensus import hint_words
from earnest.protocol.penalties import broken_round
from earnest.protocol.schedule import Schedule
from earnest.protocol.verdicts import Role, Verdict


@dataclass(frozen=True)
class Duty:
    """One transaction that is due: a name that survives restarts, the call, and the question to ask again."""

    intent: str
    call: Call
    still_needed: Callable[[BlockRef], bool]
    deadline: int


class Settler:
    """Lists the settlement duties of one run at one block. `patience` (seconds) leaves the first go to others."""

    def __init__(self, record: RunRecord, runs: Runs, settlement: Settlement, patience: int = 0) -> None:
        self._record = record
        self._runs = runs
        self._settlement = settlement
        self._patience = patience

    @property
    def _schedule(self) -> Schedule:
        return self._record.params.schedule()

    def duties(self, head: BlockRef) -> Iterator[Duty]:
        """Everything due at `head`, in the order it should be sent."""
        schedule, last = self._schedule, self._record.planned_rounds
        for round in self._rounds_in_reach(head.time):
            window = schedule.settle(round)
            if round < last:
                yield from self._charges(round, head)
            if window.start + self._patience <= head.time < window.end:
                yield from self._settle_round(round, head, window.end)
        yield from self._penalties(head)

    def next_due(self, now: int) -> int | None:
        """The next time at which something of this may become due."""
        schedule = self._schedule
        times = [
            time
            for round in range(max(0, schedule.round_at(now) - 2), self._record.planned_rounds + 1)
            for time in (
                schedule.reveal(round).end,
                schedule.settle(round).start + self._patience,
                schedule.contest(round).end,
            )
        ]
        return min((time for time in times if time > now), default=None)

    def _rounds_in_reach(self, now: int) -> range:
        newest = min(self._schedule.round_at(now), self._record.planned_rounds)
        return range(max(0, newest - 1), newest + 1)

    def _charges(self, round: int, head: BlockRef) -> Iterator[Duty]:
        schedule = self._schedule
        end = schedule.settle(round).end
        for role, opens in (
            (Role.TRAINER, schedule.reveal(round).end),
            (Role.VALIDATOR, schedule.score_reveal(round).end),
        ):
            if opens + self._patience <= head.time < end and self._chargeable(round, role):
                yield Duty(
                    intent=f"charge/{round}/{role.name.lower()}",
                    call=self._settlement.charge(self._record.run, round, role),
                    still_needed=lambda at, role=role: (
                        not self._settlement.charged(self._record.run, round, role, at=at)
                    ),
                    deadline=end,
                )

    def _chargeable(self, round: int, role: Role) -> bool:
        seen = self._record.round(round)
        committed, revealed = (
            (set(seen.commits), set(seen.manifests))
            if role is Role.TRAINER
            else (set(seen.report_commits), set(seen.report_words))
        )
        return bool(committed - revealed) and 2 * len(committed & revealed) >= len(committed)

    def _settle_round(self, round: int, head: BlockRef, deadline: int) -> Iterator[Duty]:
        record, run = self._record, self._record.run
        settled = record.settled(round)
        state = self._settlement.round_record(run, round, at=head)
        words = report_words(record, round)
        if settled.void:
            burnable = round < record.planned_rounds and bool(record.round(round).manifests)
            if burnable and not state.void:
                yield Duty(
                    f"void/{round}",
                    self._settlement.void(run, round, words),
                    lambda at: not self._settlement.round_record(run, round, at=at).void,
                    deadline,
                )
            return
        if not state.complete:
            seats = record.trainer_count() if round < record.planned_rounds else 0
            hints = hint_words(settled.consensus[:seats])
            yield Duty(
                f"settle/{round}",
                self._settlement.settle(run, round, 0, seats, hints, words, settled.majority),
                lambda at: not self._settlement.round_record(run, round, at=at).complete,
                deadline,
            )
            return
        if round == record.planned_rounds:
            return
        if settled.counted and not self._settlement.validators_paid(run, round, at=head):
            yield Duty(
                f"pay-validators/{round}",
                self._settlement.pay_validators(run, round),
                lambda at: not self._settlement.validators_paid(run, round, at=at),
                deadline,
            )
        guilty = [seat for seat in self._guilty(round) if self._unlocked(round, seat, head)]
        if guilty:
            yield Duty(
                f"lock/{round}",
                self._settlement.lock(run, round, guilty, words),
                lambda at: any(self._unlocked(round, seat, at) for seat in guilty),
                deadline,
            )

    def _guilty(self, round: int) -> list[int]:
        """Seats whose verdict costs bond; in a broken round verdict 4 costs nothing (Protocol section 9)."""
        record = self._record
        terms, verdicts = record.params.penalty_terms(), record.settled(round).verdicts
        broken = broken_round(verdicts.count(Verdict.HARMFUL), len(record.round(round).manifests))
        return [
            seat
            for seat, verdict in enumerate(verdicts)
            if terms.bps(verdict) and not (broken and verdict == Verdict.HARMFUL)
        ]

    def _unlocked(self, round: int, seat: int, at: BlockRef) -> bool:
        penalty = self._settlement.penalty_id(self._record.run, round, seat, at=at)
        return self._settlement.penalty(penalty, at=at).status == 0

    def _penalties(self, head: BlockRef) -> Iterator[Duty]:
        schedule = self._schedule
        for penalty, seen in self._record.penalties.items():
            opens = schedule.contest(seen["round"]).end + self._patience
            if seen["status"] in ("locked", "contested") and head.time >= opens:
                yield Duty(
                    f"settle-penalty/{penalty.hex()}",
                    self._settlement.settle_penalty(penalty),
                    lambda at, penalty=penalty: self._settlement.penalty(penalty, at=at).status in (1, 2),
                    opens + 86_400,
                )


def report_words(record: RunRecord, round: int) -> list[list[bytes]]:
    """Revealed reports by validator seat as the contract takes them; empty where there is none."""
    seen, count = record.round(round).report_words, len(record.validator_stakes(round))
    return [list(seen.get(seat, ())) for seat in range(count)]


__all__ = ["Duty", "Settler", "report_words"]
