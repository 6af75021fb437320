"""A node's side of the protocol: the chain, storage, training, and the trainer node.

What a model of one's own needs is here by name, and imported only when it is used: torch takes seconds to load.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ != "earnest.client":  # one import path: docs/decisions/import-path.md
    raise ImportError("client is imported as earnest.client")


if TYPE_CHECKING:
    from earnest.client.diloco.engine import Machine
    from earnest.client.local import DiLoCo, SimulatedRound, simulate
    from earnest.client.tasks.own import PrivateBatches, recipe_for, task_of
    from earnest.client.tasks.task import Batch, Task, load_task
    from earnest.protocol.recipe import CodecChoice, Inner, Outer, Privacy, Recipe, Scoring

_HOMES = {
    "earnest.client.local": ("DiLoCo", "SimulatedRound", "simulate"),
    "earnest.client.tasks.own": ("PrivateBatches", "recipe_for", "task_of"),
    "earnest.client.tasks.task": ("Batch", "Task", "load_task"),
    "earnest.client.diloco.engine": ("Machine",),
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
