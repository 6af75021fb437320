"""Seats: joining, keys, stakes, takeovers, bars. Protocol section 3."""

from __future__ import annotations

from typing import Any

import pytest

from earnest.protocol.constants import NO_SEAT
from earnest.protocol.merkle import admission_proof, admission_root
from earnest.protocol.run import Role
from earnest.protocol.verdicts import Verdict
from tests.contracts.harness import Reverted, System, account
from tests.contracts.rounds import ADMITTED, STRANGER, TRAINERS, VALIDATORS, Run, accepted, report, verdict

OPERATOR, NEW_OPERATOR = account("operator"), account("new operator")
NOBODY = "0x" + "00" * 20
BOND = 10**9
TRAINER, VALIDATOR = Role.TRAINER, Role.VALIDATOR


def refused(reason: str) -> Any:
    return pytest.raises(Reverted, match=f"^{reason}$")


@pytest.fixture
def run(contracts: System) -> Run:
    """Three trainer seats, two validator seats, twenty rounds; nobody has joined."""
    return Run.create(contracts, rounds=20, trainer_limit=3, validator_limit=2)


def join(
    run: Run,
    who: str,
    role: Role = TRAINER,
    bond: int = BOND,
    take: int = NO_SEAT,
    operator: str | None = None,
) -> int:
    if bond:
        run.bond(who, bond)
    proof = admission_proof(ADMITTED, who, role) if role == VALIDATOR else []
    return run.system.runs.join(run.id, role, operator or who, "http://x/", proof, take, sender=who)


def owner(run: Run, seat: int, round: int, role: Role = TRAINER) -> str:
    return run.system.runs.seat_at(run.id, role, seat, round).owner


def stake(run: Run, seat: int, round: int, role: Role = TRAINER) -> int:
    return run.system.runs.seat_at(run.id, role, seat, round).stake


def sync(run: Run, seat: int, role: Role = TRAINER) -> None:
    run.system.runs.sync(run.id, role, seat)


def start_exit(run: Run, who: str) -> None:
    run.system.vault.start_exit(run.settlement.address, run.id, sender=who)


# Joining.


def test_a_seat_counts_from_the_next_round(run: Run) -> None:
    run.enter("commit", 4)
    assert join(run, TRAINERS[0], operator=OPERATOR) == 0
    event = run.evm.events("SeatTaken")[0]
    assert event == {
        "run": run.id,
        "role": TRAINER,
        "account": TRAINERS[0],
        "seat": 0,
        "operator": OPERATOR,
        "from_round": 5,
        "stake": BOND,
        "uri": "http://x/",
        "replaced": NOBODY,
    }
    assert run.system.runs.seat_at(run.id, TRAINER, 0, 4) == (NOBODY, NOBODY, 0, 0, 0, 0)
    assert run.system.runs.seat_at(run.id, TRAINER, 0, 5) == (TRAINERS[0], OPERATOR, 5, BOND, 0, 5)
    assert run.system.runs.seat_of(run.id, TRAINERS[0]) == (TRAINER, 0)
    assert run.system.runs.seat_counts(run.id) == (1, 0)


@pytest.mark.parametrize(("offset", "first"), [(-1, 0), (0, 1)])
def test_before_the_start_seats_count_from_round_0(run: Run, offset: int, first: int) -> None:
    run.enter("commit", 0, offset)
    join(run, TRAINERS[0])
    assert run.evm.events("SeatTaken")[0]["from_round"] == first


def test_the_last_round_can_still_be_joined_before_it_opens(run: Run) -> None:
    run.enter("commit", 19, -1)
    join(run, TRAINERS[0])
    run.enter("commit", 19)
    with refused("runs: too late to join"):
        join(run, TRAINERS[1])


def test_joining_takes_the_minimum_bond(run: Run) -> None:
    with refused("runs: bond too small"):
        join(run, TRAINERS[0], bond=run.params.trainer_min_bond - 1)
    join(run, TRAINERS[0], bond=1)
    with refused("runs: bond too small"):
        join(run, VALIDATORS[0], VALIDATOR, bond=run.params.validator_min_bond - 1)


def test_a_bond_on_its_way_out_does_not_count_for_joining(run: Run) -> None:
    run.bond(TRAINERS[0], BOND)
    start_exit(run, TRAINERS[0])
    with refused("runs: bond too small"):
        join(run, TRAINERS[0], bond=0)


