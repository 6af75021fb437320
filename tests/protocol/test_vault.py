"""The reference vault in random use: the money invariants of protocol section 12 after every step."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from earnest.protocol.constants import AMOUNT_LIMIT, MAX_EXIT_DELAY_S
from earnest.protocol.require import Refused
from earnest.protocol.vault import VaultModel

MANAGERS, RUNS = ("settlement", "rogue"), (1, 2)
ACCOUNTS = ("sponsor", "trainer", "validator", "stranger")
DELAY = 1_000

accounts, managers, runs = map(st.sampled_from, (ACCOUNTS, MANAGERS, RUNS))
amounts = st.one_of(st.integers(0, 100), st.sampled_from([AMOUNT_LIMIT - 1, AMOUNT_LIMIT]))


class VaultMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.vault, self.now = VaultModel(), 0
        self.flows = Counter()
        self.funded = Counter()

    def attempt(self, call, *args) -> bool:
        """Whether the vault accepted; a refusal changes no total."""
        before = self.vault.total(), self.vault.balance
        try:
            call(*args)
        except Refused as refusal:
            assert refusal.reason.startswith("vault: ")
            assert (self.vault.total(), self.vault.balance) == before
            return False
        return True

    @rule(account=accounts, amount=amounts)
    def deposit(self, account, amount):
        self.vault.deposit(account, amount)
        self.flows[account] += amount

    @rule(account=accounts, amount=amounts)
    def withdraw(self, account, amount):
        if self.attempt(self.vault.withdraw, account, amount):
            self.flows[account] -= amount

    @rule(account=accounts, manager=managers, amount=amounts)
    def allow(self, account, manager, amount):
        self.vault.allow(account, manager, amount)

    @rule(account=accounts, manager=managers, run=runs, amount=amounts)
    def bond(self, account, manager, run, amount):
        self.attempt(self.vault.bond, account, manager, run, amount)

    @rule(account=accounts, manager=managers, run=runs)
    def start_exit(self, account, manager, run):
        self.attempt(self.vault.start_exit, account, manager, run, self.now)

    @rule(account=accounts, manager=managers, run=runs)
    def finish_exit(self, account, manager, run):
        exit_time = self.vault.exit_time(manager, run, account)
        done = self.attempt(self.vault.finish_exit, account, manager, run, self.now)
        assert done == (exit_time != 0 and self.now >= exit_time)

    @rule(seconds=st.sampled_from([1, DELAY - 1, DELAY]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def flush(self):
        self.vault.flush()

    @rule(manager=managers, run=runs, sponsor=accounts, amount=amounts)
    def open_run(self, manager, run, sponsor, amount):
        allowed = self.vault.allowance(sponsor, manager)
        if self.attempt(self.vault.open_run, manager, run, sponsor, amount, DELAY):
            self.flows[sponsor] -= amount
            self.funded[manager, run] += amount
            assert self.vault.allowance(sponsor, manager) == allowed - amount >= 0

    @rule(manager=managers, run=runs, payees=st.lists(st.tuples(accounts, amounts), max_size=4))
    def pay(self, manager, run, payees):
        if self.attempt(self.vault.pay, manager, run, payees):
            for name, amount in payees:
                self.flows[name] += amount
            self.funded[manager, run] -= sum(amount for _, amount in payees)

    @rule(manager=managers, run=runs, amount=amounts)
    def refund(self, manager, run, amount):
        if self.attempt(self.vault.refund, manager, run, amount):
            self.flows[self.vault.sponsor(manager, run)] += amount
            self.funded[manager, run] -= amount

    @rule(manager=managers, run=runs, amount=amounts)
    def burn_escrow(self, manager, run, amount):
        if self.attempt(self.vault.burn_escrow, manager, run, amount):
            self.funded[manager, run] -= amount

    @rule(manager=managers, run=runs, account=accounts, amount=amounts)
    def seize(self, manager, run, account, amount):
        bond = self.vault.bond_of(manager, run, account)
        taken = self.vault.seize(manager, run, account, amount)
        assert taken == min(bond, amount)
        self.flows[account] -= taken

    @invariant()
    def every_wei_is_in_exactly_one_bucket(self):
        assert self.vault.balance == self.vault.total()

    @invariant()
    def accounts_own_what_flowed_to_them(self):
        for account in ACCOUNTS:
            bonds = sum(self.vault.bond_of(m, r, account) for m in MANAGERS for r in RUNS)
            assert self.vault.idle[account] + bonds == self.flows[account]

    @invariant()
    def a_runs_money_leaves_only_as_pay_refund_or_burn(self):
        for key, left in self.funded.items():
            assert self.vault.escrow(*key) == left >= 0


TestVault = VaultMachine.TestCase


def opened() -> VaultModel:
    """A run with 100 wei in escrow and a trainer's bond of 50."""
    vault = VaultModel()
    vault.deposit("sponsor", 100)
    vault.allow("sponsor", "settlement", 100)
    vault.open_run("settlement", 1, "sponsor", 100, DELAY)
    vault.deposit("trainer", 60)
    vault.bond("trainer", "settlement", 1, 50)
    return vault


