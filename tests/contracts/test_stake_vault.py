"""The vault's rules, one by one: protocol section 2."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contracts.harness import Contract, Evm, Reverted, account
from tests.contracts.rounds import payment

DAY = 86_400
RUN = 7
EXIT_DELAY_S = 3 * DAY
LIMIT = 2**96

SPONSOR, TRAINER, STRANGER = account("sponsor"), account("trainer"), account("stranger")
MANAGER, OTHER_MANAGER, SINK = account("manager"), account("other manager"), account("sink")


@pytest.fixture
def evm() -> Evm:
    return Evm()


@pytest.fixture
def token(evm: Evm) -> Contract:
    return evm.deploy("PlayToken", "Test", "TEST")


@pytest.fixture
def vault(evm: Evm, token: Contract) -> Contract:
    return evm.deploy("StakeVault", token.address, SINK)


@pytest.fixture
def fund(token: Contract, vault: Contract) -> Any:
    def give(who: str, wei: int) -> None:
        token.mint(who, wei, sender=account("deployer"))
        token.approve(vault.address, wei, sender=who)
        vault.deposit(wei, sender=who)

    return give


@pytest.fixture
def run(vault: Contract, fund: Any) -> int:
    """A run of 1,000 wei with a trainer's bond of 100."""
    fund(SPONSOR, 1_000)
    vault.allow(MANAGER, 1_000, sender=SPONSOR)
    vault.open_run(RUN, SPONSOR, 1_000, EXIT_DELAY_S, sender=MANAGER)
    fund(TRAINER, 150)
    vault.bond(MANAGER, RUN, 100, sender=TRAINER)
    return RUN


def refused(reason: str) -> Any:
    return pytest.raises(Reverted, match=f"^{reason}$")


# Deployment.


def test_starts_empty_and_without_any_privileged_function(vault: Contract, token: Contract) -> None:
    assert vault.TOKEN() == token.address.lower()
    assert vault.SINK() == SINK
    assert vault.burned() == 0
    writes = {n for n, f in vault.functions.items() if f["stateMutability"] == "nonpayable"}
    assert writes == {
        *("deposit", "withdraw", "withdraw_to", "allow", "bond", "start_exit", "finish_exit", "flush"),
        *("open_run", "pay", "refund", "burn_escrow", "seize", "release"),
    }


def test_refuses_a_token_without_code(evm: Evm) -> None:
    with refused("vault: token has no code"):
        evm.deploy("StakeVault", account("nobody"), SINK)


def test_refuses_no_sink(evm: Evm, token: Contract) -> None:
    with refused("vault: bad sink"):
        evm.deploy("StakeVault", token.address, "0x" + "00" * 20)


# Idle money.


def test_deposit_and_withdraw_move_the_callers_own_tokens(
    evm: Evm, vault: Contract, token: Contract, fund: Any
) -> None:
    fund(TRAINER, 150)
    assert evm.events("Deposited") == [{"account": TRAINER, "amount": 150}]
    vault.withdraw(40, sender=TRAINER)
    assert evm.events("Withdrawn") == [{"account": TRAINER, "receiver": TRAINER, "amount": 40}]
    assert vault.idle(TRAINER) == 110
    assert token.balanceOf(TRAINER) == 40
    assert token.balanceOf(vault.address) == 110


def test_withdraw_needs_the_balance(vault: Contract, fund: Any) -> None:
    fund(TRAINER, 150)
    with refused("vault: idle balance too small"):
        vault.withdraw(151, sender=TRAINER)
    with refused("vault: idle balance too small"):
        vault.withdraw(1, sender=STRANGER)


def test_deposit_without_token_allowance_is_refused(vault: Contract, token: Contract) -> None:
    token.mint(TRAINER, 5, sender=account("deployer"))
    with refused("token: allowance too small"):
        vault.deposit(5, sender=TRAINER)


def test_donations_change_no_ledger(vault: Contract, token: Contract, run: int) -> None:
    token.mint(vault.address, 999, sender=account("deployer"))
    assert vault.idle(TRAINER) == 50
    assert vault.escrow(MANAGER, run) == 1_000
    assert vault.burned() == 0
    vault.flush()
    assert token.balanceOf(SINK) == 0


# Opening a run.


