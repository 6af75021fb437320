"""What a user plugs in: a model, its data and its loss. A recipe names it, `package.module:Class`."""

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
"""What a task raises for options that make no sense, name no file of this machine, or ask for more than it has."""

FOR_TASKS = frozenset({"EARNEST_TOKENS"})


class Batch(NamedTuple):
    """B sequences: `inputs` and `targets`, int64 [B, T] for a language model; `loss` is their only reader."""

    inputs: Tensor
    targets: Tensor

    def to(self, device: str | torch.device) -> "Batch":
        return Batch(self.inputs.to(device), self.targets.to(device))


class Task(Protocol):
    """The plug-in interface. Subclass it explicitly: no other class is ever instantiated.

    Split "train" has the sample ids 0..pool_size-1, which the protocol assigns, and `warmup_ids`, which it
    never does: the shared warm-up trains on them. Split "report" is the fixed public test set; `report_ids`
    is the part of it that progress is reported on.
    """

    pool_size: int
    warmup_ids: Sequence[int]
    report_ids: Sequence[int]

    @abstractmethod
    def build_model(self, seed: int) -> nn.Module:
        """A new model. What is learnt must be a float32 parameter: buffers are not part of a state."""

    @abstractmethod
    def batches(self, split: str, seed: int, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        """The samples in the order given, `batch` at a time, the last batch may be smaller.

        `seed` decides whatever is random about a sample. Raises ValueError for an unknown split or id.
        """
        ...

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Float32 [B]: each sequence's mean loss, in nats per byte."""

    def optimizer(self, model: nn.Module, inner: Inner) -> optim.Optimizer:
        """The inner optimizer at `inner.lr`; the engine sets the rate of each step. By default the recipe's."""
        return inner_optimizer(model, inner)


class PrivateData(Protocol):
    """Data that never leaves its trainer, for runs whose recipe says `data = "private"`."""

    root: bytes
    """32 bytes that commit to the data; they go into every manifest."""

    def batches(self, round: int, steps: int, batch: int) -> Iterator[Batch]:
        """`steps` batches of `batch` samples. The same round gives the same batches, also after a restart."""
        ...


class TaskError(EarnestError):
    """A recipe's task is not installed here, is not a Task, or refuses its options."""


def load_task(dotted: str, options: Mapping[str, int | float | str | bool]) -> Task:
    """Instantiate the task that a recipe names.

    Recipes come from strangers: a class that does not subclass Task is refused before it is called.
    Raises TaskError.
    """
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", dotted):
        raise TaskError(
            f"{dotted[:80]!r} is not a path like package.module:Class", "correct the recipe's task"
        )
    module, name = dotted.split(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise TaskError(
            f"task {dotted} cannot be imported: {error}",
            "install the package it is in, or put its folder on PYTHONPATH",
        ) from error
    if not (isinstance(found, type) and Task in found.__mro__):
        raise TaskError(
            f"{dotted} is not a Task", "name a class that subclasses earnest.training.tasks.task.Task"
        )
    try:
        return found(**options)
    except REFUSALS as error:
        told = str(error) or type(error).__name__
        raise TaskError(f"task {dotted} refuses its options: {told}", "correct task_options") from error


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that runs a task: of ours it needs where the tokens are, no password."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("EARNEST_") or name in FOR_TASKS
    }
