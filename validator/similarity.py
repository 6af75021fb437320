"""Is an update somebody else's? Protocol section 7: copied (verdict 5) and similar (verdict 7).

Only the later of two commitments, by (block, index), is ever the copy. Identical decoded updates are proof,
in this or the last 8 rounds, by any seat, the trainer's own included. Likeness is not proof and costs pay
only: where the codec is sparse, the overlap of index sets; else the cosine that is left once the mean
direction of the others is projected out, in two rounds. The raw cosine is never asked: honest updates of an
early round reach 0.97 (measured).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earnest.client.run.record import LogPosition
from earnest.protocol.recipe import Scoring
from earnest.training.codecs import Update

MEMORY_ROUNDS = 8
"""Rounds for which an update stays comparable."""


@dataclass(frozen=True)
class PastUpdate:
    """An update that lies open, of this round or of an earlier one; `root` is that of its payload."""

    round: int
    seat: int
    trainer: str
    position: LogPosition
    root: bytes
    update: Update


@dataclass(frozen=True)
class Likeness:
    """How much an update is like the earlier one it is most like: an overlap of indices, or a cosine."""

    value: float
    original: PastUpdate


def original_of(late: PastUpdate, others: Iterable[PastUpdate]) -> PastUpdate | None:
    """The earliest commitment whose decoded update is identical to that of `late`, if there is one."""
    same = (other for other in others if _before(other, late) and other.update.content == late.update.content)
    return min(same, key=lambda other: other.position, default=None)


def compare(current: Sequence[PastUpdate], earlier: Sequence[PastUpdate]) -> dict[int, Likeness]:
    """For each seat of this round the most alike update of another trainer that was committed before its own.

    Seats without anything to be compared with are left out. A trainer's own earlier updates are not asked: it
    may resemble itself, and a replay of itself shows in the margin.
    """
    if not current:
        return {}
    everyone = [*earlier, *current]
    if any(one.update.indices is not None for one in current):
        table = np.array([[index_overlap(a.update, b.update) for b in everyone] for a in current])
    else:
        table = residual_cosines([one.update for one in current], [one.update for one in earlier])
    found: dict[int, Likeness] = {}
    for row, late in zip(table, current, strict=True):
        rivals = [
            Likeness(float(value), other)
            for value, other in zip(row, everyone, strict=True)
            if other.trainer != late.trainer and _before(other, late)
        ]
        if rivals:
            found[late.seat] = max(rivals, key=lambda likeness: likeness.value)
    return found


def too_alike(late: PastUpdate, likeness: Likeness, scoring: Scoring) -> bool:
    """Whether a likeness is more than honest updates have. Cosines of round 0 say nothing and never are."""
    if late.update.indices is not None:
        return likeness.value >= scoring.overlap_similarity
    return late.round > 0 and likeness.value >= scoring.cosine_similarity


def remember(
    earlier: Mapping[str, tuple[int, ...]], trainers: Iterable[str], round_: int
) -> dict[str, tuple[int, ...]]:
    """By trainer the rounds, this one and the 8 before it, in which its update was too alike."""
    now = dict.fromkeys(trainers, (round_,))
    rounds = {
        trainer: tuple(r for r in earlier.get(trainer, ()) if r >= round_ - MEMORY_ROUNDS)
        + now.get(trainer, ())
        for trainer in sorted({*earlier, *now})
    }
    return {trainer: kept for trainer, kept in rounds.items() if kept}


def index_overlap(a: Update, b: Update) -> float:
    """Share of the smaller index set that the larger one has too, 0 to 1; 0 where either is dense.

    Only indices that carry a number count: a chunk where nothing changed names the same indices for everyone.
    """
    if a.indices is None or b.indices is None:
        return 0.0
    here, there = a.indices[a.bits != 0], b.indices[b.bits != 0]
    return np.intersect1d(here, there, assume_unique=True).size / max(1, min(len(here), len(there)))


def residual_cosines(current: Sequence[Update], earlier: Sequence[Update]) -> NDArray[np.float64]:
    """Cosines of each of this round's updates with `[*earlier, *current]` after the common part is taken out.

    float64 [current, earlier + current]. For row i, u is the mean direction of the round's other updates,
    each counted as far as it points the way of i: noise and turned updates would leave common parts in. Both
    sides lose their part along u. With directions x of unit length all follows from their inner products:

        u ~ sum_o max(0, x_i.x_o) x_o
        cos = (x_i.x_j - (x_i.u)(x_j.u)) / sqrt((1 - (x_i.u)^2) (1 - (x_j.u)^2))

    Where nothing points the way of i, or a side is nothing but u, there is no cosine to speak of: 0.
    """
    directions = torch.stack([_direction(update) for update in (*earlier, *current)])
    products = (directions @ directions.T).numpy()
    rows = range(len(earlier), len(products))
    cosines = np.zeros((len(current), len(products)))
    for row, i in zip(cosines, rows, strict=True):
        pull = np.array(
            [max(0.0, products[i, o]) if o in rows and o != i else 0.0 for o in range(len(products))]
        )
        length = np.sqrt(pull @ products @ pull)
        if length > 0:
            along = products @ pull / length
            left = np.clip(1 - along**2, 0, None)
            scale = np.sqrt(left * left[i])
            np.divide(products[i] - along * along[i], scale, out=row, where=scale > 1e-6)
    return cosines


def recent(published: Iterable[PastUpdate], round_: int) -> tuple[PastUpdate, ...]:
    """Those of the last 8 rounds before `round_`."""
    return tuple(one for one in published if round_ - MEMORY_ROUNDS <= one.round < round_)


def _before(other: PastUpdate, late: PastUpdate) -> bool:
    return other is not late and other.position < late.position


def _direction(update: Update) -> Tensor:
    """The update as one float64 vector of unit length, parameters in name order."""
    flat = update.flat().double()
    return flat / torch.linalg.vector_norm(flat)