def test_open_run_uses_up_the_allowance_and_moves_idle_money(evm: Evm, vault: Contract, fund: Any) -> None:
    fund(SPONSOR, 1_000)
    vault.allow(MANAGER, 700, sender=SPONSOR)
    assert evm.events("Allowed") == [{"account": SPONSOR, "manager": MANAGER, "amount": 700}]
    vault.open_run(RUN, SPONSOR, 600, EXIT_DELAY_S, sender=MANAGER)
    assert evm.events("RunOpened") == [
        {
            "manager": MANAGER,
            "run": RUN,
            "sponsor": SPONSOR,
            "amount": 600,
            "exit_delay": EXIT_DELAY_S,
        }
    ]
    assert vault.allowance(SPONSOR, MANAGER) == 100
    assert vault.idle(SPONSOR) == 400
    assert vault.escrow(MANAGER, RUN) == 600
    assert vault.exit_delay(MANAGER, RUN) == EXIT_DELAY_S
    assert vault.sponsor(MANAGER, RUN) == SPONSOR


def test_allow_sets_and_does_not_add(vault: Contract) -> None:
    vault.allow(MANAGER, 5, sender=SPONSOR)
    vault.allow(MANAGER, 3, sender=SPONSOR)
    assert vault.allowance(SPONSOR, MANAGER) == 3


def test_a_manager_takes_no_more_than_was_allowed_to_it(vault: Contract, fund: Any) -> None:
    fund(SPONSOR, 1_000)
    vault.allow(MANAGER, 700, sender=SPONSOR)
    with refused("vault: allowance too small"):
        vault.open_run(RUN, SPONSOR, 701, EXIT_DELAY_S, sender=MANAGER)
    with refused("vault: allowance too small"):
        vault.open_run(RUN, SPONSOR, 1, EXIT_DELAY_S, sender=OTHER_MANAGER)


def test_a_run_needs_the_sponsors_idle_money(vault: Contract, fund: Any) -> None:
    fund(SPONSOR, 10)
    vault.allow(MANAGER, 11, sender=SPONSOR)
    with refused("vault: idle balance too small"):
        vault.open_run(RUN, SPONSOR, 11, EXIT_DELAY_S, sender=MANAGER)


def test_a_run_opens_once(vault: Contract, run: int) -> None:
    with refused("vault: run already open"):
        vault.open_run(run, SPONSOR, 0, EXIT_DELAY_S, sender=MANAGER)


@pytest.mark.parametrize("delay", [0, 60 * DAY + 1])
def test_exit_delay_out_of_range_is_refused(vault: Contract, delay: int) -> None:
    with refused("vault: exit delay out of range"):
        vault.open_run(RUN, SPONSOR, 0, delay, sender=MANAGER)


def test_the_longest_exit_delay_is_sixty_days(vault: Contract) -> None:
    vault.open_run(RUN, SPONSOR, 0, 60 * DAY, sender=MANAGER)
    assert vault.exit_delay(MANAGER, RUN) == 60 * DAY


# Bonds and exits.


def test_bond_moves_idle_money_to_one_run_of_one_manager(evm: Evm, vault: Contract, run: int) -> None:
    vault.bond(MANAGER, run, 20, sender=TRAINER)
    assert evm.events("Bonded")[0]["bond"] == 120
    assert vault.bond_of(MANAGER, run, TRAINER) == vault.live_bond(MANAGER, run, TRAINER) == 120
    assert vault.bond_of(OTHER_MANAGER, run, TRAINER) == vault.bond_of(MANAGER, run + 1, TRAINER) == 0
    assert vault.idle(TRAINER) == 30


def test_bond_needs_an_open_run(vault: Contract, run: int) -> None:
    with refused("vault: no such run"):
        vault.bond(MANAGER, run + 1, 1, sender=TRAINER)
    with refused("vault: no such run"):
        vault.bond(OTHER_MANAGER, run, 1, sender=TRAINER)


def test_bond_needs_idle_money(vault: Contract, run: int) -> None:
    with refused("vault: idle balance too small"):
        vault.bond(MANAGER, run, 51, sender=TRAINER)


def test_a_bond_has_96_bits(vault: Contract, run: int, fund: Any) -> None:
    fund(TRAINER, LIMIT)
    vault.bond(MANAGER, run, LIMIT - 1 - 100, sender=TRAINER)
    assert vault.bond_of(MANAGER, run, TRAINER) == LIMIT - 1
    with refused("vault: bond too large"):
        vault.bond(MANAGER, run, 1, sender=TRAINER)


