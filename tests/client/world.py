"""The demo's world with a tiny model, for tests of the nodes. Worlds with the same chain are copies of one.

Deploying the contracts, opening a run and taking six seats costs ten seconds of computing, a copy a fraction of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from earnest.demo.world import Setup, World
from earnest.protocol.recipe import CodecChoice, Inner, Recipe, Scoring
from earnest.training.codecs import make_codec
from earnest.training.diloco.state import Spec, read_parameters
from earnest.training.tasks.shakespeare import Shakespeare
from earnest.validator.judge import judge_round

SEED = b"tests of the nodes"
OPTIONS: Mapping[str, int] = {"layers": 1, "width": 8, "heads": 1, "context": 8}
OVERLAP: Mapping[str, Any] = {"overlap": True, "commit_s": 3_000}

_folder = TemporaryDirectory(prefix="earnest-worlds-")
_templates: list[World] = []


def tiny_recipe(**changes: Any) -> Recipe:
    """A model of 2,000-odd parameters, two inner steps of four sequences, eight sequences to judge on."""
    task = Shakespeare(**OPTIONS)
    layout = Spec.of(read_parameters(task.build_model(0)))
    codec = CodecChoice("dense-bf16")
    recipe = Recipe(
        task="earnest.training.tasks.shakespeare:Shakespeare",
        task_options=dict(OPTIONS),
        pool_size=4_000,
        inner=Inner(steps=2, batch=4),
        codec=codec,
        scoring=Scoring(held_out=8, own=8, clip_norm=20.0, trial_rounds=0),
        max_payload_bytes=make_codec(codec, layout).payload_bytes,
    )
    return replace(recipe, **changes)


@contextmanager
def make_world(folder: Path, **changes: Any) -> Iterator[World]:
    """A world with its nodes started, closed at the end. `changes` to its setup: see `earnest.demo.world.Setup`."""
    base = Setup(tiny_recipe(), SEED, start_delay_s=10_000, outsiders=("stranger",))
    setup = replace(base, **changes)
    world = _template(setup).copy(folder, setup)
    try:
        world.start()
        yield world
    finally:
        world.close()


def _template(setup: Setup) -> World:
    """The world of this process with the same chain, before any node has started."""
    honest = ("none",) * len(setup.attacks)
    chain = replace(setup, attacks=honest, liars=0, idle=(), patience=0, judge=judge_round)
    for template in _templates:
        if template.setup == chain:
            return template
    template = World(Path(_folder.name) / str(len(_templates)), chain)
    template.close()
    _templates.append(template)
    return template
