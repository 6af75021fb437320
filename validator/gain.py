"""Gain: measures what an update does to the loss, per sequence, on the newest state. Protocol section 7.

An update is measured as it will be applied: on the state that the round's aggregate is added to, clipped to the clip
norm, at half strength. (At full strength honest updates late in a run look harmful, measured.) All measurements are
forward passes of one model whose parameters are swapped in place. Sequences keep one fixed order and batching, so that
on one machine the same inputs give the same losses, whatever else is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earnest.training.tasks.task import Batch, Task

EVALUATION_BATCH = 32
"""Sequences in one forward pass: 16 to 64 run 1.5 times as fast as 256 on a CPU (measured)."""

WORST_LOSS = 1e3
"""Loss that replaces one that is NaN or infinite, in nats per byte."""

Parameters = Mapping[str, Tensor]
Losses = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Mean of per-sequence numbers, and its standard error: sample standard deviation / sqrt(count)."""

    mean: float
    se: float


def summarise(values: Losses) -> Summary:
    """Returns mean and standard error, float64. Raises ValueError for fewer than two values."""
    if values.size < 2:
        raise ValueError(f"{values.size} sequences are too few: a standard error needs 2")
    return Summary(float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size)))


class Meter:
    """Evaluates one model of the task under given parameters."""

    def __init__(self, task: Task, seed: int, split: str = "train", batch: int = EVALUATION_BATCH) -> None:
        self._task, self._split, self._batch = task, split, batch
        self._model = task.build_model(seed).eval()

    def batches(self, sample_ids: Sequence[int]) -> tuple[Batch, ...]:
        """Returns the sequences of `sample_ids`, in that order, for any number of calls of `losses`."""
        return tuple(self._task.batches(self._split, 0, sample_ids, self._batch))

    @torch.inference_mode()
    def losses(self, parameters: Parameters, batches: Iterable[Batch]) -> Losses:
        """Returns the mean loss of each sequence under `parameters`, nats per byte, float64 [sequences]."""
        for name, parameter in self._model.named_parameters():
            parameter.copy_(parameters[name])
        measured = [self._task.loss(self._model, batch) for batch in batches]
        losses = torch.cat(measured).double().numpy(force=True) if measured else np.empty(0)
        return np.nan_to_num(losses, nan=WORST_LOSS, posinf=WORST_LOSS, neginf=WORST_LOSS)


def applied(parameters: Parameters, update: Parameters, scale: float) -> dict[str, Tensor]:
    """Returns `parameters - scale * update` (a pseudo-gradient is subtracted); `scale` is rounded to float32 once."""
    factor = torch.tensor(scale, dtype=torch.float32)
    return {name: value - factor * update[name] for name, value in parameters.items()}


def mean_update(clipped: Iterable[tuple[Parameters, float]], count: int) -> dict[str, Tensor]:
    """Returns the mean of `count` updates, each with its clip factor: the control of a margin."""
    total: dict[str, Tensor] = {}
    for update, factor in clipped:
        share = torch.tensor(factor / count, dtype=torch.float32)
        for name, value in update.items():
            total[name] = total[name] + share * value if name in total else share * value
    return total
