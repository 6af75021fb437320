from math import floor, inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.pay import shares, trainer_pay
from earnest.protocol.weights import FULL_SHARE, Margin, PastMargin, Score, seat_weights, upper_quartile

finite = st.floats(-1, 1)
margins = st.builds(Margin, finite, st.floats(0, 0.5))
scores = st.builds(Score, finite, st.floats(0, 0.5), st.one_of(margins, st.none()))


def score(gain: float, margin: float | None = 0.02, past: tuple[PastMargin, ...] = ()) -> Score:
    return Score(gain, 0.0, None if margin is None else Margin(margin, 0.0), past)


FULL = 65_535


def test_an_honest_crowd_gets_the_largest_weight():
    assert seat_weights([score(0.1)] * 5) == [FULL] * 5


def test_gain_counts_up_to_the_upper_quartile():
    weights = seat_weights([score(0.1), score(0.1), score(0.15), score(0.2), score(9.0)])
    assert weights == [32_767, 32_767, 49_151, FULL, FULL]


def of_margin(ratio: float) -> int:
    """The weight at full gain and `ratio` of the reference margin."""
    return floor(FULL * min(1, ratio / FULL_SHARE) ** 3)


def test_margin_counts_by_its_third_power_up_to_nine_tenths_of_the_upper_quartile():
    margins = [0.02, 0.02, 0.01, 0.9, 0.0181]
    weights = seat_weights([score(0.2, margin) for margin in margins])
    assert weights == [FULL, FULL, of_margin(0.5), FULL, FULL]


def test_margins_of_four_rounds_count_together_each_beside_its_reference():
    """A round with large margins says more than one with small margins."""
    past = (PastMargin(3, 0.0, 0.01), PastMargin(4, 0.03, 0.05))
    weights = seat_weights([score(0.2), score(0.2), score(0.2, 0.0, past), score(0.2, 0.02, past)])
    assert weights[2:] == [of_margin(0.03 / 0.08), of_margin(0.05 / 0.08)]


def test_working_every_second_round_earns_less_than_half():
    """In the other round it has nothing to show, so its gain is that of the updates it can copy: say a tenth."""
    done, idle = PastMargin(0, 0.02, 0.02), PastMargin(0, 0.0, 0.02)
    crowd = [score(0.2)] * 3
    working = seat_weights([*crowd, score(0.2, 0.02, (idle, done, idle))])[3]
    resting = seat_weights([*crowd, score(0.02, 0.0, (done, idle, done))])[3]
    assert (working + resting) / 2 < 0.5 * FULL * 0.5


def test_a_past_of_honest_work_pays_for_no_update_that_gains_nothing():
    past = (PastMargin(0, 0.02, 0.02),) * 3
    assert seat_weights([*[score(0.2)] * 3, score(0.0, 0.0, past)])[3] == 1


@pytest.mark.parametrize("parts", [4, 8])
def test_half_of_the_seats_cannot_lower_the_reference_to_themselves(parts):
    """Dust, quarters of a training, or one training in many disguises beside as many honest seats."""
    little = [score(0.01, 0.002)] * parts
    weights = seat_weights([*[score(0.1, 0.02)] * parts, *little])
    assert weights == [FULL] * parts + [floor(FULL * 0.1 * (0.1 / FULL_SHARE) ** 3)] * parts


def test_a_copy_without_margin_keeps_only_the_least_weight():
    assert seat_weights([score(0.1), score(0.1), score(0.1, 0.0), score(0.1, -0.5)])[2:] == [1, 1]


def test_references_are_upper_quartiles_over_gaining_seats():
    quartiles = [upper_quartile(range(1, n + 1)) for n in range(1, 9)]
    assert quartiles == [1, 2, 2, 3, 4, 5, 5, 6]
    assert upper_quartile([3, 1, 2]) == 2
    assert upper_quartile([]) is None
    weights = seat_weights([score(0.1, 0.01), score(0.2, 0.04), score(-0.1, 9.0), score(0.0, 9.0)])
    assert weights == [floor(FULL / 2 * (0.25 / FULL_SHARE) ** 3), FULL, 0, 1]


def test_nobody_gaining_leaves_no_weight_above_1():
    assert seat_weights([score(0.0), score(-0.1), Score(-0.1, 0.06, Margin(0.5, 0.0)), None]) == [1, 0, 1, 0]


@pytest.mark.parametrize("margin", [0.0, -0.01, 0.02])
def test_a_reference_margin_within_its_error_leaves_no_weight_above_1(margin):
    past = (PastMargin(0, 0.02, 0.02),)
    scores = [Score(gain, 0.0, Margin(margin, 0.02), past) for gain in (0.1, 0.2)]
    assert seat_weights([*scores, score(0.3, 0.5)]) == [1, 1, 1]


