"""Any sequence of calls leaves the contract's seats where the reference has them: protocol section 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from earnest.protocol.constants import NO_SEAT
from earnest.protocol.merkle import admission_proof
from earnest.protocol.report import report_commitment
from earnest.protocol.require import Refused
from earnest.protocol.run import Role
from earnest.protocol.seats import SeatsModel
from tests.contracts.harness import CHAIN_ID, Reverted, account, system
from tests.contracts.rounds import ADMITTED, SALT, STRANGER, TRAINERS, VALIDATORS, Run, accepted, report

NOBODY = "0x" + "00" * 20
LIMITS = {Role.TRAINER: 3, Role.VALIDATOR: 2}
PEOPLE = {Role.TRAINER: TRAINERS[:5], Role.VALIDATOR: VALIDATORS[:4]}
OPERATORS = [account("operator"), account("other operator")]
MIN_BOND = 100
REPORT = report([accepted(1)])

roles = st.sampled_from([Role.TRAINER, Role.VALIDATOR])
indices = st.integers(0, 4)
seats = st.integers(0, 3)
some = st.sampled_from([set[int](), {0}, {1, 2}, {0, 1}, {0, 1, 2}])


class SeatsMachine(RuleBasedStateMachine):
    """Each call is refused by both for the same reason, or by neither; then all readable rounds agree."""

    @initialize(overlap=st.booleans())
    def create(self, overlap: bool) -> None:
        self.run = Run.create(
            system(),
            rounds=40,
            commit_s=2_000,
            overlap=overlap,
            trainer_limit=LIMITS[Role.TRAINER],
            validator_limit=LIMITS[Role.VALIDATOR],
            trainer_min_bond=MIN_BOND,
            validator_min_bond=MIN_BOND,
            validator_max_stake=10**24,
        )
        self.evm, self.runs, self.vault = self.run.evm, self.run.system.runs, self.run.system.vault
        self.model = SeatsModel(self.run.params)
        self.schedule = self.run.params.schedule()
        for role, limit in LIMITS.items():
            for index in range(limit):
                self.join(role, index, MIN_BOND + index, own_key=index > 0, take=0)

    def both(self, call: Callable[[], Any], model: Callable[[], Any]) -> bool:
        reasons = []
        for attempt in (call, model):
            try:
                attempt()
                reasons.append("")
            except (Reverted, Refused) as refusal:
                reasons.append(refusal.reason)
        assert reasons[0] == reasons[1]
        return not reasons[0]

    def live_bond(self, who: str) -> int:
        return self.vault.live_bond(self.run.settlement.address, self.run.id, who)

    @rule(role=roles, index=indices, wei=st.integers(0, 400), own_key=st.booleans(), take=seats)
    def join(self, role: Role, index: int, wei: int, own_key: bool, take: int) -> None:
        outside = [who for who in PEOPLE[role] if who not in self.model.members] or PEOPLE[role]
        who = outside[index % len(outside)] if index < 4 else PEOPLE[role][0]
        manager = self.run.settlement.address
        if self.vault.exit_time(manager, self.run.id, who) == 0:
            self.run.bond(who, wei)
        operator = who if own_key else OPERATORS[0]
        proof = admission_proof(ADMITTED, who, role) if role == Role.VALIDATOR else []
        for seat in (NO_SEAT, take):
            self.both(
                lambda seat=seat: self.runs.join(self.run.id, role, operator, "", proof, seat, sender=who),
                lambda seat=seat: self.model.join(
                    who,
                    role,
                    operator,
                    self.evm.time,
                    self.live_bond(who),
                    take=seat,
                    leaving=self.live_bond(self.owner(role, seat)) == 0,
                ),
            )

    @rule(role=roles, index=indices, seat=seats, key=st.sampled_from(OPERATORS))
    def set_operator(self, role: Role, index: int, seat: int, key: str) -> None:
        who = self.owner(role, seat) if index else STRANGER
        self.both(
            lambda: self.runs.set_operator(self.run.id, role, seat, key, sender=who),
            lambda: self.model.set_operator(who, role, seat, key, self.evm.time),
        )

    @rule(role=roles, seat=seats, wei=st.integers(0, 50), leave=st.integers(0, 9))
    def sync(self, role: Role, seat: int, wei: int, leave: int) -> None:
        owner, manager = self.owner(role, seat), self.run.settlement.address
        if owner != STRANGER and self.vault.exit_time(manager, self.run.id, owner) == 0:
            self.run.bond(owner, wei)
            if leave > 7:
                self.vault.start_exit(manager, self.run.id, sender=owner)
        elif owner != STRANGER and self.evm.time >= self.vault.exit_time(manager, self.run.id, owner):
            self.vault.finish_exit(manager, self.run.id, sender=owner)
        self.both(
            lambda: self.runs.sync(self.run.id, role, seat),
            lambda: self.model.sync(role, seat, self.evm.time, self.live_bond(owner)),
        )

    @rule(seat=seats)
    def ask_back(self, seat: int) -> None:
        seat %= LIMITS[Role.VALIDATOR]
        who = self.owner(Role.VALIDATOR, seat)
        self.both(
            lambda: self.runs.ask_back(self.run.id, seat, sender=who),
            lambda: self.model.ask_back(who, seat, self.evm.time),
        )

    @rule(trainers=some, sealed=some, opened=some, move=seats)
    def play(self, trainers: set[int], sealed: set[int], opened: set[int], move: int) -> None:
        """Plays the next round: some seats commit, some report, some reveal; a stake moves in the middle of it."""
        round = self.schedule.next_round(self.evm.time)
        if round > self.model.rounds:
            return
        self.run.enter("commit", round)
        for seat in sorted(trainers):
            self.commit(seat)
        self.run.enter("report_commit", round)
        self.run.seed(round)
        self.sync(Role.VALIDATOR, move, move, 1)
        for seat in sorted(sealed):
            self.seal(round, seat)
        self.run.enter("report_reveal", round)
        self.sync(Role.VALIDATOR, move, move, 1)
        for seat in sorted(opened):
            self.unseal(round, seat)
        assert tuple(self.runs.round_facts(self.run.id, round).stakes) == self.model.stakes(round)

    @rule(seat=seats)
    def commit(self, seat: int) -> None:
        round = self.schedule.round_at(self.evm.time)
        who, owner = self.holder(Role.TRAINER, seat, round)
        self.both(
            lambda: self.runs.commit(self.run.id, round, seat, bytes([seat + 1] * 32), sender=who),
            lambda: self.model.commit(who, round, seat, self.evm.time, self.live_bond(owner)),
        )

    def seal(self, round: int, seat: int) -> None:
        who, owner = self.holder(Role.VALIDATOR, seat, round)
        place = CHAIN_ID, self.runs.address, self.run.id, round
        digest = report_commitment(*place, owner, REPORT.hash(), SALT)
        bonds = [self.live_bond(record.tenures[-1].owner) for record in self.model.validators]
        self.both(
            lambda: self.runs.report_commit(self.run.id, round, seat, digest, sender=who),
            lambda: self.model.report_commit(who, round, seat, self.evm.time, bonds),
        )

    def unseal(self, round: int, seat: int) -> None:
        who, _ = self.holder(Role.VALIDATOR, seat, round)
        self.both(
            lambda: self.runs.report_reveal(self.run.id, round, seat, REPORT.words(), SALT, sender=who),
            lambda: self.model.report_reveal(who, round, seat, self.evm.time),
        )

    @rule(rounds=st.sampled_from([1, 2, 9]))
    def wait(self, rounds: int) -> None:
        round = self.schedule.next_round(self.evm.time) + rounds - 1
        if round <= self.run.params.rounds + 1:
            self.run.enter("commit", round)

    def holder(self, role: Role, seat: int, round: int) -> tuple[str, str]:
        """Operator and owner of the seat in a round."""
        tenure = self.model.tenure(role, seat, round)
        return (tenure.operators.at(round), tenure.owner) if tenure else (STRANGER, STRANGER)

    def owner(self, role: Role, seat: int) -> str:
        """Of the seat's newest tenure."""
        records = self.model.seats(role)
        return records[seat].tenures[-1].owner if seat < len(records) else STRANGER

    @invariant()
    def seats_agree_in_the_last_this_and_the_next_round(self) -> None:
        if not hasattr(self, "model"):
            return
        current, following = self.model.clock(self.evm.time)
        for role in (Role.TRAINER, Role.VALIDATOR):
            for seat in range(LIMITS[role]):
                for round in range(max(0, current - 1), following + 1):
                    self.seat_agrees(role, seat, round)
        for who in (*PEOPLE[Role.TRAINER], *PEOPLE[Role.VALIDATOR]):
            assert self.runs.seat_of(self.run.id, who) == self.model.members.get(who, (0, 0))

    def seat_agrees(self, role: Role, seat: int, round: int) -> None:
        found = self.runs.seat_at(self.run.id, role, seat, round)
        tenure = self.model.tenure(role, seat, round)
        if tenure is None:
            assert (found.owner, found.operator) == (NOBODY, NOBODY)
            return
        record = self.model.seats(role)[seat]
        assert found.owner == tenure.owner
        assert found.from_round == tenure.from_round
        assert found.active_from == tenure.active_from
        assert found.stake == record.stakes.at(round)
        assert found.operator == tenure.operators.at(round)


TestSeatsMachine = SeatsMachine.TestCase
TestSeatsMachine.settings = settings(max_examples=30, stateful_step_count=60)
