from fractions import Fraction
from math import inf, log, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.harm import ONS_STEP, EProcess, HarmTerms, HarmTest, threshold

TERMS = HarmTerms()
UNCAPPED = HarmTerms(round_cap=inf)
gains = st.lists(st.floats(-3, 3), max_size=60)


def test_arithmetic_is_that_of_the_protocol_page():
    wealth, bet, curvature = 1.0, 0.0, 1.0
    series = [-0.1, 0.05, -0.9, 0.2, -0.03]
    for gain in series:
        y = -(min(max(gain, -0.2), 0.2) + 0.005)
        wealth *= 1 + bet * y
        z = y / (1 + bet * y)
        curvature += z**2
        bet = min(max(bet + 2 / (2 - log(3)) * z / curvature, 0), 1 / (2 * 0.205))
    process = EProcess().update_round(series, TERMS)
    assert (process.wealth, process.bet, process.curvature) == (wealth, bet, curvature)
    assert pytest.approx(2.2188, abs=1e-4) == ONS_STEP


@given(gains, st.floats(0, 1), st.floats(1, 100))
def test_wealth_stays_positive_and_no_bet_risks_more_than_half(series, share, curvature):
    process = EProcess(1.0, share * TERMS.largest_bet, curvature)
    for gain in series:
        after = process.update_round([gain], TERMS)
        assert 0.5 * process.wealth <= after.wealth <= 1.5 * process.wealth
        assert 0 <= after.bet <= TERMS.largest_bet
        process = after


@given(gains, st.fractions(0, 1), st.fractions(0, 1))
def test_no_bet_gains_on_average_under_the_null(series, position, spread):
    """For any two-point distribution with clipped mean -delta, a bet's expected factor is at most 1."""
    bet = Fraction(EProcess().update_round(series, TERMS).bet)
    b, delta = Fraction(TERMS.bound), Fraction(TERMS.delta)
    low, high = -delta - spread * (b - delta), -delta + position * (b + delta)
    if low < high:
        weight_of_low = (high + delta) / (high - low)
        growth = weight_of_low * (1 - bet * (low + delta)) + (1 - weight_of_low) * (1 - bet * (high + delta))
        assert growth <= 1


def test_good_sequences_are_no_sign_of_harm():
    assert EProcess().update_round([0.02] * 5_000, TERMS).wealth == 1.0


def test_harm_convicts_within_a_few_rounds():
    process, rounds = EProcess(), 0
    random = Random(1)
    while process.wealth <= threshold(TERMS, 6, 4):
        process = process.update_round([random.gauss(-0.044, 0.05) for _ in range(512)], TERMS)
        rounds += 1
    assert rounds == 3


def test_a_freak_round_convicts_nobody():
    process = EProcess().update_round([-9.0] * 10_000, TERMS)
    assert process.wealth == 1e3 < threshold(TERMS, 1, 1)
    assert EProcess().update_round([-9.0] * 10_000, UNCAPPED).wealth == inf


def test_bets_grow_to_half_of_what_a_sequence_can_cost():
    assert EProcess().update_round([-0.2] * 100, TERMS).bet == 1 / (2 * 0.205)


def test_extreme_terms_are_allowed():
    HarmTerms(delta=0.0, round_cap=1.0, restart_rounds=1)


def test_gains_are_clipped():
    assert EProcess().update_round([-0.2, 0.2], TERMS) == EProcess().update_round([-inf, 99], TERMS)


def test_a_gain_that_is_not_a_number_is_the_callers_mistake():
    with pytest.raises(ValueError, match="NaN"):
        EProcess().update_round([0.1, nan], TERMS)


def test_level_holds_under_optional_stopping():
    """2,000 streams exactly at the null, stopped as soon as they would convict at alpha = 0.05 (uncapped)."""
    alpha, streams, alarms = 0.05, 2_000, 0
    random = Random(7)
    for _ in range(streams):
        process = EProcess()
        for _ in range(4):
            block = [-TERMS.delta + random.choice((-0.1, -0.02, 0.02, 0.1)) for _ in range(50)]
            for gain in block:
                process = process.update_round([gain], UNCAPPED)
                if process.wealth > 1 / alpha:
                    break
            else:
                continue
            alarms += 1
            break
    assert 0 < alarms / streams <= alpha


def test_threshold_pays_for_restarts_and_seats():
    assert threshold(TERMS, 10, 1) == pytest.approx(1e6)
    assert threshold(TERMS, 1, 4) == pytest.approx(4e6)
    assert threshold(TERMS, 100, 4) == pytest.approx(4e7)


def test_harmful_needs_both_processes():
    bad, good = [-0.1] * 512, [0.05] * 512
    limit = threshold(TERMS, 6, 4)
    odd_data, attack = HarmTest(), HarmTest()
    for r in range(1, 4):
        odd_data = odd_data.update_round(r, bad, good, TERMS)
        attack = attack.update_round(r, bad, bad, TERMS)
    assert odd_data.e_value == 1.0
    assert not odd_data.harmful(limit)
    assert attack.harmful(limit)
    assert not attack.harmful(attack.e_value)


def test_round_0_is_no_sign_of_harm():
    with pytest.raises(ValueError, match="round 0"):
        HarmTest().update_round(0, [], [], TERMS)


def test_restarts_are_aligned_to_the_runs_rounds():
    bad = [-0.1] * 512
    late = HarmTest().update_round(9, bad, bad, TERMS)
    assert late.e_value == 1e3
    fresh = late.update_round(10, bad, bad, TERMS)
    assert fresh == HarmTest().update_round(10, bad, bad, TERMS)
    assert fresh.update_round(19, bad, bad, TERMS).e_value == 1e6


def test_both_processes_restart_after_a_verdict():
    bad = [-0.1] * 512
    test = HarmTest().update_round(11, bad, bad, TERMS).restarted()
    assert (test.held_out, test.own, test.window) == (EProcess(), EProcess(), 1)


@pytest.mark.parametrize(
    "terms",
    [
        {"bound": 0.0},
        {"delta": -0.1},
        {"delta": 0.2},
        {"round_cap": 0.5},
        {"restart_rounds": 0},
        {"alpha": 0.0},
        {"alpha": 1.0},
    ],
)
def test_terms_that_make_no_test_are_refused(terms):
    with pytest.raises(ValueError, match="harm needs"):
        HarmTerms(**terms)
