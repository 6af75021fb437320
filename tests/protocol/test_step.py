import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.step import clip_factor, clip_norm, least_divisor, shares

updates = st.lists(st.tuples(st.floats(0.001, 1e6), st.integers(0, 65_535)), max_size=40)


def test_shares_follow_the_consensus():
    assert shares([0, 1, 3, 0]) == {1: 0.25, 2: 0.75}
    assert shares([0, 0]) == shares([]) == {}


@given(st.lists(st.integers(0, 65_535), max_size=256))
def test_shares_sum_to_1_or_nobody_counts(consensus):
    assert sum(shares(consensus).values()) == pytest.approx(1 if any(consensus) else 0)


@given(updates)
def test_clip_norm_splits_the_weight_but_never_falls_below_half(counted):
    norm = clip_norm(counted, 7.0)
    total = sum(c for _, c in counted)
    if total == 0:
        assert norm == 7.0
        return
    assert 2 * sum(c for n, c in counted if n <= norm) >= total
    assert norm == 3.5 or 2 * sum(c for n, c in counted if n < norm) < total
    assert norm >= 3.5


def test_clip_norm_is_the_lower_median():
    assert clip_norm([(3.0, 1), (1.0, 1), (2.0, 1)], 3.0) == 2.0
    assert clip_norm([(3.0, 1), (1.0, 1), (2.0, 1), (4.0, 1)], 1.0) == 2.0


def test_a_crowd_of_tiny_updates_clips_nobody():
    assert clip_norm([(1e-9, 1)] * 100 + [(1.0, 65_535)], 1.5) == 1.0


def test_tiny_updates_of_equal_weight_halve_the_clip_norm_at_most():
    assert clip_norm([(1e-9, 1), (1e-9, 1), (1.0, 1), (1.0, 1)], 1.0) == 0.5


def test_the_least_divisor_is_half_of_an_equal_share():
    assert least_divisor(4) == 0.125


def test_round_0_clips_to_the_recipes_norm():
    assert clip_norm([], 2.5) == 2.5


def test_updates_are_clipped_never_stretched():
    assert clip_factor(4.0, 1.0) == 0.25
    assert clip_factor(1.0, 1.0) == clip_factor(0.5, 1.0) == 1.0


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan")])
def test_norm_0_is_malformed(norm):
    with pytest.raises(ValueError, match="malformed"):
        clip_factor(norm, 1.0)
