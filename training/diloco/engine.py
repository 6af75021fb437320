"""Local training: H inner steps from a shared state give a pseudo-gradient (DiLoCo, arXiv 2311.08105)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn, optim

from earnest.base.errors import EarnestError
from earnest.protocol.recipe import Recipe
from earnest.training.diloco.checkpoint import Checkpoints, Progress
from earnest.training.diloco.optimizers import learning_rate, restore_state, saved_state, set_rate
from earnest.training.diloco.precision import Precision, choose_device
from earnest.training.diloco.state import Parameters, Spec, State, read_parameters, write_parameters
from earnest.training.diloco.tensorfile import Entry, entries_of, read, write
from earnest.training.tasks.task import Batch, PrivateData, Task, TaskError


class TrainingDiverged(EarnestError):
    """A local loss or gradient is no longer finite."""


class TrainingStopped(EarnestError):
    """Training was stopped inside the round because `stop()` returned true; a checkpoint may exist."""


@dataclass
class TrainerState:
    """One trainer's private state between rounds.

    `inner`: the inner optimizer's tensors, `<parameter>/<slot>`, and the loss scaler's; `codec`: the codec's state
    (error feedback, warm start, history). Keeping the inner optimizer is slightly better than a new one in every round
    (`benchmarks/pilot.py --reset`).
    """

    inner: dict[str, Tensor] = field(default_factory=dict)
    codec: dict[str, Tensor] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Returns one canonical safetensors file with `inner/...` and `codec/...`."""
        tensors = {f"inner/{name}": value for name, value in self.inner.items()}
        tensors |= {f"codec/{name}": value for name, value in self.codec.items()}
        return write({Entry(name, "F32", tuple(t.shape)): t.numpy() for name, t in tensors.items()})

    @classmethod
    def from_bytes(cls, data: bytes) -> TrainerState:
        """Reads `to_bytes`. Raises PayloadError unless `data` is a canonical file of float32 tensors."""
        tensors = {
            name: torch.from_numpy(v.astype(np.float32)) for name, v in read(data, entries_of(data)).items()
        }
        inner, codec = (
            {name[len(folder) :]: value for name, value in tensors.items() if name.startswith(folder)}
            for folder in ("inner/", "codec/")
        )
        return cls(inner, codec)


@dataclass(frozen=True)
class Machine:
    """Compute settings of one node. Not part of a run: other settings give the same update up to rounding."""

    device: str = "auto"
    """auto (CUDA, else MPS, else CPU) or the name of a device."""

    threads: int = 1
    """CPU threads. Their number changes the order of sums, and so the last bits of an update."""

    micro_batch: int = 0
    """Samples in memory at a time; their gradients are summed, in another order than the whole batch's. 0: all."""

    compile: str = ""
    """A backend of torch.compile, such as inductor; empty: not compiled. Fused operations round differently."""


CPU = Machine("cpu")


@dataclass(frozen=True, eq=False)
class LocalRound:
    """The result of a round's inner steps. `pseudo_gradient` = start - end. `losses`: before each step."""

    pseudo_gradient: Parameters
    losses: list[float]
    steps: int
    tokens: int


class LocalTrainer(Protocol):
    """Takes a round's inner steps: this process, or several processes under torchrun that act as one trainer."""

    def train(self, state: State, ids: Sequence[int], round: int, trainer_state: TrainerState) -> LocalRound:
        """Trains from `state` on `ids`, in order; stores the new optimizer state in `trainer_state.inner`."""
        ...


def never() -> bool:
    return False


@dataclass(frozen=True)
class SingleProcess:
    """The LocalTrainer of one process and one device; see `train_round`."""

    task: Task
    recipe: Recipe
    rounds: int
    machine: Machine = CPU
    private: PrivateData | None = None
    checkpoints: Checkpoints | None = None
    stop: Callable[[], bool] = never
    late: Callable[[], bool] = never

    def train(self, state: State, ids: Sequence[int], round: int, trainer_state: TrainerState) -> LocalRound:
        return train_round(
            self.task,
            self.recipe,
            state,
            ids,
            round,
            self.rounds,
            trainer_state,
            machine=self.machine,
            private=self.private,
            checkpoints=self.checkpoints,
            stop=self.stop,
            late=self.late,
        )