def test_exit_needs_a_bond_and_starts_once(evm: Evm, vault: Contract, run: int) -> None:
    with refused("vault: nothing bonded"):
        vault.start_exit(MANAGER, run, sender=STRANGER)
    vault.start_exit(MANAGER, run, sender=TRAINER)
    assert evm.events("ExitStarted")[0]["exit_time"] == evm.time + EXIT_DELAY_S
    evm.mine(1)
    with refused("vault: exit already started"):
        vault.start_exit(MANAGER, run, sender=TRAINER)


def test_an_exiting_bond_is_not_live_and_cannot_grow(vault: Contract, run: int) -> None:
    vault.start_exit(MANAGER, run, sender=TRAINER)
    assert vault.live_bond(MANAGER, run, TRAINER) == 0
    assert vault.bond_of(MANAGER, run, TRAINER) == 100
    with refused("vault: exit has started"):
        vault.bond(MANAGER, run, 1, sender=TRAINER)


def test_exit_ends_exactly_after_the_delay_without_the_manager(evm: Evm, vault: Contract, run: int) -> None:
    with refused("vault: no exit started"):
        vault.finish_exit(MANAGER, run, sender=TRAINER)
    vault.start_exit(MANAGER, run, sender=TRAINER)
    ends = vault.exit_time(MANAGER, run, TRAINER)
    evm.travel(ends - 1)
    with refused("vault: exit not over"):
        vault.finish_exit(MANAGER, run, sender=TRAINER)
    evm.travel(ends)
    vault.finish_exit(MANAGER, run, sender=TRAINER)
    assert evm.events("ExitFinished")[0]["amount"] == 100
    assert vault.idle(TRAINER) == 150
    assert vault.exit_time(MANAGER, run, TRAINER) == vault.bond_of(MANAGER, run, TRAINER) == 0
    vault.bond(MANAGER, run, 150, sender=TRAINER)
    assert vault.live_bond(MANAGER, run, TRAINER) == 150


# Slashing.


def test_seizure_takes_the_asked_amount_and_burns_it(evm: Evm, vault: Contract, run: int) -> None:
    vault.seize(run, TRAINER, 30, "harmful", sender=MANAGER)
    assert evm.events("BondSeized") == [
        {"manager": MANAGER, "run": run, "account": TRAINER, "amount": 30, "reason": "harmful"}
    ]
    assert vault.bond_of(MANAGER, run, TRAINER) == 70
    assert vault.burned() == 30
    assert vault.idle(MANAGER) == 0


def test_seizure_takes_at_most_the_bond_and_never_reverts(evm: Evm, vault: Contract, run: int) -> None:
    vault.seize(run, TRAINER, 2**256 - 1, "", sender=MANAGER)
    assert evm.events("BondSeized")[0]["amount"] == 100
    vault.seize(run, TRAINER, 1, "", sender=MANAGER)
    assert evm.events("BondSeized")[0]["amount"] == 0
    assert vault.burned() == 100
    assert vault.idle(TRAINER) == 50


def test_slash_during_exit_still_finds_the_bond(evm: Evm, vault: Contract, run: int) -> None:
    vault.start_exit(MANAGER, run, sender=TRAINER)
    ends = vault.exit_time(MANAGER, run, TRAINER)
    evm.travel(ends)
    vault.seize(run, TRAINER, 60, "late", sender=MANAGER)
    assert vault.exit_time(MANAGER, run, TRAINER) == ends
    vault.finish_exit(MANAGER, run, sender=TRAINER)
    assert vault.idle(TRAINER) == 50 + 40


def test_a_bond_slashed_to_zero_can_leave_and_come_back(evm: Evm, vault: Contract, run: int) -> None:
    vault.start_exit(MANAGER, run, sender=TRAINER)
    vault.seize(run, TRAINER, 100, "", sender=MANAGER)
    with refused("vault: exit has started"):
        vault.bond(MANAGER, run, 1, sender=TRAINER)
    evm.travel(vault.exit_time(MANAGER, run, TRAINER))
    vault.finish_exit(MANAGER, run, sender=TRAINER)
    vault.bond(MANAGER, run, 50, sender=TRAINER)
    assert vault.live_bond(MANAGER, run, TRAINER) == 50


def test_a_manager_reaches_only_its_own_runs(vault: Contract, run: int) -> None:
    assert vault.seize(run, TRAINER, 30, "", sender=OTHER_MANAGER) == 0
    assert vault.seize(run + 1, TRAINER, 30, "", sender=MANAGER) == 0
    assert vault.bond_of(MANAGER, run, TRAINER) == 100
    for take in (vault.refund, vault.burn_escrow):
        with refused("vault: escrow too small"):
            take(run, 1, sender=OTHER_MANAGER)
    with refused("vault: escrow too small"):
        vault.pay(run, [payment(STRANGER, 1)], sender=OTHER_MANAGER)


