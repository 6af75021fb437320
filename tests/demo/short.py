"""A demo with a fraction of its training and judging, for tests that are not about how well it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from earnest.demo import options
from earnest.protocol.recipe import Recipe
from earnest.training.tasks.shakespeare import demo_recipe


def short_recipe(codec: str, trainers: int, seed: int) -> Recipe:
    """The demo's recipe with ten steps of batch 8 a round."""
    recipe = demo_recipe(codec, trainers, seed)
    scoring = replace(recipe.scoring, held_out=recipe.scoring.held_out // 3, own=64)
    return replace(recipe, inner=replace(recipe.inner, steps=10, batch=8), scoring=scoring)


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every demo of this test train by `short_recipe`."""
    monkeypatch.setattr(options, "demo_recipe", short_recipe)