def train_round(
    task: Task,
    recipe: Recipe,
    state: State,
    sample_ids: Sequence[int],
    round: int,
    rounds: int,
    trainer_state: TrainerState,
    *,
    machine: Machine = CPU,
    private: PrivateData | None = None,
    checkpoints: Checkpoints | None = None,
    stop: Callable[[], bool] = never,
    late: Callable[[], bool] = never,
) -> LocalRound:
    """Trains on `sample_ids`, in order, from `state`: H steps on H * batch ids, fewer steps on fewer ids.

    With `private` data only the number of ids counts. The result is a function of the arguments on one machine,
    `machine.threads` included, which sets the threads of the whole process and is not reset: that would change them
    under another round in the process. Randomness in a step (dropout) follows from recipe, round and step; models that
    use it must train one at a time, because they share the process's generator.

    With `checkpoints` an interrupted round resumes, to the same bits. Once `late()` returns true the round ends after
    the current step.

    Stores the new inner optimizer state in `trainer_state.inner`; the codec uses `trainer_state.codec`, and the caller
    stores both. Raises TrainingDiverged, TrainingStopped (`stop()` returned true between two steps), DeviceError.
    """
    batch = recipe.inner.batch
    steps = math.ceil(len(sample_ids) / batch)
    rates = step_rates(recipe, round, rounds, steps)

    def batches(first_step: int) -> Iterator[Batch]:
        if private is None:
            return task.batches("train", recipe.seed, sample_ids[first_step * batch :], batch)
        return islice(private.batches(round, steps, batch), first_step, steps)

    torch.set_num_threads(machine.threads)
    loop = _InnerLoop(task, recipe, machine, rates, round)
    key = _key(recipe, state, sample_ids, round, rounds, trainer_state, private) if checkpoints else b""
    saved = checkpoints.load(key) if checkpoints else None
    progress = saved or Progress([], 0, state.parameters, trainer_state.inner)
    loop.restore(progress)
    for batch_of_samples in batches(progress.step):
        if loop.steps and late():
            break
        if stop():
            if checkpoints:
                checkpoints.save(key, loop.progress())
            raise TrainingStopped(
                f"training of round {round} was stopped after {loop.steps} steps", "start the node again"
            )
        loop.step(batch_of_samples)
        if checkpoints and loop.steps < steps and checkpoints.due(loop.steps):
            checkpoints.save(key, loop.progress())
    if not loop.steps:
        raise TaskError(f"the data gave no batch in round {round}", "check it with `earnest task check`")
    end = loop.progress()
    gradient = {name: start - end.parameters[name] for name, start in state.parameters.items()}
    if not all(torch.isfinite(value).all() for value in gradient.values()):
        raise _diverged("update")
    trainer_state.inner = end.inner
    return LocalRound(gradient, end.losses, end.step, end.tokens)


def warm_up(task: Task, recipe: Recipe, state: State, sample_ids: Sequence[int]) -> Parameters:
    """Returns the parameters after one step per batch of `sample_ids`, at the recipe's rate after its linear rise."""
    inner = replace(recipe.inner, lr_schedule="constant", round_schedule="constant")
    steps = math.ceil(len(sample_ids) / inner.batch)
    torch.set_num_threads(1)
    rates = [learning_rate(inner, step, steps) for step in range(steps)]
    loop = _InnerLoop(task, recipe, CPU, rates, -1)
    loop.restore(Progress([], 0, state.parameters, {}))
    for batch in task.batches("train", recipe.seed, sample_ids, inner.batch):
        loop.step(batch)
    return loop.progress().parameters


