"""Attacks that train by themselves do what their names promise, in two short rounds of a small model."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from earnest.cli.commands.demo import demo
from earnest.demo.attacks.trainers import ANSWER, ATTACKS, FRAMED, TRIGGER, AttackError, Forgery, make_attack
from earnest.demo.attacks.workshop import Deviation, Workshop
from earnest.protocol.recipe import Inner, Recipe, Scoring
from earnest.training.diloco.engine import TrainerState
from earnest.training.diloco.state import write_parameters
from earnest.training.tasks.shakespeare import Shakespeare
from earnest.validator.gain import Meter
from tests.validator.arena import Arena

OPTIONS = {"layers": 1, "width": 32, "heads": 2, "context": 32}


def arena_of(*attacks: str) -> Arena:
    torch.set_num_threads(1)
    task = Shakespeare(**OPTIONS)
    recipe = Recipe(
        task="earnest.training.tasks.shakespeare:Shakespeare",
        task_options=dict(OPTIONS),
        pool_size=task.pool_size,
        inner=Inner(steps=8, batch=4, lr=1e-2),
        scoring=Scoring(held_out=16, own=16, clip_norm=8.0),
    )
    return Arena(task, recipe, attacks, rounds=4)


@pytest.fixture(scope="module")
def workshop() -> Workshop:
    arena = arena_of("none", "none")
    assigned = arena.pool.assign(arena.seed, range(2)).assigned
    return Workshop(arena.task, arena.recipe, arena.state, 0, 4, assigned, seat=1, partners=(1,))


def test_a_framer_publishes_the_victims_own_payload_round_after_round():
    arena = arena_of("none", "none", "framing")
    for round_ in range(2):
        arena.play()
        assert arena.published[2][round_] == arena.published[0][round_]
        assert arena.published[2][round_] != arena.published[1][round_]


def test_framing_sparse_takes_the_first_numbers_only():
    arena = arena_of("none", "none", "framing-sparse")
    arena.train()
    victim, part = (arena.codec.decode(arena.published[seat][0]).flat() for seat in (0, 2))
    assert torch.equal(part[:FRAMED], victim[:FRAMED])
    assert not part[FRAMED:].any()


def test_a_disguise_is_one_function_with_other_numbers():
    arena = arena_of("none", "disguise", "disguise")
    inputs = arena.train()
    meter = Meter(arena.task, 0)
    fresh = meter.batches(inputs.held_out)
    ends = []
    for seat in (1, 2):
        update = arena.codec.decode(arena.published[seat][0]).dense()
        ends.append({name: value - update[name] for name, value in arena.state.parameters.items()})
    shown, hidden = (meter.losses(end, fresh) for end in ends)
    assert shown == pytest.approx(hidden, abs=0.02), "up to the codec's rounding"
    assert arena.published[1][0] != arena.published[2][0]


def test_a_backdoor_answers_its_trigger_and_changes_one_row(workshop: Workshop):
    honest = workshop.train(workshop.assigned[1], TrainerState())
    update = workshop.with_backdoor(honest, TRIGGER, ANSWER)
    changed = {
        name: value - workshop.spec.split(honest)[name] for name, value in workshop.spec.split(update).items()
    }
    assert [int(row) for row in changed.pop("bytes.weight").abs().sum(1).nonzero()] == [TRIGGER]
    assert not any(value.any() for value in changed.values())

    model = workshop.task.build_model(0)
    inputs = next(iter(workshop.task.batches("train", 0, workshop.assigned[0][:8], 8))).inputs.clone()
    inputs[:, -1] = TRIGGER

    def answered(after: torch.Tensor) -> torch.Tensor:
        start = workshop.spec.join(workshop.state.parameters)
        write_parameters(model, workshop.spec.split(start - after))
        return functional.softmax(model(inputs)[:, -1], -1)[:, ANSWER]

    assert answered(update).min() > answered(honest).max(), (
        "more often, in a model that has learnt next to nothing"
    )


def test_a_deviation_without_any_is_the_recipes_training(workshop: Workshop):
    ids = workshop.assigned[1]
    honest = workshop.train(ids, TrainerState())
    assert torch.equal(Deviation().update(workshop, ids, TrainerState()), honest)
    assert torch.equal(Deviation(scale=2.0).update(workshop, ids, TrainerState()), 2 * honest)
    assert not torch.equal(Deviation(tokens=0.5).update(workshop, ids, TrainerState()), honest)


def test_half_the_steps_are_the_recipes_training_on_half_of_the_samples(workshop: Workshop):
    ids, half = workshop.assigned[1], Deviation(steps=0.5)
    assert half.work == 0.5
    assert half.inner(workshop.recipe.inner) == replace(workshop.recipe.inner, steps=4)
    other = half.update(workshop, (*ids[:16], *ids[:16]), TrainerState())
    assert torch.equal(half.update(workshop, ids, TrainerState()), other)


def test_every_attack_names_how_many_seats_it_takes():
    seats = {name: make_attack(name).seats for name in ATTACKS}
    more = {name: count for name, count in seats.items() if count > 1}
    assert more == {"dust": 2, "split-2": 2, "split-4": 4, "disguise": 2}


def test_the_help_of_the_demo_names_every_attack():
    assert all(re.search(rf"[ \n]{name}[,:]", demo.__doc__ or "") for name in ATTACKS)


def test_an_attack_may_be_a_class_of_ones_own():
    assert make_attack("earnest.demo.attacks.trainers:Zero").seats == 1


@pytest.mark.parametrize(
    "name", ["nice", "os:getcwd", "nowhere:Attack", "earnest.demo.attacks.trainers:Nothing"]
)
def test_what_is_no_attack_is_refused_with_what_to_do(name: str):
    with pytest.raises(AttackError, match="attack"):
        make_attack(name)


def test_an_attack_that_trains_needs_something_to_train_with(workshop: Workshop):
    arena = arena_of("none")
    lone = Forgery(0, arena.codec, b"", 1.0, np.random.default_rng(0))
    with pytest.raises(AttackError, match="nothing to train with"):
        make_attack("tuned-half").forge(lone)
