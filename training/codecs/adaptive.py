"""Adaptive codecs: k or rank chosen for each update (DiLoCoX, arXiv 2506.21263).

A round's measure is the smallest k (or rank) that keeps the recipe's share of the update's energy (its sum of
squares). The k (or rank) used is the mean measure of the last WINDOW rounds, this one included, within the recipe's
limits. The number of inner steps falls with it: H_t = H * r_t / r_1, where r_1 is the first round's.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from earnest.protocol.recipe import Recipe
from earnest.training.codecs.codec import CodecState, require
from earnest.training.codecs.update import BLOCK

WINDOW = 5
"""Rounds over which a measure is averaged."""


@dataclass(frozen=True)
class SizeLimits:
    """A recipe's limits of k or rank, and the share of energy to keep (0: not adaptive, always `most`)."""

    least: int
    most: int
    energy: float

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most or not 0 <= self.energy < 1:
            raise ValueError(
                f"an adaptive codec needs 1 <= least <= most and energy below 1, not {self.least} to {self.most}, "
                f"energy {self.energy}"
            )

    @property
    def adaptive(self) -> bool:
        return self.energy > 0

    def check(self, value: int, name: str) -> None:
        """Raises PayloadError for a k or rank outside the limits."""
        require(
            self.least <= value <= self.most,
            f"{name} is {value}, the recipe allows {self.least} to {self.most}",
        )


def energy(numbers: Tensor) -> float:
    """Returns the sum of squares. Not exact across machines: only the encoder uses it, to choose k or rank."""
    blocks = numbers.reshape(-1).split(BLOCK)
    return sum(torch.linalg.vector_norm(block, dtype=torch.float64).item() ** 2 for block in blocks)


def choose(
    limits: SizeLimits, energies: np.ndarray | None, state: CodecState | None
) -> tuple[int, CodecState]:
    """Returns the k or rank to use, and the history to keep in the codec's state.

    `energies` [most + 1]: those that k (or rank) 1, 2 .. `most` keep, then that of the whole update; None for a codec
    that is not adaptive.
    """
    if energies is None:
        return limits.most, {}
    enough = np.flatnonzero(energies[:-1] >= limits.energy * energies[-1])
    measure = float(min(max(enough[0] + 1 if len(enough) else limits.most, limits.least), limits.most))
    history = (state or {}).get("history", torch.tensor([measure]))
    history = torch.cat([history[:1], history[1:][1 - WINDOW :], torch.tensor([measure])])
    return min(max(math.ceil(_mean(history)), limits.least), limits.most), {"history": history}


def inner_steps(recipe: Recipe, state: CodecState | None) -> int:
    """Returns the inner steps of the trainer's next round: the recipe's, or fewer as the measure falls.

    `state`: the codec's state after the trainer's last round, None or {} before the first.
    """
    inner, history = recipe.inner, (state or {}).get("history")
    if not inner.steps_min or history is None:
        return inner.steps
    steps = round(inner.steps * _mean(history) / float(history[0]))
    return min(max(steps, inner.steps_min), inner.steps)


def _mean(history: Tensor) -> float:
    """Returns the mean of the last measures. `history`: the first round's, then those of the last WINDOW rounds."""
    return float(history[1:].double().mean())
