"""Margin: measures whether a trainer trained on the samples it was assigned. Protocol section 7.

Training on a sequence leaves a mark: the update lowers the loss on it more than on sequences that nobody had. A copy, a
replay or an idler has no such margin. The gain of the round's mean update is subtracted per sequence first. That
removes what all updates share, which is most of the noise (without it the margin is 4 times as uncertain, measured).

Only the order of the gains counts: an update that is scaled up has larger gains, and larger noise with them, and both
keep their order. A mean of gains grows with the scale instead (half of the work, scaled by 1.5, had 1.4 of an honest
mean, and 0.6 to 0.7 of an honest chance; `benchmarks/mechanism.py`).
"""

from __future__ import annotations

import math

import numpy as np

from earnest.protocol.weights import Margin
from earnest.validator.gain import Losses


def margin(own: Losses, own_control: Losses, fresh: Losses, fresh_control: Losses) -> Margin:
    """Returns the chance that an own sequence has the larger controlled gain than a fresh one, beyond 1/2.

    All are gains in nats per byte, float64 [sequences]; ties count half. The standard error is that of the
    Mann-Whitney statistic where own and fresh sequences gain alike. Pairs are counted in integers, so that validators
    with the same losses agree to the last bit. Raises ValueError for fewer than two sequences.
    """
    mine, theirs = own - own_control, np.sort(fresh - fresh_control)
    if min(mine.size, theirs.size) < 2:
        raise ValueError(
            f"{mine.size} own and {theirs.size} fresh sequences are too few: a margin needs 2 of each"
        )
    below = int(np.searchsorted(theirs, mine, side="left").sum())
    not_above = int(np.searchsorted(theirs, mine, side="right").sum())
    pairs = mine.size * theirs.size
    excess = (below + not_above - pairs) / (2 * pairs)
    return Margin(excess, math.sqrt((mine.size + theirs.size + 1) / (12 * pairs)))
