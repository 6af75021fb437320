from math import floor, inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.weights import Score, lower_median, seat_weights

finite = st.floats(-1, 1)
scores = st.builds(Score, finite, st.floats(0, 0.5), st.one_of(finite, st.none()))


def score(gain: float, margin: float | None = 0.02) -> Score:
    return Score(gain, 0.0, margin)


def test_an_honest_crowd_gets_half_of_the_largest_weight():
    assert seat_weights([score(0.1)] * 5) == [32_767] * 5


def test_gain_counts_up_to_twice_the_median():
    assert seat_weights([score(0.1), score(0.1), score(0.15), score(0.2), score(9.0)]) == [
        21_845,
        21_845,
        32_767,
        43_690,
        65_535,
    ]


def test_margin_counts_by_its_third_power_and_never_above_the_median():
    halves = seat_weights([score(0.2, 0.02), score(0.2, 0.02), score(0.2, 0.01), score(0.2, 0.9)])
    assert halves == [32_767, 32_767, floor(65_535 / 2 / 8), 32_767]


def test_a_copy_without_margin_keeps_only_the_least_weight():
    assert seat_weights([score(0.1), score(0.1), score(0.1, 0.0), score(0.1, -0.5)])[2:] == [1, 1]


def test_medians_are_over_gaining_seats_and_lower():
    assert lower_median([3, 1, 2]) == 2
    assert lower_median([4, 1, 2, 3]) == 2
    assert lower_median([]) is None
    weights = seat_weights([score(0.1, 0.01), score(0.3, 0.04), score(-0.1, 9.0), score(0.0, 9.0)])
    assert weights == [32_767, 65_535, 0, 1]


def test_nobody_gaining_leaves_no_weight_above_1():
    assert seat_weights([score(0.0), score(-0.1), Score(-0.1, 0.06, 0.5), None]) == [1, 0, 1, 0]


@pytest.mark.parametrize("margin", [0.0, -0.01])
def test_a_median_margin_that_is_not_positive_leaves_no_weight_above_1(margin):
    assert seat_weights([score(0.1, margin), score(0.2, margin), score(0.3, 0.5)]) == [1, 1, 1]


def test_only_a_surely_negative_gain_of_a_clean_update_gets_0():
    honest = [score(0.1), score(0.1)]
    assert seat_weights([*honest, Score(-0.1, 0.05, 0.02)])[2] == 1
    assert seat_weights([*honest, Score(-0.1, 0.0499, 0.02)])[2] == 0


def test_uncertain_gains_count_by_their_lower_bound():
    assert Score(0.1, 0.02, None).gain == pytest.approx(0.06)
    assert seat_weights([score(0.2), score(0.2), Score(0.24, 0.02, 0.02)])[2] == 32_767


def test_private_data_has_margin_factor_1():
    assert seat_weights([score(0.1, None)] * 3) == [32_767] * 3
    assert seat_weights([score(0.1, 0.02), score(0.1, None), score(0.1, 0.01)]) == [32_767, 32_767, 32_767]
    assert seat_weights([score(0.1, 0.02), score(0.1, None), score(0.1, 0.02)])[1] == 32_767


def test_a_seat_that_was_not_accepted_has_no_weight_and_no_say():
    assert seat_weights([None, score(0.1), None, score(0.1)]) == [0, 32_767, 0, 32_767]
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


@pytest.mark.parametrize("bad", [(nan, 0.1, 0.1), (0.1, inf, 0.1), (0.1, 0.1, -inf)])
def test_measurements_are_finite(bad):
    with pytest.raises(ValueError, match="not finite"):
        Score(*bad)


def test_in_a_trial_round_no_weight_exceeds_one():
    scores = [score(0.1), score(2.0, 1.0), None, Score(-0.1, 0.04, 0.5), Score(-0.1, 0.06, 0.5)]
    assert seat_weights(scores, trial=True) == [1, 1, 0, 0, 1]
