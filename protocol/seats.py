"""Seats by round: owner, operator, stake; the reference of `TrainingRuns`. Protocol section 3.

The contract keeps tenures, keys and stakes for rounds q-1, q and q+1; the model keeps all rounds. The
caller is the first argument of a method, block time the last; refusals have the contract's reasons. Admission and
the vault's live bonds are passed in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from earnest.protocol.constants import (
    ACTIVE_ROUNDS,
    MAX_VALIDATORS,
    NO_SEAT,
    OUTBID_SHARE,
    SILENT_ROUNDS,
    TAKEOVER_DENOMINATOR,
    TAKEOVER_NUMERATOR,
    ZERO_ADDRESS,
)
from earnest.protocol.require import require
from earnest.protocol.run import Role, RunParams
from earnest.protocol.timeline import Timeline


@dataclass
class Tenure:
    """One account's time in a seat, from `from_round` until the next tenure."""

    owner: str
    from_round: int
    operators: Timeline[str]
    barred_until: int = 0
    """Commits are refused in rounds below this."""

    asked_from: int = 0
    """Validators: the round from which it last asked back; 0: never."""

    @property
    def active_from(self) -> int:
        return max(self.from_round, self.asked_from)


@dataclass
class SeatHistory:
    """Tenures, stakes, commitments and reports of one seat."""

    tenures: list[Tenure] = field(default_factory=list[Tenure])
    stakes: Timeline[int] = field(default_factory=lambda: Timeline(0))
    commitments: set[int] = field(default_factory=set[int])
    """Rounds for which the seat committed (an update, or a report)."""

    reports: set[int] = field(default_factory=set[int])
    """Validators: rounds for which it revealed a report."""

    def tenure(self, round: int) -> Tenure | None:
        """Returns the tenure that the round belongs to; None for a free seat."""
        begun = [tenure for tenure in self.tenures if tenure.from_round <= round]
        return begun[-1] if begun else None


