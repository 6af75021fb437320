"""The pool behind one seat, against the real vault, runs and settlement: Protocol section 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyrevm import AccountInfo

from earnest.protocol.constants import NO_SEAT
from earnest.protocol.merkle import admission_proof, admission_root
from earnest.protocol.run import Role
from earnest.protocol.verdicts import Verdict
from tests.contracts.harness import Contract, System, account, create_address, reverts, system
from tests.contracts.rounds import STRANGER, Run, accepted, fund, payment, report, verdict

TRAINER, FIRST, SECOND, THIRD = (account(name) for name in ("pool trainer", "first", "second", "third"))
OPERATOR = account("new operator")
BOND, MIN_ADD, COMMISSION, NOTICE = 2**30, 10**3, 1_000, 5 * 86_400
ZERO = "0x" + "00" * 20


@dataclass
class Pool:
    """A pool of a run, and shorthands."""

    run: Run
    contract: Contract

    @classmethod
    def deploy(cls, run: Run, role: int = Role.TRAINER) -> Pool:
        terms = run.id, role, TRAINER, COMMISSION, MIN_ADD, NOTICE
        return cls(run, run.evm.deploy("BondPool", run.system.runs.address, *terms))

    @property
    def address(self) -> str:
        return self.contract.address

    def add(self, who: str, wei: int, min_shares: int = 0) -> int:
        self.run.system.token.mint(who, wei, sender=account("deployer"))
        self.run.system.token.approve(self.address, wei, sender=who)
        return self.contract.add(wei, min_shares, sender=who)

    def member(self, who: str) -> Any:
        return self.contract.member(who)

    def bond(self) -> int:
        return self.run.bond_of(self.address)

    def claim(self, who: str) -> int:
        """Claims, and returns what arrived, in wei."""
        token = self.run.system.token
        before = token.balanceOf(who)
        self.contract.claim(who, sender=who)
        return token.balanceOf(who) - before

    def slash(self, wei: int) -> None:
        """The run's manager seizes part of the bond."""
        self.manage("seize", self.run.id, self.address, wei, "test")

    def pay(self, wei: int) -> None:
        """The run's manager pays the pool from the escrow."""
        self.manage("pay", self.run.id, [payment(self.address, wei)])

    def manage(self, function: str, *arguments: Any) -> None:
        """Calls the vault as the settlement, which has no code meanwhile: contracts send no transactions."""
        revm, address = self.run.evm.revm, self.run.settlement.address
        info = revm.basic(address)
        revm.insert_account_info(address, AccountInfo(nonce=info.nonce, code=b""))
        try:
            getattr(self.run.system.vault, function)(*arguments, sender=address)
        finally:
            nonce = revm.basic(address).nonce
            revm.insert_account_info(address, AccountInfo(nonce=nonce, code=info.code))

    def wait(self, seconds: int) -> None:
        self.run.evm.travel(self.run.evm.time + seconds)

    def wait_for_exit(self) -> None:
        self.wait(self.run.params.exit_delay)


@pytest.fixture
def pool(contracts: System) -> Iterator[Pool]:
    """A pool of two trainer seats' run, whose trainer has put up 2**30 wei."""
    pool = Pool.deploy(Run.create(contracts, full_seats=1))
    pool.add(TRAINER, BOND)
    yield pool


# Shares and their price.