def test_slash_during_exit_still_finds_the_bond():
    vault = opened()
    vault.start_exit("trainer", "settlement", 1, now=0)
    assert vault.live_bond("settlement", 1, "trainer") == 0
    assert vault.seize("settlement", 1, "trainer", 20) == 20
    vault.finish_exit("trainer", "settlement", 1, now=DELAY)
    assert vault.idle["trainer"] == 10 + 30


def test_an_account_seized_to_nothing_can_leave_and_bond_again():
    vault = opened()
    vault.start_exit("trainer", "settlement", 1, now=0)
    vault.seize("settlement", 1, "trainer", 999)
    vault.finish_exit("trainer", "settlement", 1, now=DELAY)
    vault.bond("trainer", "settlement", 1, 10)
    assert vault.live_bond("settlement", 1, "trainer") == 10


def test_a_manager_reaches_only_its_own_runs():
    vault = opened()
    assert vault.seize("rogue", 1, "trainer", 50) == 0
    assert vault.seize("settlement", 2, "trainer", 50) == 0
    with pytest.raises(Refused, match="escrow too small"):
        vault.pay("rogue", 1, [("rogue", 1)])


def test_a_run_can_spend_all_of_its_escrow_and_no_more():
    vault = opened()
    vault.pay("settlement", 1, [("trainer", 100)])
    assert vault.escrow("settlement", 1) == 0
    with pytest.raises(Refused, match="escrow too small"):
        vault.burn_escrow("settlement", 1, 1)


def test_the_longest_exit_delay_is_allowed():
    vault = opened()
    vault.open_run("settlement", 2, "sponsor", 0, MAX_EXIT_DELAY_S)
    assert vault.exit_delay("settlement", 2) == MAX_EXIT_DELAY_S


def test_an_allowance_is_used_up():
    vault = opened()
    vault.deposit("sponsor", 100)
    with pytest.raises(Refused, match="allowance too small"):
        vault.open_run("settlement", 2, "sponsor", 1, DELAY)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda v: v.withdraw("trainer", 11), "idle balance too small"),
        (lambda v: v.bond("trainer", "settlement", 2, 1), "no such run"),
        (lambda v: v.bond("trainer", "settlement", 1, 11), "idle balance too small"),
        (lambda v: v.start_exit("stranger", "settlement", 1, 0), "nothing bonded"),
        (lambda v: v.finish_exit("trainer", "settlement", 1, 0), "no exit started"),
        (lambda v: v.open_run("settlement", 1, "sponsor", 0, DELAY), "run already open"),
        (lambda v: v.open_run("settlement", 2, "sponsor", 0, 0), "exit delay out of range"),
        (
            lambda v: v.open_run("settlement", 2, "sponsor", 0, MAX_EXIT_DELAY_S + 1),
            "exit delay out of range",
        ),
        (lambda v: v.pay("settlement", 1, [("trainer", 101)]), "escrow too small"),
        (lambda v: v.refund("settlement", 1, 101), "escrow too small"),
        (lambda v: v.burn_escrow("settlement", 1, 101), "escrow too small"),
    ],
)
def test_refusals_have_the_contracts_words_and_change_nothing(call, reason):
    vault, before = opened(), opened()
    with pytest.raises(Refused) as refusal:
        call(vault)
    assert refusal.value.reason == f"vault: {reason}"
    assert (vault.idle["trainer"], vault.total()) == (before.idle["trainer"], before.total())


def test_an_exit_is_started_once_and_bars_bonding():
    vault = opened()
    vault.start_exit("trainer", "settlement", 1, now=5)
    with pytest.raises(Refused, match="exit already started"):
        vault.start_exit("trainer", "settlement", 1, now=6)
    with pytest.raises(Refused, match="exit has started"):
        vault.bond("trainer", "settlement", 1, 1)
    with pytest.raises(Refused, match="exit not over"):
        vault.finish_exit("trainer", "settlement", 1, now=5 + DELAY - 1)


def test_a_bond_stays_within_96_bits():
    vault = opened()
    vault.deposit("trainer", AMOUNT_LIMIT)
    with pytest.raises(Refused, match="bond too large"):
        vault.bond("trainer", "settlement", 1, AMOUNT_LIMIT - 50)
    vault.bond("trainer", "settlement", 1, AMOUNT_LIMIT - 51)


def test_burned_money_leaves_for_the_sink():
    vault = opened()
    vault.burn_escrow("settlement", 1, 30)
    vault.seize("settlement", 1, "trainer", 5)
    assert vault.balance == vault.total() == 100 + 60
    assert vault.flush() == 35
    assert vault.flush() == 0
    assert vault.balance == vault.total() == 100 + 60 - 35
