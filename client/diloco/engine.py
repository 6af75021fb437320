"""Local training: H inner steps from a shared state make a pseudo-gradient (DiLoCo, arXiv 2311.08105)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn, optim

from earnest.client.diloco.state import Parameters, State, read_parameters, write_parameters
from earnest.client.diloco.tensorfile import Entry, entries_of, read, write
from earnest.client.errors import EarnestError
from earnest.client.tasks.task import Batch, Task
from earnest.protocol.recipe import Inner, Recipe

COSINE_FLOOR = 0.1  # the last step's rate as a share of the first


class TrainingDiverged(EarnestError):
    """A local loss is no longer finite."""


@dataclass
class TrainerMemory:
    """What one trainer carries from round to round and nobody else needs.

    `inner`: the inner optimizer's tensors, `<parameter>/<name>`; `residual`: what error feedback still owes.
    Keeping the inner optimizer is a little better than starting it anew (`benchmarks/pilot.py --reset`).
    """

    inner: dict[str, Tensor] = field(default_factory=dict)
    residual: Parameters | None = None

    def to_bytes(self) -> bytes:
        """One canonical safetensors file, `inner/...` and `residual/...`."""
        tensors = {f"inner/{name}": value for name, value in self.inner.items()}
        tensors |= {f"residual/{name}": value for name, value in (self.residual or {}).items()}
        return write({Entry(name, "F32", tuple(t.shape)): t.numpy() for name, t in tensors.items()})

    @classmethod
    def from_bytes(cls, data: bytes) -> "TrainerMemory":
        """Raises PayloadError where `data` is not a canonical file of float32 tensors."""
        tensors = {
            name: torch.from_numpy(v.astype(np.float32)) for name, v in read(data, entries_of(data)).items()
        }
        residual = {name[9:]: v for name, v in tensors.items() if name.startswith("residual/")}
        return cls({n[6:]: v for n, v in tensors.items() if n.startswith("inner/")}, residual or None)


@dataclass(frozen=True, eq=False)
class LocalRound:
    """`pseudo_gradient` = base - local: it is subtracted, as a gradient is. `losses`: before each step."""

    pseudo_gradient: Parameters
    losses: list[float]
    steps: int
    tokens: int


def train_round(
    task: Task,
    recipe: Recipe,
    state: State,
    sample_ids: Sequence[int],
    round: int,
    rounds: int,
    memory: TrainerMemory,
    *,
    device: str = "cpu",
    threads: int = 1,
) -> LocalRound:
    """Train on `sample_ids`, in order, from `state`: H steps on H * batch ids, fewer on fewer.

    Deterministic in its arguments on one machine, the number of `threads` included: it changes the order of
    sums. It is the whole process's, and stays: putting it back would change it under another round in the
    process. Leaves the new inner optimizer state in `memory.inner`; the residual is the codec's to use and
    the caller's to store. Raises TrainingDiverged.
    """
    first, total = round * recipe.inner.steps, rounds * recipe.inner.steps
    torch.set_num_threads(threads)
    model = task.build_model(recipe.seed).to(device)
    write_parameters(model, state.parameters)
    optimizer = task.optimizer(model, recipe.inner)
    _restore(optimizer, model, memory.inner)
    losses, tokens = [], 0
    for step, batch in enumerate(task.batches("train", recipe.seed, sample_ids, recipe.inner.batch)):
        _set_rate(optimizer, learning_rate(recipe.inner, first + step, total))
        losses.append(_step(task, model, optimizer, batch.to(device), recipe.inner.clip))
        tokens += batch.targets.numel()
    local = read_parameters(model)
    memory.inner = _saved(optimizer, model)
    gradient = {name: base - local[name] for name, base in state.parameters.items()}
    return LocalRound(gradient, losses, len(losses), tokens)


def learning_rate(inner: Inner, step: int, total: int) -> float:
    """Rate of one of the run's `total` inner steps: constant, or half a cosine down to a tenth."""
    if inner.lr_schedule == "constant":
        return inner.lr
    fall = 0.5 * (1 + math.cos(math.pi * min(step / total, 1)))
    return inner.lr * (COSINE_FLOOR + (1 - COSINE_FLOOR) * fall)


def _step(task: Task, model: nn.Module, optimizer: optim.Optimizer, batch: Batch, clip: float) -> float:
    """One inner step; returns the batch's loss before it."""
    loss = task.loss(model, batch).mean()
    optimizer.zero_grad()
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    value = loss.item()
    if not math.isfinite(value):
        raise TrainingDiverged("the local loss is not finite", "lower the recipe's inner learning rate")
    return value


def _set_rate(optimizer: optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _saved(optimizer: optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.detach().to("cpu", torch.float32, copy=True)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def _restore(optimizer: optim.Optimizer, model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    names = dict(model.named_parameters())
    for key, value in saved.items():
        parameter, _, slot = key.rpartition("/")
        optimizer.state[names[parameter]][slot] = value.to(names[parameter].device, copy=True)
