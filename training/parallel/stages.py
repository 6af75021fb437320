"""Cutting a model into pipeline stages.

The rule. A task may offer `stages(model, n) -> list[nn.Module]`: n modules that hold the model's own parameters and,
called one after the other, compute what the model computes. Otherwise the model must be a chain: its children (lists
and sequences of modules expanded) called one after the other, each with the output of the one before; the chain is
cut where the count of parameters passes 1/n, 2/n, ... of the whole, every stage at least one module.

Either way one sample is put through both, and a cut that does not give the model's output bit for bit is refused.
A parameter that several stages hold (tied weights) belongs to the first of them: it is counted, encoded and saved
there; the others hold copies, whose gradients are added.
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
class Staged(Protocol):
    """What a Task offers beside its own interface if it knows how to cut its model."""

    def stages(self, model: nn.Module, n: int) -> list[nn.Module]: ...


@dataclass(frozen=True)
class Border:
    """What one stage hands to the next for one sample: `shape` without the batch's dimension, the first."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def example(self, samples: int) -> Tensor:
        """A tensor without data, for a microbatch of `samples`."""
        grad = self.dtype.is_floating_point
        return torch.empty((samples, *self.shape), dtype=self.dtype, device="meta", requires_grad=grad)


@dataclass(frozen=True, eq=False)
class Cut:
    """`modules[s]` is stage s; `borders[s]` is its input, `borders[s + 1]` its output.

    `holders`: for each parameter of the model, in the model's order, the stages that hold it, ascending.
    """

    modules: list[nn.Module]
    borders: list[Border]
    holders: dict[str, tuple[int, ...]]

    def held(self, stage: int) -> list[str]:
        """Names of the parameters in a stage, in the model's order."""
        return [name for name, stages in self.holders.items() if stage in stages]

    def owned(self, stage: int) -> list[str]:
        """Of those, the ones that belong to the stage."""
        return [name for name, stages in self.holders.items() if stages[0] == stage]

    def tied(self) -> list[str]:
        """Parameters in more than one stage, sorted: the order in which every process adds their gradients."""
        return sorted(name for name, stages in self.holders.items() if len(stages) > 1)


def cut(task: Task, model: nn.Module, n: int, sample: Batch) -> Cut:
    """Cuts `model` into `n` stages and proves it on `sample`. Raises LayoutError."""
    try:
        modules = task.stages(model, n) if isinstance(task, Staged) else cut_chain(model, n)
    except ValueError as error:
        raise LayoutError(f"the task has no {n} stages: {error}", "use fewer stages") from error
    if len(modules) != n:
        raise LayoutError(f"the task gave {len(modules)} stages for {n}", "correct the task's stages()")
    return Cut(modules, _borders(model, modules, sample), _holders(model, modules))


def cut_chain(model: nn.Module, n: int) -> list[nn.Module]:
    """Cuts a chain of modules by their numbers of parameters. Raises LayoutError."""
    links = [link for _, link in chain(model)]
    if len(links) < n:
        raise LayoutError(f"a chain of {len(links)} modules has no {n} stages", "use fewer stages")
    sizes = [sum(p.numel() for p in link.parameters()) for link in links]
    total, passed, ends = sum(sizes) or 1, 0, [0]
    for i, size in enumerate(sizes):
        passed += size
        stage = len(ends)  # the stage that is being filled, counted from 1
        must = len(links) - (i + 1) == n - stage  # as many modules left as stages
        if stage < n and (must or passed * n >= total * stage):
            ends.append(i + 1)
    return [nn.Sequential(*links[start:end]) for start, end in pairwise([*ends, len(links)])]


def chain(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The model's modules by name in the order of registration, lists and sequences expanded."""
    found: list[tuple[str, nn.Module]] = []
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            found += [(f"{name}.{inner}", module) for inner, module in chain(child)]
        else:
            found.append((name, child))
    return found


def _borders(model: nn.Module, modules: Sequence[nn.Module], sample: Batch) -> list[Border]:
    with torch.no_grad():
        expected = model(sample.inputs)
        x, borders = sample.inputs, [_border(sample.inputs)]
        for module in modules:
            x = module(x)
            if not (isinstance(x, Tensor) and x.dim() and len(x) == len(sample.inputs)):
                raise LayoutError(
                    "a stage's output is not one tensor with the batch as its first dimension",
                    "offer a stages() in the task whose stages hand over one tensor",
                )
            borders.append(_border(x))
    if not (isinstance(expected, Tensor) and torch.equal(x, expected)):
        raise LayoutError(
            "the stages one after the other do not compute what the model computes",
            "offer a stages() in the task: only a chain of modules can be cut without it",
        )
    return borders


def _border(x: Tensor) -> Border:
    return Border(tuple(x.shape[1:]), x.dtype)


def _holders(model: nn.Module, modules: Sequence[nn.Module]) -> dict[str, tuple[int, ...]]:
    sets = [{id(p) for p in module.parameters()} for module in modules]
    names = dict(model.named_parameters())
    holders = {name: tuple(s for s, held in enumerate(sets) if id(p) in held) for name, p in names.items()}
    left = [name for name, stages in holders.items() if not stages]
    strangers = set().union(*sets) - {id(p) for p in names.values()}
    if left or strangers:
        raise LayoutError(
            f"no stage holds {left[0]}" if left else "a stage holds a parameter that is not the model's",
            "correct the task's stages(): they share the model's own parameters, and leave none out",
        )
    return holders