@pytest.mark.parametrize("role", [0, 3, 2**16 + 1])
def test_there_are_two_roles(run: Run, role: int) -> None:
    runs = run.system.runs
    for call in (
        lambda: runs.join(run.id, role, OPERATOR, "", [], NO_SEAT),
        lambda: runs.set_operator(run.id, role, 0, OPERATOR),
        lambda: runs.set_uri(run.id, role, 0, ""),
        lambda: runs.sync(run.id, role, 0),
        lambda: runs.seat_at(run.id, role, 0, 0),
        lambda: runs.commitment_of(run.id, role, 0, 0),
    ):
        with refused("runs: unknown role"):
            call()


def test_an_account_has_one_seat_per_run(contracts: System, run: Run) -> None:
    join(run, VALIDATORS[0], VALIDATOR)
    for role in (TRAINER, VALIDATOR):
        with refused("runs: already seated"):
            join(run, VALIDATORS[0], role)
    other = Run.create(contracts)
    join(other, VALIDATORS[0])


def test_a_seat_needs_an_operator(run: Run) -> None:
    with refused("runs: no operator"):
        join(run, TRAINERS[0], operator=NOBODY)
    join(run, TRAINERS[0])
    with refused("runs: no operator"):
        run.system.runs.set_operator(run.id, TRAINER, 0, NOBODY, sender=TRAINERS[0])


def test_validators_are_always_on_the_list_and_proofs_name_the_role(contracts: System, run: Run) -> None:
    runs = contracts.runs
    run.bond(VALIDATORS[0], BOND)
    run.bond(STRANGER, BOND)
    proof = admission_proof(ADMITTED, VALIDATORS[0], VALIDATOR)
    for who, given in ((STRANGER, proof), (VALIDATORS[0], []), (VALIDATORS[0], proof[:-1])):
        with refused("runs: not admitted"):
            runs.join(run.id, VALIDATOR, who, "", given, NO_SEAT, sender=who)
    runs.join(run.id, VALIDATOR, VALIDATORS[0], "", proof, NO_SEAT, sender=VALIDATORS[0])


def test_a_closed_run_admits_only_listed_trainers(contracts: System) -> None:
    listed = [(TRAINERS[0], TRAINER), (VALIDATORS[0], VALIDATOR)]
    run = Run.create(contracts, open_trainers=False, admission_root=admission_root(listed))
    for who in (TRAINERS[0], TRAINERS[1], VALIDATORS[0]):
        run.bond(who, BOND)
    proof = admission_proof(listed, TRAINERS[0], TRAINER)
    for who, given in (
        (TRAINERS[1], proof),
        (VALIDATORS[0], admission_proof(listed, VALIDATORS[0], VALIDATOR)),
    ):
        with refused("runs: not admitted"):
            contracts.runs.join(run.id, TRAINER, who, "", given, NO_SEAT, sender=who)
    contracts.runs.join(run.id, TRAINER, TRAINERS[0], "", proof, NO_SEAT, sender=TRAINERS[0])


# Operators and URIs.


def test_the_operator_changes_from_the_next_round(run: Run) -> None:
    runs = run.system.runs
    join(run, TRAINERS[0])
    run.enter("commit", 3)
    runs.set_operator(run.id, TRAINER, 0, OPERATOR, sender=TRAINERS[0])
    assert run.evm.events("OperatorChanged") == [
        {
            "run": run.id,
            "role": TRAINER,
            "seat": 0,
            "old": TRAINERS[0],
            "new": OPERATOR,
            "from_round": 4,
        }
    ]
    zero = bytes(32)
    with refused("runs: not the operator"):
        runs.commit(run.id, run.open_round, 0, zero, sender=OPERATOR)
    runs.commit(run.id, run.open_round, 0, zero, sender=TRAINERS[0])
    run.enter("commit", 4)
    with refused("runs: not the operator"):
        runs.commit(run.id, run.open_round, 0, zero, sender=TRAINERS[0])
    runs.commit(run.id, run.open_round, 0, zero, sender=OPERATOR)
    runs.set_operator(run.id, TRAINER, 0, STRANGER, sender=TRAINERS[0])
    runs.set_operator(run.id, TRAINER, 0, NEW_OPERATOR, sender=TRAINERS[0])
    assert run.evm.events("OperatorChanged")[0]["old"] == STRANGER
    operators = [runs.seat_at(run.id, TRAINER, 0, r).operator for r in (4, 5, 6)]
    assert operators == [OPERATOR, NEW_OPERATOR, NEW_OPERATOR]


