"""Weights from measurements. Protocol section 7.

```
g = mean − 2 se of the gains on the held-out sample         ĝ upper quartile over the seats with g > 0
m = margin in this round                                    m̂ upper quartile over the seats with g > 0
M = sum of m / sum of m̂ over the trainer's last 4 rounds     u = fractional part of 8 mean / se of the gains
w = floor(65535 * clamp(g / ĝ, 0, 1) * clamp(M / 0.9, 0, 1)³ * (1 − u / 4))
```

Copies, replays and idlers have no margin. Its third power makes splitting one machine over many seats a loss. The upper
quartile keeps seats that do little, up to half of all, from lowering the reference to themselves; with three seats or
more, no single one can raise it. Margins of one round are noisy, and a third power makes noise of it: four rounds
decide together, each beside its own reference. A clean update gets weight 0 only if its gain is surely negative, or
late training would stall.

u is a digit that only a measurement of this round tells. Validators are paid for agreement, and without it a weight at
its upper limit could be guessed: on the demo's model 44 % of the weights are within 2 % of it, with u 11 %. A trainer
cannot choose u, since B is drawn after its commitment; over rounds all lose the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, fsum, isfinite

from earnest.protocol.constants import WEIGHT_ONE

POOLED_ROUNDS = 4
"""Rounds whose margins decide a weight, the judged one included."""

FULL_SHARE = 0.9
"""Share of the reference from which a margin counts in full."""

DIGIT_SHARE = 0.25
"""The most that the digit u takes from a weight."""

TRIAL_WEIGHT = 128
"""The largest weight in a trial round, of 65,535; the digit takes up to half of it."""


@dataclass(frozen=True)
class Margin:
    """The chance that an own sequence gains more than a fresh one, less 1/2, and the standard error of it."""

    excess: float
    se: float

    @property
    def lower(self) -> float:
        """The excess less one standard error."""
        return self.excess - self.se


@dataclass(frozen=True)
class PastMargin:
    """The margin (its excess) of one trainer in an earlier round, beside that round's reference m̂ > 0."""

    round: int
    excess: float
    reference: float


@dataclass(frozen=True)
class Score:
    """Measurements of one update; gains are in nats per byte."""

    gain_mean: float
    gain_se: float
    margin: Margin | None
    """None on private data: the factor is then 1."""

    past: tuple[PastMargin, ...] = ()
    """Margins of the same trainer in the last POOLED_ROUNDS - 1 rounds, where it was measured."""

    def __post_init__(self) -> None:
        margin = self.margin or Margin(0.0, 0.0)
        if not all(map(isfinite, (self.gain_mean, self.gain_se, margin.excess, margin.se))):
            raise ValueError(f"not finite: {self}")

    @property
    def gain(self) -> float:
        """g: the lower bound of the gain."""
        return self.gain_mean - 2 * self.gain_se

    @property
    def surely_negative(self) -> bool:
        """True if the upper bound of the gain is below 0."""
        return self.gain_mean + 2 * self.gain_se < 0

    @property
    def digit(self) -> float:
        """u: the fractional part of 8 mean / se, which nobody knows without measuring; 0 if all gains are equal."""
        steps = 8 * self.gain_mean / self.gain_se if self.gain_se else 0.0
        return steps % 1.0 if isfinite(steps) else 0.0


def upper_quartile(values: Sequence[float]) -> float | None:
    """Returns the value of rank 3/4 (n - 1), rounded, a half down; None for no values."""
    return sorted(values)[(3 * len(values) - 2) // 4] if values else None


def reference_margin(scores: Sequence[Score | None]) -> float | None:
    """Returns m̂, the upper quartile of the margins of the seats that gain; None if none of them has a margin.

    It is 0 where it does not exceed one standard error: then nobody's work shows.
    """
    gaining = [score for score in scores if score is not None and score.gain > 0]
    margins = [score.margin for score in gaining if score.margin is not None]
    lowest = upper_quartile([margin.lower for margin in margins])
    return (
        0.0 if lowest is not None and lowest <= 0 else upper_quartile([margin.excess for margin in margins])
    )


def seat_weights(scores: Sequence[Score | None], *, trial: bool = False) -> list[int]:
    """Returns every seat's weight, 0 to 65,535; None stands for a seat whose verdict is not `ACCEPTED` (weight 0).

    A weight is at most TRIAL_WEIGHT (of 65,535) in a trial round: in a new model even an update with its sign flipped
    lowers the loss. It is at most 1 if no seat has a positive gain g, or if the reference margin is 0.
    """
    if trial:
        return [_trial_weight(score) for score in scores]
    gain = upper_quartile([score.gain for score in scores if score is not None and score.gain > 0])
    margin = reference_margin(scores)
    return [0 if score is None else _weight(score, gain, margin) for score in scores]


def _trial_weight(score: Score | None) -> int:
    if score is None or score.surely_negative:
        return 0
    return TRIAL_WEIGHT - floor(TRIAL_WEIGHT / 2 * score.digit)


def _weight(score: Score, full_gain: float | None, reference: float | None) -> int:
    least = 0 if score.surely_negative else 1
    if full_gain is None or reference == 0:
        return least
    gain_factor = min(1.0, max(0.0, score.gain / full_gain))
    told = 1 - DIGIT_SHARE * score.digit
    return max(least, floor(WEIGHT_ONE * gain_factor * _margin_factor(score, reference) * told))


def _margin_factor(score: Score, reference: float | None) -> float:
    if score.margin is None or reference is None:
        return 1.0
    pooled = fsum([score.margin.excess, *(past.excess for past in score.past)])
    full = fsum([reference, *(past.reference for past in score.past)]) * FULL_SHARE
    ratio = min(1.0, max(0.0, pooled / full))
    return ratio * ratio * ratio