class _InnerLoop:
    """A model, its optimizer and its precision: `step` on one batch after the other."""

    def __init__(
        self, task: Task, recipe: Recipe, machine: Machine, rates: Sequence[float], round: int
    ) -> None:
        self._task, self._recipe, self._rates, self._round = task, recipe, rates, round
        self._micro = machine.micro_batch
        self._device = choose_device(machine.device)
        self._model = task.build_model(recipe.seed).to(self._device)
        self._forward: nn.Module = self._model
        if machine.compile:
            self._forward = torch.compile(self._model, backend=machine.compile)  # type: ignore[assignment]
        self._optimizer: optim.Optimizer = task.optimizer(self._model, recipe.inner)
        self._precision = Precision(self._device, recipe.inner.precision)
        self._losses: list[float] = []
        self._tokens = 0

    @property
    def steps(self) -> int:
        """Steps taken."""
        return len(self._losses)

    def restore(self, progress: Progress) -> None:
        """Overwrites model, optimizer, loss scaler, losses and tokens."""
        write_parameters(self._model, progress.parameters)
        inner = {name: value for name, value in progress.inner.items() if not name.startswith("scaler/")}
        restore_state(self._optimizer, self._model, inner)
        self._precision.restore(progress.inner)
        self._losses, self._tokens = list(progress.losses), progress.tokens

    def progress(self) -> Progress:
        """Returns a copy of all that `restore` needs."""
        inner = saved_state(self._optimizer, self._model) | self._precision.saved()
        return Progress(list(self._losses), self._tokens, read_parameters(self._model), inner)

    def step(self, batch: Batch) -> None:
        """Takes one inner step. Raises TrainingDiverged."""
        set_rate(self._optimizer, self._rates[self.steps])
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices, device_type="cuda"):
            torch.manual_seed(step_seed(self._recipe.seed, self._round, self.steps))
            loss = self._gradients(batch)
        clip = self._recipe.inner.clip
        norm = self._precision.step(self._optimizer, self._model.parameters(), clip)
        if not math.isfinite(loss):
            raise _diverged("loss")
        if norm is not None and not math.isfinite(norm):
            raise _diverged("gradient")
        self._losses.append(loss)
        self._tokens += batch.targets.numel()

    def _gradients(self, batch: Batch) -> float:
        """Computes the gradients of the batch's mean loss, one micro-batch at a time; returns that loss."""
        self._optimizer.zero_grad()
        samples, total = len(batch.targets), 0.0
        micro = self._micro or samples
        for first in range(0, samples, micro):
            part = Batch(*(tensor[first : first + micro] for tensor in batch)).to(self._device)
            with self._precision.forward():
                losses = self._task.loss(self._forward, part)
            loss = losses.mean() if len(losses) == samples else losses.sum() / samples
            self._precision.backward(loss)
            total += loss.item()
        return total


def step_rates(recipe: Recipe, round: int, rounds: int, steps: int) -> list[float]:
    """Returns the rate of each of a round's `steps` steps, spread evenly over the recipe's."""
    inner = recipe.inner
    first, total, stride = round * inner.steps, rounds * inner.steps, inner.steps / max(1, steps)
    return [learning_rate(inner, first + step * stride, total) for step in range(steps)]


def step_seed(seed: int, round: int, step: int) -> int:
    """Returns the seed of torch's generator for one step, in [0, 2^63); it does not depend on earlier steps."""
    digest = hashlib.sha256(f"step/{seed}/{round}/{step}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _key(
    recipe: Recipe,
    state: State,
    ids: Sequence[int],
    round: int,
    rounds: int,
    trainer_state: TrainerState,
    private: PrivateData | None,
) -> bytes:
    """Returns 32 bytes that identify all inputs of a round's training."""
    digest = hashlib.sha256(recipe.hash())
    digest.update(repr((round, rounds, len(ids), private and private.root)).encode())
    digest.update(np.asarray(ids, np.int64).tobytes())
    digest.update(Spec.of(state.parameters).join(state.parameters).numpy().tobytes())
    digest.update(hashlib.sha256(trainer_state.to_bytes()).digest())
    return digest.digest()


def _diverged(what: str) -> TrainingDiverged:
    return TrainingDiverged(f"the local {what} is not finite", "lower the recipe's inner learning rate")
