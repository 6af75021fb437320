"""Charges, locks, contests and votes on the contract: Protocol sections 5 and 9."""

from collections.abc import Iterable
from typing import Any

import pytest

from earnest.protocol.constants import NO_SEAT
from earnest.protocol.report import Report
from earnest.protocol.run import Role
from earnest.protocol.verdicts import Verdict
from tests.contracts.harness import System, account, reverts
from tests.contracts.rounds import SPONSOR, STRANGER, TRAINERS, Run, accepted, report, verdict

BOND = 10**9
NO_CEILING = 2**96 - 1


def open_run(
    contracts: System, trainers: int = 4, stakes: tuple[int, ...] = (3, 3, 4), **changes: object
) -> Run:
    run = Run.create(contracts, **changes)
    run.join_trainers(trainers, bond=BOND)
    run.join_validators([stake * 10**6 for stake in stakes])
    return run


def judged(*verdicts: int) -> Report:
    """A report with these verdicts by seat; accepted ones weigh 100."""
    return report([accepted(100) if v == Verdict.ACCEPTED else verdict(v) for v in verdicts])


def unanimous(run: Run, *verdicts: int) -> dict[int, Report]:
    return dict.fromkeys(range(len(run.validators)), judged(*verdicts))


def locked_run(contracts: System, kind: int = Verdict.COPIED, **changes: Any) -> Run:
    """A settled round whose seat 1 has a locked penalty of `kind`."""
    run = open_run(contracts, **changes)
    run.play(unanimous(run, 0, kind, 0, 0))
    run.settle()
    run.lock([1])
    return run


# Objective faults.


