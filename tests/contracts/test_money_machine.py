"""In any sequence of calls, the money of a run obeys invariants 1 to 7 and 9 of Protocol section 12.

The machine plays rounds badly: seats miss windows, validators lie, commit to no report, disagree about the state,
people bond, leave, come back, contest, and time jumps. Every refusal must have a reason of ours. After each step the
books are compared with what the events said; in the end everybody leaves, and the vault must be empty but for
donations.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from earnest.protocol.constants import NO_SEAT, WEIGHT_ONE
from earnest.protocol.merkle import admission_proof
from earnest.protocol.penalties import BARRING
from earnest.protocol.report import Report, SeatVote
from earnest.protocol.run import Role
from tests.contracts.harness import Evm, Log, Reverted, System, account, system
from tests.contracts.rounds import (
    ADMITTED,
    BASE,
    EVIDENCE,
    NEWEST,
    SPONSOR,
    STRANGER,
    TRAINERS,
    VALIDATORS,
    Run,
)

REASON = re.compile(r"(vault|runs|settlement|token): .+")
DAY = 86_400
RELEASED = 4  # status of a penalty
PEOPLE = [*TRAINERS[:5], *VALIDATORS[:4], SPONSOR, STRANGER]
WINDOWS = ("commit", "reveal", "report_commit", "report_reveal", "settle", "contest")

WEI = st.integers(0, 10**7)
Draft = tuple[list[tuple[int, int]], bytes]
ALL_DUTIES = ("charge", "void", "settle", "lock")
DUTIES = st.sampled_from(ALL_DUTIES)
SEATS = st.integers(0, 15)  # a bitmap
VOTES = st.sampled_from(
    [
        (WEIGHT_ONE, 0),
        (30_000, 0),
        (30_100, 0),
        (0, 0),
        (0, 1),
        (0, 3),
        (0, 4),
        (0, 5),
        (0, 6),
        (0, 7),
        (0, 255),
    ]
)
REPORTS = st.tuples(st.lists(VOTES, max_size=5), st.sampled_from([NEWEST, NEWEST, NEWEST, BASE]))


class RecordingEvm(Evm):
    """Remembers the events of every transaction until they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Log] = []

    def call(self, to: str, data: bytes, sender: str, *, static: bool = False) -> bytes:
        answer = super().call(to, data, sender, static=static)
        if not static:
            self.heard += self.logs
        return answer


DEPLOYED: list[System] = []


def deployed() -> System:
    if not DEPLOYED:
        DEPLOYED.append(system(RecordingEvm()))
    return DEPLOYED[0]


class Books:
    """What the vault's events say that everybody must own."""

    def __init__(self) -> None:
        self.owned: Counter[str] = Counter()  # idle and bonds, by account
        self.escrow: Counter[int] = Counter()
        self.funded: Counter[int] = Counter()
        self.out: Counter[int] = Counter()  # paid, refunded and burned, by run
        self.burned = 0
        self.in_vault = 0

    def note(self, log: Log) -> None:
        handler: Callable[..., None] | None = getattr(self, f"_{log.name}", None)
        if log.contract == "StakeVault" and handler is not None:
            handler(log.args)

    def _Deposited(self, e: dict[str, Any]) -> None:
        self.owned[e["account"]] += e["amount"]
        self.in_vault += e["amount"]

    def _Withdrawn(self, e: dict[str, Any]) -> None:
        self.owned[e["account"]] -= e["amount"]
        self.in_vault -= e["amount"]

    def _RunOpened(self, e: dict[str, Any]) -> None:
        self.owned[e["sponsor"]] -= e["amount"]
        self.escrow[e["run"]] += e["amount"]
        self.funded[e["run"]] += e["amount"]

    def _Paid(self, e: dict[str, Any]) -> None:
        for paid in e["payments"]:
            self.owned[f"0x{paid >> 96:040x}"] += paid % 2**96
            self._leave_escrow(e["run"], paid % 2**96)

    def _Refunded(self, e: dict[str, Any]) -> None:
        self.owned[e["sponsor"]] += e["amount"]
        self._leave_escrow(e["run"], e["amount"])

    def _EscrowBurned(self, e: dict[str, Any]) -> None:
        self.burned += e["amount"]
        self._leave_escrow(e["run"], e["amount"])

    def _BondSeized(self, e: dict[str, Any]) -> None:
        self.owned[e["account"]] -= e["amount"]
        self.burned += e["amount"]

    def _Flushed(self, e: dict[str, Any]) -> None:
        self.burned -= e["amount"]
        self.in_vault -= e["amount"]

    def _leave_escrow(self, run: int, amount: int) -> None:
        self.escrow[run] -= amount
        self.out[run] += amount