def test_only_a_surely_negative_gain_of_a_clean_update_gets_0():
    honest = [score(0.1), score(0.1)]
    assert seat_weights([*honest, Score(-0.1, 0.05, Margin(0.02, 0.0))])[2] == 1
    assert seat_weights([*honest, Score(-0.1, 0.0499, Margin(0.02, 0.0))])[2] == 0


def test_uncertain_gains_count_by_their_lower_bound():
    assert Score(0.1, 0.02, None).gain == pytest.approx(0.06)
    assert seat_weights([score(0.2), score(0.2), Score(0.14, 0.02, Margin(0.02, 0.0))])[2] == 32_767


def test_private_data_has_margin_factor_1():
    assert seat_weights([score(0.1, None)] * 3) == [FULL] * 3
    assert seat_weights([score(0.1, 0.02), score(0.1, None), score(0.1, 0.02)]) == [FULL, FULL, FULL]
    assert seat_weights([score(0.1, 0.02), score(0.1, None), score(0.1, 0.01)])[1] == FULL


def test_a_seat_that_was_not_accepted_has_no_weight_and_no_say():
    assert seat_weights([None, score(0.1), None, score(0.1)]) == [0, FULL, 0, FULL]
    assert seat_weights([]) == []


@given(st.lists(st.one_of(scores, st.none()), max_size=30))
def test_weights_fit_and_honour_the_least_weight(scores):
    weights = seat_weights(scores)
    assert len(weights) == len(scores)
    for weight, given_score in zip(weights, scores, strict=True):
        assert 0 <= weight <= 65_535
        if given_score is None:
            assert weight == 0
        elif given_score.surely_negative:
            assert weight <= 65_535 * (given_score.gain > 0)
        else:
            assert weight >= 1


@given(st.floats(0, 0.1), st.integers(2, 8))
def test_splitting_an_ordinary_machine_over_seats_never_pays(gain, parts):
    """Each part has its share of gain and margin; all get less than one whole seat beside the same crowd."""
    crowd = [score(0.1, 0.02)] * 20
    whole = seat_weights([*crowd, score(gain, gain / 5)])[20]
    split = seat_weights([*crowd, *[score(gain / parts, gain / parts / 5)] * parts])[20:]
    assert sum(split) <= max(whole, parts)


@pytest.mark.parametrize(
    "bad", [(nan, 0.1, None), (0.1, inf, None), (0.1, 0.1, Margin(-inf, 0.1)), (0.1, 0.1, Margin(0.1, nan))]
)
def test_measurements_are_finite(bad):
    with pytest.raises(ValueError, match="not finite"):
        Score(*bad)


def test_a_quarter_of_a_weight_depends_on_a_digit_that_takes_measuring():
    scores = [Score(0.8 + 0.01 * step, 0.1, Margin(0.02, 0.0)) for step in range(12)]
    weights = seat_weights([Score(0.1, 0.0, Margin(0.02, 0.0)), *scores])
    assert len({weight // 1_000 for weight in weights[1:]}) > 6
    assert min(weights[3:]) >= FULL * 0.7
    digits = [score.digit for score in scores]
    assert all(0 <= digit < 1 for digit in digits)
    assert Score(0.1, 0.0, None).digit == 0


def test_in_a_trial_round_no_weight_exceeds_a_five_hundredth():
    scores = [score(0.1), score(2.0, 1.0), None, Score(-0.1, 0.04, None), Score(-0.1, 0.06, None)]
    weights = seat_weights(scores, trial=True)
    assert weights[:4] == [128, 128, 0, 0]
    assert weights[4] == 128 - floor(64 * scores[4].digit)


@given(st.integers(1, 12), st.integers(2, 12), st.integers(1, 24), st.floats(0.4, 1))
def test_machine_split_over_seats_is_paid_no_more_than_one_seat(honest, parts, full_seats, power):
    """A k-th of the work gives k ** -power of gain and margin; at most as many parts as honest seats.

    With the power 0.4, half of the work has a weight of 0.45: parts whose weights sum to more than the whole's would
    be paid more by any formula, those below never are.
    """
    parts = min(parts, honest)

    def paid(seats, work):
        weights = seat_weights([score(0.1, 0.02)] * honest + [score(0.1 * work, 0.02 * work)] * seats)
        whole = shares(sum(weights), 0, full_seats)
        return sum(trainer_pay(10**18, weight, whole) for weight in weights[honest:])

    assert paid(parts, parts**-power) <= paid(1, 1.0)
