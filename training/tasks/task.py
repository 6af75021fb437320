"""The plug-in interface of a model, its data and its loss. A recipe names a Task, `package.module:Class`."""

import importlib
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn, optim

from earnest.base.errors import EarnestError
from earnest.protocol.recipe import Inner
from earnest.training.diloco.optimizers import inner_optimizer

REFUSALS = (
    *(TypeError, ValueError, ArithmeticError, AttributeError, LookupError),
    *(OSError, RuntimeError, MemoryError),
)
"""Exceptions that a Task may raise for options that are invalid, name a missing file, or need too much memory."""

FOR_TASKS = frozenset({"EARNEST_TOKENS"})
"""Environment variables of ours that a task's process gets."""


class Batch(NamedTuple):
    """B sequences: `inputs` and `targets`, int64 [B, T] for a language model. Only the task's `loss` reads them."""

    inputs: Tensor
    targets: Tensor

    def to(self, device: str | torch.device) -> "Batch":
        return Batch(self.inputs.to(device), self.targets.to(device))


class Task(Protocol):
    """The plug-in interface. Subclass it explicitly: no other class is ever instantiated.

    Split "train" has the sample ids 0..pool_size-1, which the protocol assigns to trainers, and `warmup_ids`, which
    are used only by the warm-up. Split "report" is the fixed public test set; `report_ids` are its samples on which
    progress is reported.
    """

    pool_size: int
    warmup_ids: Sequence[int]
    report_ids: Sequence[int]

    @abstractmethod
    def build_model(self, seed: int) -> nn.Module:
        """Returns a new model. Everything learnt must be a float32 parameter: buffers are not part of a state."""

    @abstractmethod
    def batches(self, split: str, seed: int, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        """Yields the samples in the order given, `batch` at a time; the last batch may be smaller.

        `seed` determines anything random in a sample. Raises ValueError for an unknown split or id.
        """
        ...

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns float32 [B]: each sequence's mean loss, in nats per byte."""

    def optimizer(self, model: nn.Module, inner: Inner) -> optim.Optimizer:
        """Returns the inner optimizer, by default the recipe's. The engine sets the rate of each step."""
        return inner_optimizer(model, inner)


class PrivateData(Protocol):
    """Data that never leaves its trainer, for runs whose recipe says `data = "private"`."""

    root: bytes
    """32 bytes that commit to the data, in every manifest. Salt the hash: guesses of the data can be tested."""

    def batches(self, round: int, steps: int, batch: int) -> Iterator[Batch]:
        """Yields `steps` batches of `batch` samples: the same for the same round, also after a restart."""
        ...


class TaskError(EarnestError):
    """The recipe's task is not installed, is not a Task, or refuses its options."""


def load_task(dotted: str, options: Mapping[str, int | float | str | bool]) -> Task:
    """Returns the task that a recipe names. Raises TaskError.

    Recipes are written by strangers: a class that does not subclass Task is refused before it is called.
    """
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", dotted):
        raise TaskError(
            f"{dotted[:80]!r} is not a path like package.module:Class", "correct the recipe's task"
        )
    module, name = dotted.split(":")
    try:
        loaded = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise TaskError(
            f"task {dotted} cannot be imported: {error}",
            "install the package it is in, or put its folder on PYTHONPATH",
        ) from error
    if not (isinstance(loaded, type) and Task in loaded.__mro__):
        raise TaskError(
            f"{dotted} is not a Task", "name a class that subclasses earnest.training.tasks.task.Task"
        )
    try:
        return loaded(**options)
    except REFUSALS as error:
        reason = str(error) or type(error).__name__
        raise TaskError(f"task {dotted} refuses its options: {reason}", "correct task_options") from error


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for a process that runs a task: without our variables, except those in FOR_TASKS."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("EARNEST_") or name in FOR_TASKS
    }
