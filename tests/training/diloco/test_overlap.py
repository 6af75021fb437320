"""Where a trainer starts a round whose predecessor is not settled yet."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from earnest.protocol.recipe import CodecChoice, Outer
from earnest.training.codecs import Update, make_codec
from earnest.training.diloco.clip_and_aggregate import aggregate
from earnest.training.diloco.engine import TrainerState, train_round
from earnest.training.diloco.outer_step import outer_step
from earnest.training.diloco.overlap import local_start
from earnest.training.diloco.state import State, to_bytes
from tests.training.diloco.test_engine import IDS, RECIPE, STATE, TASK, flat, mean_loss

EAGER = replace(RECIPE, overlap="eager", outer=Outer(0.4, 0.9))
BASE = replace(STATE, clip_norm=100.0)


def pending(scale: float = 1.0) -> Update:
    local = train_round(TASK, EAGER, BASE, IDS, 0, 4, TrainerState())
    gradient = {name: value * scale for name, value in local.pseudo_gradient.items()}
    return make_codec(CodecChoice(), BASE.spec).encode(gradient).update


@pytest.mark.parametrize("mode", ["none", "delayed", "eager"])
def test_without_an_update_of_its_own_everybody_starts_from_the_base(mode: str) -> None:
    assert local_start(replace(EAGER, overlap=mode), BASE, None) is BASE  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["none", "delayed"])
def test_only_an_eager_trainer_starts_ahead_of_the_base(mode: str) -> None:
    assert local_start(replace(EAGER, overlap=mode), BASE, pending()) is BASE  # type: ignore[arg-type]


def test_a_preview_is_the_outer_step_of_the_own_update_alone() -> None:
    before, update = to_bytes(BASE), pending()
    preview = local_start(EAGER, BASE, update)
    outer = EAGER.outer
    alone = aggregate([(5, update)], {5: 1.0}, BASE.clip_norm, outer.aggregation)
    assert to_bytes(preview) == to_bytes(outer_step(BASE, alone, outer.lr, outer.momentum))
    assert to_bytes(BASE) == before, "the canonical state is nobody's to change"
    assert mean_loss(preview) < mean_loss(BASE) - 0.1


def test_where_all_agree_the_preview_is_the_state_that_is_being_settled() -> None:
    update, outer = pending(), EAGER.outer
    everybody = aggregate([(0, update), (1, update)], {0: 0.5, 1: 0.5}, 100.0, outer.aggregation)
    settled = outer_step(BASE, everybody, outer.lr, outer.momentum)
    assert to_bytes(local_start(EAGER, BASE, update)) == to_bytes(settled)


def test_a_preview_goes_no_farther_than_the_clip_norm_lets_the_round() -> None:
    tight = replace(BASE, clip_norm=0.01)
    moved = flat(local_start(EAGER, tight, pending(50.0)).parameters) - flat(tight.parameters)
    assert moved.norm().item() == pytest.approx(0.01 * 0.4 * 1.9, rel=1e-3)


def test_an_update_contains_the_steps_and_not_the_preview() -> None:
    preview = local_start(EAGER, BASE, pending())
    local = train_round(TASK, EAGER, preview, range(200, 240), 1, 4, TrainerState())
    after = {name: value - local.pseudo_gradient[name] for name, value in preview.parameters.items()}
    trained = State(after, preview.momentum, preview.clip_norm)
    assert mean_loss(trained, range(200, 240)) < mean_loss(preview, range(200, 240)) - 0.05
    assert flat(local.pseudo_gradient).norm() < flat(BASE.parameters).norm()
    assert torch.isfinite(flat(local.pseudo_gradient)).all()
