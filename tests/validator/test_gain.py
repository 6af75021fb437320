"""Gains are paired, repeatable and finite, on the state and at the strength that the protocol says."""

import numpy as np
import pytest
import torch

from earnest.training.tasks.shakespeare import Shakespeare
from earnest.validator.gain import WORST_LOSS, Meter, applied, mean_update, summarise
from tests.validator.arena import Arena

IDS = range(100, 180)


def test_losses_do_not_depend_on_earlier_measurements(arena: Arena, task: Shakespeare):
    meter = Meter(task, seed=0)
    batches = meter.batches(IDS)
    first = meter.losses(arena.state.parameters, batches)
    flipped = {name: -value for name, value in arena.state.parameters.items()}
    assert not np.array_equal(meter.losses(flipped, batches), first)
    assert np.array_equal(meter.losses(arena.state.parameters, batches), first)


def test_losses_are_those_of_each_sequence_in_the_order_asked(arena: Arena, task: Shakespeare):
    meter = Meter(task, seed=0)
    there = meter.losses(arena.state.parameters, meter.batches(IDS))
    back = meter.losses(arena.state.parameters, meter.batches(IDS[::-1]))
    assert there.dtype == np.float64
    assert len(there) == len(IDS)
    np.testing.assert_allclose(there, back[::-1], rtol=1e-5)


def test_measuring_leaves_the_state_as_it_is(arena: Arena, task: Shakespeare):
    before = {name: value.clone() for name, value in arena.state.parameters.items()}
    meter = Meter(task, seed=0)
    meter.losses(applied(arena.state.parameters, before, 0.5), meter.batches(IDS))
    assert all(torch.equal(value, before[name]) for name, value in arena.state.parameters.items())


def test_a_loss_that_is_no_number_is_the_worst_loss(arena: Arena, task: Shakespeare):
    meter = Meter(task, seed=0)
    broken = {name: torch.full_like(value, torch.nan) for name, value in arena.state.parameters.items()}
    assert (meter.losses(broken, meter.batches(IDS)) == WORST_LOSS).all()


def test_a_pseudo_gradient_is_subtracted():
    state, update = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([2.0, -4.0])}
    assert applied(state, update, 0.5)["w"].tolist() == [0.0, 4.0]


def test_the_mean_update_clips_each_before_it_adds_them():
    one, other = {"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 8.0])}
    assert mean_update([(one, 1.0), (other, 0.25)], 2)["w"].tolist() == [0.5, 1.0]


def test_a_summary_is_mean_and_standard_error():
    summary = summarise(np.array([1.0, 2.0, 3.0, 6.0]))
    assert summary.mean == 3.0
    assert summary.se == pytest.approx(np.sqrt(14 / 3 / 4))


def test_one_sequence_is_too_few_to_measure_on():
    with pytest.raises(ValueError, match="too few"):
        summarise(np.array([1.0]))
