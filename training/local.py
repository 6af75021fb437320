"""DiLoCo without a chain: around your own training loop, or a whole run of N trainers in one process.

Both call the functions that a node calls, in the same order; updates are not scored, and all count the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from earnest.protocol.assignment import SamplePool
from earnest.protocol.recipe import CodecChoice, Outer, Recipe
from earnest.protocol.seed import fallback_seed
from earnest.protocol.step import clip_norm
from earnest.training.codecs import CodecState, Update, inner_steps, make_codec
from earnest.training.diloco.clip_and_aggregate import aggregate
from earnest.training.diloco.engine import CPU, Machine, TrainerState, train_round
from earnest.training.diloco.initial import initial_state
from earnest.training.diloco.outer_step import outer_step
from earnest.training.diloco.overlap import local_start
from earnest.training.diloco.state import Spec, State, read_parameters, write_parameters
from earnest.training.privacy import privacy_filter
from earnest.training.tasks.task import PrivateData, Task


class DiLoCo:
    """One trainer's side of DiLoCo, around a model and your own training loop.

        diloco = DiLoCo(model, steps=30, codec="topk-2bit")
        for inputs, targets in batches:
            loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            if diloco.step():                                # every 30th time
                diloco.apply(exchange(diloco.update()))      # bytes out, everybody's bytes in

    All trainers start from the same weights and apply the same payloads in the same order: then their models are
    bit-identical after every round, on any device. The caller transports the bytes: files, sockets, gloo.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        steps: int = 30,
        codec: str | CodecChoice = "dense-bf16",
        outer: Outer | None = None,
    ) -> None:
        if steps < 1:
            raise ValueError("a round has at least one step")
        self.model, self.steps, self.outer = model, steps, outer or Outer()
        self.base = State.start(read_parameters(model), 1.0)
        choice = codec if isinstance(codec, CodecChoice) else CodecChoice(codec)
        self.codec = make_codec(choice, self.base.spec)
        self._codec_state: CodecState = {}
        self._taken = 0

    def step(self) -> bool:
        """Counts one step of the optimizer; returns True if the round is over."""
        self._taken += 1
        return self._taken >= self.steps

    def update(self) -> bytes:
        """Encodes this trainer's update since the last exchange. Call it once a round: it advances error feedback."""
        local = read_parameters(self.model)
        gradient = {name: start - local[name] for name, start in self.base.parameters.items()}
        encoded = self.codec.encode(gradient, self._codec_state)
        self._codec_state = encoded.state
        return encoded.payload

    def apply(self, payloads: Sequence[bytes]) -> None:
        """Takes the outer step with all payloads, its own included, and starts the next round from the result.

        Raises PayloadError for a payload of another model or codec, ValueError for an empty list.
        """
        updates = [self.codec.decode(payload) for payload in payloads]
        self.base = _stepped(self.base, updates, self.outer, math.inf)
        write_parameters(self.model, self.base.parameters)
        self._taken = 0


@dataclass(frozen=True, eq=False)
class SimulatedRound:
    """One round of a simulated run: `state` after it; by trainer, first and last loss, and bytes sent."""

    number: int
    state: State
    losses: tuple[tuple[float, float], ...]
    payload_bytes: tuple[int, ...]
    report_loss: float
    """Mean loss of `state` on the task's report samples."""


def simulate(
    task: Task,
    recipe: Recipe,
    *,
    trainers: int,
    rounds: int,
    machine: Machine = CPU,
    private: Sequence[PrivateData] = (),
) -> Iterator[SimulatedRound]:
    """Simulates a run of honest trainers: assignment, codec, overlap, clipping, noise and outer step as in a run.

    `private`: each trainer's own data, for a recipe with private data. Raises ValueError if the pool is too small.
    """
    pool = recipe.sample_pool()
    pool.check(trainers)
    codec = make_codec(recipe.codec, Spec.of(read_parameters(task.build_model(recipe.seed))))
    trainer_states = [TrainerState() for _ in range(trainers)]
    pending: list[Update | None] = [None] * trainers
    filters = [
        privacy_filter(recipe.privacy, _secret(recipe, seat), b"simulated") for seat in range(trainers)
    ]
    states = [initial_state(task, recipe)]
    for number in range(rounds):
        base = states[-1] if recipe.overlap == "none" else states[max(0, len(states) - 2)]
        assigned = _assigned(pool, number, trainers)
        losses: list[tuple[float, float]] = []
        sizes: list[int] = []
        for seat, trainer_state in enumerate(trainer_states):
            ids = assigned[seat][: inner_steps(recipe, trainer_state.codec) * recipe.inner.batch]
            start = local_start(recipe, base, pending[seat])
            own = private[seat] if private else None
            local = train_round(
                task, recipe, start, ids, number, rounds, trainer_state, machine=machine, private=own
            )
            gradient = filters[seat](local.pseudo_gradient, number)
            encoded = codec.encode(gradient, trainer_state.codec)
            trainer_state.codec = encoded.state
            pending[seat] = encoded.update
            losses.append((local.losses[0], local.losses[-1]))
            sizes.append(len(encoded.payload))
        updates = [update for update in pending if update is not None]
        state = _stepped(states[-1], updates, recipe.outer, states[-1].clip_norm)
        norm = clip_norm([(update.norm, 1) for update in updates if update.norm > 0], state.clip_norm)
        states = [states[-1], replace(state, clip_norm=norm)]
        yield SimulatedRound(
            number, states[-1], tuple(losses), tuple(sizes), report_loss(task, recipe, states[-1])
        )


def report_loss(task: Task, recipe: Recipe, state: State) -> float:
    """Returns the mean loss on the task's report samples, nats per byte."""
    model = task.build_model(recipe.seed)
    write_parameters(model, state.parameters)
    model.eval()
    with torch.inference_mode():
        batches = task.batches("report", recipe.seed, task.report_ids, 64)
        return float(torch.cat([task.loss(model, batch) for batch in batches]).double().mean())


def _secret(recipe: Recipe, seat: int) -> bytes:
    """Returns a fixed secret for the noise, so that a simulation is repeatable."""
    return hashlib.sha256(recipe.hash() + bytes([seat % 256])).digest()


def _assigned(pool: SamplePool, number: int, trainers: int) -> dict[int, tuple[int, ...]]:
    return pool.assign(fallback_seed(1, number), range(trainers)).assigned


def _stepped(state: State, updates: Sequence[Update], outer: Outer, limit: float) -> State:
    """Takes the outer step with equal shares; updates of norm zero are ignored."""
    counted = [(seat, update) for seat, update in enumerate(updates) if update.norm > 0]
    if not updates:
        raise ValueError("no payload to apply")
    if not counted:
        return state
    shares = dict.fromkeys((seat for seat, _ in counted), 1 / len(counted))
    return outer_step(state, aggregate(counted, shares, limit, outer.aggregation), outer.lr, outer.momentum)