def test_only_the_owner_names_the_operator(run: Run) -> None:
    join(run, TRAINERS[0], operator=OPERATOR)
    for who in (OPERATOR, STRANGER):
        with refused("runs: not the owner"):
            run.system.runs.set_operator(run.id, TRAINER, 0, who, sender=who)


def test_owner_and_operator_may_move_the_uri(run: Run) -> None:
    join(run, TRAINERS[0], operator=OPERATOR)
    for who in (TRAINERS[0], OPERATOR):
        run.system.runs.set_uri(run.id, TRAINER, 0, f"http://{who}/", sender=who)
        assert run.evm.events("UriChanged")[0]["uri"] == f"http://{who}/"
    with refused("runs: not owner or operator"):
        run.system.runs.set_uri(run.id, TRAINER, 0, "", sender=STRANGER)


def test_seats_beyond_the_largest_are_refused(run: Run) -> None:
    runs, zero = run.system.runs, bytes(32)
    join(run, TRAINERS[0])
    run.enter("commit", 1)
    for seat in (256, 2**16, 2**32, 2**255):
        with refused("runs: no such seat"):
            runs.commit(run.id, run.open_round, seat, zero, sender=TRAINERS[0])
        with refused("runs: no such seat"):
            runs.seat_at(run.id, TRAINER, seat, 0)
    with refused("runs: empty seat"):
        runs.sync(run.id, TRAINER, 1)


# Stakes.


def test_a_stake_counts_from_the_next_round_and_the_last_two_stay_readable(run: Run) -> None:
    join(run, TRAINERS[0])
    for round in (2, 3, 4):
        run.enter("commit", round)
        run.bond(TRAINERS[0], round)
        sync(run, 0)
    assert run.evm.events("StakeSynced") == [
        {
            "run": run.id,
            "role": TRAINER,
            "seat": 0,
            "old": BOND + 5,
            "new": BOND + 9,
            "from_round": 5,
        }
    ]
    assert [stake(run, 0, r) for r in (3, 4, 5)] == [BOND + 2, BOND + 5, BOND + 9]


def test_syncing_without_a_change_does_nothing(run: Run) -> None:
    join(run, TRAINERS[0])
    run.enter("commit", 2)
    sync(run, 0)
    assert run.evm.logs == []


def test_an_exit_takes_the_stake_away_from_the_next_round(run: Run) -> None:
    join(run, TRAINERS[0])
    run.enter("commit", 2)
    start_exit(run, TRAINERS[0])
    sync(run, 0)
    assert [stake(run, 0, r) for r in (1, 2, 3)] == [BOND, BOND, 0]


def test_an_exit_bars_commits_at_once(run: Run) -> None:
    join(run, TRAINERS[0])
    run.enter("commit", 2)
    start_exit(run, TRAINERS[0])
    with refused("runs: no live bond"):
        run.system.runs.commit(run.id, run.open_round, 0, bytes(32), sender=TRAINERS[0])


def test_who_left_keeps_the_seat_and_may_bond_again(contracts: System) -> None:
    run = Run.create(contracts, rounds=200)
    vault, manager, who = contracts.vault, run.settlement.address, TRAINERS[0]
    join(run, who)
    run.enter("commit", 2)
    start_exit(run, who)
    sync(run, 0)
    run.evm.travel(run.evm.time + run.params.exit_delay)
    vault.finish_exit(manager, run.id, sender=who)
    vault.bond(manager, run.id, BOND - 1, sender=who)
    round = run.params.schedule().round_at(run.evm.time)
    sync(run, 0)
    assert [stake(run, 0, r) for r in (round, round + 1)] == [0, BOND - 1]
    run.enter("commit", round + 1)
    contracts.runs.commit(run.id, run.open_round, 0, bytes(32), sender=who)


# Taking over.


def fill(run: Run, bonds: tuple[int, ...] = (BOND, 2 * BOND, 3 * BOND)) -> None:
    for who, bond in zip(TRAINERS, bonds, strict=False):
        join(run, who, bond=bond)


def test_free_seats_come_first(run: Run) -> None:
    with refused("runs: a seat is free"):
        join(run, TRAINERS[0], take=0)
    fill(run)
    with refused("runs: no free seat"):
        join(run, TRAINERS[3])