def test_unrevealed_trainers_lose_their_share_at_once(contracts: System) -> None:
    run = open_run(contracts)
    run.enter("commit")
    run.commit([0, 1, 3])
    run.enter("reveal")
    run.reveal([0, 3])
    run.leave("reveal")
    run.settlement.charge(run.id, 0, Role.TRAINER)
    (fault,) = run.evm.events("FaultCharged")
    assert (fault["account"], fault["seat"], fault["amount"]) == (run.trainers[1], 1, BOND // 100)
    assert fault["reason"] == "unrevealed"
    assert [run.bond_of(who) for who in run.trainers] == [BOND, BOND - BOND // 100, BOND, BOND]
    assert contracts.vault.burned() == BOND // 100


@pytest.mark.parametrize(("revealed", "charged"), [([0, 1], 2), ([0], 0)])
def test_network_failure_charges_nobody(contracts: System, revealed: list[int], charged: int) -> None:
    run = open_run(contracts)
    run.enter("commit")
    run.commit(range(4))
    run.enter("reveal")
    run.reveal(revealed)
    run.leave("reveal")
    run.settlement.charge(run.id, 0, Role.TRAINER)
    assert len(run.evm.events("FaultCharged")) == charged
    waived = [{"run": run.id, "round": 0, "role": 1, "committed": 0b1111, "revealed": 0b1}]
    assert run.evm.events("ChargesWaived") == ([] if charged else waived)


def test_committed_and_unrevealed_report_is_charged(contracts: System) -> None:
    run = open_run(contracts)
    sealed = unanimous(run, 0, 0, 0, 0)
    run.play({0: sealed[0], 1: sealed[1]}, sealed=sealed)
    run.settlement.charge(run.id, 0, Role.VALIDATOR)
    assert [run.bond_of(who) for who in run.validators] == [3_000_000, 3_000_000, 3_960_000]


def test_faults_are_charged_once_per_round_and_role(contracts: System) -> None:
    run = open_run(contracts)
    run.play(unanimous(run, 0, 0, 0, 0), revealed=[0, 1, 2])
    for role in (Role.TRAINER, Role.VALIDATOR):
        assert not run.settlement.charged(run.id, 0, role)
        run.settlement.charge(run.id, 0, role)
        assert run.settlement.charged(run.id, 0, role)
        with reverts("settlement: already charged"):
            run.settlement.charge(run.id, 0, role)
    assert run.bond_of(run.trainers[3]) == BOND - BOND // 100


@pytest.mark.parametrize("role", [0, 3, 2**255])
def test_only_two_roles_can_be_charged(contracts: System, role: int) -> None:
    run = open_run(contracts)
    run.enter("settle")
    with reverts("settlement: no such role"):
        run.settlement.charge(run.id, 0, role)


@pytest.mark.parametrize(("role", "opens"), [(Role.TRAINER, "report_commit"), (Role.VALIDATOR, "settle")])
def test_charge_window_is_half_open(contracts: System, role: Role, opens: str) -> None:
    run = open_run(contracts)
    run.enter(opens, offset=-1)
    with reverts("settlement: too early"):
        run.settlement.charge(run.id, 0, role)
    run.leave("settle")
    with reverts("settlement: too late"):
        run.settlement.charge(run.id, 0, role)
    for moment in (0, run.params.settle_s - 1):
        with run.evm.anchor():
            run.enter(opens, offset=moment)
            run.settlement.charge(run.id, 0, role)


def test_void_round_still_charges_objective_faults(contracts: System) -> None:
    run = open_run(contracts)
    run.play({}, revealed=[0, 1, 2], sealed={})
    run.settlement.void(run.id, 0, [])
    run.settlement.charge(run.id, 0, Role.TRAINER)
    assert run.bond_of(run.trainers[3]) == BOND - BOND // 100


def test_exit_in_progress_still_finds_the_bond(contracts: System) -> None:
    run = open_run(contracts)
    run.enter("commit")
    run.commit(range(4))
    contracts.vault.start_exit(run.settlement.address, run.id, sender=run.trainers[1])
    contracts.vault.start_exit(run.settlement.address, run.id, sender=run.trainers[3])
    run.enter("reveal")
    run.reveal([0, 1, 2])
    run.score(unanimous(run, 0, Verdict.COPIED, 0, 0))
    run.settle()
    run.settlement.charge(run.id, 0, Role.TRAINER)
    run.lock([1])
    run.leave("contest")
    run.settlement.settle_penalty(run.penalty_id(1))
    assert run.bond_of(run.trainers[3]) == BOND * 99 // 100
    assert run.bond_of(run.trainers[1]) == BOND * 95 // 100
    run.evm.travel(run.evm.time + run.params.exit_delay)
    contracts.vault.finish_exit(run.settlement.address, run.id, sender=run.trainers[1])
    assert run.idle(run.trainers[1]) == BOND * 95 // 100


# Locks.


@pytest.mark.parametrize(
    ("kind", "bps", "reason"),
    [
        (Verdict.MALFORMED, 100, "malformed"),
        (Verdict.HARMFUL, 1_000, "harmful"),
        (Verdict.COPIED, 500, "copied"),
    ],
)
def test_each_penal_verdict_locks_its_share(contracts: System, kind: int, bps: int, reason: str) -> None:
    run = locked_run(contracts, kind)
    amount = BOND * bps // 10_000
    (lock,) = run.evm.events("PenaltyLocked")
    assert (lock["seat"], lock["verdict"], lock["amount"], lock["reason"]) == (1, kind, amount, reason)
    assert run.settlement.locked(run.id, run.trainers[1]) == amount
    assert run.bond_of(run.trainers[1]) == BOND
    penalty = run.penalty(1)
    assert (penalty.account, penalty.upheld, penalty.active_stake, penalty.votes, penalty.status) == (
        run.trainers[1],
        10_000_000,
        10_000_000,
        0b111,
        1,
    )


@pytest.mark.parametrize("kind", [k for k in range(256) if k not in (3, 4, 5)][::10])
def test_other_verdicts_lock_nothing(contracts: System, kind: int) -> None:
    run = open_run(contracts, trainers=2)
    run.play(unanimous(run, 0, kind))
    run.settle()
    with reverts("settlement: nothing to lock"):
        run.lock([0, 1])


@pytest.mark.parametrize(("stakes", "locks"), [((5, 2, 3), False), ((6, 2, 3), True)])
def test_verdict_needs_more_than_half_of_the_stake(
    contracts: System, stakes: tuple[int, ...], locks: bool
) -> None:
    run = open_run(contracts, stakes=stakes)
    honest = judged(0, 0, 0, 0)
    run.play({0: judged(0, Verdict.COPIED, 0, 0), 1: honest, 2: honest})
    run.settle()
    if locks:
        run.lock([1])
        assert run.penalty(1).votes == 0b001
    else:
        with reverts("settlement: nothing to lock"):
            run.lock([1])


@pytest.mark.parametrize(("first", "harmful"), [(5, 0), (6, 1)])
def test_harm_counts_above_half_of_the_stake(contracts: System, first: int, harmful: int) -> None:
    run = open_run(contracts, stakes=(first, 2, 3))
    honest = judged(0, 0, 0, 0)
    run.play({0: judged(0, Verdict.HARMFUL, 0, 0), 1: honest, 2: honest})
    run.settle()
    assert run.settlement.round_record(run.id, 0)[3] == harmful << 1


def test_penalty_without_a_price_is_passed_over(contracts: System) -> None:
    run = open_run(contracts, copied_bps=0)
    run.play(unanimous(run, 0, Verdict.COPIED, Verdict.MALFORMED, 0))
    run.settle()
    run.lock([1, 2])
    assert (run.penalty(1).status, run.penalty(2).status) == (0, 1)


def test_unrevealed_and_unknown_seats_are_passed_over(contracts: System) -> None:
    run = open_run(contracts)
    run.play(unanimous(run, *[Verdict.COPIED] * 4), revealed=[0, 1, 2])
    run.settle()
    with reverts("settlement: nothing to lock"):
        run.lock([3, 4, 255, 256, NO_SEAT])


def test_fault_locks_once_however_often_it_is_named(contracts: System) -> None:
    run = open_run(contracts)
    run.play(unanimous(run, 0, Verdict.COPIED, Verdict.MALFORMED, 0))
    run.settle()
    run.lock([1, 1])
    run.lock([1, 2, 1])
    assert run.settlement.locked(run.id, run.trainers[1]) == BOND * 5 // 100
    assert run.settlement.locked(run.id, run.trainers[2]) == BOND // 100
    with reverts("settlement: nothing to lock"):
        run.lock([1, 2])


def test_lock_waits_for_the_last_page_and_ends_with_the_settle_window(contracts: System) -> None:
    run = open_run(contracts)
    run.play(unanimous(run, 0, Verdict.COPIED, 0, 0))
    with reverts("settlement: round not settled"):
        run.lock([1])
    run.settle()
    with reverts("settlement: wrong report"):
        run.settlement.lock(run.id, 0, [1], [judged(0).words()] * 3)
    run.leave("settle")
    with reverts("settlement: too late"):
        run.lock([1])
    run.leave("settle", offset=-1)
    run.lock([1])


@pytest.mark.parametrize(("bonds", "locks"), [((3, 2, 5), True), ((3, 3, 5), False), ((1, 1, 2), True)])
def test_broken_round_is_one_with_harm_on_more_than_half_of_the_bond(
    contracts: System, bonds: tuple[int, ...], locks: bool
) -> None:
    run = Run.create(contracts)
    for bond in bonds:
        run.join_trainers(1, bond=bond * BOND)
    run.join_validators([10**6] * 3)
    run.play(unanimous(run, Verdict.HARMFUL, Verdict.HARMFUL, Verdict.MALFORMED))
    run.settle()
    assert run.settlement.broken(run.id, 0) is not locks
    run.lock([0, 1, 2])
    assert [run.penalty(seat).status for seat in range(3)] == [int(locks), int(locks), 1]


def test_many_small_bonds_shield_no_harm(contracts: System) -> None:
    """Four seats with the minimum bond beside three honest ones: their number is no defence."""
    run = Run.create(contracts)
    run.join_trainers(3, bond=BOND)
    run.join_trainers(4, bond=10**6)
    run.join_validators([10**9] * 3)
    run.play(unanimous(run, *[0] * 3, *[Verdict.HARMFUL] * 4))
    run.settle()
    run.lock(range(7))
    assert [run.penalty(seat).status for seat in range(7)] == [0] * 3 + [1] * 4


def test_bond_put_up_after_the_round_began_shields_no_harm(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(2, bond=BOND)
    run.join_validators([10**6] * 3)
    run.play(unanimous(run, 0, Verdict.HARMFUL))
    run.settle()
    run.bond(run.trainers[1], 9 * BOND)
    contracts.runs.sync(run.id, Role.TRAINER, 1)
    assert not run.settlement.broken(run.id, 0)
    run.lock([1])
    assert run.penalty(1).amount == BOND  # a tenth of all that it has by now


def test_broken_round_is_counted_over_revealed_seats(contracts: System) -> None:
    run = open_run(contracts, trainers=5)
    run.play(unanimous(run, Verdict.HARMFUL, 0, Verdict.HARMFUL, Verdict.HARMFUL, 0), revealed=[0, 1, 4])
    run.settle()
    assert run.settlement.round_record(run.id, 0)[3] == 0b1
    run.lock([0])


def test_unfaithful_costs_nothing_in_a_run_without_audits(contracts: System) -> None:
    """Nothing is re-executed there, so nobody can know; and verdict 6 would be exempt from the ceiling."""
    run = open_run(contracts, unfaithful_bps=5_000, ceiling=0)
    run.play(unanimous(run, Verdict.UNFAITHFUL, Verdict.UNFAITHFUL))
    run.settle()
    with reverts("settlement: nothing to lock"):
        run.lock([0, 1])


def settle_penalties(run: Run, seats: Iterable[int], round: int = 0) -> None:
    run.leave("contest", round)
    for seat in seats:
        run.settlement.settle_penalty(run.penalty_id(seat, round))


def test_ceiling_caps_what_an_account_loses_in_a_window_of_rounds(contracts: System) -> None:
    ceiling = BOND * 5 // 100 + 7
    run = open_run(contracts, trainers=2, ceiling=ceiling, ceiling_rounds=2, rounds=5, malformed_bps=400)
    lost: list[int] = []
    for round, kind in enumerate((Verdict.MALFORMED, Verdict.MALFORMED, Verdict.MALFORMED)):
        run.play(unanimous(run, kind), round, committed=[0])
        run.settle(round)
        run.lock([0], round)
        before = run.bond_of(run.trainers[0])
        settle_penalties(run, [0], round)
        lost.append(before - run.bond_of(run.trainers[0]))
    first = BOND * 4 // 100
    assert lost == [first, ceiling - first, (BOND - ceiling) * 4 // 100]
    assert run.settlement.charged_in(run.id, 0, run.trainers[0]) == ceiling
    assert run.settlement.locked(run.id, run.trainers[0]) == 0


def test_small_penalty_shields_no_large_one(contracts: System) -> None:
    """A cheat locks a friend's penalty first, and settles it first: the ceiling is each account's own."""
    run = Run.create(contracts, ceiling=10**8)
    run.join_trainers(1, bond=2 * BOND)
    run.join_trainers(1, bond=50 * BOND)
    run.join_validators([10**6])
    run.play(unanimous(run, Verdict.COPIED, Verdict.COPIED))
    run.settle()
    run.lock([0])
    run.lock([1])
    settle_penalties(run, [0, 1])
    assert [run.bond_of(who) for who in run.trainers] == [2 * BOND - 10**8, 50 * BOND - 10**8]


def test_released_penalty_uses_nothing_of_the_ceiling_up(contracts: System) -> None:
    run = open_run(contracts, trainers=1, ceiling=BOND * 5 // 100, ceiling_rounds=9, rounds=9)
    run.play(unanimous(run, Verdict.COPIED))
    run.settle()
    run.lock([0])
    for judge in run.validators:
        run.settlement.vote(run.penalty_id(0), False, sender=judge)
    settle_penalties(run, [0])
    assert run.settlement.charged_in(run.id, 0, run.trainers[0]) == 0
    run.play(unanimous(run, Verdict.COPIED), 1)
    run.settle(1)
    run.lock([0], 1)
    settle_penalties(run, [0], 1)
    assert run.bond_of(run.trainers[0]) == BOND * 95 // 100


def test_objective_faults_count_against_the_ceiling(contracts: System) -> None:
    run = open_run(contracts, ceiling=BOND // 100 + 5, ceiling_rounds=2)
    for round in (0, 1):
        run.play(unanimous(run, 0, 0, 0, 0), round, revealed=[0, 1])
        run.settlement.charge(run.id, round, Role.TRAINER)
    assert [run.bond_of(who) for who in run.trainers[2:]] == [BOND - BOND // 100 - 5] * 2


def test_locks_take_at_most_what_other_locks_left(contracts: System) -> None:
    run = open_run(
        contracts, copied_bps=5_000, contest_bps=5_000, malformed_bps=5_000, rounds=4, contest_s=9_000
    )
    kinds = {0: Verdict.COPIED, 1: Verdict.MALFORMED, 2: Verdict.MALFORMED}
    for round, kind in kinds.items():
        run.play(
            unanimous(run, 0, 0, 0, kind) if round else unanimous(run, 0, 0, 0, Verdict.MALFORMED), round
        )
        run.settle(round)
        run.lock([3], round)
        if round == 0:
            run.settlement.contest(run.penalty_id(3, 0), sender=run.trainers[3])
    assert [run.penalty(3, round).amount for round in range(3)] == [BOND // 2, 0, 0]
    assert run.penalty(3, 0).contest_amount == BOND // 2
    assert run.settlement.locked(run.id, run.trainers[3]) == BOND
    run.leave("contest", 2)
    for round in range(3):
        run.settlement.settle_penalty(run.penalty_id(3, round))
    assert run.bond_of(run.trainers[3]) == 0
    assert run.settlement.locked(run.id, run.trainers[3]) == 0


@pytest.mark.parametrize("kind", [Verdict.HARMFUL, Verdict.COPIED])
def test_barred_seat_sits_out_until_its_ceiling_window_ends(contracts: System, kind: int) -> None:
    run = open_run(contracts, ceiling_rounds=3, rounds=5)
    run.play(unanimous(run, 0, kind, Verdict.MALFORMED, 0))
    run.settle()
    run.lock([1, 2])
    assert contracts.runs.seat_at(run.id, Role.TRAINER, 1, 1).barred_until == 3
    assert contracts.runs.seat_at(run.id, Role.TRAINER, 2, 1).barred_until == 0
    for round in (1, 2):
        run.enter("commit", round)
        with reverts("runs: seat is barred"):
            run.commit([1], round)
    run.enter("commit", 3)
    run.commit([1, 2], 3)


def acquit(run: Run, seat: int, round: int = 0) -> None:
    for judge in run.validators:
        run.settlement.vote(run.penalty_id(seat, round), False, sender=judge)
    settle_penalties(run, [seat], round)


def test_acquittal_ends_the_bar(contracts: System) -> None:
    run = locked_run(contracts, ceiling_rounds=9, rounds=9)
    acquit(run, 1)
    assert run.evm.events("BarSet")[-1] == {"run": run.id, "account": run.trainers[1], "until_round": 0}
    run.enter("commit", 2)
    run.commit([1], 2)


def test_acquittal_leaves_the_bar_of_another_penalty(contracts: System) -> None:
    """Two windows that overlap: round 0 is acquitted while round 1, of the same ceiling window, stands."""
    run = open_run(contracts, ceiling_rounds=9, rounds=9, contest_s=2_500)
    run.play(unanimous(run, 0, Verdict.COPIED, 0, 0))
    run.enter("commit", 1)
    run.commit([1], 1)  # before the lock
    run.enter("settle")
    run.settle()
    run.lock([1])
    run.enter("reveal", 1)
    run.reveal([1], 1)
    run.score(unanimous(run, 0, Verdict.COPIED, 0, 0), 1)
    run.settle(1)
    run.lock([1], 1)
    acquit(run, 1)
    barred = contracts.runs.seat_at(run.id, Role.TRAINER, 1, 2).barred_until
    assert barred == 9
    acquit(run, 1, 1)
    assert contracts.runs.seat_at(run.id, Role.TRAINER, 1, 2).barred_until == 0


def test_late_acquittal_leaves_the_bar_of_a_later_window(contracts: System) -> None:
    run = open_run(contracts, ceiling_rounds=2, rounds=9, contest_s=4_500)
    run.play(unanimous(run, 0, Verdict.COPIED, 0, 0), 1)
    run.settle(1)
    run.lock([1], 1)
    run.play(unanimous(run, 0, Verdict.COPIED, 0, 0), 2)
    run.settle(2)
    run.lock([1], 2)
    acquit(run, 1, 1)
    assert contracts.runs.seat_at(run.id, Role.TRAINER, 1, 3).barred_until == 4


def test_acquittal_follows_the_account_to_its_next_seat(contracts: System) -> None:
    run = open_run(contracts, trainers=2, trainer_limit=2, ceiling_rounds=9, rounds=9, contest_s=9_000)
    run.play(unanimous(run, 0, Verdict.COPIED), 2)
    run.settle(2)
    run.lock([1], 2)
    newcomer = TRAINERS[200]
    run.bond(newcomer, 2 * BOND)
    contracts.runs.join(run.id, Role.TRAINER, newcomer, "http://x.example/", [], 1, sender=newcomer)
    run.enter("commit", 4)  # one outbid a round
    run.bond(run.trainers[1], 9 * BOND)
    contracts.runs.join(run.id, Role.TRAINER, run.trainers[1], "", [], 0, sender=run.trainers[1])
    assert contracts.runs.seat_at(run.id, Role.TRAINER, 0, 5).barred_until == 9
    acquit(run, 1, 2)
    assert contracts.runs.seat_at(run.id, Role.TRAINER, 0, 5).barred_until == 0


def test_lock_finds_the_seats_owner_in_that_round(contracts: System) -> None:
    run = open_run(contracts, trainers=2, trainer_limit=2, rounds=5)
    run.play(unanimous(run, 0, 0))
    run.play(unanimous(run, 0, Verdict.COPIED), 1)
    newcomer = TRAINERS[200]
    run.bond(newcomer, 2 * BOND)
    contracts.runs.join(run.id, Role.TRAINER, newcomer, "http://x.example/", [], 1, sender=newcomer)
    run.settle(1)
    run.lock([1], 1)
    assert run.penalty(1, 1).account == run.trainers[1]
    assert contracts.runs.seat_at(run.id, Role.TRAINER, 1, 3).barred_until == 0


# Contests and votes.


def test_uncontested_penalty_is_burned_after_the_contest_window(contracts: System) -> None:
    run = locked_run(contracts)
    penalty = run.penalty_id(1)
    run.leave("contest", offset=-1)
    with reverts("settlement: contest still open"):
        run.settlement.settle_penalty(penalty)
    run.leave("contest")
    run.settlement.settle_penalty(penalty, sender=STRANGER)
    assert run.evm.events("PenaltySettled")[0]["seized"] == BOND * 5 // 100
    assert run.bond_of(run.trainers[1]) == BOND * 95 // 100
    assert contracts.vault.burned() == BOND * 5 // 100
    assert run.penalty(1).status == 3
    assert run.settlement.locked(run.id, run.trainers[1]) == 0
    with reverts("settlement: penalty is settled"):
        run.settlement.settle_penalty(penalty)


def test_contest_stakes_more_of_the_same_bond_and_can_lose_it(contracts: System) -> None:
    run = locked_run(contracts)
    run.settlement.contest(run.penalty_id(1), sender=run.trainers[1])
    assert run.penalty(1).contest_amount == BOND // 100
    assert run.settlement.locked(run.id, run.trainers[1]) == BOND * 6 // 100
    run.leave("contest")
    run.settlement.settle_penalty(run.penalty_id(1))
    assert run.bond_of(run.trainers[1]) == BOND * 94 // 100


@pytest.mark.parametrize(
    ("doubters", "stands"), [([], True), ([0], True), ([2], True), ([0, 1], False), ([0, 2], False)]
)
def test_contest_is_won_when_no_more_than_half_uphold(
    contracts: System, doubters: list[int], stands: bool
) -> None:
    run = locked_run(contracts)
    penalty = run.penalty_id(1)
    run.settlement.contest(penalty, sender=run.trainers[1])
    for v in doubters:
        run.settlement.vote(penalty, False, sender=run.validators[v])
    run.leave("contest")
    run.settlement.settle_penalty(penalty)
    assert run.bond_of(run.trainers[1]) == (BOND * 94 // 100 if stands else BOND)
    assert run.penalty(1).status == (3 if stands else 4)
    assert run.settlement.locked(run.id, run.trainers[1]) == 0


def test_exactly_half_does_not_uphold(contracts: System) -> None:
    run = locked_run(contracts, stakes=(5, 2, 3))
    run.settlement.vote(run.penalty_id(1), False, sender=run.validators[0])
    run.leave("contest")
    run.settlement.settle_penalty(run.penalty_id(1))
    assert run.bond_of(run.trainers[1]) == BOND


def test_vote_can_be_changed_and_counts_once(contracts: System) -> None:
    run = locked_run(contracts)
    penalty = run.penalty_id(1)
    for uphold, upheld in ((False, 6), (False, 6), (True, 10), (True, 10), (False, 6)):
        run.settlement.vote(penalty, uphold, sender=run.validators[2])
        assert run.penalty(1).upheld == upheld * 10**6
        assert run.evm.events("PenaltyVote")[0]["upheld"] == upheld * 10**6


def test_validator_that_reported_another_verdict_may_join_the_vote(contracts: System) -> None:
    run = open_run(contracts)
    guilty = judged(0, Verdict.COPIED, 0, 0)
    run.play({0: guilty, 1: guilty, 2: judged(0, 0, 0, 0)})
    run.settle()
    run.lock([1])
    assert run.penalty(1).upheld == 6 * 10**6
    run.settlement.vote(run.penalty_id(1), True, sender=run.validators[2])
    assert run.penalty(1).upheld == 10 * 10**6


def test_vote_weighs_what_the_round_weighed(contracts: System) -> None:
    run = locked_run(contracts)
    run.bond(run.validators[2], 10**8)
    contracts.runs.sync(run.id, Role.VALIDATOR, 2)
    run.settlement.vote(run.penalty_id(1), False, sender=run.validators[2])
    assert run.penalty(1).upheld == 6 * 10**6


def test_operator_votes_for_its_seat(contracts: System) -> None:
    run = open_run(contracts)
    operator = account("operator")
    contracts.runs.set_operator(run.id, Role.VALIDATOR, 0, operator, sender=run.validators[0])
    run.enter("commit")
    run.commit(range(4))
    run.enter("reveal")
    run.reveal(range(4))
    run.score({v: judged(0, Verdict.COPIED, 0, 0) for v in (1, 2)})
    run.settle()
    run.lock([1])
    run.settlement.vote(run.penalty_id(1), True, sender=operator)
    assert run.penalty(1).votes == 0b111


def test_only_validators_of_the_round_vote(contracts: System) -> None:
    run = locked_run(contracts)
    for who in (STRANGER, SPONSOR, run.trainers[1], account("validator 3")):
        with reverts("settlement: not a validator"):
            run.settlement.vote(run.penalty_id(1), False, sender=who)


def test_only_the_penalised_contests_and_once(contracts: System) -> None:
    run = locked_run(contracts)
    penalty = run.penalty_id(1)
    with reverts("settlement: not the penalised"):
        run.settlement.contest(penalty, sender=run.trainers[0])
    run.settlement.contest(penalty, sender=run.trainers[1])
    with reverts("settlement: already contested"):
        run.settlement.contest(penalty, sender=run.trainers[1])


def test_contest_and_vote_end_with_their_window(contracts: System) -> None:
    run = locked_run(contracts)
    penalty, who, judge = run.penalty_id(1), run.trainers[1], run.validators[0]
    run.leave("contest")
    with reverts("settlement: contest is over"):
        run.settlement.contest(penalty, sender=who)
    with reverts("settlement: contest is over"):
        run.settlement.vote(penalty, False, sender=judge)
    run.leave("contest", offset=-1)
    run.settlement.contest(penalty, sender=who)
    run.settlement.vote(penalty, False, sender=judge)


def test_unknown_penalty_can_be_neither_contested_nor_settled(contracts: System) -> None:
    run = open_run(contracts)
    for act in (
        lambda: run.settlement.contest(b"\x01" * 32),
        lambda: run.settlement.vote(b"\x01" * 32, True),
        lambda: run.settlement.settle_penalty(b"\x01" * 32),
    ):
        with reverts("settlement: no such penalty"):
            act()


def test_penalty_settles_after_its_bond_has_left(contracts: System) -> None:
    run = locked_run(contracts)
    who = run.trainers[1]
    contracts.vault.start_exit(run.settlement.address, run.id, sender=who)
    run.evm.travel(run.evm.time + run.params.exit_delay)
    contracts.vault.finish_exit(run.settlement.address, run.id, sender=who)
    run.settlement.settle_penalty(run.penalty_id(1))
    assert run.evm.events("PenaltySettled")[0]["seized"] == 0
    assert run.settlement.locked(run.id, who) == 0