def test_shares_are_wei_until_a_slash_and_cheaper_after_it(pool: Pool) -> None:
    assert pool.add(FIRST, BOND // 2) == BOND // 2
    pool.slash(BOND // 2)
    assert pool.contract.price() == (BOND, BOND * 3 // 2)
    assert pool.contract.preview(MIN_ADD) == MIN_ADD * 3 // 2
    assert pool.add(SECOND, MIN_ADD) == MIN_ADD * 3 // 2


def test_slash_hits_all_shares_alike_queued_ones_too(pool: Pool) -> None:
    pool.add(FIRST, BOND)
    pool.add(SECOND, 2 * BOND)
    pool.contract.ask_exit(BOND, sender=FIRST)
    pool.slash(BOND)
    assert [pool.member(who).value for who in (TRAINER, FIRST, SECOND)] == [
        BOND * 3 // 4,
        BOND * 3 // 4,
        BOND * 3 // 2,
    ]


def test_nobody_moves_the_price_by_a_gift(contracts: System) -> None:
    """No first depositor inflates a share: tokens sent, and pay through a manager of one's own, are no bond."""
    pool = Pool.deploy(Run.create(contracts))
    pool.add(FIRST, MIN_ADD)
    contracts.token.mint(pool.address, BOND, sender=account("deployer"))
    fund(contracts, STRANGER, BOND)
    contracts.vault.allow(STRANGER, BOND, sender=STRANGER)
    contracts.vault.open_run(1, STRANGER, BOND, 1, sender=STRANGER)
    contracts.vault.pay(1, [payment(pool.address, BOND)], sender=STRANGER)
    assert pool.contract.price() == (MIN_ADD, MIN_ADD)
    assert pool.add(SECOND, 2 * MIN_ADD - 1) == 2 * MIN_ADD - 1


def test_rounding_of_shares_never_favours_who_adds(pool: Pool) -> None:
    pool.slash(BOND // 3)
    before = Fraction(*pool.contract.price())
    pool.add(FIRST, MIN_ADD + 1)
    assert Fraction(*pool.contract.price()) >= before
    assert pool.member(FIRST).value <= MIN_ADD + 1


def test_add_gives_at_least_what_the_caller_accepts(pool: Pool) -> None:
    with reverts("pool: too few shares"):
        pool.add(FIRST, BOND, BOND + 1)
    assert pool.add(FIRST, BOND, BOND) == BOND


def test_add_refuses_dust_a_bond_seized_whole_and_endless_shares(pool: Pool) -> None:
    with reverts("pool: amount out of range"):
        pool.add(FIRST, MIN_ADD - 1)
    pool.slash(BOND - 1)
    assert pool.add(FIRST, 2**90) == 2**120
    pool.slash(2**90)
    with reverts("pool: too many shares"):
        pool.add(FIRST, 2**90)
    pool.slash(1)
    with reverts("pool: bond was seized whole"):
        pool.add(FIRST, BOND)


# The seat.


def test_trainer_joins_through_the_pool_and_operates_its_seat(pool: Pool) -> None:
    run = pool.run
    assert pool.contract.join("http://t.example/", [], NO_SEAT, sender=TRAINER) == 0
    seat = run.system.runs.seat_at(run.id, Role.TRAINER, 0, 0)
    assert (seat.owner, seat.operator, seat.stake) == (pool.address.lower(), TRAINER, BOND)
    pool.contract.set_uri("http://u.example/", sender=TRAINER)
    assert run.evm.events("UriChanged")[0]["uri"] == "http://u.example/"
    pool.contract.set_operator(OPERATOR, sender=TRAINER)
    assert run.system.runs.seat_at(run.id, Role.TRAINER, 0, 0).operator == OPERATOR


def test_pool_of_a_validator_asks_back(contracts: System) -> None:
    address = create_address(account("deployer"), contracts.evm.nonce(account("deployer")))
    admitted = [(address, Role.VALIDATOR), (STRANGER, Role.VALIDATOR)]
    pool = Pool.deploy(
        Run.create(contracts, admission_root=admission_root(admitted), rounds=20), Role.VALIDATOR
    )
    pool.add(TRAINER, BOND)
    pool.contract.join("u", admission_proof(admitted, address, Role.VALIDATOR), NO_SEAT, sender=TRAINER)
    pool.run.enter("commit", 6)
    pool.contract.ask_back(sender=TRAINER)
    assert pool.run.evm.events("AskedBack")[0]["from_round"] == 7


def test_only_the_trainer_speaks_for_the_seat(pool: Pool) -> None:
    calls = {"join": ("u", [], NO_SEAT), "set_uri": ("u",), "set_operator": (FIRST,), "ask_back": ()}
    for function, arguments in calls.items():
        with reverts("pool: not the trainer"):
            getattr(pool.contract, function)(*arguments, sender=FIRST)
    with reverts("pool: no seat"):
        pool.contract.set_uri("u", sender=TRAINER)


def test_penalty_stops_adding_until_it_is_settled_and_a_tenth_may_contest(contracts: System) -> None:
    run = Run.create(contracts, full_seats=1)
    pool = Pool.deploy(run)
    pool.add(TRAINER, BOND)
    pool.add(FIRST, BOND)
    pool.add(SECOND, BOND // 10)
    pool.contract.join("u", [], NO_SEAT, sender=TRAINER)
    run.trainers.append(pool.address)
    run.operators[pool.address] = TRAINER
    run.join_trainers(2, bond=3 * BOND)
    run.join_validators([10**6])
    run.play({0: report([verdict(Verdict.HARMFUL), accepted(1), accepted(1)])})
    run.settle()
    run.lock([0])
    with reverts("pool: penalty pending"):
        pool.add(THIRD, BOND)
    with reverts("pool: too few shares to contest"):
        pool.contract.contest(run.penalty_id(0), sender=SECOND)
    pool.contract.contest(run.penalty_id(0), sender=FIRST)
    run.evm.travel(run.penalty(0).contest_until)
    run.settlement.settle_penalty(run.penalty_id(0))
    assert pool.add(THIRD, BOND) > BOND  # nobody acquitted the trainer: shares are cheaper


# Pay.


def test_pay_of_a_settled_round_is_shared_after_the_commission(contracts: System) -> None:
    run = Run.create(contracts, full_seats=1)
    pool = Pool.deploy(run)
    pool.add(TRAINER, BOND)
    pool.add(FIRST, 3 * BOND)
    pool.contract.join("u", [], NO_SEAT, sender=TRAINER)
    run.trainers.append(pool.address)
    run.operators[pool.address] = TRAINER
    run.join_validators([10**6])
    run.play({0: report([accepted(65_535)])})
    run.settle()
    pay = run.params.trainer_pool
    assert run.idle(pool.address) == pay
    commission = pay * COMMISSION // 10_000
    shared = pay - commission
    expected = {TRAINER: commission + shared // 4, FIRST: shared * 3 // 4}
    assert {who: pool.member(who).claimable for who in expected} == expected
    assert {who: pool.claim(who) for who in expected} == expected
    assert pool.claim(FIRST) == 0


def test_new_member_has_no_part_of_earlier_pay(pool: Pool) -> None:
    pool.pay(BOND)
    pool.add(FIRST, BOND)
    assert pool.member(FIRST).claimable == 0
    pool.pay(2_000)
    assert pool.member(FIRST).claimable == 900


def test_pay_before_the_first_share_waits_for_it(contracts: System) -> None:
    pool = Pool.deploy(Run.create(contracts))
    pool.pay(1_000)
    pool.contract.collect()
    pool.add(FIRST, BOND)
    assert (pool.claim(FIRST), pool.claim(TRAINER)) == (900, 100)


def test_late_pay_after_the_end_goes_to_all_whoever_redeemed_first(pool: Pool) -> None:
    pool.add(FIRST, BOND)
    pool.contract.close(sender=TRAINER)
    pool.wait_for_exit()
    pool.contract.finish()
    assert pool.claim(FIRST) == BOND
    pool.pay(2_000)
    assert (pool.claim(FIRST), pool.claim(TRAINER)) == (900, BOND + 1_100)
    assert pool.claim(FIRST) == 0


def test_member_is_paid_at_another_address(pool: Pool) -> None:
    pool.pay(10_000)
    pool.contract.claim(THIRD, sender=TRAINER)
    assert pool.run.system.token.balanceOf(THIRD) == 10_000


# Leaving.


def test_add_buys_out_the_queue_in_its_order_before_it_bonds(pool: Pool) -> None:
    for who in (FIRST, SECOND):
        pool.add(who, BOND)
    for who in (FIRST, SECOND):
        pool.contract.ask_exit(BOND, sender=who)
    pool.slash(BOND * 3 // 2)  # half
    pool.add(THIRD, BOND * 3 // 4)
    assert pool.bond() == BOND * 3 // 2
    assert [pool.member(who).shares for who in (FIRST, SECOND, THIRD)] == [0, BOND // 2, BOND * 3 // 2]
    assert [pool.claim(who) for who in (FIRST, SECOND, THIRD)] == [BOND // 2, BOND // 4, 0]
    assert list(pool.contract.queue(ZERO, 32)) == [SECOND]


def test_queued_shares_earn_until_they_are_bought(pool: Pool) -> None:
    pool.add(FIRST, BOND)
    pool.contract.ask_exit(BOND, sender=FIRST)
    pool.pay(2_000)
    pool.add(SECOND, BOND)
    pool.pay(2_000)
    assert [pool.member(who).claimable for who in (FIRST, SECOND)] == [BOND + 900, 900]


def test_cancelled_entry_leaves_no_gap_in_the_queue(pool: Pool) -> None:
    for who in (FIRST, SECOND, THIRD):
        pool.add(who, BOND)
    for who in (FIRST, SECOND, THIRD):
        pool.contract.ask_exit(BOND, sender=who)
    pool.contract.cancel_exit(sender=SECOND)
    assert list(pool.contract.queue(ZERO, 32)) == [FIRST, THIRD]
    assert list(pool.contract.queue(FIRST, 32)) == [THIRD]
    pool.contract.cancel_exit(sender=THIRD)
    pool.contract.cancel_exit(sender=FIRST)
    assert list(pool.contract.queue(ZERO, 32)) == []
    pool.contract.ask_exit(BOND, sender=SECOND)
    assert list(pool.contract.queue(ZERO, 32)) == [SECOND]
    with reverts("pool: nothing queued"):
        pool.contract.cancel_exit(sender=THIRD)


def test_queue_refuses_the_trainer_dust_and_a_second_entry(pool: Pool) -> None:
    pool.add(FIRST, BOND)
    with reverts("pool: the trainer leaves last"):
        pool.contract.ask_exit(BOND, sender=TRAINER)
    with reverts("pool: too few shares to queue"):
        pool.contract.ask_exit(MIN_ADD - 1, sender=FIRST)
    with reverts("pool: not that many shares"):
        pool.contract.ask_exit(BOND + 1, sender=FIRST)
    pool.contract.ask_exit(MIN_ADD, sender=FIRST)
    with reverts("pool: already queued"):
        pool.contract.ask_exit(MIN_ADD, sender=FIRST)


def test_one_add_reaches_32_entries_and_the_next_goes_on(pool: Pool) -> None:
    leavers = [account(f"leaver {i}") for i in range(33)]
    for who in leavers:
        pool.add(who, MIN_ADD)
    for who in leavers:
        pool.contract.ask_exit(MIN_ADD, sender=who)
    pool.add(FIRST, 40 * MIN_ADD)
    assert pool.run.evm.gas_used < 4_000_000
    assert list(pool.contract.queue(ZERO, 32)) == leavers[32:]
    pool.add(FIRST, MIN_ADD)
    assert list(pool.contract.queue(ZERO, 32)) == []


def test_exit_takes_the_notice_and_the_exit_delay_at_most(pool: Pool) -> None:
    pool.add(FIRST, BOND)
    pool.contract.ask_exit(MIN_ADD, sender=FIRST)
    pool.wait(NOTICE - 1)
    assert not pool.contract.closable()
    with reverts("pool: too early to close"):
        pool.contract.close(sender=FIRST)
    pool.wait(1)
    assert pool.contract.closable()
    pool.contract.close(sender=STRANGER)
    for call in (lambda: pool.add(SECOND, BOND), lambda: pool.contract.ask_exit(BOND, sender=FIRST)):
        with reverts("pool: closed"):
            call()
    with reverts("pool: closed"):
        pool.contract.close(sender=TRAINER)
    pool.slash(BOND)  # still slashable
    with reverts("vault: exit not over"):
        pool.contract.finish()
    pool.wait_for_exit()
    pool.contract.finish()
    assert [pool.claim(who) for who in (FIRST, TRAINER)] == [BOND // 2, BOND // 2]
    with reverts("pool: already finished"):
        pool.contract.finish()


def test_buyout_of_dust_keeps_the_pool_open(pool: Pool) -> None:
    pool.add(FIRST, BOND)
    pool.contract.ask_exit(MIN_ADD, sender=FIRST)
    pool.wait(NOTICE)
    pool.add(TRAINER, MIN_ADD)
    with reverts("pool: too early to close"):
        pool.contract.close(sender=FIRST)


def test_released_bonds_come_back_without_the_exit_delay(pool: Pool) -> None:
    with reverts("pool: not closed"):
        pool.contract.finish()
    pool.manage("release", pool.run.id)
    pool.contract.close(sender=STRANGER)
    pool.contract.finish()
    assert pool.claim(TRAINER) == BOND


def test_pool_without_a_bond_ends_at_once_and_still_pays(pool: Pool) -> None:
    pool.pay(1_000)
    pool.slash(BOND)
    pool.contract.close(sender=STRANGER)
    pool.contract.finish()
    assert pool.claim(TRAINER) == 1_000


# Tokens and wiring.


def test_hostile_token_gains_nothing_by_calling_back() -> None:
    contracts = system(hostile=True)
    run = Run(contracts, 1, Run.create(contracts).params)
    pool = Pool.deploy(run)
    pool.add(FIRST, BOND)
    pool.pay(10_000)
    token = contracts.token
    for function, arguments in {"claim": (FIRST,), "collect": (), "add": (MIN_ADD, 0)}.items():
        token.set_callback(pool.address, pool.contract.calldata(function, *arguments))
        pool.add(FIRST, BOND)
        assert token.called_back() == 0
    token.set_callback(ZERO, b"")
    token.set_fee(1)
    with reverts("vault: token delivered less"):
        pool.add(FIRST, BOND)
    token.set_fee(0)
    token.set_refuses(True)
    with reverts("vault: transfer refused"):
        pool.claim(FIRST)
    token.set_refuses(False)
    assert pool.claim(FIRST) == 9_000


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (0, STRANGER, "pool: runs has no code"),
        (1, 99, "pool: no such run"),
        (2, 3, "pool: unknown role"),
        (3, ZERO, "pool: no trainer"),
        (4, 10_001, "pool: commission above all pay"),
        (5, 0, "pool: smallest amount out of range"),
        (6, 60 * 86_400 + 1, "pool: notice out of range"),
    ],
)
def test_terms_are_checked_once(pool: Pool, place: int, value: Any, reason: str) -> None:
    run = pool.run
    terms: list[Any] = [run.system.runs.address, run.id, Role.TRAINER, TRAINER, COMMISSION, MIN_ADD, NOTICE]
    terms[place] = value
    with reverts(reason):
        run.evm.deploy("BondPool", *terms)


# Everything in any order.


MEMBERS = (TRAINER, FIRST, SECOND, THIRD)


class PoolMachine(RuleBasedStateMachine):
    """Adds, exits, pay, slashes and claims in any order, beside exact fractions."""

    @initialize()
    def set_up(self) -> None:
        contracts = DEPLOYED
        self.restore = contracts.evm.snapshot()
        self.pool = Pool.deploy(Run.create(contracts))
        self.paid_in = self.slashed = self.claimed = 0

    @property
    def contract(self) -> Contract:
        return self.pool.contract

    @rule(who=st.sampled_from(MEMBERS), wei=st.integers(MIN_ADD, 10**6))
    def add(self, who: str, wei: int) -> None:
        bond, total = self.contract.price()
        if self.contract.closing() or (total != 0 and bond * 10**9 < total):
            return
        others = [other for other in MEMBERS if other != who and self.pool.member(other).queued == 0]
        before = {other: self.pool.member(other).value for other in others}
        self.pool.add(who, wei)
        assert all(self.pool.member(other).value >= value for other, value in before.items())
        self.paid_in += wei

    @rule(who=st.sampled_from(MEMBERS[1:]), part=st.integers(1, 4))
    def ask(self, who: str, part: int) -> None:
        member = self.pool.member(who)
        if member.queued:
            self.contract.cancel_exit(sender=who)
        elif member.shares and not self.contract.closing():
            shares = member.shares // part
            self.contract.ask_exit(shares if shares >= MIN_ADD else member.shares, sender=who)

    @rule(wei=st.integers(0, 10**5))
    def pay(self, wei: int) -> None:
        self.pool.pay(wei)
        self.paid_in += wei

    @rule(bps=st.integers(1, 5_000))
    def slash(self, bps: int) -> None:
        shares = {who: self.pool.member(who) for who in MEMBERS}
        bond = self.pool.bond()
        amount = bond * bps // 10_000
        self.pool.slash(amount)
        self.slashed += amount
        for who, before in shares.items():
            after = self.pool.member(who).value
            if not self.contract.finished() and bond:
                assert abs(after - before.value * (bond - amount) / bond) <= 2

    @rule(who=st.sampled_from(MEMBERS))
    def claim(self, who: str) -> None:
        member = self.pool.member(who)
        expected = member.claimable + (member.value if self.contract.finished() else 0)
        got = self.pool.claim(who)
        assert got == expected
        self.claimed += got

    @rule(finish=st.integers(0, 5))
    def close(self, finish: int) -> None:
        if finish == 0 and not self.contract.closing() and self.contract.total_shares():
            self.contract.close(sender=TRAINER)
        elif self.contract.closing() and not self.contract.finished():
            self.pool.wait_for_exit()
            self.contract.finish()

    @invariant()
    def sums_hold(self) -> None:
        pool = self.pool
        members = [pool.member(who) for who in MEMBERS]
        held = pool.bond() + pool.run.idle(pool.address)
        assert sum(m.shares for m in members) == self.contract.total_shares()
        assert all(m.queued <= m.shares and (m.queued != 0) == (m.asked_at != 0) for m in members)
        assert sum(m.value + m.claimable for m in members) <= held
        assert held == self.paid_in - self.slashed - self.claimed
        assert pool.run.idle(pool.address) >= self.contract.owed()
        assert set(self.contract.queue(ZERO, 32)) == {
            w for w, m in zip(MEMBERS, members, strict=True) if m.queued
        }

    def teardown(self) -> None:
        if hasattr(self, "restore"):
            self.restore()


DEPLOYED = system()
TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