class MoneyMachine(RuleBasedStateMachine):
    @initialize(
        overlap=st.booleans(),
        settle_s=st.sampled_from([60, 600]),
        contest_s=st.sampled_from([60, 3_000, 20_000]),
        ceiling=st.sampled_from([10**5, 2**96 - 1]),
        ceiling_rounds=st.integers(1, 3),
        full_seats=st.integers(1, 4),
    )
    def open(self, overlap: bool, **terms: int) -> None:
        self.system = deployed()
        self.evm = self.system.evm
        assert isinstance(self.evm, RecordingEvm)
        self.restore = self.evm.snapshot()
        self.evm.heard.clear()
        self.donated = 0
        self.books = Books()
        self.sealed: dict[tuple[int, int], Report] = {}
        self.penalties: dict[bytes, int] = {}
        self.fixed: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.paid_in: Counter[int] = Counter()
        self.seized_for: defaultdict[bytes, int] = defaultdict(int)
        self.run = Run.create(
            self.system,
            rounds=3,
            overlap=overlap,
            commit_s=2_000,
            trainer_limit=4,
            validator_limit=4,
            **terms,
            unfaithful_bps=5_000,
            contest_bps=5_000,
            validator_pool=10**15,
            trainer_pool=10**16,
        )
        self.run.join_trainers(4, bond=4_000_000)
        self.run.join_validators([2_000_000, 2_000_000, 1_000_000])
        self.read()
        self.run.enter("commit")

    def teardown(self) -> None:
        if hasattr(self, "restore"):
            self.everybody_leaves()
            self.restore()

    # Attempts.

    def attempt(self, act: Callable[..., Any], *args: Any, sender: str = STRANGER) -> bool:
        """Whether the contract let it happen; a refusal must name its reason."""
        try:
            act(*args, sender=sender)
        except Reverted as refusal:
            assert REASON.fullmatch(refusal.reason), f"refused without a reason: {refusal}"
            return False
        self.read()
        return True

    def read(self) -> None:
        heard = self.evm.heard  # pyright: ignore[reportAttributeAccessIssue]
        for log in heard:
            self.books.note(log)
            if log.name == "PenaltyLocked":
                assert log.args["penalty"] not in self.penalties
                self.penalties[log.args["penalty"]] = 1
            if log.name == "PenaltySettled":
                self.seized_for[log.args["penalty"]] += 1
        heard.clear()

    def open_rounds(self, window: str) -> list[int]:
        schedule = self.run.params.schedule()
        rounds = range(self.run.params.rounds + 1)
        return [r for r in rounds if getattr(schedule, window)(r).contains(self.evm.time)]

    # Rounds: what is due in the open windows, done by some of those who should.

    @rule(who=SEATS, deviants=SEATS, common=REPORTS, other=REPORTS, duties=st.lists(DUTIES))
    def work_badly(self, who: int, deviants: int, common: Draft, other: Draft, duties: list[str]) -> None:
        for _ in range(5):
            self.work(who, deviants, common, other, duties)

    @rule(deviants=st.sampled_from([0, 1, 4]), common=REPORTS, other=REPORTS, windows=st.integers(4, 12))
    def work_well(self, deviants: int, common: Draft, other: Draft, windows: int) -> None:
        for _ in range(windows):
            self.work(15, deviants, common, other, ALL_DUTIES)

    def work(self, who: int, deviants: int, common: Draft, other: Draft, duties: Sequence[str]) -> None:
        """What is due now, by the seats in the bitmap `who`; then on to the next window."""
        self.trainers_work(who)
        self.validators_work(who, [other if deviants >> v & 1 else common for v in range(4)])
        for round in self.open_rounds("settle"):
            for duty in duties:
                self.settlement_duty(duty, round)
        self.next_window()

    def next_window(self) -> None:
        schedule, now = self.run.params.schedule(), self.evm.time
        windows = [getattr(schedule, name)(r) for name in WINDOWS for r in range(self.run.params.rounds + 1)]
        edges = [edge for window in windows for edge in (window.start, window.end) if edge > now]
        self.evm.travel(min(edges, default=now + DAY))

    def trainers_work(self, bits: int) -> None:
        for window, act in (("commit", self.run.commit), ("reveal", self.run.reveal)):
            for round in self.open_rounds(window):
                for seat in _chosen(bits, self.run.trainers):
                    self.attempt(lambda sender, s=seat, r=round, act=act: act([s], r))

    def validators_work(self, bits: int, drafts: list[Draft]) -> None:
        for round in self.open_rounds("report_commit"):
            self.attempt(lambda sender, round=round: self.run.seed(round))
            for v in _chosen(bits, self.run.validators):
                votes, newest = drafts[v]
                report = Report(BASE, newest, EVIDENCE, tuple(SeatVote(*vote) for vote in votes))
                if self.attempt(lambda sender, v=v, r=report, round=round: self.run.seal({v: r}, round)):
                    self.sealed[round, v] = report
        for round in self.open_rounds("report_reveal"):
            for v in _chosen(bits, self.run.validators):
                report = self.sealed.get((round, v))
                if report is not None:
                    self.attempt(lambda sender, v=v, r=report, round=round: self.run.unseal({v: r}, round))

    def settlement_duty(self, duty: str, round: int) -> None:
        """A duty of the settle window; its pay or burn is counted against the round."""
        before, run, settlement = self.books.out[self.run.id], self.run, self.run.settlement
        if duty == "settle":
            self.settle_as_the_reference(round)
        elif duty == "void":
            self.attempt(settlement.void, run.id, round, run.words(round))
        elif duty == "lock":
            self.attempt(settlement.lock, run.id, round, [0, 1, 2, 3, 4], run.words(round))
        else:
            for role in range(4):
                self.attempt(settlement.charge, run.id, round, role)
        self.paid_in[round] += self.books.out[run.id] - before

    def settle_as_the_reference(self, round: int) -> None:
        """Invariant 7: everybody who had a seat in the round is paid what the reference says, whoever has it now."""
        run, runs, idle = self.run, self.system.runs, self.system.vault.idle
        before, burned = {who: idle(who) for who in PEOPLE}, self.system.vault.burned()
        if round > run.params.rounds or not self.attempt(lambda sender: run.settle(round)):
            return
        expected, owed = run.expected(round), Counter[str]()
        if round < runs.run_rounds(run.id):
            for role, pay in ((Role.TRAINER, expected.trainer_pay), (Role.VALIDATOR, expected.validator_pay)):
                owners = runs.owners_at(run.id, role, round, 0, 256)
                for owner, wei in zip(owners, pay, strict=False):
                    owed[owner.lower()] += wei
            burned += expected.burned
        charged = sum(fault["amount"] for fault in self.evm.events("FaultCharged"))
        assert {who: idle(who) - before[who] for who in PEOPLE} == {who: owed[who.lower()] for who in PEOPLE}
        assert self.system.vault.burned() == burned + charged

    @rule(duty=DUTIES, round=st.integers(0, 4), seconds=st.integers(0, 900))
    def meddle(self, duty: str, round: int, seconds: int) -> None:
        """A duty at any time, for any round."""
        self.evm.travel(self.evm.time + seconds)
        self.settlement_duty(duty, round)

    # Penalties.

    @rule(contests=st.booleans(), voters=SEATS, uphold=st.booleans())
    def dispute(self, contests: bool, voters: int, uphold: bool) -> None:
        for penalty in self.penalties:
            if contests:
                who = self.run.settlement.penalty(penalty).account
                self.attempt(self.run.settlement.contest, penalty, sender=who)
            for v in _chosen(voters, self.run.validators):
                self.attempt(self.run.settlement.vote, penalty, uphold, sender=self.run.validators[v])

    @rule()
    def settle_penalties(self) -> None:
        for penalty in self.penalties:
            seen = self.run.settlement.penalty(penalty)
            terms, window = self.run.params, seen.round // self.run.params.ceiling_rounds
            used = self.run.settlement.charged_in(self.run.id, window, seen.account)
            if (
                self.attempt(self.run.settlement.settle_penalty, penalty)
                and self.evm.time < seen.contest_until + DAY
            ):
                stands = seen.upheld * 2 > seen.active_stake
                owed = min(seen.amount, terms.ceiling - used) + seen.contest_amount if stands else 0
                assert self.evm.events("PenaltySettled")[0]["seized"] == owed  # invariant 4

    # People.

    @rule(what=st.sampled_from(["bond", "exit", "finish", "withdraw"]), who=st.sampled_from(PEOPLE), wei=WEI)
    def mind_money(self, what: str, who: str, wei: int) -> None:
        vault, manager, run = self.system.vault, self.run.settlement.address, self.run.id
        if what == "bond":
            self.system.token.mint(who, wei, sender=account("deployer"))
            self.system.token.approve(vault.address, wei, sender=who)
            self.attempt(vault.deposit, wei, sender=who)
            self.attempt(vault.bond, manager, run, wei, sender=who)
        elif what == "exit":
            self.attempt(vault.start_exit, manager, run, sender=who)
        elif what == "finish":
            self.attempt(vault.finish_exit, manager, run, sender=who)
        else:
            self.attempt(vault.withdraw, vault.idle(who), sender=who)

    @rule(who=st.sampled_from(PEOPLE), take=st.sampled_from([0, 1, 2, 3, NO_SEAT]))
    def change_seats(self, who: str, take: int) -> None:
        role = Role.VALIDATOR if who in VALIDATORS else Role.TRAINER
        proof = admission_proof(ADMITTED, who, role) if role == Role.VALIDATOR else []
        self.attempt(self.system.runs.join, self.run.id, role, who, "u", proof, take, sender=who)
        self.attempt(self.system.runs.sync, self.run.id, role, take)
        self.attempt(self.system.runs.ask_back, self.run.id, take, sender=who)

    @rule(who=st.sampled_from([SPONSOR, STRANGER]), ends=st.booleans(), wei=WEI)
    def end_and_refund(self, who: str, ends: bool, wei: int) -> None:
        if ends:
            self.attempt(self.system.runs.end, self.run.id, sender=who)
        self.attempt(self.run.settlement.refund, self.run.id, sender=who)
        self.system.token.mint(self.system.vault.address, wei, sender=account("deployer"))
        self.donated += wei
        self.attempt(self.system.vault.flush)

    # Invariants.

    @invariant()
    def every_wei_is_where_the_events_say(self) -> None:
        """Invariants 1 and 2."""
        if not hasattr(self, "books"):
            return
        vault, manager = self.system.vault, self.run.settlement.address
        for who in PEOPLE:
            owned = vault.idle(who) + vault.bond_of(manager, self.run.id, who)
            assert owned == self.books.owned[who]
        assert self.run.escrow() == self.books.escrow[self.run.id]
        assert vault.burned() == self.books.burned
        total = sum(self.books.owned.values()) + sum(self.books.escrow.values()) + self.books.burned
        assert total == self.books.in_vault
        assert self.system.token.balanceOf(vault.address) == total + self.donated

    @invariant()
    def a_round_pays_no_more_than_its_pools(self) -> None:
        """Invariant 3."""
        if hasattr(self, "run"):
            pools = self.run.params.trainer_pool + self.run.params.validator_pool
            assert all(paid <= pools for paid in self.paid_in.values())
            assert self.books.out[self.run.id] <= self.books.funded[self.run.id]

    @invariant()
    def locked_bonds_are_still_there(self) -> None:
        """Invariants 4 and 5: until a day after K the bond holds all that is locked; a penalty settles once."""
        if not hasattr(self, "run"):
            return
        open_until: defaultdict[str, int] = defaultdict(lambda: 2**255)
        locked: Counter[str] = Counter()
        for penalty, was in self.penalties.items():
            seen = self.run.settlement.penalty(penalty)
            assert seen.status >= was
            assert was < 3 or seen.status == was
            assert self.seized_for[penalty] == (seen.status >= 3)
            self.penalties[penalty] = seen.status
            if seen.status < 3:
                locked[seen.account] += seen.amount + seen.contest_amount
                open_until[seen.account] = min(open_until[seen.account], seen.contest_until + DAY)
        for who, amount in locked.items():
            assert self.run.settlement.locked(self.run.id, who) == amount
            if self.evm.time < open_until[who]:
                assert self.run.bond_of(who) >= amount

    @invariant()
    def the_barred_are_those_whose_penalties_stand(self) -> None:
        """From the lock of verdicts 4 to 6 to the end of their ceiling window, unless all of them are released."""
        if not hasattr(self, "run"):
            return
        runs, terms = self.system.runs, self.run.params.penalty_terms()
        until: Counter[str] = Counter()
        for penalty in map(self.run.settlement.penalty, self.penalties):
            if penalty.verdict in BARRING and penalty.status != RELEASED:
                until[penalty.account] = max(until[penalty.account], terms.barred_until(penalty.round))
        now = self.run.params.schedule().round_at(self.evm.time)
        for seat in range(4):
            held = runs.seat_at(self.run.id, Role.TRAINER, seat, now + 1)
            assert max(held.barred_until, now) == max(until[held.owner], now)

    @invariant()
    def stakes_of_a_round_never_change(self) -> None:
        """Checks invariant 9: once the first report is committed."""
        if not hasattr(self, "run"):
            return
        for round in range(self.run.params.rounds + 1):
            facts = self.system.runs.round_facts(self.run.id, round)
            seen = (facts.active_stake, tuple(facts.stakes))
            assert facts.active_stake == sum(facts.stakes)
            if facts.active_stake:
                assert self.fixed.setdefault(round, seen) == seen

    def everybody_leaves(self) -> None:
        """Invariants 3 and 6: no state blocks an exit beyond its delay, or a refund."""
        self.evm.travel(max(self.evm.time, self.run.params.schedule().contest(self.run.params.rounds).end))
        self.attempt(self.run.settlement.refund, self.run.id)
        assert self.run.escrow() == 0
        assert self.books.out[self.run.id] == self.books.funded[self.run.id]
        self.settle_penalties()
        vault, manager = self.system.vault, self.run.settlement.address
        for who in PEOPLE:
            self.attempt(vault.start_exit, manager, self.run.id, sender=who)
        self.evm.travel(self.evm.time + self.run.params.exit_delay)
        for who in PEOPLE:
            self.attempt(vault.finish_exit, manager, self.run.id, sender=who)
            assert self.run.bond_of(who) == 0
            assert self.attempt(vault.withdraw, vault.idle(who), sender=who)
        assert self.attempt(vault.flush)
        assert self.system.token.balanceOf(vault.address) == self.donated
        assert all(self.run.settlement.locked(self.run.id, who) == 0 for who in PEOPLE)


def _chosen(bits: int, people: list[str]) -> list[int]:
    return [i for i in range(len(people)) if bits >> i & 1]


TestMoney = MoneyMachine.TestCase
TestMoney.settings = settings(max_examples=20, stateful_step_count=40)
