"""DiLoCo training without a chain: the engine, codecs, states and tasks that a torch user imports.

Names are imported on first use, because torch takes seconds to load.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ != "earnest.training":  # one import path: docs/decisions/import-path.md
    raise ImportError("training is imported as earnest.training")


if TYPE_CHECKING:
    from earnest.protocol.recipe import CodecChoice, Inner, Outer, Privacy, Recipe, Scoring
    from earnest.training.diloco.engine import Machine
    from earnest.training.local import DiLoCo, SimulatedRound, simulate
    from earnest.training.tasks.own import PrivateBatches, recipe_for, task_of
    from earnest.training.tasks.task import Batch, Task, load_task

_HOMES = {
    "earnest.training.local": ("DiLoCo", "SimulatedRound", "simulate"),
    "earnest.training.tasks.own": ("PrivateBatches", "recipe_for", "task_of"),
    "earnest.training.tasks.task": ("Batch", "Task", "load_task"),
    "earnest.training.diloco.engine": ("Machine",),
    "earnest.protocol.recipe": ("CodecChoice", "Inner", "Outer", "Privacy", "Recipe", "Scoring"),
}

__all__ = [
    "Batch",
    "CodecChoice",
    "DiLoCo",
    "Inner",
    "Machine",
    "Outer",
    "Privacy",
    "PrivateBatches",
    "Recipe",
    "Scoring",
    "SimulatedRound",
    "Task",
    "load_task",
    "recipe_for",
    "simulate",
    "task_of",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
