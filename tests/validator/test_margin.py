"""The margin asks for work on the trainer's own data, and the control removes what all updates share."""

import numpy as np
import pytest

from earnest.validator.margin import margin

OWN = np.array([0.5, 0.7, 0.6, 0.8])
FRESH = np.array([0.3, 0.1, 0.2, 0.2])
NOTHING = np.zeros(4)


def test_margin_is_the_difference_of_means_less_one_standard_error():
    error = np.sqrt(OWN.var(ddof=1) / 4 + FRESH.var(ddof=1) / 4)
    assert margin(OWN, NOTHING, FRESH, NOTHING) == pytest.approx(0.65 - 0.2 - error)


def test_a_gain_that_the_control_has_too_is_no_margin():
    """The mean update of the others gains as much on the same sequences: noise and all, nothing is left."""
    assert margin(OWN, OWN, FRESH, FRESH) == 0


def test_the_control_takes_out_noise_that_sequences_bring():
    hard = np.array([0.0, 5.0, -5.0, 9.0])
    assert margin(OWN + hard, hard, FRESH + hard[::-1], hard[::-1]) > 0
    assert margin(OWN + hard, NOTHING, FRESH + hard[::-1], NOTHING) < 0


def test_gaining_on_fresh_data_only_is_a_negative_margin():
    assert margin(FRESH, NOTHING, OWN, NOTHING) < 0
