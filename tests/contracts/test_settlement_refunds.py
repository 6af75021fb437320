"""Voids, refunds and the books of a whole run: Protocol sections 2, 3 and 8."""

import re

import pytest

from earnest.protocol.run import Role
from tests.contracts.harness import CONTRACTS, System, account, create_address, reverts, system
from tests.contracts.rounds import SPONSOR, STRANGER, Run, accepted, fund, report

FULL = report([accepted(65_535), accepted(40_000)])


def open_run(contracts: System, **changes: int) -> Run:
    run = Run.create(contracts, **changes)
    run.join_trainers(2)
    run.join_validators([2_000_000, 2_000_000])
    return run


def pools(run: Run) -> int:
    return run.params.trainer_pool + run.params.validator_pool


def everything(run: Run) -> int:
    """All the money of the run's escrow, wherever it is by now."""
    paid = sum(run.idle(who) for who in (*run.trainers, *run.validators, SPONSOR))
    return run.escrow() + paid + run.system.vault.burned()


# Void.


def test_void_round_with_reveals_burns_its_pools(contracts: System) -> None:
    run = open_run(contracts)
    run.play({0: FULL})
    run.settlement.void(run.id, 0, run.words(), sender=STRANGER)
    assert run.evm.events("RoundVoided") == [
        {"run": run.id, "round": 0, "active_stake": 4_000_000, "burned": pools(run)}
    ]
    assert run.escrow() == run.params.budget - pools(run)
    assert contracts.vault.burned() == pools(run)
    assert run.settlement.round_record(run.id, 0)[1]
    with reverts("settlement: already void"):
        run.settlement.void(run.id, 0, run.words())


def test_void_round_without_reveals_burns_nothing(contracts: System) -> None:
    run = open_run(contracts)
    run.play({0: report([])}, committed=[])
    run.settlement.void(run.id, 0, run.words())
    assert run.escrow() == run.params.budget


def test_round_without_a_seed_is_void(contracts: System) -> None:
    run = open_run(contracts)
    run.enter("commit")
    run.commit([0])
    run.enter("reveal")
    run.reveal([0])
    run.enter("settle")
    for majority in (0, 1):
        with reverts("settlement: no majority"):
            run.settlement.settle(run.id, 0, [0], [], majority)
    run.settlement.void(run.id, 0, [])
    assert contracts.vault.burned() == pools(run)


@pytest.mark.parametrize("first", [2_000_000, 2_000_001])
def test_round_is_void_or_settles_but_never_both(contracts: System, first: int) -> None:
    run = Run.create(contracts)
    run.join_trainers(1)
    run.join_validators([first, 2_000_000])
    run.play({0: FULL, 1: report(FULL.votes, newest=b"\x99" * 32)})
    if first * 2 > first + 2_000_000:
        with reverts("settlement: round is not void"):
            run.settlement.void(run.id, 0, run.words())
        run.settle()
    else:
        with reverts("settlement: no majority"):
            run.settlement.settle(run.id, 0, [0], run.words(), 0)
        run.settlement.void(run.id, 0, run.words())


def test_void_needs_the_revealed_reports(contracts: System) -> None:
    run = open_run(contracts)
    run.play({0: FULL, 1: FULL})
    with reverts("settlement: report missing"):
        run.settlement.void(run.id, 0, [])
    with reverts("settlement: round is not void"):
        run.settlement.void(run.id, 0, run.words())


def test_void_window_is_half_open(contracts: System) -> None:
    run = open_run(contracts)
    run.play({0: FULL})
    run.enter("settle", offset=-1)
    with reverts("settlement: too early"):
        run.settlement.void(run.id, 0, run.words())
    run.leave("settle")
    with reverts("settlement: too late"):
        run.settlement.void(run.id, 0, run.words())


def test_void_report_only_round_burns_nothing_and_delivers_nothing(contracts: System) -> None:
    run = open_run(contracts, rounds=1)
    run.score({0: report([])}, 1)
    run.settlement.void(run.id, 1, run.words(1))
    assert run.escrow() == run.params.budget
    assert run.settlement.final_state(run.id) == bytes(32)


# Refunds.


def test_leftovers_go_back_after_the_last_settle_window(contracts: System) -> None:
    run = open_run(contracts)
    run.leave("settle", 2, offset=-1)
    with reverts("settlement: nothing to refund"):
        run.settlement.refund(run.id)
    run.leave("settle", 2)
    run.settlement.refund(run.id, sender=STRANGER)
    assert run.idle(SPONSOR) == run.params.budget
    with reverts("settlement: nothing to refund"):
        run.settlement.refund(run.id)


