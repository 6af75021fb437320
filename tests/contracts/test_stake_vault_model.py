"""Any sequence of calls leaves the vault and its reference with the same money: protocol sections 2 and 12."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from earnest.protocol.require import Refused
from earnest.protocol.vault import VaultModel
from tests.contracts.harness import Evm, Reverted, account
from tests.contracts.rounds import payment

PEOPLE = [account(role) for role in ("trainer", "validator", "sponsor")]
MANAGERS = [account(role) for role in ("manager", "other manager")]
SINK = account("sink")
RUNS = [1, 2]
DEPOSIT_LIMIT = 2**100

people, managers, runs = st.sampled_from(PEOPLE), st.sampled_from(MANAGERS), st.sampled_from(RUNS)
amounts = st.one_of(st.integers(0, 200), st.sampled_from([2**96 - 1, 2**96, 2**256 - 1]))
small = st.integers(0, 200)


class VaultMachine(RuleBasedStateMachine):
    """Everyone does anything; each call is refused by both for the same reason, or by neither."""

    def __init__(self) -> None:
        super().__init__()
        self.evm = Evm()
        self.token = self.evm.deploy("PlayToken", "Test", "TEST")
        self.vault = self.evm.deploy("StakeVault", self.token.address, SINK)
        self.model = VaultModel()
        self.flushed = 0

    def both(self, call: Callable[[], Any], model: Callable[[], Any]) -> None:
        answers = []
        for attempt in (call, model):
            try:
                answers.append((attempt(), ""))
            except (Reverted, Refused) as refusal:
                answers.append((None, refusal.reason))
        assert answers[0] == answers[1]

    @rule(who=people, amount=st.one_of(small, st.just(DEPOSIT_LIMIT)))
    def deposit(self, who: str, amount: int) -> None:
        self.token.mint(who, amount, sender=account("deployer"))
        self.token.approve(self.vault.address, amount, sender=who)
        self.both(lambda: self.vault.deposit(amount, sender=who), lambda: self.model.deposit(who, amount))

    @rule(who=people, amount=amounts)
    def withdraw(self, who: str, amount: int) -> None:
        self.both(lambda: self.vault.withdraw(amount, sender=who), lambda: self.model.withdraw(who, amount))

    @rule(who=people, manager=managers, run=runs, amount=amounts)
    def bond(self, who: str, manager: str, run: int, amount: int) -> None:
        self.both(
            lambda: self.vault.bond(manager, run, amount, sender=who),
            lambda: self.model.bond(who, manager, run, amount),
        )

    @rule(who=people, manager=managers, run=runs, hours=st.integers(0, 30))
    def leave(self, who: str, manager: str, run: int, hours: int) -> None:
        self.both(
            lambda: self.vault.start_exit(manager, run, sender=who),
            lambda: self.model.start_exit(who, manager, run, self.evm.time),
        )
        self.evm.travel(self.evm.time + hours * 3_600)

    @rule(who=people, manager=managers, run=runs)
    def finish_exit(self, who: str, manager: str, run: int) -> None:
        self.both(
            lambda: self.vault.finish_exit(manager, run, sender=who),
            lambda: self.model.finish_exit(who, manager, run, self.evm.time),
        )

    @rule(sponsor=people, manager=managers, run=runs, allowed=small, amount=small)
    def open_run(self, sponsor: str, manager: str, run: int, allowed: int, amount: int) -> None:
        self.vault.allow(manager, allowed, sender=sponsor)
        self.model.allow(sponsor, manager, allowed)
        self.both(
            lambda: self.vault.open_run(run, sponsor, amount, 86_400, sender=manager),
            lambda: self.model.open_run(manager, run, sponsor, amount, 86_400),
        )

    @rule(manager=managers, run=runs, die=st.integers(0, 3))
    def release(self, manager: str, run: int, die: int) -> None:
        if die == 3:  # seldom: it ends what other rules do
            self.both(
                lambda: self.vault.release(run, sender=manager), lambda: self.model.release(manager, run)
            )

    @rule(manager=managers, run=runs, first=small, second=small)
    def pay(self, manager: str, run: int, first: int, second: int) -> None:
        payments = list(zip(PEOPLE[:2], [first, second], strict=True))
        self.both(
            lambda: self.vault.pay(run, [payment(*p) for p in payments], sender=manager),
            lambda: self.model.pay(manager, run, payments),
        )

    @rule(manager=managers, run=runs, amount=amounts)
    def refund(self, manager: str, run: int, amount: int) -> None:
        self.both(
            lambda: self.vault.refund(run, amount, sender=manager),
            lambda: self.model.refund(manager, run, amount),
        )

    @rule(manager=managers, run=runs, amount=amounts)
    def burn_escrow(self, manager: str, run: int, amount: int) -> None:
        self.both(
            lambda: self.vault.burn_escrow(run, amount, sender=manager),
            lambda: self.model.burn_escrow(manager, run, amount),
        )

    @rule(manager=managers, run=runs, who=people, amount=amounts)
    def seize(self, manager: str, run: int, who: str, amount: int) -> None:
        self.both(
            lambda: self.vault.seize(run, who, amount, "fault", sender=manager),
            lambda: self.model.seize(manager, run, who, amount),
        )

    @rule()
    def flush(self) -> None:
        self.flushed += self.model.burned
        self.vault.flush()
        self.model.flush()

    @rule(amount=small)
    def donate(self, amount: int) -> None:
        self.token.mint(self.vault.address, amount, sender=account("deployer"))

    @invariant()
    def every_wei_is_in_the_same_bucket(self) -> None:
        vault, model = self.vault, self.model
        assert vault.burned() == model.burned
        for who in PEOPLE:
            assert vault.idle(who) == model.idle[who]
        for manager in MANAGERS:
            for run in RUNS:
                assert vault.escrow(manager, run) == model.escrow(manager, run)
                for who in PEOPLE:
                    assert vault.bond_of(manager, run, who) == model.bond_of(manager, run, who)
                    assert vault.live_bond(manager, run, who) == model.live_bond(manager, run, who)
                    assert vault.exit_time(manager, run, who) == model.exit_time(manager, run, who)

    @invariant()
    def the_vault_holds_what_it_owes(self) -> None:
        assert self.model.total() == self.model.balance <= self.token.balanceOf(self.vault.address)
        assert self.token.balanceOf(SINK) == self.flushed


TestVaultMachine = VaultMachine.TestCase
TestVaultMachine.settings = settings(max_examples=20, stateful_step_count=40)
