"""The margin asks for work on the trainer's own data; the control removes what all updates share, ranks the scale."""

import numpy as np
import pytest

from earnest.validator.margin import margin

OWN = np.array([0.5, 0.7, 0.6, 0.8])
FRESH = np.array([0.3, 0.1, 0.2, 0.2])
NOTHING = np.zeros(4)


def test_margin_is_the_chance_that_an_own_sequence_gains_more_beyond_one_half():
    assert margin(OWN, NOTHING, FRESH, NOTHING).excess == 0.5
    three_of_four = np.array([0.5, 0.7, 0.6, 0.0])
    assert margin(three_of_four, NOTHING, FRESH, NOTHING).excess == 0.25
    assert margin(OWN, NOTHING, FRESH, NOTHING).se == pytest.approx(np.sqrt(9 / (12 * 16)))


def test_ties_count_half():
    assert margin(np.array([0.2, 0.2]), NOTHING[:2], FRESH, NOTHING).excess == (1 + 2 / 2) / 4 - 0.5


def test_a_gain_that_the_control_has_too_is_no_margin():
    """The mean update of the others gains as much on the same sequences: noise and all, nothing is left."""
    assert margin(OWN, OWN, FRESH, FRESH).excess == 0


def test_the_control_takes_out_noise_that_sequences_bring():
    hard = np.array([0.0, 5.0, -5.0, 9.0])
    assert margin(OWN + hard, hard, FRESH + hard[::-1], hard[::-1]).excess == 0.5
    assert margin(OWN + hard, NOTHING, FRESH + hard[::-1], NOTHING).excess < 0.2


def test_gaining_on_fresh_data_only_is_a_negative_margin():
    assert margin(FRESH, NOTHING, OWN, NOTHING).excess == -0.5


def test_a_larger_scale_changes_nothing():
    rng = np.random.default_rng(0)
    own, fresh = rng.normal(0.01, 0.1, 64), rng.normal(0, 0.1, 64)
    zeros = np.zeros(64)
    assert margin(3 * own, zeros, 3 * fresh, zeros) == margin(own, zeros, fresh, zeros)


def test_the_standard_error_is_the_spread_of_margins_without_work():
    rng = np.random.default_rng(1)
    zeros = np.zeros(50)
    drawn = [margin(rng.standard_cauchy(50), zeros, rng.standard_cauchy(50), zeros) for _ in range(400)]
    spread = np.std([one.excess for one in drawn])
    assert spread == pytest.approx(drawn[0].se, rel=0.15), "whatever the distribution"


def test_one_sequence_is_too_few():
    with pytest.raises(ValueError, match="needs 2 of each"):
        margin(OWN[:1], NOTHING[:1], FRESH, NOTHING)