def test_ended_run_refunds_only_rounds_that_never_open(contracts: System) -> None:
    run = open_run(contracts, rounds=10)
    run.enter("commit", 1)
    contracts.runs.end(run.id, sender=SPONSOR)
    played = contracts.runs.run_rounds(run.id)
    run.settlement.refund(run.id)
    assert run.idle(SPONSOR) == (10 - played) * pools(run)
    with reverts("settlement: nothing to refund"):
        run.settlement.refund(run.id)
    run.leave("settle", played - 1)
    run.settlement.refund(run.id)
    assert run.idle(SPONSOR) == run.params.budget
    assert run.escrow() == 0


def test_refund_leaves_enough_for_every_round_still_played(contracts: System) -> None:
    run = open_run(contracts, rounds=10)
    run.enter("commit", 0)
    contracts.runs.end(run.id, sender=SPONSOR)
    run.settlement.refund(run.id)
    run.play({0: FULL, 1: FULL}, 0)
    run.settle(0)
    run.play({0: FULL}, 1)
    run.settlement.void(run.id, 1, run.words(1))
    assert everything(run) == run.params.budget


def test_pay_refunds_and_burns_add_up_to_what_was_funded(contracts: System) -> None:
    run = open_run(contracts, rounds=3)
    run.play({0: FULL, 1: FULL}, 0)
    run.settle(0)
    run.play({1: FULL}, 1)
    run.settlement.void(run.id, 1, run.words(1))
    run.play({0: FULL, 1: FULL}, 2)
    run.settle(2)
    run.leave("settle", 2)
    run.settlement.refund(run.id)
    assert run.escrow() == 0
    assert everything(run) == run.params.budget
    assert contracts.vault.burned() == pools(run)


def test_round_with_reveals_that_nobody_settled_is_burned(contracts: System) -> None:
    """Else a sponsor would get honest, scored work for nothing by windows in which nobody settles."""
    run = open_run(contracts)
    run.play({0: FULL, 1: FULL})
    run.leave("settle", 2)
    run.settlement.refund(run.id, sender=STRANGER)
    assert run.evm.events("RoundLapsed") == [{"run": run.id, "round": 0, "burned": pools(run)}]
    assert contracts.vault.burned() == pools(run)
    assert run.idle(SPONSOR) == run.params.budget - pools(run)
    with reverts("settlement: nothing to refund"):
        run.settlement.refund(run.id)


def test_run_whose_every_round_lapsed_gives_nothing_back(contracts: System) -> None:
    run = open_run(contracts, rounds=1)
    run.play({0: FULL, 1: FULL})
    run.leave("settle")
    run.settlement.refund(run.id, sender=SPONSOR)
    assert (run.idle(SPONSOR), run.escrow(), contracts.vault.burned()) == (0, 0, pools(run))


def test_long_run_is_refunded_after_as_many_calls_as_its_rounds_take(contracts: System) -> None:
    run = open_run(contracts, rounds=257)
    run.leave("settle", 256)
    run.settlement.refund(run.id)
    assert run.idle(SPONSOR) == 0
    run.settlement.refund(run.id)
    assert run.idle(SPONSOR) == run.params.budget


def test_lapsed_round_is_burned_once_however_often_a_long_run_is_refunded(contracts: System) -> None:
    """The calls that check 256 rounds each may come from anybody, and be interrupted between any two of them."""
    run = open_run(contracts, rounds=300)
    run.play({0: FULL, 1: FULL})
    run.leave("settle", 299)
    run.settlement.refund(run.id, sender=STRANGER)
    assert (contracts.vault.burned(), run.idle(SPONSOR)) == (pools(run), 0)
    run.settlement.refund(run.id, sender=SPONSOR)
    assert (contracts.vault.burned(), run.idle(SPONSOR)) == (pools(run), run.params.budget - pools(run))
    with reverts("settlement: nothing to refund"):
        run.settlement.refund(run.id, sender=STRANGER)


def test_exit_in_progress_keeps_its_bond_when_a_lapsed_round_burns(contracts: System) -> None:
    run = open_run(contracts)
    run.play({0: FULL, 1: FULL})
    leaver, manager = run.trainers[0], run.settlement.address
    bond = run.bond_of(leaver)
    contracts.vault.start_exit(manager, run.id, sender=leaver)
    ends = contracts.vault.exit_time(manager, run.id, leaver)
    run.leave("settle", 2)
    run.settlement.refund(run.id)
    assert (run.bond_of(leaver), contracts.vault.burned()) == (bond, pools(run))
    run.evm.travel(max(ends, run.evm.time))
    contracts.vault.finish_exit(manager, run.id, sender=leaver)
    assert run.idle(leaver) == bond > 0


