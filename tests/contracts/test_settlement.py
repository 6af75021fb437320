"""Consensus and pay on the contract: Protocol section 8, each rule at its boundary."""

from collections.abc import Iterator

import pytest

from earnest.protocol.consensus import hint_words
from earnest.protocol.constants import WEIGHT_ONE
from earnest.protocol.report import Report, SeatVote
from earnest.protocol.run import Role
from earnest.protocol.verdicts import Verdict
from tests.contracts.harness import System, reverts
from tests.contracts.rounds import BASE, SALT, STRANGER, Run, accepted, report, verdict


@pytest.fixture
def run(contracts: System) -> Iterator[Run]:
    """Four trainers; validators with stakes 3, 3 and 4 million."""
    run = Run.create(contracts)
    run.join_trainers(4)
    run.join_validators([3_000_000, 3_000_000, 4_000_000])
    yield run


def flat(*weights: int) -> Report:
    return report([accepted(w) for w in weights])


HONEST = flat(65_535, 30_000, 1, 0)


def settle(run: Run, consensus: list[int], round: int = 0, first: int = 0, majority: int = 0) -> None:
    hints = hint_words(consensus)
    run.settlement.settle(run.id, round, first, len(consensus), hints, run.words(round), majority)


def test_trainers_and_validators_are_paid_by_the_formulas(run: Run) -> None:
    run.play({0: HONEST, 1: HONEST, 2: HONEST})
    run.settle()
    p, q = run.params.trainer_pool, run.params.validator_pool
    assert [run.idle(who) for who in run.trainers] == [
        p // 4,
        p * 30_000 // (65_535 * 4),
        p // (65_535 * 4),
        0,
    ]
    run.settlement.pay_validators(run.id, 0)
    assert [run.idle(who) for who in run.validators] == [q * 3 // 10, q * 3 // 10, q * 4 // 10]


def test_page_log_holds_the_consensus_and_the_roots(run: Run) -> None:
    run.play({0: HONEST, 1: HONEST, 2: HONEST})
    run.settle()
    (page,) = run.evm.events("SeatsSettled")
    assert page["consensus"] == tuple(hint_words([65_535, 30_000, 1, 0]))
    assert (page["base_state"], page["newest_state"]) == (HONEST.base_root, HONEST.newest_root)
    assert run.settlement.round_record(run.id, 0) == (1, 3, 0, True, False)


def test_median_needs_strictly_more_than_half_of_the_stake(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(2)
    run.join_validators([5_000_000, 2_500_000, 2_500_000])
    run.play({0: flat(9_000, 100), 1: flat(100, 9_000), 2: flat(100, 9_000)})
    with reverts("settlement: hint too high"):  # exactly half reaches 9000 on either seat
        settle(run, [9_000, 100])
    with reverts("settlement: hint too high"):
        settle(run, [100, 9_000])
    settle(run, [100, 100])


def test_one_wei_above_half_decides(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(1)
    run.join_validators([5_000_001, 2_500_000, 2_500_000])
    run.play({0: flat(9_000), 1: flat(100), 2: flat(100)})
    with reverts("settlement: hint too low"):
        settle(run, [8_999])
    with reverts("settlement: hint too high"):
        settle(run, [9_001])
    settle(run, [9_000])


def test_lying_validator_moves_no_median_and_earns_nothing(run: Run) -> None:
    liar = flat(0, 0, 65_535, 65_535)
    run.play({0: HONEST, 1: HONEST, 2: liar})
    run.settle()
    run.settlement.pay_validators(run.id, 0)
    honest, _, lied = (run.idle(who) for who in run.validators)
    assert honest == run.params.validator_pool * 3 // 10
    assert lied == 0


@pytest.mark.parametrize(("weight", "paid"), [(979, False), (980, True), (1_020, True), (1_021, False)])
def test_validator_is_paid_within_two_percent(run: Run, weight: int, paid: bool) -> None:
    close = flat(weight)
    run.play({0: flat(1_000), 1: flat(1_000), 2: close}, revealed=[0])
    run.settle()
    run.settlement.pay_validators(run.id, 0)
    assert (run.idle(run.validators[2]) > 0) == paid


@pytest.mark.parametrize(
    ("median", "matching"), [(65_535, [65_535, 64_225]), (49, [49]), (50, [49, 50, 51]), (1, [1])]
)
def test_tolerance_at_the_ends_of_the_scale(contracts: System, median: int, matching: list[int]) -> None:
    run = Run.create(contracts)
    run.join_trainers(1)
    run.join_validators([9_000_000] + [1_000_000] * 4)
    around = [w for w in {*matching, min(matching) - 1, max(matching) + 1} if 0 <= w <= WEIGHT_ONE]
    run.play({0: flat(median)} | {v + 1: flat(w) for v, w in enumerate(around[:4])})
    run.settle()
    matched = [bool(run.settlement.matches(run.id, 0, v + 1)) for v in range(len(around[:4]))]
    assert matched == [w in matching for w in around[:4]]


def test_vote_under_another_verdict_counts_as_weight_zero(run: Run) -> None:
    smuggled = report([SeatVote(60_000, Verdict.NOT_COUNTED)])
    run.play({0: smuggled, 1: smuggled, 2: flat(60_000)})
    with reverts("settlement: hint too high"):
        settle(run, [60_000, 0, 0, 0])
    settle(run, [0, 0, 0, 0])
    assert run.escrow() == run.params.budget


def test_abstaining_majority_leaves_nothing(run: Run) -> None:
    abstains = report([verdict(Verdict.ABSTAIN)] * 4)
    run.play({0: abstains, 1: abstains, 2: HONEST})
    settle(run, [0, 0, 0, 0])
    run.settlement.pay_validators(run.id, 0)
    assert run.escrow() == run.params.budget


def test_missing_report_counts_as_weight_zero(run: Run) -> None:
    sealed = {0: HONEST, 1: HONEST, 2: HONEST}
    run.play({0: HONEST, 1: HONEST}, sealed=sealed)
    run.settle()
    assert run.settlement.round_record(run.id, 0)[1] == 3
    run.settlement.pay_validators(run.id, 0)
    assert run.idle(run.validators[2]) == 0


def test_unrevealed_seat_never_counts(run: Run) -> None:
    all_full = flat(*[WEIGHT_ONE] * 4)
    run.play({0: all_full, 1: all_full, 2: all_full}, revealed=[1, 3])
    with reverts("settlement: hint for unrevealed"):
        settle(run, [WEIGHT_ONE] * 4)
    settle(run, [0, WEIGHT_ONE, 0, WEIGHT_ONE])
    half = run.params.trainer_pool // 2
    assert [run.idle(who) for who in run.trainers] == [0, half, 0, half]
    assert run.settlement.matches(run.id, 0, 0) == 2


def test_round_without_reveals_settles_and_pays_nobody(run: Run) -> None:
    run.play({0: report([]), 1: report([]), 2: report([])}, committed=[])
    settle(run, [])
    run.settlement.pay_validators(run.id, 0)
    assert run.settlement.round_record(run.id, 0) == (0, 0, 0, True, False)
    assert run.escrow() == run.params.budget


def test_pair_with_exactly_half_is_no_majority(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(1)
    run.join_validators([2_000_000, 2_000_000])
    run.play({0: flat(1), 1: report([accepted(1)], newest=b"\x99" * 32)})
    for seat in (0, 1, 2, 15, 2**255):
        with reverts("settlement: no majority"):
            settle(run, [1], majority=seat)


def test_majority_must_be_named_by_a_seat_that_reported_it(run: Run) -> None:
    run.play({0: HONEST, 1: HONEST, 2: report(HONEST.votes, base=b"\x99" * 32)})
    with reverts("settlement: no majority"):
        settle(run, [65_535, 30_000, 1, 0], majority=2)
    settle(run, [65_535, 30_000, 1, 0], majority=1)


def test_reports_must_be_those_revealed(run: Run) -> None:
    run.play({0: HONEST, 1: HONEST}, sealed={0: HONEST, 1: HONEST, 2: HONEST})
    good = run.words()
    hints = hint_words([65_535, 30_000, 1, 0])
    for words, reason in (
        ([good[0], [*good[1][:-1], b"\x00" * 32]], "settlement: wrong report"),
        ([good[0], good[1], good[1]], "settlement: wrong report"),
        ([good[0], []], "settlement: report missing"),
        ([good[0]], "settlement: report missing"),
    ):
        with reverts(reason):
            run.settlement.settle(run.id, 0, 0, 4, hints, words, 0)
    run.settlement.settle(run.id, 0, 0, 4, hints, [*good, [], []], 0)


def test_hints_must_fit_the_seats(run: Run) -> None:
    run.play({0: HONEST, 1: HONEST, 2: HONEST})
    call = run.settlement.settle
    hint = hint_words([65_535, 30_000, 1, 0])[0]
    for hints in ([], [hint, 0]):
        with reverts("settlement: wrong hint count"):
            call(run.id, 0, 0, 4, hints, run.words(), 0)
    with reverts("settlement: hint beyond seats"):
        call(run.id, 0, 0, 4, [hint | 1 << 176], run.words(), 0)


def test_seat_settles_once(run: Run) -> None:
    run.play({0: HONEST, 1: HONEST, 2: HONEST})
    run.settle()
    with reverts("settlement: already settled"):
        run.settle()
    with reverts("settlement: already settled"):
        settle(run, [65_535, 30_000, 1, 0] + [0] * 60)


def test_settle_window_is_half_open(run: Run) -> None:
    run.play({0: HONEST, 1: HONEST, 2: HONEST})
    run.enter("settle", offset=-1)
    with reverts("settlement: too early"):
        run.settle()
    run.leave("settle")
    with reverts("settlement: too late"):
        run.settle()
    run.leave("settle", offset=-1)
    run.settle()
    run.settlement.pay_validators(run.id, 0)
    run.leave("settle")
    with reverts("settlement: too late"):
        run.settlement.pay_validators(run.id, 0)


def test_validators_wait_for_the_last_page_and_are_paid_once(run: Run) -> None:
    run.play({0: HONEST, 1: HONEST, 2: HONEST})
    with reverts("settlement: round not settled"):
        run.settlement.pay_validators(run.id, 0)
    run.settle()
    run.settlement.pay_validators(run.id, 0)
    assert run.settlement.validators_paid(run.id, 0)
    with reverts("settlement: validators are paid"):
        run.settlement.pay_validators(run.id, 0)


def test_pay_goes_to_the_seats_owner_in_that_round(contracts: System) -> None:
    run = Run.create(contracts, trainer_limit=2, rounds=4)
    run.join_trainers(2, bond=2_000_000)
    run.join_validators([1_000_000])
    run.play({0: flat(1, 1)}, 0)
    run.play({0: flat(1, 1)}, 1)
    bonded = STRANGER
    run.bond(bonded, 5_000_000)
    contracts.runs.join(run.id, Role.TRAINER, bonded, "http://x.example/", [], 0, sender=bonded)
    run.settle(1)
    assert run.idle(run.trainers[0]) == run.params.trainer_pool // (2 * WEIGHT_ONE)
    assert run.idle(bonded) == 0


# Pages.


@pytest.fixture
def wide(contracts: System) -> Run:
    """130 trainers, one validator: three pages."""
    run = Run.create(contracts)
    run.join_trainers(130)
    run.join_validators([1_000_000])
    run.play({0: flat(*range(1, 131))})
    return run


ORDERS = [[0, 64, 128], [128, 64, 0], [64, 128, 0]]


@pytest.mark.parametrize("order", ORDERS)
def test_pages_settle_in_any_order(wide: Run, order: list[int]) -> None:
    for first in order:
        assert not wide.settlement.round_record(wide.id, 0)[3]
        wide.settle(first=first, count=min(64, 130 - first))
        with reverts("settlement: already settled"):
            wide.settle(first=first, count=min(64, 130 - first))
    assert wide.settlement.round_record(wide.id, 0) == (0b111, 130, 0, True, False)
    assert tuple(wide.idle(who) for who in wide.trainers) == wide.expected().trainer_pay


def test_several_pages_settle_in_one_call(wide: Run) -> None:
    wide.settle(first=64, count=66)
    with reverts("settlement: already settled"):
        wide.settle()
    wide.settle(first=0, count=64)
    assert wide.settlement.round_record(wide.id, 0)[3]


def test_seats_beyond_the_last_reveal_may_be_passed_or_left_out(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(70)
    run.join_validators([1_000_000])
    run.play({0: flat(*[7] * 70)}, revealed=[0, 20])
    for count in (21, 64, 70):
        with contracts.evm.anchor():
            settle(run, [7] + [0] * 19 + [7] + [0] * (count - 21))
            assert run.settlement.round_record(run.id, 0)[3]


@pytest.mark.parametrize(
    ("first", "count", "reason"),
    [
        (0, 63, "settlement: seats missing"),
        (0, 129, "settlement: seats missing"),
        (64, 65, "settlement: seats missing"),
        (128, 1, "settlement: seats missing"),
        (1, 64, "settlement: not whole pages"),
        (32, 32, "settlement: not whole pages"),
        (192, 65, "settlement: not whole pages"),
        (320, 0, "settlement: not whole pages"),
        (2**256 - 64, 64, "settlement: not whole pages"),
    ],
)
def test_only_whole_pages_settle(wide: Run, first: int, count: int, reason: str) -> None:
    consensus = ([*range(1, 131), *[0] * 126][first : first + count] + [0] * count)[:count]
    with reverts(reason):
        settle(wide, consensus, first=first)


def test_a_round_has_no_more_than_256_seats(wide: Run) -> None:
    for count in (257, 2**256 - 1):
        with reverts("settlement: wrong hint count"):
            wide.settlement.settle(wide.id, 0, 0, count, [0] * 16, wide.words(), 0)


@pytest.mark.parametrize(("first", "count"), [(192, 64), (192, 0), (64, 0), (256, 0)])
def test_page_must_hold_revealed_seats(wide: Run, first: int, count: int) -> None:
    with reverts("settlement: no seats there"):
        settle(wide, [0] * count, first=first)


def test_largest_round_pays_no_more_than_its_pools(contracts: System) -> None:
    run = Run.create(contracts, trainer_pool=10**18 + 7, validator_pool=10**17 + 3)
    run.join_trainers(256)
    run.join_validators([1_000_000 + 7 * v for v in range(16)])
    full = flat(*[WEIGHT_ONE] * 256)
    run.play(dict.fromkeys(range(16), full))
    run.settle()
    run.settlement.pay_validators(run.id, 0)
    trainers = sum(run.idle(who) for who in run.trainers)
    validators = sum(run.idle(who) for who in run.validators)
    assert 10**18 + 7 - 256 < trainers <= 10**18 + 7
    assert 10**17 + 3 - 16 < validators <= 10**17 + 3
    assert run.escrow() == run.params.budget - trainers - validators
    assert run.settlement.round_record(run.id, 0) == (15, 256, 0, True, False)
    assert [run.settlement.matches(run.id, 0, v) for v in (0, 15, 16, 2**255)] == [256, 256, 0, 0]


def test_largest_round_of_harm_is_counted(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(256)
    run.join_validators([1_000_000] * 16)
    run.play(dict.fromkeys(range(16), report([verdict(4)] * 256)))
    run.settle()
    assert run.settlement.round_record(run.id, 0) == (15, 0, 256, True, False)
    assert not run.settlement.validators_paid(run.id, 0)


# The report-only round.


def test_final_round_records_the_model_and_pays_nothing(contracts: System) -> None:
    run = Run.create(contracts, rounds=1)
    run.join_trainers(1)
    run.join_validators([1_000_000])
    run.play({0: flat(1)})
    run.settle()
    last = report([], base=b"\x0a" * 32, newest=b"\x0b" * 32)
    run.score({0: last}, 1)
    escrow = run.escrow()
    settle(run, [], round=1)
    assert run.evm.events("FinalState") == [{"run": run.id, "state": b"\x0b" * 32}]
    assert run.settlement.final_state(run.id) == b"\x0b" * 32
    assert run.escrow() == escrow
    with reverts("settlement: already settled"):
        settle(run, [], round=1)
    with reverts("settlement: round has no pay"):
        run.settlement.pay_validators(run.id, 1)


def test_there_is_no_round_after_the_final_one(run: Run) -> None:
    run.enter("settle", 4)
    with reverts("settlement: no such round"):
        run.settlement.pay_validators(run.id, 4)
    with reverts("settlement: no such round"):
        run.settlement.charge(run.id, 4, Role.TRAINER)


@pytest.mark.parametrize("words", [0, 1, 2])
def test_report_without_roots_counts_as_not_revealed_and_blocks_nobody(contracts: System, words: int) -> None:
    run = Run.create(contracts)
    run.join_trainers(1)
    run.join_validators([1_000_000, 3_000_000])
    stub = [BASE] * words
    run.play({1: flat(5)}, sealed={1: flat(5)} | {0: Stub(stub)})
    run.enter("report_reveal")
    with reverts("runs: report too short"):
        contracts.runs.report_reveal(run.id, 0, 0, stub, SALT, sender=run.validators[0])
    run.enter("settle")
    hints = hint_words([5])
    with reverts("settlement: no majority"):
        run.settlement.settle(run.id, 0, 0, 1, hints, [[], flat(5).words()], 0)
    run.settlement.settle(run.id, 0, 0, 1, hints, [[], flat(5).words()], 1)
    run.settlement.charge(run.id, 0, Role.VALIDATOR)
    assert run.bond_of(run.validators[0]) == 990_000


class Stub(Report):
    """Words that are too few to be a report."""

    def __init__(self, words: list[bytes]) -> None:
        super().__init__(b"", b"", b"", ())
        object.__setattr__(self, "stub", words)

    def words(self) -> list[bytes]:
        return self.__dict__["stub"]


def test_overlapping_rounds_settle_one_after_the_other(contracts: System) -> None:
    run = Run.create(contracts, overlap=True, commit_s=2_000)
    run.join_trainers(2)
    run.join_validators([1_000_000])
    run.enter("commit", 0)
    run.commit([0, 1], 0)
    for round in (0, 1):
        run.enter("reveal", round)
        run.commit([0, 1], round + 1)  # the next round trains while this one is scored
        run.reveal([0, 1], round)
        run.score({0: flat(10, 20)}, round)
        run.enter("settle", round, offset=-1)
        with reverts("settlement: too early"):
            run.settle(round)
        run.leave("settle", round)
        with reverts("settlement: too late"):
            run.settle(round)
        run.enter("settle", round)
        run.settle(round)
        run.settlement.charge(run.id, round, Role.TRAINER)
    assert run.idle(run.trainers[1]) == 2 * (run.params.trainer_pool * 20 // (2 * WEIGHT_ONE))
    assert run.bond_of(run.trainers[1]) == 10**9
