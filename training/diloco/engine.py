"""Local training: H inner steps from a shared state make a pseudo-gradient (DiLoCo, arXiv 2311.08105)."""

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
    """The round was given up in the middle, because it was asked for; a checkpoint may lead on."""


@dataclass
class TrainerState:
    """What one trainer carries from round to round and nobody else needs.

    `inner`: the inner optimizer's tensors, `<parameter>/<name>`, and the loss scaler's; `codec`: the codec's own (error
    feedback, warm start, what it measured). Keeping the inner optimizer is a little better than starting it anew
    (`benchmarks/pilot.py --reset`).
    """

    inner: dict[str, Tensor] = field(default_factory=dict)
    codec: dict[str, Tensor] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """One canonical safetensors file, `inner/...` and `codec/...`."""
        tensors = {f"inner/{name}": value for name, value in self.inner.items()}
        tensors |= {f"codec/{name}": value for name, value in self.codec.items()}
        return write({Entry(name, "F32", tuple(t.shape)): t.numpy() for name, t in tensors.items()})

    @classmethod
    def from_bytes(cls, data: bytes) -> TrainerState:
        """Raises PayloadError where `data` is not a canonical file of float32 tensors."""
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
    """How one node computes. Nothing of it is the run's: other settings give the same update within rounding."""

    device: str = "auto"
    """auto: CUDA, else MPS, else the CPU; or a device's name."""

    threads: int = 1
    """CPU threads. They change the order of sums, and so the last bits of an update."""

    micro_batch: int = 0
    """Samples in memory at a time; their gradients are added up to the batch's, in another order. 0: all."""

    compile: str = ""
    """A backend of torch.compile, such as inductor; empty: not compiled. It fuses, and so rounds, differently."""


CPU = Machine("cpu")


@dataclass(frozen=True, eq=False)
class LocalRound:
    """`pseudo_gradient` = start - end: it is subtracted, as a gradient is. `losses`: before each step."""

    pseudo_gradient: Parameters
    losses: list[float]
    steps: int
    tokens: int


class LocalTrainer(Protocol):
    """Who does a round's inner steps: this process, or several under torchrun that act as one trainer."""

    def train(self, state: State, ids: Sequence[int], round: int, memory: TrainerState) -> LocalRound:
        """Train from `state`, on `ids` in order; leaves the new optimizer state in `memory.inner`."""
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

    def train(self, state: State, ids: Sequence[int], round: int, memory: TrainerState) -> LocalRound:
        return train_round(
            self.task,
            self.recipe,
            state,
            ids,
            round,
            self.rounds,
            memory,
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
    memory: TrainerState,
    *,
    machine: Machine = CPU,
    private: PrivateData | None = None,
    checkpoints: Checkpoints | None = None,
    stop: Callable[[], bool] = never,
    late: Callable[[], bool] = never,
) -> LocalRound:
    """Train on `sample_ids`, in order, from `state`: H steps on H * batch ids, fewer on fewer.

    With `private` data only the number of ids counts. Deterministic in its arguments on one machine, the number of
    threads included: they change the order of sums. They are the whole process's, and stay: putting them back would
    change them under another round in the process. What is random in a step (dropout) follows from recipe, round and
    step; models that draw must train one at a time in a process, whose generator they share.

    With `checkpoints` a round that was broken off goes on where it was, to the same bits. Once `late()` is true the
    round ends with the steps that it has, at least one.

    Leaves the new inner optimizer state in `memory.inner`; `memory.codec` is the codec's to use and the caller's to
    store. Raises TrainingDiverged, TrainingStopped (`stop()` came true between two steps), DeviceError.
    """
    batch = recipe.inner.batch
    steps = math.ceil(len(sample_ids) / batch)
    rates = step_rates(recipe, round, rounds, steps)

    def batches(done: int) -> Iterator[Batch]:
        if private is None:
            return task.batches("train", recipe.seed, sample_ids[done * batch :], batch)
        return islice(private.batches(round, steps, batch), done, steps)

    torch.set_num_threads(machine.threads)
    work = _Work(task, recipe, machine, rates, round)
    key = _key(recipe, state, sample_ids, round, rounds, memory, private) if checkpoints else b""
    found = checkpoints.load(key) if checkpoints else None
    progress = found or Progress([], 0, state.parameters, memory.inner)
    work.put(progress)
    for one in batches(progress.step):
        if work.step and late():
            break
        if stop():
            if checkpoints:
                checkpoints.save(key, work.taken())
            raise TrainingStopped(
                f"round {round} was given up after {work.step} steps", "start the node again"
            )
        work.take(one)
        if checkpoints and work.step < steps and checkpoints.due(work.step):
            checkpoints.save(key, work.taken())
    if not work.step:
        raise TaskError(f"the data gave no batch in round {round}", "check it with `earnest task check`")
    done = work.taken()
    gradient = {name: start - done.parameters[name] for name, start in state.parameters.items()}
    if not all(torch.isfinite(value).all() for value in gradient.values()):
        raise _diverged("update")
    memory.inner = done.inner
    return LocalRound(gradient, done.losses, done.step, done.tokens)


