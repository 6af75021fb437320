"""Splits a model into pipeline stages.

A task may implement `stages(model, n) -> list[nn.Module]`: n modules that share the model's parameters and, called one
after the other, compute what the model computes. Otherwise the model must be a chain: its children (lists and sequences
of modules expanded) are called one after the other, each with the output of the one before. The chain is split where
the number of parameters passes 1/n, 2/n, ... of all; every stage has at least one module.

Either way one sample is computed by both, and a split that does not give the model's output bit for bit is refused. A
parameter in several stages (tied weights) belongs to the first of them, which reports it; the gradients of all are
added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from earnest.training.parallel.layout import LayoutError
from earnest.training.tasks.task import Batch, Task


@runtime_checkable
class HasStages(Protocol):
    """The optional method of a Task that splits its own model."""

    def stages(self, model: nn.Module, n: int) -> list[nn.Module]: ...


@dataclass(frozen=True)
class Boundary:
    """The tensor between two stages, for one sample: `shape` without the batch dimension, which is the first."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def example(self, samples: int) -> Tensor:
        """Returns a tensor without data, for a microbatch of `samples`."""
        grad = self.dtype.is_floating_point
        return torch.empty((samples, *self.shape), dtype=self.dtype, device="meta", requires_grad=grad)


@dataclass(frozen=True, eq=False)
class PipelineSplit:
    """A model split into stages: `modules[s]` is stage s, `boundaries[s]` its input, `boundaries[s + 1]` its output.

    `holders`: for each parameter of the model, in the model's order, the stages that hold it, ascending.
    """

    modules: list[nn.Module]
    boundaries: list[Boundary]
    holders: dict[str, tuple[int, ...]]

    def names(self, stage: int) -> list[str]:
        """Returns the names of the parameters in a stage, in the model's order."""
        return [name for name, stages in self.holders.items() if stage in stages]

    def owned(self, stage: int) -> list[str]:
        """Returns the names of the parameters that belong to the stage."""
        return [name for name, stages in self.holders.items() if stages[0] == stage]

    def tied(self) -> list[str]:
        """Returns the parameters in several stages, sorted: the order in which every worker sums their gradients."""
        return sorted(name for name, stages in self.holders.items() if len(stages) > 1)


def split_model(task: Task, model: nn.Module, n: int, sample: Batch) -> PipelineSplit:
    """Splits `model` into `n` stages and checks the split on `sample`. Raises LayoutError."""
    try:
        modules = task.stages(model, n) if isinstance(task, HasStages) else split_chain(model, n)
    except ValueError as error:
        raise LayoutError(f"the task cannot make {n} stages: {error}", "use fewer stages") from error
    if len(modules) != n:
        raise LayoutError(
            f"the task made {len(modules)} stages, {n} are needed", "correct the task's stages()"
        )
    return PipelineSplit(modules, _boundaries(model, modules, sample), _holders(model, modules))


def split_chain(model: nn.Module, n: int) -> list[nn.Module]:
    """Splits a chain of modules by their numbers of parameters. Raises LayoutError."""
    links = [link for _, link in chain(model)]
    if len(links) < n:
        raise LayoutError(f"a chain of {len(links)} modules cannot make {n} stages", "use fewer stages")
    sizes = [sum(p.numel() for p in link.parameters()) for link in links]
    total, passed, ends = sum(sizes) or 1, 0, [0]
    for i, size in enumerate(sizes):
        passed += size
        stage = len(ends)  # the stage that is being filled, counted from 1
        one_each = len(links) - (i + 1) == n - stage  # as many modules left as stages
        if stage < n and (one_each or passed * n >= total * stage):
            ends.append(i + 1)
    return [nn.Sequential(*links[start:end]) for start, end in pairwise([*ends, len(links)])]


def chain(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Returns the model's modules by name in the order of registration, lists and sequences expanded."""
    links: list[tuple[str, nn.Module]] = []
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            links += [(f"{name}.{inner}", module) for inner, module in chain(child)]
        else:
            links.append((name, child))
    return links


def _boundaries(model: nn.Module, modules: Sequence[nn.Module], sample: Batch) -> list[Boundary]:
    with torch.no_grad():
        expected = model(sample.inputs)
        x, boundaries = sample.inputs, [_boundary(sample.inputs)]
        for module in modules:
            x = module(x)
            if not (isinstance(x, Tensor) and x.dim() and len(x) == len(sample.inputs)):
                raise LayoutError(
                    "a stage's output is not one tensor with the batch as its first dimension",
                    "implement stages() in the task, with stages that return one tensor",
                )
            boundaries.append(_boundary(x))
    if not (isinstance(expected, Tensor) and torch.equal(x, expected)):
        raise LayoutError(
            "the stages one after the other do not compute what the model computes",
            "implement stages() in the task: without it only a chain of modules can be split",
        )
    return boundaries


def _boundary(x: Tensor) -> Boundary:
    return Boundary(tuple(x.shape[1:]), x.dtype)


def _holders(model: nn.Module, modules: Sequence[nn.Module]) -> dict[str, tuple[int, ...]]:
    sets = [{id(p) for p in module.parameters()} for module in modules]
    names = dict(model.named_parameters())
    holders = {name: tuple(s for s, ids in enumerate(sets) if id(p) in ids) for name, p in names.items()}
    missing = [name for name, stages in holders.items() if not stages]
    foreign = set().union(*sets) - {id(p) for p in names.values()}
    if missing or foreign:
        raise LayoutError(
            f"no stage has {missing[0]}" if missing else "a stage has a parameter that is not the model's",
            "correct the task's stages(): stages share the model's own parameters, all of them",
        )
    return holders