def test_token_that_re_enters_refunds_nothing_a_second_time() -> None:
    contracts = system(hostile=True)
    run = open_run(contracts)
    run.play({0: FULL, 1: FULL})
    fund(contracts, STRANGER, 5)
    run.leave("settle", 2)
    contracts.token.set_callback(run.settlement.address, run.settlement.calldata("refund", run.id))
    contracts.vault.withdraw(5, sender=STRANGER)
    assert contracts.token.called_back() == 0
    assert (run.idle(SPONSOR), contracts.vault.burned()) == (0, 0)
    run.settlement.refund(run.id)
    contracts.vault.flush()
    assert contracts.token.called_back() == 0
    assert (run.idle(SPONSOR), run.escrow()) == (run.params.budget - pools(run), 0)
    assert contracts.token.balanceOf(account("sink")) == pools(run)


@pytest.mark.parametrize("ended", [False, True])
def test_bonds_of_a_run_that_is_over_wait_no_longer(contracts: System, ended: bool) -> None:
    """A sponsor that ends its run, even before its start, cannot have the bonds wait for sixty days."""
    run = open_run(contracts, rounds=3, exit_delay=60 * 86_400)
    if ended:
        contracts.runs.end(run.id, sender=SPONSOR)
    schedule = run.params.schedule()
    over = schedule.bonds_free_at(contracts.runs.run_rounds(run.id))
    assert over == schedule.contest(1 if ended else 3).end + 86_400
    contracts.vault.start_exit(run.settlement.address, run.id, sender=run.trainers[0])
    run.evm.travel(over - 1)
    with reverts("settlement: run is not over"):
        run.settlement.release_bonds(run.id, sender=STRANGER)
    run.evm.travel(over)
    run.settlement.release_bonds(run.id, sender=STRANGER)
    for who in run.trainers:
        bond = run.bond_of(who)
        contracts.vault.finish_exit(run.settlement.address, run.id, sender=who)
        assert run.idle(who) == bond > 0


def test_runs_share_nothing(contracts: System) -> None:
    first, second = open_run(contracts), Run.create(contracts)
    first.play({0: FULL})
    first.settlement.void(first.id, 0, first.words())
    assert second.escrow() == second.params.budget
    assert second.settlement.round_record(second.id, 0) == (False, False, 0, 0)
    assert second.id == first.id + 1


# Wiring.


def test_only_training_runs_opens_runs(contracts: System) -> None:
    with reverts("settlement: only TrainingRuns"):
        contracts.settlement.open(7, SPONSOR, 0, 86_400, sender=SPONSOR)


def test_wiring_is_fixed_and_readable(contracts: System) -> None:
    assert contracts.settlement.VAULT() == contracts.vault.address.lower()
    assert contracts.settlement.RUNS() == contracts.runs.address.lower()
    assert contracts.settlement.PROTOCOL_VERSION() == 1


@pytest.mark.parametrize("missing", [0, 1])
def test_no_part_of_the_wiring_may_be_empty(contracts: System, missing: int) -> None:
    wiring = [contracts.vault.address, create_address(account("deployer"), 99)]
    wiring[missing] = "0x" + "00" * 20
    with reverts("settlement: zero address"):
        contracts.evm.deploy("Settlement", *wiring)


def test_unknown_run_has_nothing_to_settle(contracts: System) -> None:
    for act in (
        lambda: contracts.settlement.refund(9),
        lambda: contracts.settlement.charge(9, 0, Role.TRAINER),
        lambda: contracts.settlement.settle(9, 0, [], [], 0),
    ):
        with reverts("runs: no such run"):
            act()


def test_every_revert_reason_is_unique_and_tested() -> None:
    sources = "".join(path.read_text() for path in sorted(CONTRACTS.rglob("*.vy")))
    reasons = re.findall(r'"(settlement: [^"]+)"', sources)
    assert len(reasons) == len(set(reasons))
    assert all(len(reason) <= len("settlement: ") + 32 for reason in reasons)
    folder = CONTRACTS.parent / "tests" / "contracts"
    tests = "".join(path.read_text() for path in folder.glob("test_settlement*.py"))
    assert [reason for reason in reasons if f'"{reason}"' not in tests] == []