@dataclass
class SeatsModel:
    """The seats of one run. `rounds` falls when the sponsor ends the run."""

    params: RunParams
    rounds: int = 0
    trainers: list[SeatHistory] = field(default_factory=list[SeatHistory])
    validators: list[SeatHistory] = field(default_factory=list[SeatHistory])
    members: dict[str, tuple[Role, int]] = field(default_factory=dict[str, tuple[Role, int]])
    barred: dict[str, int] = field(default_factory=dict[str, int])
    snapshots: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """Stakes that vote in a round, for each round with a report commit."""

    outbids: dict[int, int] = field(default_factory=dict[int, int])
    """Trainer seats outbid from each round on."""

    def __post_init__(self) -> None:
        self.rounds = self.rounds or self.params.rounds
        self.schedule = self.params.schedule()

    def clock(self, now: int) -> tuple[int, int]:
        """Returns the current round and the first one that a change made now applies to.

        Both stop two rounds after the last one, the report-only round included.
        """
        if now < self.params.start:
            return 0, 0
        current = min(self.schedule.round_at(now), self.rounds + 2)
        return current, current + 1

    def end(self, now: int) -> None:
        """Ends the run after the next round. Sponsor only."""
        rounds = self.clock(now)[1] + 1
        require(rounds < self.rounds, "runs: no round left to end")
        self.rounds = rounds

    # Joining, keys, stakes.

    def join(
        self,
        account: str,
        role: Role,
        operator: str,
        now: int,
        live_bond: int,
        admitted: bool = True,
        take: int = NO_SEAT,
        leaving: bool = False,
    ) -> int:
        """Gives the account a seat from the next round on. Returns the seat.

        `live_bond`: the account's bond in the vault, 0 once its exit has started. `leaving`: the owner of the seat
        to take has no live bond.
        """
        current, following = self.clock(now)
        require(following < self.rounds, "runs: too late to join")
        require(account not in self.members, "runs: already seated")
        require(admitted, "runs: not admitted")
        require(live_bond >= self._min_bond(role), "runs: bond too small")
        seats = self.seats(role)
        if len(seats) < self._limit(role):
            require(take == NO_SEAT, "runs: a seat is free")
            seat, outbid = len(seats), False
        else:
            require(take != NO_SEAT, "runs: no free seat")
            seat, outbid = take, self._outbids(role, take, live_bond, leaving, current, following)
        require(operator != ZERO_ADDRESS, "runs: no operator")
        if outbid:
            self.outbids[following] = self.outbids.get(following, 0) + 1
        self._begin(role, seat, account, operator, live_bond, following)
        return seat

    def set_operator(self, account: str, role: Role, seat: int, operator: str, now: int) -> None:
        """Changes the operator from the next round on. Owner only."""
        tenure = self._last(role, seat)
        require(tenure is not None and account == tenure.owner, "runs: not the owner")
        require(operator != ZERO_ADDRESS, "runs: no operator")
        assert tenure is not None
        tenure.operators.set(self.clock(now)[1], operator)

    def sync(self, role: Role, seat: int, now: int, live_bond: int) -> None:
        """Makes the live bond of the seat's owner count from the next round on, a validator's from the one after.

        Anyone may call.
        """
        require(self._last(role, seat) is not None, "runs: empty seat")
        counts = _counts_from(role, self.clock(now)[1])
        record = self.seats(role)[seat]
        if record.stakes.at(counts) != live_bond:
            record.stakes.set(counts, live_bond)

    def ask_back(self, account: str, seat: int, now: int) -> None:
        """Makes an inactive validator seat active again from the next round on."""
        current, following = self.clock(now)
        tenure = self._last(Role.VALIDATOR, seat)
        named = tenure is not None and account in (tenure.owner, tenure.operators.at(following))
        require(named, "runs: not owner or operator")
        assert tenure is not None
        require(tenure.active_from + ACTIVE_ROUNDS + 1 < current, "runs: seat is still active")
        tenure.asked_from = following

    def set_bar(self, account: str, until_round: int, at_most: int) -> None:
        """Bars the account from committing before `until_round`, in any seat; a bar beyond `at_most` stays."""
        if self.barred.get(account, 0) > at_most:
            return
        self.barred[account] = until_round
        for record in self.trainers:
            for tenure in record.tenures:
                if tenure.owner == account:
                    tenure.barred_until = until_round

    # Rounds.

    def commit(self, operator: str, round: int, seat: int, now: int, live_bond: int) -> None:
        """Commits to an update of the round inside its commit window; `live_bond` is the owner's."""
        open_ = round < self.rounds and self.schedule.commit(round).contains(now)
        require(open_, "runs: not in commit window")
        tenure = self.tenure(Role.TRAINER, seat, round)
        self._check_operator(operator, tenure, round)
        assert tenure is not None
        require(round >= tenure.barred_until, "runs: seat is barred")
        require(live_bond >= self.params.commit_bond, "runs: no live bond")
        self._check_first(self.trainers[seat], round)

    def report_commit(
        self, operator: str, round: int, seat: int, now: int, live_bonds: Sequence[int] = ()
    ) -> None:
        """Commits to a report; the round's first call fixes the stakes that vote.

        It also reads the bonds that count from the next round on: `live_bonds` are those of the validator
        seats' owners; omitted seats keep their stake.
        """
        open_ = round <= self.rounds and self.schedule.report_commit(round).contains(now)
        require(open_, "runs: not in report-commit window")
        self._check_operator(operator, self.tenure(Role.VALIDATOR, seat, round), round)
        stakes = self.snapshots.get(round) or self._active_stakes(round, live_bonds)
        require(stakes[seat] > 0, "runs: inactive seat")
        self._check_first(self.validators[seat], round)
        if round not in self.snapshots:
            self.snapshots[round] = stakes
            for other, live_bond in enumerate(live_bonds):
                self.sync(Role.VALIDATOR, other, now, live_bond)

    def report_reveal(self, operator: str, round: int, seat: int, now: int) -> None:
        """Reveals the report that the seat committed to."""
        open_ = round <= self.rounds and self.schedule.report_reveal(round).contains(now)
        require(open_, "runs: not in report-reveal window")
        self._check_operator(operator, self.tenure(Role.VALIDATOR, seat, round), round)
        record = self.validators[seat]
        require(round in record.commitments, "runs: not the committed report")
        require(round not in record.reports, "runs: report already revealed")
        record.reports.add(round)

    # Views.

    def seats(self, role: Role) -> list[SeatHistory]:
        """Returns the number of seats ever taken."""
        return self.trainers if role == Role.TRAINER else self.validators

    def tenure(self, role: Role, seat: int, round: int) -> Tenure | None:
        """Returns the tenure of a seat in a round; None for a free seat."""
        seats = self.seats(role)
        return seats[seat].tenure(round) if seat < len(seats) else None

    def active_trainers(self, round: int) -> list[int]:
        """Returns the trainer seats that are assigned data in a round: occupied, with stake."""
        return [
            seat
            for seat, record in enumerate(self.trainers)
            if record.tenure(round) is not None and record.stakes.at(round) > 0
        ]

    def stakes(self, round: int) -> tuple[int, ...]:
        """Returns the stakes that vote in a round, per validator seat; all 0 before the first report commit."""
        return self.snapshots.get(round, (0,) * MAX_VALIDATORS)

    def active_stake(self, round: int) -> int:
        """Returns T, wei."""
        return sum(self.stakes(round))

    # Rules.

    def _min_bond(self, role: Role) -> int:
        return self.params.trainer_min_bond if role == Role.TRAINER else self.params.validator_min_bond

    def _limit(self, role: Role) -> int:
        return self.params.trainer_limit if role == Role.TRAINER else self.params.validator_limit

    def _last(self, role: Role, seat: int) -> Tenure | None:
        seats = self.seats(role)
        return seats[seat].tenures[-1] if seat < len(seats) else None

    def _begin(self, role: Role, seat: int, account: str, operator: str, stake: int, following: int) -> None:
        seats = self.seats(role)
        if seat == len(seats):
            seats.append(SeatHistory())
        else:
            del self.members[seats[seat].tenures[-1].owner]
            if seats[seat].tenures[-1].from_round == following:
                seats[seat].tenures.pop()  # it never began
        barred = self.barred.get(account, 0)
        seats[seat].tenures.append(Tenure(account, following, Timeline(operator), barred))
        seats[seat].stakes.set(following, 0)
        seats[seat].stakes.set(_counts_from(role, following), stake)
        self.members[account] = role, seat

    def _outbids(
        self, role: Role, seat: int, live_bond: int, leaving: bool, current: int, following: int
    ) -> bool:
        """Returns True for an outbid that counts. Refuses what cannot be taken.

        One previous tenure must be enough to settle, so none that began with the current round can be taken, but in
        round 0, which no round precedes. A tenure whose bond is leaving or that is silent can be taken by anyone;
        another one only if it is a trainer's of a full round (before the start: any) and the smallest is outbid.
        """
        tenure = self._last(role, seat)
        require(tenure is not None, "runs: empty seat")
        assert tenure is not None
        free = leaving or self._silent(self.seats(role)[seat], tenure, current)
        before = current if following else 1
        open_ = free and (tenure.from_round != current or current == 0)
        require(open_ or tenure.from_round < before, "runs: seat taken too recently")
        if free:
            return False
        require(role == Role.TRAINER, "runs: validator is not silent")
        bond = self._newest_stake(seat)
        outbid = live_bond * TAKEOVER_DENOMINATOR >= bond * TAKEOVER_NUMERATOR
        require(outbid, "runs: bond does not outbid")
        others = [i for i, record in enumerate(self.trainers) if record.tenures[-1].from_round < before]
        require(all(self._newest_stake(i) >= bond for i in others), "runs: not the smallest bond")
        most = max(self.params.trainer_limit // OUTBID_SHARE, 1)
        require(not following or self.outbids.get(following, 0) < most, "runs: no outbid left")
        return following > 0

    def _newest_stake(self, seat: int) -> int:
        return self.trainers[seat].stakes.latest

    def _silent(self, record: SeatHistory, tenure: Tenure, current: int) -> bool:
        """Returns True if the seat neither committed nor joined in the last eight rounds; asking back is no work."""
        quiet = all(round + SILENT_ROUNDS < current for round in record.commitments)
        return quiet and tenure.from_round + SILENT_ROUNDS <= current

    def _active_stakes(self, round: int, live_bonds: Sequence[int]) -> tuple[int, ...]:
        """Returns the stakes of the validators that joined, asked back or revealed a report in round - 2 or later.

        Whoever lost the seat since does not count: it was silent, or is leaving. A stake counts up to the owner's live
        bond, so that a bond in exit does not vote, and up to the run's cap.
        """
        stakes = [0] * MAX_VALIDATORS
        for seat, record in enumerate(self.validators):
            tenure = record.tenures[-1]
            joined = (r for r in (tenure.from_round, tenure.asked_from or None) if r is not None)
            fresh = any(r <= round <= r + ACTIVE_ROUNDS for r in joined)
            reported = any(round - back in record.reports for back in range(1, ACTIVE_ROUNDS + 1))
            if tenure.from_round <= round and (fresh or reported):
                stakes[seat] = min(
                    record.stakes.at(round), self.params.validator_max_stake, *live_bonds[seat : seat + 1]
                )
        return tuple(stakes)

    def _check_operator(self, account: str, tenure: Tenure | None, round: int) -> None:
        require(tenure is not None and account == tenure.operators.at(round), "runs: not the operator")

    def _check_first(self, record: SeatHistory, round: int) -> None:
        require(round not in record.commitments, "runs: already committed")
        record.commitments.add(round)


def _counts_from(role: Role, following: int) -> int:
    """Returns the round from which a stake counts that changes now: the next one, for validators the one after.

    Whoever bonds in a round's last second must not decide the next. Before the start everything counts in round 0.
    """
    return following + 1 if role == Role.VALIDATOR and following else following