def warm_up(task: Task, recipe: Recipe, state: State, sample_ids: Sequence[int]) -> Parameters:
    """The parameters after one step per batch of `sample_ids`, at the recipe's rate once it has risen to it."""
    inner = replace(recipe.inner, lr_schedule="constant")
    steps = math.ceil(len(sample_ids) / inner.batch)
    torch.set_num_threads(1)
    work = _Work(task, recipe, CPU, [learning_rate(inner, step, steps) for step in range(steps)], -1)
    work.put(Progress([], 0, state.parameters, {}))
    for batch in task.batches("train", recipe.seed, sample_ids, inner.batch):
        work.take(batch)
    return work.taken().parameters


class _Work:
    """A model in training: `take` one batch after the other."""

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
    def step(self) -> int:
        """Steps taken."""
        return len(self._losses)

    def put(self, progress: Progress) -> None:
        """Goes to where `progress` was taken."""
        write_parameters(self._model, progress.parameters)
        inner = {name: value for name, value in progress.inner.items() if not name.startswith("scaler/")}
        restore_state(self._optimizer, self._model, inner)
        self._precision.restore(progress.inner)
        self._losses, self._tokens = list(progress.losses), progress.tokens

    def taken(self) -> Progress:
        """Copies of where it is."""
        inner = saved_state(self._optimizer, self._model) | self._precision.saved()
        return Progress(list(self._losses), self._tokens, read_parameters(self._model), inner)

    def take(self, batch: Batch) -> None:
        """One inner step. Raises TrainingDiverged."""
        set_rate(self._optimizer, self._rates[self.step])
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices, device_type="cuda"):
            torch.manual_seed(step_seed(self._recipe.seed, self._round, self.step))
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
        """Fills the gradients of the batch's mean loss, micro-batch by micro-batch; returns that loss."""
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
    """The rate of each of a round's `steps` steps, which are spread evenly over the recipe's."""
    inner = recipe.inner
    first, total, stride = round * inner.steps, rounds * inner.steps, inner.steps / max(1, steps)
    return [learning_rate(inner, first + step * stride, total) for step in range(steps)]


def step_seed(seed: int, round: int, step: int) -> int:
    """What torch's generator starts a step with, [0, 2^63): a step's randomness does not depend on the steps before."""
    digest = hashlib.sha256(f"step/{seed}/{round}/{step}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _key(
    recipe: Recipe,
    state: State,
    ids: Sequence[int],
    round: int,
    rounds: int,
    memory: TrainerState,
    private: PrivateData | None,
) -> bytes:
    """32 bytes that name all that a round's training follows from."""
    digest = hashlib.sha256(recipe.hash())
    digest.update(repr((round, rounds, len(ids), private and private.root)).encode())
    digest.update(np.asarray(ids, np.int64).tobytes())
    digest.update(Spec.of(state.parameters).join(state.parameters).numpy().tobytes())
    digest.update(hashlib.sha256(memory.to_bytes()).digest())
    return digest.digest()


def _diverged(what: str) -> TrainingDiverged:
    return TrainingDiverged(f"the local {what} is not finite", "lower the recipe's inner learning rate")
