"""Assignment of samples to trainers, and the held-out sample that judges them. Protocol section 6.

Every trainer works on an equal random part of the pool. Nobody can train on the samples that judge the round: the
held-out sample is drawn from ids that nobody was assigned, by a seed that is drawn when all updates are public.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from earnest.protocol.seed import ASSIGNMENT, HELD_OUT, shuffled, tagged

HELD_OUT_SETS = 8
"""Least remainder of a round, in held-out samples: B must not be known before it is drawn."""


@dataclass(frozen=True)
class RoundSamples:
    """Sample ids of one round. `assigned[seat]` is in training order, `remainder` ascending."""

    assigned: dict[int, tuple[int, ...]]
    remainder: tuple[int, ...]
    held_out_size: int

    def held_out(self, own_seed: bytes) -> tuple[int, ...]:
        """Returns B: the first |B| ids of the remainder, shuffled with the round's own seed, tagged."""
        return tuple(shuffled(self.remainder, tagged(own_seed, HELD_OUT), self.held_out_size))


@dataclass
class SamplePool:
    """Ids 0 .. size - 1, assigned in passes. `unassigned` is U: the rest of this pass, ascending.

    A late joiner replays `assign` over all rounds so far.
    """

    size: int
    per_seat: int
    """H * batch"""

    held_out: int
    """|B|"""

    unassigned: list[int] = field(default_factory=list[int])

    def check(self, trainer_limit: int) -> None:
        """Raises ValueError if the pool is too small for a run with that many trainers."""
        need = trainer_limit * self.per_seat + HELD_OUT_SETS * self.held_out
        if self.size < need:
            raise ValueError(
                f"a pool of {self.size} samples is too small: {trainer_limit} trainers * {self.per_seat}"
                f" + {HELD_OUT_SETS} * {self.held_out} held out = {need}"
            )

    def assign(self, seed: bytes, seats: Sequence[int]) -> RoundSamples:
        """Assigns consecutive blocks of the shuffled U to the seats, in ascending order, and removes them from U.

        `seats` are the trainer seats active at t0; `seed` is that of `Schedule.assignment_seed_round`, or
        the fallback. A new pass over the pool starts when U is too small for the seats and 8 times B. Raises
        ValueError if the pool is too small.
        """
        seats = sorted(seats)
        self.check(len(seats))
        taken = len(seats) * self.per_seat
        if len(self.unassigned) < taken + HELD_OUT_SETS * self.held_out:
            self.unassigned = list(range(self.size))
        drawn = shuffled(self.unassigned, tagged(seed, ASSIGNMENT), taken)
        assigned = set(drawn)
        self.unassigned = [i for i in self.unassigned if i not in assigned]
        blocks = {
            seat: tuple(drawn[k * self.per_seat : (k + 1) * self.per_seat]) for k, seat in enumerate(seats)
        }
        return RoundSamples(blocks, tuple(self.unassigned), self.held_out)
