"""Similarity: compares an update with others of this and the last 8 rounds. Protocol section 7, verdicts 5 and 7.

Assignment, base state and arithmetic are public, so anyone can compute a trainer's update before its reveal and commit
it first. The order of commitments therefore proves something only where the later update could not be computed yet: an
update of an earlier round, whose state the later one is based on, or the trainer's own. An update identical to such a
one is a copy (verdict 5). Of similar or identical updates of one round, the one with the largest margin is kept.

Similarity is no proof and costs pay only. It is the overlap of index sets where the codec is sparse; otherwise the
cosine that remains after the mean direction of the others is projected out, and it has to be too large in two rounds.
The raw cosine is not used: honest updates of an early round reach 0.97 (measured).
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


def precedes(other: PastUpdate, late: PastUpdate, base_round: int) -> bool:
    """True if `other` was committed before `late` could be computed, or is an earlier one of the same trainer.

    `base_round` is the round whose state `late` is based on: its commitments precede that state.
    """
    return other.round <= base_round or (other.round < late.round and other.trainer == late.trainer)


def original_of(late: PastUpdate, others: Iterable[PastUpdate], base_round: int) -> PastUpdate | None:
    """Returns the first update identical to `late` that precedes it, or None."""
    same = [
        other
        for other in others
        if precedes(other, late, base_round) and other.update.content == late.update.content
    ]
    return min(same, key=lambda other: other.position, default=None)


def similarities(current: Sequence[PastUpdate], earlier: Sequence[PastUpdate]) -> NDArray[np.float64]:
    """Returns the similarity of each of this round's updates to each of `[*earlier, *current]`, -1 to 1."""
    everyone = [*earlier, *current]
    if any(past.update.indices is not None for past in current):
        table = [[index_overlap(a.update, b.update) for b in everyone] for a in current]
        return np.array(table).reshape(len(current), len(everyone))
    if not current:
        return np.zeros((0, len(everyone)))
    return residual_cosines([past.update for past in current], [past.update for past in earlier])


def most_like(
    current: Sequence[PastUpdate],
    earlier: Sequence[PastUpdate],
    table: NDArray[np.float64],
    base_round: int,
) -> dict[int, Likeness]:
    """Returns, by seat of this round, the most similar preceding update of another trainer.

    A seat without one is left out. A trainer's own earlier updates are not compared: it may resemble itself, and a
    replay has no margin.
    """
    likeness: dict[int, Likeness] = {}
    for row, late in zip(table, current, strict=True):
        rivals = [
            Likeness(float(value), other)
            for value, other in zip(row[: len(earlier)], earlier, strict=True)
            if other.trainer != late.trainer and precedes(other, late, base_round)
        ]
        if rivals:
            likeness[late.seat] = max(rivals, key=lambda rival: rival.value)
    return likeness


def outdone(
    current: Sequence[PastUpdate],
    table: NDArray[np.float64],
    margins: Mapping[int, float | None],
    scoring: Scoring,
) -> dict[int, Likeness]:
    """Returns the seats that are too similar to a seat of this round with a larger margin, and that seat's update.

    Seats are taken by falling margin; each is kept unless it is too similar to one already kept whose margin is
    positive: margins that are noise decide nothing. Without margins (private data, where nobody can compute
    another's update) and on a tie the earlier commitment is kept. `table` is that of `similarities` without its
    columns of earlier updates.
    """
    places = sorted(
        (place for place, past in enumerate(current) if past.seat in margins),
        key=lambda place: (-(margins[current[place].seat] or 0.0), current[place].position),
    )
    kept: list[int] = []

    def decides(place: int) -> bool:
        margin = margins[current[place].seat]
        return margin is None or margin > 0

    losers: dict[int, Likeness] = {}
    for place in places:
        late = current[place]
        rivals = [
            Likeness(_similarity(current, table, place, other), current[other])
            for other in kept
            if decides(other)
        ]
        nearest = max(rivals, key=lambda rival: rival.value, default=None)
        if nearest is not None and (identical(late, nearest.original) or too_alike(late, nearest, scoring)):
            losers[late.seat] = nearest
        else:
            kept.append(place)
    return losers


def _similarity(current: Sequence[PastUpdate], table: NDArray[np.float64], place: int, other: int) -> float:
    """Returns the similarity of two updates of a round, from whichever of the two it is larger; 1 if identical."""
    if identical(current[place], current[other]):
        return 1.0
    return float(max(table[place, other], table[other, place]))


def identical(one: PastUpdate, other: PastUpdate) -> bool:
    """True if two updates decode to the same numbers."""
    return one.update.content == other.update.content


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
        trainer: recent_rounds(earlier.get(trainer, ()), round_) + now.get(trainer, ())
        for trainer in sorted({*earlier, *now})
    }
    return {trainer: alike for trainer, alike in rounds.items() if alike}


def recent_rounds(rounds: Iterable[int], round_: int) -> tuple[int, ...]:
    """Returns those of `rounds` that are among the 8 before `round_`."""
    return tuple(r for r in rounds if r >= round_ - COMPARED_ROUNDS)


def index_overlap(a: Update, b: Update) -> float:
    """Returns the share of the larger index set that is in the smaller one too, 0 to 1; 0 if either is dense.

    So an update of a few indices of its own is similar to no other. Only indices with a number that is not zero count:
    a chunk where nothing changed has the same indices for everyone.
    """
    if a.indices is None or b.indices is None:
        return 0.0
    of_a = a.indices[a.bits != 0]
    of_b = b.indices[b.bits != 0]
    return np.intersect1d(of_a, of_b, assume_unique=True).size / max(1, len(of_a), len(of_b))


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


def _direction(update: Update) -> Tensor:
    """Returns the update as one float64 vector of unit length, parameters in name order."""
    flat = update.flat().double()
    return flat / torch.linalg.vector_norm(flat)
