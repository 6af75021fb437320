"""Transactions of an account: missing ones are listed, done ones left out, impossible ones refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from earnest.base.errors import EarnestError
from earnest.client.account.transactions import (
    NoSeatError,
    NotAdmittedError,
    NotDueError,
    PlannedCall,
    SeatRequest,
    bond_calls,
    checked_uri,
    deposit_calls,
    end_calls,
    exit_calls,
    fund_calls,
    held_seat,
    join_calls,
    leave_calls,
    operator_calls,
    refund_calls,
    refund_due,
    sync_calls,
    uri_calls,
    withdraw_calls,
)
from earnest.demo.world import COIN, TRAINER_BOND, World
from earnest.protocol.run import Role
from tests.client.world import make_world

IDLE = ("trainer-0", "validator-0")
NEWCOMER = "trainer-7"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A run with one trainer, room for another, and one admitted account that has no seat yet."""
    setup = {"attacks": ("none",), "validators": 1, "rounds": 3, "idle": IDLE, "spare": (NEWCOMER,)}
    with make_world(tmp_path, **setup, params={"trainer_limit": 2}) as made:
        made.send("sponsor", made.contracts.token.mint(made.address(NEWCOMER), 3 * TRAINER_BOND))
        yield made


def joining(
    world: World, name: str = NEWCOMER, role: Role = Role.TRAINER, bond: int = TRAINER_BOND
) -> list[PlannedCall]:
    account = world.address(name)
    wanted = SeatRequest(world.run, role, account, bond, account, "http://host")
    return join_calls(world.contracts, wanted, world.admission, world.chain.head())


def names(steps: list[PlannedCall]) -> list[str]:
    return [step.name for step in steps]


def interrupted(world: World, name: str, steps: Callable[[], list[PlannedCall]]) -> list[list[str]]:
    """Does the steps as somebody would whose command dies after each: lists anew, sends the first, and so on."""
    seen = []
    while steps_left := steps():
        seen.append(names(steps_left))
        world.send(name, steps_left[0].call)
        if len(steps_left) == 1:
            return seen
    return seen


def test_an_interrupted_join_continues_where_it_stopped(world: World) -> None:
    whole = ["approve", "deposit", "bond", "join"]
    assert interrupted(world, NEWCOMER, lambda: joining(world)) == [whole[i:] for i in range(4)]
    assert world.bond(NEWCOMER) == TRAINER_BOND
    with pytest.raises(NotDueError, match="has trainer seat 1 of run 1 already"):
        joining(world)


def test_only_the_missing_part_of_a_bond_is_deposited(world: World) -> None:
    for step in deposit_calls(world.contracts, world.address(NEWCOMER), COIN, world.chain.head()):
        world.send(NEWCOMER, step.call)
    for step in joining(world):
        world.send(NEWCOMER, step.call)
    assert (world.bond(NEWCOMER), world.idle(NEWCOMER)) == (TRAINER_BOND, 0)


def test_an_account_that_is_not_admitted_is_refused_before_anything_moves(world: World) -> None:
    with pytest.raises(NotAdmittedError, match="not on the run's list of admitted trainers"):
        joining(world, "stranger")
    with pytest.raises(NotAdmittedError, match="admitted validators"):
        joining(world, NEWCOMER, Role.VALIDATOR)


def test_trainers_of_an_open_run_need_no_admission_but_validators_do(tmp_path: Path) -> None:
    setup = {"attacks": ("none",), "validators": 1, "idle": IDLE}
    params = {"trainer_limit": 2, "open_trainers": True}
    with make_world(tmp_path, **setup, params=params) as world:
        world.send("sponsor", world.contracts.token.mint(world.address("stranger"), TRAINER_BOND))
        for step in joining(world, "stranger"):
            world.send("stranger", step.call)
        held = held_seat(world.contracts, world.run, world.address("stranger"), world.chain.head())
        assert (held.role, held.seat) == (Role.TRAINER, 1)
        with pytest.raises(NotAdmittedError):
            joining(world, "sponsor", Role.VALIDATOR)


def test_too_little_of_the_token_is_said_in_tokens(world: World) -> None:
    with pytest.raises(EarnestError, match=r"holds 300 .*, 500 .* are needed"):
        joining(world, bond=5 * TRAINER_BOND)


