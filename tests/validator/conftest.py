"""A small real run: a byte GPT of one layer on the plays, three honest rounds old where a test needs that."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from earnest.protocol.recipe import CodecChoice, Inner, Outer, Recipe, Scoring
from earnest.training.tasks.shakespeare import Shakespeare
from tests.validator.arena import Arena

OPTIONS = {"layers": 1, "width": 32, "heads": 2, "context": 32}


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def task() -> Shakespeare:
    return Shakespeare(**OPTIONS)


@pytest.fixture(scope="session")
def recipe(task: Shakespeare) -> Recipe:
    return Recipe(
        task="earnest.training.tasks.shakespeare:Shakespeare",
        task_options=dict(OPTIONS),
        pool_size=task.pool_size,
        seed=7,
        inner=Inner(steps=60, batch=8, lr=1e-2),
        scoring=Scoring(held_out=256, own=256, clip_norm=8.0, trial_rounds=0),
    )


@pytest.fixture(scope="session")
def _seasoned(task: Shakespeare, recipe: Recipe) -> Arena:
    arena = Arena(task, recipe, ["none"] * 4, rounds=8)
    for _ in range(3):
        arena.play()
    return arena


@pytest.fixture
def arena(_seasoned: Arena) -> Arena:
    """Four honest trainers after three rounds: late enough for margins to stand out of the noise."""
    return deepcopy(_seasoned)


@pytest.fixture(scope="session")
def _sparse(task: Shakespeare, recipe: Recipe) -> Arena:
    codec = CodecChoice("topk-2bit", k=64, error_feedback=0.5)
    outer = Outer(lr=0.7, momentum=0.0, aggregation="contributor-mean")
    scoring = replace(recipe.scoring, clip_norm=2.0)
    arena = Arena(
        task, replace(recipe, codec=codec, outer=outer, scoring=scoring, warmup_steps=60), ["none"] * 4, 8
    )
    arena.play()
    return arena


@pytest.fixture
def sparse(_sparse: Arena) -> Arena:
    """Four honest trainers with the sparse codec, from a warm start, after one round."""
    return deepcopy(_sparse)
