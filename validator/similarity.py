"""Similarity: compares an update with others of this and the last 8 rounds. Protocol section 7, verdicts 5 and 7.

Of two commitments only the later one, by (block, log index), can be the copy. An identical decoded update is proof, of
any seat, the trainer's own included. Likeness is no proof and costs pay only. It is the overlap of index sets where the
codec is sparse; otherwise the cosine that remains after the mean direction of the others is projected out, and it has
to be too large in two rounds. The raw cosine is not used: honest updates of an early round reach 0.97 (measured).
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

COMPARED_ROUNDS = 8
"""Earlier rounds whose updates a later one is compared with."""


@dataclass(frozen=True)
class PastUpdate:
    """A public update, of this round or of an earlier one; `root` is that of its payload."""

    round: int
    seat: int
    trainer: str
    position: LogPosition
    root: bytes
    update: Update


@dataclass(frozen=True)
class Likeness:
    """The other update that an update is most like, and how much: an overlap of index sets, or a cosine."""

    value: float
    original: PastUpdate


def original_of(late: PastUpdate, others: Iterable[PastUpdate]) -> PastUpdate | None:
    """Returns the earliest commitment before `late` whose decoded update is identical, or None."""
    same = (other for other in others if _before(other, late) and other.update.content == late.update.content)
    return min(same, key=lambda other: other.position, default=None)


def compare(current: Sequence[PastUpdate], earlier: Sequence[PastUpdate]) -> dict[int, Likeness]:
    """Returns, by seat of this round, the most similar update of another trainer that was committed earlier.

    A seat without an earlier commitment of others is left out. A trainer's own earlier updates are not compared: it may
    resemble itself, and a replay has no margin.
    """
    if not current:
        return {}
    everyone = [*earlier, *current]
    if any(one.update.indices is not None for one in current):
        table = np.array([[index_overlap(a.update, b.update) for b in everyone] for a in current])
    else:
        table = residual_cosines([one.update for one in current], [one.update for one in earlier])
    most_like: dict[int, Likeness] = {}
    for row, late in zip(table, current, strict=True):
        rivals = [
            Likeness(float(value), other)
            for value, other in zip(row, everyone, strict=True)
            if other.trainer != late.trainer and _before(other, late)
        ]
        if rivals:
            most_like[late.seat] = max(rivals, key=lambda likeness: likeness.value)
    return most_like


def too_alike(late: PastUpdate, likeness: Likeness, scoring: Scoring) -> bool:
    """True if a likeness is larger than honest updates have. Cosines of round 0 are ignored: they say nothing."""
    if late.update.indices is not None:
        return likeness.value >= scoring.overlap_similarity
    return late.round > 0 and likeness.value >= scoring.cosine_similarity


def remember(
    earlier: Mapping[str, tuple[int, ...]], trainers: Iterable[str], round_: int
) -> dict[str, tuple[int, ...]]:
    """Returns, by trainer, the rounds in which its update was too alike: of this round and the 8 before it."""
    now = dict.fromkeys(trainers, (round_,))
    rounds = {
        trainer: tuple(r for r in earlier.get(trainer, ()) if r >= round_ - COMPARED_ROUNDS)
        + now.get(trainer, ())
        for trainer in sorted({*earlier, *now})
    }
    return {trainer: alike for trainer, alike in rounds.items() if alike}


def index_overlap(a: Update, b: Update) -> float:
    """Returns the share of the smaller index set that is in the larger one too, 0 to 1; 0 if either is dense.

    Only indices that carry a number count: a chunk where nothing changed has the same indices for everyone.
    """
    if a.indices is None or b.indices is None:
        return 0.0
    of_a = a.indices[a.bits != 0]
    of_b = b.indices[b.bits != 0]
    return np.intersect1d(of_a, of_b, assume_unique=True).size / max(1, min(len(of_a), len(of_b)))


def residual_cosines(current: Sequence[Update], earlier: Sequence[Update]) -> NDArray[np.float64]:
    """Returns the cosines of this round's updates with `[*earlier, *current]` after projecting out the common part.

    float64 [current, earlier + current]. For row i, u is the mean direction of the round's other updates, each weighted
    by max(0, its cosine with i): noise and updates turned around would leave common parts in. Both sides lose their
    component along u. With directions x of unit length, inner products are enough:

        u ~ sum_o max(0, x_i.x_o) x_o
        cos = (x_i.x_j - (x_i.u)(x_j.u)) / sqrt((1 - (x_i.u)^2) (1 - (x_j.u)^2))

    The cosine is 0 if no other update has a positive cosine with i, or if nothing of a side remains without u.
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


def recent(updates: Iterable[PastUpdate], round_: int) -> tuple[PastUpdate, ...]:
    """Returns the updates of the 8 rounds before `round_`."""
    return tuple(one for one in updates if round_ - COMPARED_ROUNDS <= one.round < round_)


def _before(other: PastUpdate, late: PastUpdate) -> bool:
    return other is not late and other.position < late.position


def _direction(update: Update) -> Tensor:
    """Returns the update as one float64 vector of unit length, parameters in name order."""
    flat = update.flat().double()
    return flat / torch.linalg.vector_norm(flat)
