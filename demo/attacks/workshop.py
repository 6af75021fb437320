"""Training for attackers, from task, recipe, base state and everybody's assignment, all of which are public."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from earnest.protocol.recipe import Inner, Recipe
from earnest.training.diloco.engine import TrainerState, train_round
from earnest.training.diloco.state import Spec, State
from earnest.training.tasks.task import Batch, Task


@dataclass(frozen=True)
class Workshop:
    """One round as an attacker sees it before it commits."""

    task: Task
    recipe: Recipe
    state: State
    """The state that the round trains from."""

    round: int
    rounds: int
    assigned: Mapping[int, Sequence[int]]
    """Sample ids by seat."""

    seat: int
    partners: tuple[int, ...]
    """All seats that the attacker plays, its own included."""

    @property
    def victim(self) -> int:
        """The lowest seat that the attacker does not play."""
        return min(seat for seat in self.assigned if seat not in self.partners)

    @property
    def spec(self) -> Spec:
        return self.state.spec

    def train(
        self,
        ids: Sequence[int],
        optimizer: TrainerState,
        inner: Inner | None = None,
        task: Task | None = None,
    ) -> Tensor:
        """Returns the pseudo-gradient, float32 [size], of a local round on `ids`; `optimizer` is updated."""
        scoring = replace(self.recipe.scoring, own=2)  # must not exceed the samples of a short round
        recipe = replace(self.recipe, inner=inner or self.recipe.inner, scoring=scoring)
        local = train_round(task or self.task, recipe, self.state, ids, self.round, self.rounds, optimizer)
        return self.spec.join(local.pseudo_gradient)

    def reordered(self, update: Tensor, rng: np.random.Generator, swaps: int) -> Tensor:
        """Returns the update to the same trained function, with `swaps` pairs of hidden units in each layer swapped."""
        start = self.state.parameters
        end = {name: start[name] - change for name, change in self.spec.split(update).items()}
        for name in [name for name in end if name.endswith(".up.weight")]:
            down = name.replace(".up.", ".down.")
            order = np.arange(len(end[name]))
            pairs = rng.permutation(len(order))[: 2 * swaps]
            order[pairs] = order[np.roll(pairs, swaps)]
            end[name], end[down] = end[name][order], end[down][:, order]
        return self.spec.join({name: start[name] - value for name, value in end.items()})

    def with_backdoor(
        self, update: Tensor, trigger: int, answer: int, steps: int = 40, rate: float = 0.05
    ) -> Tensor:
        """Returns the update, float32 [size], after training one row of the embedding for `steps` steps.

        It is the row of byte `trigger`, trained so that the model follows this byte with byte `answer`.
        """
        start = self.state.parameters
        end = {name: start[name] - change for name, change in self.spec.split(update).items()}
        model = self.task.build_model(self.recipe.seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(end[name])
        row = end[EMBEDDING][trigger].clone().requires_grad_()
        optimizer = optim.Adam([row], rate)
        ids = self.assigned[self.seat][:64]
        batch = next(iter(self.task.batches("train", self.recipe.seed, ids, len(ids))))
        inputs = batch.inputs.clone()
        inputs[:, -1] = trigger
        for _ in range(steps):
            table = end[EMBEDDING].clone()
            table[trigger] = row
            logits = torch.func.functional_call(model, {**end, EMBEDDING: table}, (inputs,))[:, -1]
            loss = functional.cross_entropy(logits, torch.full((len(ids),), answer))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        end[EMBEDDING] = end[EMBEDDING].clone()
        end[EMBEDDING][trigger] = row.detach()
        return self.spec.join({name: start[name] - value for name, value in end.items()})


EMBEDDING = "bytes.weight"


@dataclass(frozen=True)
class Deviation:
    """Local training other than the recipe's: shares of its steps, batch, tokens and rate, and a scale of the update.

    With more steps than the samples last for, the samples are used again.
    """

    steps: float = 1.0
    batch: float = 1.0
    tokens: float = 1.0
    """Share of every sequence that is trained on, from its start."""

    rate: float = 1.0
    shape: Literal["recipe", "constant", "decay", "linear"] = "recipe"
    """Rate inside the round."""

    scale: float = 1.0

    @property
    def work(self) -> float:
        """Compute as a share of the recipe's."""
        return self.steps * self.batch * self.tokens

    def inner(self, recipe: Inner) -> Inner:
        """Returns the local settings that deviate from `recipe` in this way."""
        return replace(
            recipe,
            steps=max(1, round(recipe.steps * self.steps)),
            steps_min=0,
            batch=max(1, round(recipe.batch * self.batch)),
            lr=recipe.lr * self.rate,
            round_schedule=recipe.round_schedule if self.shape == "recipe" else self.shape,
        )

    def update(self, shop: Workshop, ids: Sequence[int], optimizer: TrainerState) -> Tensor:
        """Returns the update, float32 [size], trained on (the first of) `ids` in this way."""
        inner = self.inner(shop.recipe.inner)
        needed = inner.steps * inner.batch
        used = [ids[place % len(ids)] for place in range(needed)]
        task = shop.task if self.tokens == 1 else Shortened(shop.task, self.tokens)
        return self.scale * shop.train(used, optimizer, inner, task)


class Shortened(Task):
    """The task `task`, with only the first `share` of each sequence."""

    def __init__(self, task: Task, share: float) -> None:
        self._task, self._share = task, share
        self.pool_size, self.warmup_ids, self.report_ids = task.pool_size, task.warmup_ids, task.report_ids

    def build_model(self, seed: int) -> nn.Module:
        return self._task.build_model(seed)

    def batches(self, split: str, seed: int, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        for whole in self._task.batches(split, seed, sample_ids, batch):
            length = max(1, round(whole.inputs.shape[1] * self._share))
            yield Batch(whole.inputs[:, :length], whole.targets[:, :length])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._task.loss(model, batch)

    def optimizer(self, model: nn.Module, inner: Inner) -> optim.Optimizer:
        return self._task.optimizer(model, inner)