def test_leaving_twice_starts_one_exit_and_the_bond_comes_back_in_time(world: World) -> None:
    contracts, run, account = world.contracts, world.run, world.address("trainer-0")

    def leaving() -> list[PlannedCall]:
        return leave_calls(contracts, run, Role.TRAINER, 0, account, world.chain.head())

    assert interrupted(world, "trainer-0", leaving) == [["exit", "sync"], ["sync"]]
    with pytest.raises(NotDueError, match="takes another"):
        exit_calls(contracts, run, account, world.chain.head())
    with pytest.raises(NotDueError, match="nothing can be added"):
        bond_calls(contracts, run, account, COIN, world.chain.head())
    ready = contracts.vault.exit_time(contracts.settlement.address, run, account, at=world.chain.head())
    assert ready is not None
    world.devnet.travel(ready)  # the run is over by then: its bonds are released
    for step in exit_calls(contracts, run, account, world.chain.head()):
        world.send("trainer-0", step.call)
    assert (world.bond("trainer-0"), world.idle("trainer-0")) == (0, TRAINER_BOND)
    with pytest.raises(NotDueError, match="has no bond"):
        exit_calls(contracts, run, account, world.chain.head())
    (withdraw,) = withdraw_calls(contracts, account, None, world.chain.head())
    world.send("trainer-0", withdraw.call)
    with pytest.raises(NotDueError, match=r"has 0 .* idle"):
        withdraw_calls(contracts, account, None, world.chain.head())


def test_a_bond_that_is_on_its_way_out_takes_no_new_seat(world: World) -> None:
    for step in joining(world)[:-1]:
        world.send(NEWCOMER, step.call)
    (start,) = exit_calls(world.contracts, world.run, world.address(NEWCOMER), world.chain.head())
    world.send(NEWCOMER, start.call)
    with pytest.raises(NotDueError, match="has started, nothing can be added"):
        joining(world)


def test_a_bond_that_grows_counts_from_the_next_round(world: World) -> None:
    account = world.address("trainer-0")
    world.send("sponsor", world.contracts.token.mint(account, COIN))
    steps = bond_calls(world.contracts, world.run, account, COIN, world.chain.head())
    assert names(steps) == ["approve", "deposit", "bond", "sync"]
    for step in steps:
        world.send("trainer-0", step.call)
    record = world.deployment.read_run(world.run)
    assert record.seats[Role.TRAINER][0].stake.at(0) == TRAINER_BOND + COIN


def test_an_interrupted_funding_continues_where_it_stopped(world: World) -> None:
    contracts, sponsor = world.contracts, world.address("sponsor")
    params = replace(world.params, start=world.devnet.now() + 20_000)
    world.send("sponsor", contracts.token.mint(sponsor, params.budget))
    whole = ["approve", "deposit", "allow", "create"]
    assert interrupted(
        world, "sponsor", lambda: fund_calls(contracts, sponsor, params, "http://host", world.chain.head())
    ) == [whole[i:] for i in range(4)]
    assert contracts.runs.run_count(at=world.chain.head()) == 2


def test_seats_change_hands_and_addresses_through_their_owner(world: World) -> None:
    contracts, run, head = world.contracts, world.run, world.chain.head()
    account, operator = world.address("trainer-0"), world.address("stranger")
    held = held_seat(contracts, run, account, head)
    for step in [
        *operator_calls(contracts, run, account, operator, head),
        *uri_calls(contracts, run, held, "http://new"),
        *sync_calls(contracts, run, held),
    ]:
        world.send("trainer-0", step.call)
    record = world.deployment.read_run(run)
    assert record.seats[Role.TRAINER][0].operator.at(0) == operator
    assert record.seats[Role.TRAINER][0].uri == "http://new"
    with pytest.raises(NoSeatError, match="has no seat in run 1"):
        held_seat(contracts, run, operator, head)


def test_ending_early_gives_unopened_rounds_back(world: World) -> None:
    contracts, run, sponsor = world.contracts, world.run, world.address("sponsor")
    assert not refund_due(contracts, run, sponsor, world.chain.head())
    (end,) = end_calls(contracts, run)
    world.send("sponsor", end.call)
    record = world.deployment.read_run(run)
    assert record.planned_rounds == contracts.runs.run_rounds(run, at=world.chain.head()) < 3
    assert refund_due(contracts, run, sponsor, world.chain.head())
    (refund,) = refund_calls(contracts, run)
    world.send("stranger", refund.call)
    assert not refund_due(contracts, run, sponsor, world.chain.head())


def test_a_uri_that_the_contract_would_refuse_is_refused_first() -> None:
    assert checked_uri("http://" + "h" * 249) == "http://" + "h" * 249
    with pytest.raises(EarnestError, match="at most 256 bytes, this one 258"):
        checked_uri("http://" + "é" * 125 + "h")
