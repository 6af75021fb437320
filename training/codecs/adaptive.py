"""How much of an update is sent, where the recipe leaves it to the update (DiLoCoX, arXiv 2506.21263).

A round's measure is the smallest k (or rank) that keeps the recipe's share of the update's energy, its sum of
squares. What is sent is the mean measure of the last WINDOW rounds, this one included, within the recipe's
limits. As it falls against the first round's, so do the inner steps: H_t = H * r_t / r_1.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from earnest.protocol.recipe import Recipe
from earnest.training.codecs.codec import CodecMemory, require
from earnest.training.codecs.update import BLOCK

WINDOW = 5
"""Rounds over which a measure is averaged."""


@dataclass(frozen=True)
class Choice:
    """A recipe's limits of k or rank; the share of energy to keep, 0 where `most` is always sent."""

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
        """Raises PayloadError for a value outside the limits."""
        require(
            self.least <= value <= self.most,
            f"{name} is {value}, the recipe allows {self.least} to {self.most}",
        )


def energy(numbers: Tensor) -> float:
    """Sum of squares, for the encoder's choice only: a block at a time, in the machine's own order."""
    blocks = numbers.reshape(-1).split(BLOCK)
    return sum(torch.linalg.vector_norm(block, dtype=torch.float64).item() ** 2 for block in blocks)


def choose(choice: Choice, kept: np.ndarray | None, memory: CodecMemory | None) -> tuple[int, CodecMemory]:
    """What to send, and the history to remember with it.

    `kept` [most + 1]: the energy that 1, 2 .. `most` keep, then that of the whole update; None where nothing
    is to be chosen.
    """
    if kept is None:
        return choice.most, {}
    enough = np.flatnonzero(kept[:-1] >= choice.energy * kept[-1])
    measure = float(min(max(enough[0] + 1 if len(enough) else choice.most, choice.least), choice.most))
    history = (memory or {}).get("history", torch.tensor([measure]))
    history = torch.cat([history[:1], history[1:][1 - WINDOW :], torch.tensor([measure])])
    return min(max(math.ceil(_mean(history)), choice.least), choice.most), {"history": history}


def inner_steps(recipe: Recipe, memory: CodecMemory | None) -> int:
    """Inner steps of the trainer's next round: the recipe's, or fewer as the measure falls.

    `memory` is what the codec left in the last round the trainer worked in, None or {} before the first.
    """
    inner, history = recipe.inner, (memory or {}).get("history")
    if not inner.steps_min or history is None:
        return inner.steps
    steps = round(inner.steps * _mean(history) / float(history[0]))
    return min(max(steps, inner.steps_min), inner.steps)


def _mean(history: Tensor) -> float:
    """Mean of the last measures; `history` is the first round's, then those of the last WINDOW rounds."""
    return float(history[1:].double().mean())
