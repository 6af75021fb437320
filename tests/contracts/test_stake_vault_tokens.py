"""Tokens that misbehave cannot move the vault's ledgers: protocol section 2, pitfalls 30 to 34."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contracts.harness import Contract, Evm, Reverted, account, encode_arguments

TRAINER, STRANGER, MANAGER, SINK = (account(r) for r in ("trainer", "stranger", "manager", "sink"))

SELF = "the token"


@pytest.fixture
def evm() -> Evm:
    return Evm()


@pytest.fixture
def token(evm: Evm) -> Contract:
    return evm.deploy("HostileToken")


@pytest.fixture
def vault(evm: Evm, token: Contract) -> Contract:
    return evm.deploy("StakeVault", token.address, SINK)


@pytest.fixture
def funded(token: Contract, vault: Contract) -> None:
    """Trainer and stranger have 100 wei idle each, and 100 more in their wallets."""
    for who in (TRAINER, STRANGER):
        token.mint(who, 200)
        token.approve(vault.address, 200, sender=who)
        vault.deposit(100, sender=who)


def calldata(contract: Contract, name: str, *args: Any) -> bytes:
    return contract.selectors[name] + encode_arguments(contract.functions[name]["inputs"], args)


def test_a_token_that_returns_nothing_works(evm: Evm) -> None:
    token = evm.deploy("SilentToken")
    vault = evm.deploy("StakeVault", token.address, SINK)
    token.mint(TRAINER, 10)
    token.approve(vault.address, 10, sender=TRAINER)
    vault.deposit(10, sender=TRAINER)
    vault.withdraw(4, sender=TRAINER)
    assert (vault.idle(TRAINER), token.balanceOf(TRAINER), token.balanceOf(vault.address)) == (6, 4, 6)


@pytest.mark.usefixtures("funded")
def test_a_token_that_returns_false_is_refused_both_ways(vault: Contract, token: Contract) -> None:
    token.set_refuses(True)
    with pytest.raises(Reverted, match=r"^vault: token refused$"):
        vault.deposit(5, sender=TRAINER)
    with pytest.raises(Reverted, match=r"^vault: transfer refused$"):
        vault.withdraw(5, sender=TRAINER)
    assert vault.idle(TRAINER) == 100


@pytest.mark.usefixtures("funded")
def test_a_deposit_that_delivers_less_is_refused(vault: Contract, token: Contract) -> None:
    token.set_fee(1)
    with pytest.raises(Reverted, match=r"^vault: token delivered less$"):
        vault.deposit(5, sender=TRAINER)


@pytest.mark.usefixtures("funded")
def test_a_fee_that_comes_later_locks_nobody_in(vault: Contract, token: Contract) -> None:
    token.set_fee(1)
    vault.withdraw(100, sender=TRAINER)
    assert token.balanceOf(TRAINER) == 100 + 99
    assert token.balanceOf(vault.address) == vault.idle(STRANGER) == 100


@pytest.mark.usefixtures("funded")
def test_a_transfer_that_takes_more_than_asked_is_refused(vault: Contract, token: Contract) -> None:
    token.set_surcharge(1)
    with pytest.raises(Reverted, match=r"^vault: token took more$"):
        vault.withdraw(5, sender=TRAINER)


@pytest.mark.usefixtures("funded")
@pytest.mark.parametrize(
    "name, args",
    [
        ("deposit", [1]),
        ("withdraw", [1]),
        ("allow", [MANAGER, 1]),
        ("bond", [SELF, 1, 1]),
        ("start_exit", [SELF, 1]),
        ("finish_exit", [SELF, 2]),
        ("flush", []),
        ("open_run", [3, STRANGER, 0, 1]),
        ("pay", [1, [0]]),
        ("refund", [1, 0]),
        ("burn_escrow", [1, 0]),
        ("seize", [1, SELF, 1, ""]),
        ("idle", [TRAINER]),
        ("allowance", [TRAINER, MANAGER]),
        ("burned", []),
        ("bond_of", [SELF, 1, TRAINER]),
        ("exit_time", [SELF, 1, TRAINER]),
        ("escrow", [SELF, 1]),
        ("sponsor", [SELF, 1]),
        ("exit_delay", [SELF, 1]),
    ],
)
def test_no_function_can_be_entered_again_during_a_transfer(
    evm: Evm, vault: Contract, token: Contract, name: str, args: list[Any]
) -> None:
    """The token has money, runs and bonds of its own: the call works at any other time, so only the lock stops it."""

    def act(function: str, *values: Any) -> None:
        token.act(vault.address, calldata(vault, function, *values))

    token.mint(token.address, 10)
    token.act(token.address, calldata(token, "approve", vault.address, 10))
    act("deposit", 9)
    for run in (1, 2):
        act("open_run", run, token.address, 0, 1)
        act("bond", token.address, run, 2)
    act("start_exit", token.address, 2)
    evm.mine(1)
    own = [token.address if value == SELF else value for value in args]
    own = [[token.address] if value == [SELF] else value for value in own]
    with evm.anchor():
        act(name, *own)

    token.set_callback(vault.address, calldata(vault, name, *own))
    vault.deposit(1, sender=TRAINER)
    vault.withdraw(1, sender=TRAINER)
    assert token.called_back() == 0
    assert (vault.idle(TRAINER), vault.idle(token.address)) == (100, 5)


@pytest.mark.usefixtures("funded")
def test_the_callback_does_run_where_nothing_forbids_it(vault: Contract, token: Contract) -> None:
    token.set_callback(vault.address, calldata(vault, "TOKEN"))
    vault.deposit(1, sender=TRAINER)
    assert token.called_back() == 1


@pytest.mark.usefixtures("funded")
def test_slashing_makes_no_call_to_the_token(evm: Evm, vault: Contract, token: Contract) -> None:
    vault.open_run(1, TRAINER, 0, 86_400, sender=MANAGER)
    vault.bond(MANAGER, 1, 100, sender=TRAINER)
    token.set_refuses(True)
    vault.seize(1, TRAINER, 60, "harmful", sender=MANAGER)
    assert {log.contract for log in evm.logs} == {"StakeVault"}
    assert vault.burned() == 60
