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
    """Four trainers, whose full weight is worth P / 4; validators with stakes 3, 3 and 4 million."""
    run = Run.create(contracts, full_seats=4)
    run.join_trainers(4)
    run.join_validators([3_000_000, 3_000_000, 4_000_000])
    yield run


def flat(*weights: int) -> Report:
    return report([accepted(w) for w in weights])


HONEST = flat(65_535, 30_000, 1, 0)


def settle(run: Run, consensus: list[int], round: int = 0, majority: int = 0) -> None:
    run.settlement.settle(run.id, round, hint_words(consensus), run.words(round), majority)


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
    assert [run.idle(who) for who in run.validators] == [q * 3 // 10, q * 3 // 10, q * 4 // 10]


def test_log_holds_the_active_stake_the_consensus_and_the_roots(run: Run) -> None:
    run.play({0: HONEST, 1: HONEST, 2: HONEST})
    run.settle()
    (log,) = run.evm.events("RoundSettled")
    assert (log["active_stake"], log["agreeing"], log["burned"]) == (10_000_000, 0b111, 0)
    assert log["consensus"] == tuple(hint_words([65_535, 30_000, 1, 0]))
    assert (log["base_state"], log["newest_state"]) == (HONEST.base_root, HONEST.newest_root)
    assert run.settlement.round_record(run.id, 0) == (True, False, 0b111, 0)


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
    honest, _, lied = (run.idle(who) for who in run.validators)
    assert honest == run.params.validator_pool * 3 // 10
    assert lied == 0


@pytest.mark.parametrize(("weight", "paid"), [(979, False), (980, True), (1_020, True), (1_021, False)])
def test_validator_is_paid_within_two_percent(run: Run, weight: int, paid: bool) -> None:
    close = flat(weight)
    run.play({0: flat(1_000), 1: flat(1_000), 2: close}, revealed=[0])
    run.settle()
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
    matched = [run.idle(who) > 0 for who in run.validators[1 : 1 + len(around[:4])]]
    assert matched == [w in matching for w in around[:4]]


def test_vote_under_another_verdict_counts_as_weight_zero(run: Run) -> None:
    smuggled = report([SeatVote(60_000, Verdict.NOT_COUNTED)])
    run.play({0: smuggled, 1: smuggled, 2: flat(60_000)})
    with reverts("settlement: hint too high"):
        settle(run, [60_000, 0, 0, 0])
    settle(run, [0, 0, 0, 0])
    assert run.escrow() == run.params.budget


# Reports on other states.


def test_report_on_other_states_neither_votes_nor_earns_and_is_charged(run: Run) -> None:
    other = flat(*[65_535] * 4)
    run.play({0: HONEST, 1: flat(65_535, 20_000, 1, 0), 2: report(other.votes, newest=b"\x99" * 32)})
    with reverts("settlement: hint too high"):  # its vote would lift the second seat to 30,000
        settle(run, [65_535, 30_000, 1, 0])
    settle(run, [65_535, 20_000, 1, 0])
    (fault,) = run.evm.events("FaultCharged")
    assert (fault["role"], fault["seat"], fault["reason"]) == (Role.VALIDATOR, 2, "other states")
    assert [run.bond_of(who) for who in run.validators] == [3_000_000, 3_000_000, 3_960_000]
    assert run.idle(run.validators[2]) == 0
    assert run.settlement.round_record(run.id, 0)[2] == 0b011


def test_report_on_other_states_costs_at_most_the_ceiling(contracts: System) -> None:
    """A broken disk, round after round: the charge is that of a report withheld, and the ceiling bounds their sum."""
    run = Run.create(contracts, rounds=5, ceiling=15_000, ceiling_rounds=10)
    run.join_trainers(1)
    run.join_validators([1_000_000] * 3)
    for round in range(4):
        run.play({0: flat(9), 1: flat(9), 2: report([accepted(9)], base=b"\x99" * 32)}, round)
        run.settle(round)
    assert run.bond_of(run.validators[2]) == 1_000_000 - 15_000


def test_no_report_on_other_states_is_charged_in_a_void_round(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(1)
    run.join_validators([2_000_000, 2_000_000])
    run.play({0: flat(1), 1: report([accepted(1)], newest=b"\x99" * 32)})
    run.settlement.void(run.id, 0, run.words())
    run.settlement.charge(run.id, 0, Role.VALIDATOR)
    assert [run.bond_of(who) for who in run.validators] == [2_000_000] * 2


def test_wrong_final_state_is_charged(contracts: System) -> None:
    run = Run.create(contracts, rounds=1)
    run.join_validators([1_000_000] * 3)
    run.score({0: report([]), 1: report([]), 2: report([], newest=b"\x99" * 32)}, 1)
    run.settle(1)
    assert [run.bond_of(who) for who in run.validators] == [1_000_000, 1_000_000, 990_000]


# Seats in doubt: too few validators are left for those present to decide.


@pytest.fixture
def short(contracts: System) -> Run:
    """Three equal validators, two trainers, and P / 2 for a full seat. One validator reports nothing."""
    run = Run.create(contracts, full_seats=2)
    run.join_trainers(2)
    run.join_validators([1_000_000] * 3)
    return run


def pools(run: Run) -> tuple[int, int]:
    return run.params.trainer_pool, run.params.validator_pool


def test_one_of_two_validators_gains_nothing_by_zeroing_a_trainer(short: Run) -> None:
    """The trainer's share is burned, its rival gets no more, and neither validator is paid for that seat."""
    short.play({0: flat(65_535, 65_535), 1: flat(0, 65_535)})
    short.settle()
    p, q = pools(short)
    assert [short.idle(who) for who in short.trainers] == [0, p // 2]
    assert short.system.vault.burned() == p // 2
    assert [short.idle(who) for who in short.validators] == [q // 6, q // 6, 0]
    assert short.evm.events("RoundSettled")[0]["burned"] == p // 2


def test_one_of_two_validators_cannot_take_the_others_pay(short: Run) -> None:
    """It reports low weights throughout, which are the medians: both are paid nothing, and not only the honest one."""
    short.play({0: flat(60_000, 50_000), 1: flat(600, 500)})
    short.settle()
    assert [short.idle(who) for who in short.validators] == [0, 0, 0]
    assert [short.idle(who) for who in short.trainers] == list(short.expected().trainer_pay)
    assert short.expected().consensus == (600, 500)


def test_overstating_a_weight_costs_the_trainer_nothing(short: Run) -> None:
    short.play({0: flat(60_000, 9), 1: flat(65_535, 9)})
    short.settle()
    assert short.idle(short.trainers[0]) == short.params.trainer_pool * 60_000 // (2 * WEIGHT_ONE)


def test_friend_of_a_pivotal_validator_earns_no_more_by_its_lie(contracts: System) -> None:
    """Above the floor too, where pay is a share: a seat in doubt counts in full."""
    pay: list[int] = []
    for lie in (65_535, 0):
        with contracts.evm.anchor():
            run = Run.create(contracts, full_seats=1)
            run.join_trainers(2)
            run.join_validators([1_000_000] * 3)
            run.play({0: flat(65_535, 65_535), 1: flat(lie, 65_535)})
            run.settle()
            pay.append(run.idle(run.trainers[1]))
    assert pay == [run.params.trainer_pool // 2] * 2


@pytest.mark.parametrize(("other", "burns"), [(51_000, False), (51_001, True)])
def test_two_of_three_validators_decide_if_they_are_within_two_percent(
    short: Run, other: int, burns: bool
) -> None:
    short.play({0: flat(50_000, 9), 1: flat(other, 9)})
    short.settle()
    assert (short.system.vault.burned() > 0) == burns


def test_liar_among_all_validators_puts_no_seat_in_doubt(short: Run) -> None:
    short.play({0: flat(60_000, 50_000), 1: flat(61_000, 50_000), 2: flat(0, 65_535)})
    short.settle()
    assert short.expected().consensus == (60_000, 50_000)
    assert short.system.vault.burned() == 0


def test_half_of_the_stake_puts_a_seat_in_doubt(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(1)
    run.join_validators([1_000_000] * 2)
    run.play({0: flat(60_000), 1: flat(0)})
    run.settle()
    assert run.system.vault.burned() == run.params.trainer_pool


def test_abstention_says_nothing_about_a_seat(run: Run) -> None:
    """The trainer of a seat that nobody could judge is not paid, and the sponsor gets nothing back for it."""
    abstains = report([verdict(Verdict.ABSTAIN)] * 4)
    run.play({0: abstains, 1: abstains, 2: HONEST}, revealed=[0, 1])
    settle(run, [0, 0])
    assert run.system.vault.burned() == run.params.trainer_pool // 2
    assert [run.idle(who) for who in run.validators] == [0] * 3


def test_unavailable_payload_leaves_no_doubt(run: Run) -> None:
    gone = report([verdict(Verdict.UNAVAILABLE)] * 4)
    run.play({0: gone, 1: gone, 2: HONEST})
    settle(run, [0, 0, 0, 0])
    assert run.escrow() == run.params.budget


def test_seats_left_out_of_a_report_are_stated_as_absent(run: Run) -> None:
    run.play({0: report([]), 1: report([]), 2: HONEST})
    settle(run, [0, 0, 0, 0])
    assert run.escrow() == run.params.budget


# Pay by weight.


def test_junk_seats_take_nothing_from_honest_ones(contracts: System) -> None:
    paid: list[list[int]] = []
    for junk in (0, 20):
        with contracts.evm.anchor():
            run = Run.create(contracts, full_seats=4)
            run.join_trainers(4 + junk)
            run.join_validators([1_000_000] * 3)
            said = report([accepted(60_000)] * 4 + [verdict(Verdict.NOT_COUNTED)] * junk)
            run.play(dict.fromkeys(range(3), said))
            run.settle()
            paid.append([run.idle(who) for who in run.trainers[:4]])
    assert paid[0] == paid[1] == [run.params.trainer_pool * 60_000 // (4 * WEIGHT_ONE)] * 4


@pytest.mark.parametrize(("full_seats", "parts"), [(1, 3), (3, 3), (4, 4)])
def test_full_seats_is_the_weight_from_which_the_pool_is_paid_out(
    contracts: System, full_seats: int, parts: int
) -> None:
    run = Run.create(contracts, full_seats=full_seats, trainer_limit=4)
    run.join_trainers(3)
    run.join_validators([1_000_000])
    run.play({0: flat(65_535, 65_535, 65_535)})
    run.settle()
    assert [run.idle(who) for who in run.trainers] == [10**18 // parts] * 3


def test_missing_report_counts_as_weight_zero(run: Run) -> None:
    sealed = {0: HONEST, 1: HONEST, 2: HONEST}
    run.play({0: HONEST, 1: HONEST}, sealed=sealed)
    run.settle()
    assert run.idle(run.validators[0]) == run.params.validator_pool * 3 // 10
    assert run.idle(run.validators[2]) == 0


def test_unrevealed_seat_never_counts(run: Run) -> None:
    all_full = flat(*[WEIGHT_ONE] * 4)
    run.play({0: all_full, 1: all_full, 2: all_full}, revealed=[1, 3])
    with reverts("settlement: hint for unrevealed"):
        settle(run, [WEIGHT_ONE] * 4)
    settle(run, [0, WEIGHT_ONE, 0, WEIGHT_ONE])
    full = run.params.trainer_pool // 4
    assert [run.idle(who) for who in run.trainers] == [0, full, 0, full]


def test_round_without_reveals_settles_and_pays_nobody(run: Run) -> None:
    run.play({0: report([]), 1: report([]), 2: report([])}, committed=[])
    settle(run, [])
    assert run.settlement.round_record(run.id, 0) == (True, False, 0b111, 0)
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
            run.settlement.settle(run.id, 0, hints, words, 0)
    run.settlement.settle(run.id, 0, hints, [*good, [], []], 0)


def test_hints_must_fit_the_seats(run: Run) -> None:
    run.play({0: HONEST, 1: HONEST, 2: HONEST})
    call = run.settlement.settle
    hint = hint_words([65_535, 30_000, 1, 0])[0]
    for hints in ([], [hint, 0]):
        with reverts("settlement: wrong hint count"):
            call(run.id, 0, hints, run.words(), 0)
    with reverts("settlement: hint beyond seats"):
        call(run.id, 0, [hint | 1 << 176], run.words(), 0)


def test_round_settles_once(run: Run) -> None:
    run.play({0: HONEST, 1: HONEST, 2: HONEST})
    run.settle()
    with reverts("settlement: already settled"):
        run.settle()


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
    assert run.idle(run.trainers[0]) == run.params.trainer_pool // WEIGHT_ONE
    assert run.idle(bonded) == 0


# Sizes.


@pytest.mark.parametrize("trainers", [15, 16, 17, 130])
def test_every_number_of_seats_settles(contracts: System, trainers: int) -> None:
    run = Run.create(contracts)
    run.join_trainers(trainers)
    run.join_validators([1_000_000])
    run.play({0: flat(*range(1, trainers + 1))})
    run.settle()
    assert tuple(run.idle(who) for who in run.trainers) == run.expected().trainer_pay


def test_hints_end_with_the_last_reveal(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(70)
    run.join_validators([1_000_000])
    run.play({0: flat(*[7] * 70)}, revealed=[0, 20])
    for count in (16, 33, 70):
        with reverts("settlement: wrong hint count"):
            settle(run, ([7] + [0] * 19 + [7] + [0] * 70)[:count])
    settle(run, [7] + [0] * 19 + [7])


def test_a_round_has_no_more_than_256_seats(run: Run) -> None:
    run.play({0: HONEST, 1: HONEST, 2: HONEST})
    with reverts(""):
        settle(run, [0] * 257)


def test_largest_round_pays_no_more_than_its_pools(contracts: System) -> None:
    run = Run.create(contracts, trainer_pool=10**18 + 7, validator_pool=10**17 + 3)
    run.join_trainers(256)
    run.join_validators([1_000_000 + 7 * v for v in range(16)])
    full = flat(*[WEIGHT_ONE] * 256)
    run.play(dict.fromkeys(range(16), full))
    run.settle()
    trainers = sum(run.idle(who) for who in run.trainers)
    validators = sum(run.idle(who) for who in run.validators)
    assert 10**18 + 7 - 256 < trainers <= 10**18 + 7
    assert 10**17 + 3 - 16 < validators <= 10**17 + 3
    assert run.escrow() == run.params.budget - trainers - validators


def test_largest_round_of_harm_is_counted(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(256)
    run.join_validators([1_000_000] * 16)
    run.play(dict.fromkeys(range(16), report([verdict(4)] * 256)))
    run.settle()
    assert run.settlement.round_record(run.id, 0) == (True, False, 2**16 - 1, 2**256 - 1)
    assert run.settlement.broken(run.id, 0)


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


def test_there_is_no_round_after_the_final_one(run: Run) -> None:
    run.enter("settle", 4)
    with reverts("settlement: no such round"):
        settle(run, [], round=4)
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
        run.settlement.settle(run.id, 0, hints, [[], flat(5).words()], 0)
    run.settlement.settle(run.id, 0, hints, [[], flat(5).words()], 1)
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
    assert run.idle(run.trainers[1]) == 2 * (run.params.trainer_pool * 20 // WEIGHT_ONE)
    assert run.bond_of(run.trainers[1]) == 10**9
