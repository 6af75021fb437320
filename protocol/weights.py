"""Weights from measurements. Protocol section 7.

```
g = mean − 2 se of the gains on the held-out sample            m = margin, already less one standard error
w = floor(65535 * clamp(g / ĝ, 0, 1) * clamp(m / m̂, 0, 1)³)    ĝ, m̂ upper quartiles over the seats with g > 0
```

Copies, replays and idlers have no margin. The third power of the margin makes it unprofitable to split one machine over
many seats. The upper quartile keeps seats that do little, up to half of all, from lowering the reference for
themselves; with three seats or more, no single one can raise it. A clean update gets weight 0 only if its gain is
surely negative, or late training would stall.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite

from earnest.protocol.constants import WEIGHT_ONE


@dataclass(frozen=True)
class Score:
    """Measurements of one update, in nats per byte."""

    gain_mean: float
    gain_se: float
    margin: float | None
    """Controlled gain on own minus held-out samples, less one se; None on private data (the factor is then 1)."""

    def __post_init__(self) -> None:
        if not all(map(isfinite, (self.gain_mean, self.gain_se, self.margin or 0.0))):
            raise ValueError(f"not finite: {self}")

    @property
    def gain(self) -> float:
        """g: the lower bound of the gain."""
        return self.gain_mean - 2 * self.gain_se

    @property
    def surely_negative(self) -> bool:
        """True if the upper bound of the gain is below 0."""
        return self.gain_mean + 2 * self.gain_se < 0


def upper_quartile(values: Sequence[float]) -> float | None:
    """Returns the value of rank 3/4 (n - 1), rounded, a half down; None for no values."""
    return sorted(values)[(3 * len(values) - 2) // 4] if values else None


def seat_weights(scores: Sequence[Score | None], *, trial: bool = False) -> list[int]:
    """Returns every seat's weight, 0 to 65,535; None stands for a seat whose verdict is not `ACCEPTED` (weight 0).

    A weight is at most 1 (of 65,535) in a trial round, if no seat has a positive gain g, or if the upper quartile of
    the margins is not positive: in a new model even an update with its sign flipped lowers the loss.
    """
    if trial:
        return [0 if score is None or score.surely_negative else 1 for score in scores]
    gaining = [score for score in scores if score is not None and score.gain > 0]
    gain = upper_quartile([score.gain for score in gaining])
    margin = upper_quartile([score.margin for score in gaining if score.margin is not None])
    return [0 if score is None else _weight(score, gain, margin) for score in scores]


def _weight(score: Score, full_gain: float | None, full_margin: float | None) -> int:
    least = 0 if score.surely_negative else 1
    if full_gain is None or (full_margin is not None and full_margin <= 0):
        return least
    gain_factor = min(1.0, max(0.0, score.gain / full_gain))
    return max(least, floor(WEIGHT_ONE * gain_factor * _margin_factor(score.margin, full_margin)))


def _margin_factor(margin: float | None, full_margin: float | None) -> float:
    if margin is None or full_margin is None:
        return 1.0
    ratio = min(1.0, max(0.0, margin / full_margin))
    return ratio * ratio * ratio
