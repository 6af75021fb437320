"""A trainer that is killed: `python -m tests.training.diloco.killed FOLDER POINT STEP`.

Trains one round of a model with dropout, with a checkpoint after every second step, and kills itself with SIGKILL in
step STEP: at POINT `loss` in the middle of the step, at `rename` with the checkpoint's new file written and not yet in
place. At `end` it lives, and prints the digest of its update, its memory and the steps that it took itself.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from earnest.protocol.recipe import Inner, Recipe, Scoring
from earnest.training.diloco.checkpoint import Checkpoints
from earnest.training.diloco.engine import CPU, TrainerState, train_round
from earnest.training.diloco.initial import initial_state
from earnest.training.tasks.task import Batch, Task

STEPS = 7


class Forgetful(Task):
    """Eight letters, to be said again, through a layer that forgets a fifth of what it hears."""

    pool_size = 1_000
    warmup_ids: Sequence[int] = ()
    report_ids: Sequence[int] = ()

    def __init__(self) -> None:
        self.seen = 0
        self.fatal = -1

    def build_model(self, seed: int) -> nn.Module:
        generator = torch.Generator().manual_seed(seed)
        model = nn.Sequential(
            nn.Embedding(8, 12), nn.Linear(12, 12), nn.Dropout(0.2), nn.GELU(), nn.Linear(12, 8)
        )
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)
        return model

    def batches(self, split: str, seed: int, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        for first in range(0, len(sample_ids), batch):
            ids = torch.tensor(sample_ids[first : first + batch])
            letters = (ids[:, None] * 7 + torch.arange(6)) % 8
            yield Batch(letters, letters)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.seen == self.fatal:
            die()
        self.seen += 1
        losses = nn.functional.cross_entropy(
            model(batch.inputs).flatten(0, 1).float(), batch.targets.flatten(), reduction="none"
        )
        return losses.view(batch.targets.shape).mean(1)


RECIPE = Recipe(
    task="tests.training.diloco.killed:Forgetful",
    pool_size=1_000,
    seed=3,
    inner=Inner(STEPS, batch=4, optimizer="muon", lr=1e-2, lr_schedule="cosine", precision="fp16"),
    scoring=Scoring(held_out=2, own=2),
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, point: str, step: int, **inner: Any) -> tuple[str, int]:
    """The digest of the update and of what the trainer remembers, and the steps that this call took."""
    task, recipe = Forgetful(), replace(RECIPE, inner=replace(RECIPE.inner, **inner))
    state = initial_state(task, recipe)
    checkpoints = Checkpoints(folder / "checkpoint", every_steps=2, every_s=1e9, clock=lambda: 0.0)
    if point == "loss":
        task.fatal = step
    if point == "rename":
        move = os.replace

        def replaced(source: Any, target: Any) -> None:
            die() if task.seen == step else move(source, target)

        os.replace = replaced  # type: ignore[assignment]
    memory = TrainerState()
    ids = range(100, 100 + STEPS * 4)
    local = train_round(task, recipe, state, ids, 2, 4, memory, machine=CPU, checkpoints=checkpoints)
    digest = hashlib.sha256(memory.to_bytes())
    for name in sorted(local.pseudo_gradient):
        digest.update(local.pseudo_gradient[name].numpy().tobytes())
    digest.update(repr((local.losses, local.steps, local.tokens)).encode())
    return digest.hexdigest(), task.seen


if __name__ == "__main__":
    print(*train(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