def test_the_smallest_bond_is_outbid_by_a_quarter(run: Run) -> None:
    fill(run)
    run.enter("commit", 5)
    run.system.runs.commit(run.id, run.open_round, 0, bytes(32), sender=TRAINERS[0])
    with refused("runs: bond does not outbid"):
        join(run, TRAINERS[3], bond=BOND * 5 // 4 - 1, take=0)
    assert join(run, TRAINERS[3], bond=1, take=0) == 0
    assert run.evm.events("SeatTaken")[0]["replaced"] == TRAINERS[0]
    assert [owner(run, 0, r) for r in (4, 5, 6)] == [TRAINERS[0], TRAINERS[0], TRAINERS[3]]
    assert [stake(run, 0, r) for r in (4, 5, 6)] == [BOND, BOND, BOND * 5 // 4]
    assert run.system.runs.seat_of(run.id, TRAINERS[0]) == (0, 0)
    assert run.system.runs.owners_at(run.id, TRAINER, 5, 0, 9) == tuple(TRAINERS[:3])


def test_only_the_smallest_bond_can_be_outbid(run: Run) -> None:
    fill(run)
    run.enter("commit", 5)
    with refused("runs: not the smallest bond"):
        join(run, TRAINERS[3], bond=10 * BOND, take=1)
    with refused("runs: empty seat"):
        join(run, TRAINERS[3], bond=0, take=3)


def test_the_next_smallest_can_be_taken_once_the_smallest_is_new(run: Run) -> None:
    fill(run)
    run.enter("commit", 5)
    join(run, TRAINERS[3], bond=BOND * 5 // 4, take=0)
    run.enter("commit", 6)
    join(run, TRAINERS[4], bond=10 * BOND, take=1)
    assert [owner(run, s, 7) for s in range(3)] == [TRAINERS[3], TRAINERS[4], TRAINERS[2]]


@pytest.mark.parametrize("round", [5, 6])
def test_a_seat_taken_less_than_a_full_round_ago_cannot_be_taken(run: Run, round: int) -> None:
    fill(run)
    run.enter("commit", 5)
    join(run, TRAINERS[3], bond=BOND * 5 // 4, take=0)
    run.enter("commit", round)
    with refused("runs: seat taken too recently"):
        join(run, TRAINERS[4], bond=10 * BOND, take=0)
    run.enter("commit", 7)
    join(run, TRAINERS[4], bond=0, take=0)
    assert [owner(run, 0, r) for r in (6, 7, 8)] == [TRAINERS[3], TRAINERS[3], TRAINERS[4]]


def test_a_seat_cannot_be_outbid_before_its_first_round_is_over(run: Run) -> None:
    fill(run)
    run.enter("commit", 0)
    with refused("runs: seat taken too recently"):
        join(run, TRAINERS[3], bond=9 * BOND, take=0)


def test_who_squats_seats_before_the_start_is_outbid_before_it(run: Run) -> None:
    fill(run, (BOND, BOND, BOND))
    for seat in range(3):
        join(run, TRAINERS[3 + seat], bond=2 * BOND, take=seat)
    assert [owner(run, seat, 0) for seat in range(3)] == list(TRAINERS[3:6])
    with refused("runs: not the smallest bond"):
        run.bond(TRAINERS[3], BOND)
        sync(run, 0)
        join(run, TRAINERS[6], bond=9 * BOND, take=0)


def test_nobody_outbids_more_than_a_quarter_of_the_seats_in_a_round(contracts: System) -> None:
    """An outsider with more money than all trainers would empty an open run in one round, and leave at once."""
    run = Run.create(contracts, rounds=20, trainer_limit=9)
    run.join_trainers(9)
    run.enter("commit", 3)
    for seat in range(2):
        join(run, TRAINERS[20 + seat], bond=2 * BOND, take=seat)
    with refused("runs: no outbid left"):
        join(run, TRAINERS[22], bond=2 * BOND, take=2)
    start_exit(run, TRAINERS[20])
    join(run, TRAINERS[23], bond=BOND, take=0)  # who leaves at once loses the seat before its first round
    assert [owner(run, 0, round) for round in (3, 4)] == [TRAINERS[0], TRAINERS[23]]
    run.enter("commit", 4)
    join(run, TRAINERS[22], bond=0, take=2)


def test_in_a_small_run_one_seat_a_round_can_be_outbid(run: Run) -> None:
    fill(run)
    run.enter("commit", 5)
    join(run, TRAINERS[3], bond=9 * BOND, take=0)
    with refused("runs: no outbid left"):
        join(run, TRAINERS[4], bond=9 * BOND, take=1)


@pytest.mark.parametrize("round", [0, 1, 3])
def test_a_tenure_whose_bond_is_leaving_can_be_taken_at_once(run: Run, round: int) -> None:
    for who in VALIDATORS[:2]:
        join(run, who, VALIDATOR)
    fill(run)
    run.enter("commit", round)
    for role, seat, leaver, newcomer in (
        (TRAINER, 2, TRAINERS[2], TRAINERS[3]),
        (VALIDATOR, 1, VALIDATORS[1], VALIDATORS[2]),
    ):
        start_exit(run, leaver)
        join(run, newcomer, role, take=seat)
        assert [owner(run, seat, r, role) for r in (round, round + 1)] == [leaver, newcomer]


def test_a_tenure_that_leaves_in_its_first_round_is_kept_for_the_round_before(run: Run) -> None:
    fill(run)
    run.enter("commit", 3)
    join(run, TRAINERS[3], bond=2 * BOND, take=0)
    run.enter("commit", 4)
    start_exit(run, TRAINERS[3])
    with refused("runs: seat taken too recently"):
        join(run, TRAINERS[4], take=0)
    run.enter("commit", 5)
    join(run, TRAINERS[4], bond=0, take=0)
    assert [owner(run, 0, r) for r in (4, 5, 6)] == [TRAINERS[3], TRAINERS[3], TRAINERS[4]]


def test_who_is_replaced_plays_the_round_to_its_end_with_its_own_key(run: Run) -> None:
    join(run, TRAINERS[0], operator=OPERATOR)
    for who in TRAINERS[1:3]:
        join(run, who, bond=2 * BOND)
    run.enter("commit", 5)
    join(run, TRAINERS[3], bond=BOND * 5 // 4, take=0)
    with refused("runs: not the operator"):
        run.system.runs.commit(run.id, run.open_round, 0, bytes(32), sender=TRAINERS[3])
    run.system.runs.commit(run.id, run.open_round, 0, bytes(32), sender=OPERATOR)
    run.enter("commit", 6)
    with refused("runs: not the operator"):
        run.system.runs.commit(run.id, run.open_round, 0, bytes(32), sender=OPERATOR)
    run.system.runs.commit(run.id, run.open_round, 0, bytes(32), sender=TRAINERS[3])
    assert run.system.runs.seat_at(run.id, TRAINER, 0, 5).operator == OPERATOR


def test_a_vacated_seat_goes_to_the_minimum_bond(run: Run) -> None:
    fill(run)
    run.enter("commit", 5)
    start_exit(run, TRAINERS[2])
    sync(run, 2)
    join(run, TRAINERS[3], bond=run.params.trainer_min_bond, take=2)


def test_a_seat_silent_for_eight_rounds_goes_to_anyone_who_qualifies(run: Run) -> None:
    fill(run)
    run.enter("commit", 2)
    run.system.runs.commit(run.id, run.open_round, 2, bytes(32), sender=TRAINERS[2])
    run.bond(TRAINERS[3], run.params.trainer_min_bond)
    run.enter("commit", 10)
    with refused("runs: bond does not outbid"):
        join(run, TRAINERS[3], bond=0, take=2)
    run.enter("commit", 11)
    join(run, TRAINERS[3], bond=0, take=2)


def test_a_seat_younger_than_eight_rounds_is_not_silent(run: Run) -> None:
    run.enter("commit", 2)
    fill(run)
    run.bond(TRAINERS[3], run.params.trainer_min_bond)
    run.enter("commit", 10)
    with refused("runs: bond does not outbid"):
        join(run, TRAINERS[3], bond=0, take=0)
    run.enter("commit", 11)
    join(run, TRAINERS[3], bond=0, take=0)


def test_a_validator_cannot_be_outbid_but_a_silent_one_replaced(run: Run) -> None:
    for who in VALIDATORS[:2]:
        join(run, who, VALIDATOR)
    run.bond(VALIDATORS[2], 100 * BOND)
    run.enter("commit", 7)
    with refused("runs: validator is not silent"):
        join(run, VALIDATORS[2], VALIDATOR, bond=0, take=1)
    run.enter("commit", 8)
    join(run, VALIDATORS[2], VALIDATOR, bond=0, take=1)
    assert owner(run, 1, 9, VALIDATOR) == VALIDATORS[2]


def test_who_was_replaced_may_join_again(run: Run) -> None:
    fill(run)
    run.enter("commit", 5)
    join(run, TRAINERS[3], bond=BOND * 5 // 4, take=0)
    run.enter("commit", 6)
    join(run, TRAINERS[0], bond=9 * BOND, take=1)
    assert run.system.runs.seat_of(run.id, TRAINERS[0]) == (TRAINER, 1)
    assert [owner(run, s, 6) for s in range(2)] == [TRAINERS[3], TRAINERS[1]]
    assert [owner(run, s, 7) for s in range(2)] == [TRAINERS[3], TRAINERS[0]]


def test_the_256th_seat_is_outbid_like_any_other(contracts: System) -> None:
    run = Run.create(contracts, rounds=20)
    run.join_trainers(255, bond=2 * BOND)
    run.join_trainers(1, bond=BOND)
    run.enter("commit", 3)
    newcomer = account("newcomer")
    with refused("runs: not the smallest bond"):
        join(run, newcomer, bond=3 * BOND, take=0)
    assert join(run, newcomer, bond=0, take=255) == 255
    assert len(contracts.runs.owners_at(run.id, TRAINER, 4, 0, 256)) == 256
    assert contracts.runs.seat_at(run.id, TRAINER, 255, 4).owner == newcomer
    assert contracts.runs.owners_at(run.id, TRAINER, 4, 2**255, 2**255) == ()


# Bars: a locked verdict 4 to 6 keeps a trainer out until the ceiling window ends.


@pytest.fixture
def caught(contracts: System) -> Run:
    """Seats 0 to 2; seat 0 copied in round 2. The settle window is open, nothing is locked yet."""
    run = Run.create(
        contracts,
        rounds=20,
        trainer_limit=3,
        copied_bps=500,
        ceiling=10**20,
        ceiling_rounds=5,
    )
    run.join_trainers(1)
    run.join_trainers(2, bond=2 * BOND)
    run.join_validators([BOND] * 3)
    vote = report([verdict(Verdict.COPIED), accepted(9), accepted(9)])
    run.play(dict.fromkeys(range(3), vote), 2)
    return run


def lock(run: Run) -> None:
    run.settle(2)
    run.lock([0], 2)


def test_a_barred_seat_sits_out_until_the_ceiling_window_ends(caught: Run) -> None:
    lock(caught)
    assert caught.evm.events("BarSet") == [
        {"run": caught.id, "account": caught.trainers[0], "until_round": 5}
    ]
    for round in (3, 4):
        caught.enter("commit", round)
        with refused("runs: seat is barred"):
            caught.commit([0], round)
        caught.commit([1], round)
    caught.enter("commit", 5)
    caught.commit([0], 5)


def test_only_settlement_bars(caught: Run) -> None:
    with refused("runs: not the settlement"):
        caught.system.runs.set_bar(caught.id, 0, TRAINERS[0], 9, 9, sender=STRANGER)


def test_the_bar_hits_the_former_owner_of_the_seat_not_the_next_one(caught: Run) -> None:
    join(caught, account("newcomer"), bond=2 * BOND, take=0)
    lock(caught)
    with refused("runs: seat is barred"):
        caught.commit([0], 3)
    caught.enter("commit", 4)
    caught.trainers[0] = account("newcomer")
    caught.commit([0], 4)


def test_a_bar_follows_the_account_to_its_next_seat(caught: Run) -> None:
    join(caught, account("newcomer"), bond=2 * BOND, take=0)
    lock(caught)
    start_exit(caught, caught.trainers[1])
    join(caught, caught.trainers[0], bond=9 * BOND, take=1)
    caught.enter("commit", 4)
    with refused("runs: seat is barred"):
        caught.system.runs.commit(caught.id, caught.open_round, 1, bytes(32), sender=TRAINERS[0])


def test_a_bar_finds_the_account_in_the_seat_it_has_moved_to(caught: Run) -> None:
    join(caught, account("newcomer"), bond=2 * BOND, take=0)
    start_exit(caught, caught.trainers[1])
    join(caught, caught.trainers[0], bond=9 * BOND, take=1)
    lock(caught)
    assert caught.system.runs.seat_at(caught.id, TRAINER, 0, 3).barred_until == 5
    assert caught.system.runs.seat_at(caught.id, TRAINER, 0, 4).barred_until == 0
    assert caught.system.runs.seat_at(caught.id, TRAINER, 1, 3).barred_until == 0
    assert caught.system.runs.seat_at(caught.id, TRAINER, 1, 4).barred_until == 5