# Escrow.


def test_pay_moves_escrow_to_idle_balances(evm: Evm, vault: Contract, run: int) -> None:
    payments = [payment(TRAINER, 5), payment(STRANGER, 0), payment(TRAINER, 6)]
    vault.pay(run, payments, sender=MANAGER)
    assert evm.events("Paid")[0]["payments"] == tuple(payments)
    assert vault.idle(TRAINER) == 50 + 11
    assert vault.idle(STRANGER) == 0
    assert vault.escrow(MANAGER, run) == 989


def test_pay_of_256_accounts_fits(vault: Contract, run: int) -> None:
    accounts = [account(f"trainer {i}") for i in range(256)]
    vault.pay(run, [payment(who, 3) for who in accounts], sender=MANAGER)
    assert vault.escrow(MANAGER, run) == 1_000 - 3 * 256
    assert all(vault.idle(who) == 3 for who in accounts)
    with pytest.raises(Reverted):
        vault.pay(run, [payment(STRANGER, 0)] * 257, sender=MANAGER)


def test_pay_is_bounded_by_the_escrow(vault: Contract, run: int) -> None:
    with refused("vault: escrow too small"):
        vault.pay(run, [payment(TRAINER, 1_000), payment(STRANGER, 1)], sender=MANAGER)
    with refused("vault: escrow too small"):
        vault.pay(run, [payment(TRAINER, 2**96 - 1)] * 256, sender=MANAGER)


def test_refund_goes_to_the_sponsor_only(evm: Evm, vault: Contract, run: int) -> None:
    vault.refund(run, 400, sender=MANAGER)
    assert evm.events("Refunded")[0]["sponsor"] == SPONSOR
    assert vault.idle(SPONSOR) == 400
    with refused("vault: escrow too small"):
        vault.refund(run, 601, sender=MANAGER)


def test_burned_money_is_flushed_to_the_sink_by_anyone(
    evm: Evm, vault: Contract, token: Contract, run: int
) -> None:
    vault.burn_escrow(run, 400, sender=MANAGER)
    assert evm.events("EscrowBurned")[0]["amount"] == 400
    with refused("vault: escrow too small"):
        vault.burn_escrow(run, 601, sender=MANAGER)
    vault.seize(run, TRAINER, 30, "", sender=MANAGER)
    vault.flush(sender=STRANGER)
    assert evm.events("Flushed") == [{"sink": SINK, "amount": 430}]
    assert token.balanceOf(SINK) == 430
    assert vault.burned() == 0
    assert token.balanceOf(vault.address) == 1_000 - 400 + 150 - 30


def test_withdraw_to_pays_another_account_than_the_callers(
    evm: Evm, vault: Contract, token: Contract, fund: Any
) -> None:
    fund(TRAINER, 150)
    for nobody in ("0x" + "00" * 20, vault.address):
        with refused("vault: bad receiver"):
            vault.withdraw_to(nobody, 40, sender=TRAINER)
    with refused("vault: idle balance too small"):
        vault.withdraw_to(SINK, 151, sender=TRAINER)
    vault.withdraw_to(SINK, 40, sender=TRAINER)
    assert evm.events("Withdrawn") == [{"account": TRAINER, "receiver": SINK, "amount": 40}]
    assert (vault.idle(TRAINER), token.balanceOf(SINK), token.balanceOf(TRAINER)) == (110, 40, 0)


@pytest.mark.parametrize("leaving", [False, True])
def test_released_bonds_wait_no_longer(evm: Evm, vault: Contract, run: int, leaving: bool) -> None:
    if leaving:
        vault.start_exit(MANAGER, run, sender=TRAINER)
    with refused("vault: no run to release"):
        vault.release(run, sender=TRAINER)
    assert not vault.released(MANAGER, run)
    vault.release(run, sender=MANAGER)
    assert evm.events("BondsReleased") == [{"manager": MANAGER, "run": run}]
    assert vault.released(MANAGER, run)
    vault.finish_exit(MANAGER, run, sender=TRAINER)
    assert vault.idle(TRAINER) == 150
    assert vault.exit_time(MANAGER, run, TRAINER) == vault.bond_of(MANAGER, run, TRAINER) == 0
