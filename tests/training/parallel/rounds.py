"""Recipes and comparisons for the parallel trainer's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from earnest.protocol.recipe import Inner, Recipe, Scoring
from earnest.training.diloco.engine import CPU, LocalRound, LocalTrainer, SingleProcess, TrainerState
from earnest.training.diloco.state import Parameters, Spec, State, read_parameters
from earnest.training.tasks.task import Task, load_task

INNER = Inner(steps=4, batch=8, lr=1e-2, lr_schedule="cosine", lr_warmup_steps=2)
GPT = {"layers": 4, "width": 32, "heads": 2, "context": 16}
IDS = range(100, 130)
"""Three batches of 8 and one of 6."""

ROUNDS = 3


def recipe_of(task: str, options: dict, inner: Inner = INNER) -> Recipe:
    loaded = load_task(task, options)
    return Recipe(
        task=task,
        pool_size=loaded.pool_size,
        task_options=options,
        seed=7,
        inner=inner,
        scoring=Scoring(held_out=2, own=2),
    )


def shakespeare(**inner: object) -> Recipe:
    return recipe_of("earnest.training.tasks.shakespeare:Shakespeare", GPT, replace(INNER, **inner))  # type: ignore[arg-type]


def chain(name: str = "Chain", **inner: object) -> Recipe:
    return recipe_of(f"tests.training.parallel.tasks:{name}", {"width": 8}, replace(INNER, **inner))  # type: ignore[arg-type]


def task_of(recipe: Recipe) -> Task:
    return load_task(recipe.task, recipe.task_options)


def start(recipe: Recipe) -> State:
    """An initial state with a momentum that is not zero."""
    parameters = read_parameters(task_of(recipe).build_model(recipe.seed))
    momentum = {name: value * 0.25 for name, value in parameters.items()}
    return State(parameters, momentum, 1.5)


def alone(recipe: Recipe, micro_batch: int = 0) -> SingleProcess:
    return SingleProcess(task_of(recipe), recipe, ROUNDS, replace(CPU, micro_batch=micro_batch))


def two_rounds(
    trainer: LocalTrainer, state: State, ids: Sequence[int] = IDS
) -> tuple[LocalRound, TrainerState]:
    """The second round, after a first whose inner optimizer it goes on with."""
    trainer_state = TrainerState()
    trainer.train(state, ids, 0, trainer_state)
    return trainer.train(state, ids, 1, trainer_state), trainer_state


def flat(parameters: Parameters) -> Tensor:
    return Spec.of(parameters).join(parameters)


def relative(found: LocalRound, wanted: LocalRound) -> float:
    """L2 norm of the difference of two updates, as a share of the wanted one's."""
    a, b = flat(found.pseudo_gradient), flat(wanted.pseudo_gradient)
    return float((a - b).norm() / b.norm())


def same_bits(found: LocalRound, wanted: LocalRound) -> bool:
    return torch.equal(flat(found.pseudo_gradient), flat(wanted.pseudo_gradient))


def same_state(found: TrainerState, wanted: TrainerState) -> bool:
    return found.to_bytes() == wanted.to_bytes()
