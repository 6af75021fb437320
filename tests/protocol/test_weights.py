from math import floor, inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.weights import Score, seat_weights, upper_quartile

finite = st.floats(-1, 1)
scores = st.builds(Score, finite, st.floats(0, 0.5), st.one_of(finite, st.none()))


def score(gain: float, margin: float | None = 0.02) -> Score:
    return Score(gain, 0.0, margin)


FULL = 65_535


def test_an_honest_crowd_gets_the_largest_weight():
    assert seat_weights([score(0.1)] * 5) == [FULL] * 5


def test_gain_counts_up_to_the_upper_quartile():
    weights = seat_weights([score(0.1), score(0.1), score(0.15), score(0.2), score(9.0)])
    assert weights == [32_767, 32_767, 49_151, FULL, FULL]


def test_margin_counts_by_its_third_power_and_never_above_the_upper_quartile():
    halves = seat_weights([score(0.2, 0.02), score(0.2, 0.02), score(0.2, 0.01), score(0.2, 0.9)])
    assert halves == [FULL, FULL, floor(FULL / 8), FULL]


@pytest.mark.parametrize("parts", [4, 8])
def test_half_of_the_seats_cannot_lower_the_reference_to_themselves(parts):
    """Dust, quarters of a training, or one training in many disguises beside as many honest seats."""
    little = [score(0.01, 0.002)] * parts
    weights = seat_weights([*[score(0.1, 0.02)] * parts, *little])
    assert weights == [FULL] * parts + [floor(FULL * 1e-4)] * parts


def test_a_copy_without_margin_keeps_only_the_least_weight():
    assert seat_weights([score(0.1), score(0.1), score(0.1, 0.0), score(0.1, -0.5)])[2:] == [1, 1]


def test_references_are_upper_quartiles_over_gaining_seats():
    quartiles = [upper_quartile(range(1, n + 1)) for n in range(1, 9)]
    assert quartiles == [1, 2, 2, 3, 4, 5, 5, 6]
    assert upper_quartile([3, 1, 2]) == 2
    assert upper_quartile([]) is None
    weights = seat_weights([score(0.1, 0.01), score(0.2, 0.04), score(-0.1, 9.0), score(0.0, 9.0)])
    assert weights == [floor(FULL / 2 / 64), FULL, 0, 1]


def test_nobody_gaining_leaves_no_weight_above_1():
    assert seat_weights([score(0.0), score(-0.1), Score(-0.1, 0.06, 0.5), None]) == [1, 0, 1, 0]


@pytest.mark.parametrize("margin", [0.0, -0.01])
def test_a_reference_margin_that_is_not_positive_leaves_no_weight_above_1(margin):
    assert seat_weights([score(0.1, margin), score(0.2, margin), score(0.3, 0.5)]) == [1, 1, 1]


def test_only_a_surely_negative_gain_of_a_clean_update_gets_0():
    honest = [score(0.1), score(0.1)]
    assert seat_weights([*honest, Score(-0.1, 0.05, 0.02)])[2] == 1
    assert seat_weights([*honest, Score(-0.1, 0.0499, 0.02)])[2] == 0


def test_uncertain_gains_count_by_their_lower_bound():
    assert Score(0.1, 0.02, None).gain == pytest.approx(0.06)
    assert seat_weights([score(0.2), score(0.2), Score(0.14, 0.02, 0.02)])[2] == 32_767


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


@pytest.mark.parametrize("bad", [(nan, 0.1, 0.1), (0.1, inf, 0.1), (0.1, 0.1, -inf)])
def test_measurements_are_finite(bad):
    with pytest.raises(ValueError, match="not finite"):
        Score(*bad)


def test_in_a_trial_round_no_weight_exceeds_one():
    scores = [score(0.1), score(2.0, 1.0), None, Score(-0.1, 0.04, 0.5), Score(-0.1, 0.06, 0.5)]
    assert seat_weights(scores, trial=True) == [1, 1, 0, 0, 1]
