"""The permissionless calls of a run: settle, pay, charge, lock and settle penalties (Protocol sections 5, 8, 9).

`Settler.due_calls` only lists them. `Node.act_on` (`node.py`) sends them for a node, `settle_due`
(`client/account/sending.py`) for `earnest run settle`, through an outbox that checks `still_needed` first. The sender
pays the gas and is not repaid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.contracts import Call, PenaltyStatus, Runs, Settlement
from earnest.client.run.record import RunRecord
from earnest.protocol.consensus import hint_words
from earnest.protocol.run import Role
from earnest.protocol.schedule import Schedule
from earnest.protocol.verdicts import Verdict

LATE_S = 86_400
"""Time limit of one attempt at a call that has no deadline (settling a penalty), in seconds."""

LOCK_PAGE = 16
"""Seats locked in one transaction, of 32 at most: with 256 trainers and 16 validators 6 M gas, of at most 2^24."""

TURN_S = 20
"""Seconds between two validators' turns to settle, and so to pay the gas; the first turn rotates with the rounds."""

OPEN = (PenaltyStatus.LOCKED, PenaltyStatus.CONTESTED)


@dataclass(frozen=True)
class DueCall:
    """One transaction that is due: its name in the journal, the call, and the check to repeat before sending."""

    intent: str
    call: Call
    still_needed: Callable[[BlockRef], bool]
    deadline: int


class Settler:
    """Lists the settlement calls of one run that are due at one block.

    The node waits for `patience` seconds and for the `turn(round)` nodes ahead of it, so that not every node pays the
    gas of the same call; together at most half of the settle window.
    """

    def __init__(
        self,
        record: RunRecord,
        runs: Runs,
        settlement: Settlement,
        patience: int = 0,
        turn: Callable[[int], int] = lambda round: 0,
    ) -> None:
        self._record = record
        self._runs = runs
        self._settlement = settlement
        self._wished = patience
        self._turn = turn

    @property
    def _schedule(self) -> Schedule:
        return self._record.params.schedule()

    def _patience(self, round: int) -> int:
        return min(self._wished + self._turn(round) * TURN_S, self._record.params.settle_s // 2)

    def due_calls(self, head: BlockRef) -> Iterator[DueCall]:
        """Yields every call due at `head`, in the order of sending."""
        schedule, last = self._schedule, self._record.planned_rounds
        for round in self._rounds_in_reach(head.time):
            window = schedule.settle(round)
            if round < last:
                yield from self._charges(round, head)
            if window.start + self._patience(round) <= head.time < window.end:
                yield from self._settle_round(round, head, window.end)
        yield from self._penalties(head)

    def next_due(self, now: int) -> int | None:
        """Returns the next time at which a call may become due."""
        schedule = self._schedule
        times = [
            time
            for round in range(max(0, schedule.round_at(now) - 2), self._record.planned_rounds + 1)
            for time in (
                schedule.reveal(round).end + self._patience(round),
                schedule.settle(round).start + self._patience(round),
            )
        ]
        times += [
            self._settles_at(seen["round"]) for seen in self._record.penalties.values() if _is_open(seen)
        ]
        return min((time for time in times if time > now), default=None)

    def _rounds_in_reach(self, now: int) -> range:
        newest = min(self._schedule.round_at(now), self._record.planned_rounds)
        return range(max(0, newest - 1), newest + 1)

    def _charges(self, round: int, head: BlockRef) -> Iterator[DueCall]:
        schedule = self._schedule
        end = schedule.settle(round).end
        for role, opens in (
            (Role.TRAINER, schedule.reveal(round).end),
            (Role.VALIDATOR, schedule.report_reveal(round).end),
        ):
            if opens + self._patience(round) <= head.time < end and self._chargeable(round, role):
                yield DueCall(
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

    def _settle_round(self, round: int, head: BlockRef, deadline: int) -> Iterator[DueCall]:
        record, run = self._record, self._record.run
        settled = record.settled(round)
        state = self._settlement.round_record(run, round, at=head)
        words = report_words(record, round)
        if settled.void:
            burnable = round < record.planned_rounds and bool(record.round(round).manifests)
            if burnable and not state.void:
                yield DueCall(
                    f"void/{round}",
                    self._settlement.void(run, round, words),
                    lambda at: not self._settlement.round_record(run, round, at=at).void,
                    deadline,
                )
            return
        if not state.settled:
            yield DueCall(
                f"settle/{round}",
                self._settlement.settle(
                    run,
                    round,
                    hint_words(settled.consensus[: record.ballot(round).span]),
                    words,
                    settled.majority,
                ),
                lambda at: not self._settlement.round_record(run, round, at=at).settled,
                deadline,
            )
            return
        if round == record.planned_rounds:
            return
        guilty = [seat for seat in self._guilty(round, head) if self._unlocked(round, seat, head)]
        for first in range(0, len(guilty), LOCK_PAGE):
            page = guilty[first : first + LOCK_PAGE]
            yield DueCall(
                f"lock/{round}/{page[0]}",
                self._settlement.lock(run, round, page, words),
                lambda at, page=page: any(self._unlocked(round, seat, at) for seat in page),
                deadline,
            )

    def _guilty(self, round: int, at: BlockRef) -> list[int]:
        """Returns the seats whose verdict costs bond; in a broken round verdict 4 does not (Protocol section 9)."""
        terms, verdicts = self._record.params.penalty_terms(), self._record.settled(round).verdicts
        harm = Verdict.HARMFUL in verdicts
        broken = harm and self._settlement.broken(self._record.run, round, at=at)
        return [
            seat
            for seat, verdict in enumerate(verdicts)
            if terms.bps(verdict) and not (broken and verdict == Verdict.HARMFUL)
        ]

    def _unlocked(self, round: int, seat: int, at: BlockRef) -> bool:
        penalty = self._settlement.penalty_id(self._record.run, round, seat, at=at)
        return self._settlement.penalty(penalty, at=at).status == 0

    def _penalties(self, head: BlockRef) -> Iterator[DueCall]:
        for penalty, seen in self._record.penalties.items():
            if _is_open(seen) and head.time >= self._settles_at(seen["round"]):
                yield DueCall(
                    f"settle-penalty/{penalty.hex()}",
                    self._settlement.settle_penalty(penalty),
                    lambda at, penalty=penalty: self._settlement.penalty(penalty, at=at).status in OPEN,
                    head.time + LATE_S,
                )

    def _settles_at(self, round: int) -> int:
        return self._schedule.contest(round).end + self._patience(round)


def _is_open(penalty: dict[str, Any]) -> bool:
    return penalty["status"] in ("locked", "contested")


def report_words(record: RunRecord, round: int) -> list[list[bytes]]:
    """Returns the words of the revealed reports by validator seat, as calldata; empty if there is none."""
    seen, count = record.round(round).report_words, len(record.validator_stakes(round))
    return [list(seen.get(seat, ())) for seat in range(count)]


__all__ = ["DueCall", "Settler", "report_words"]
