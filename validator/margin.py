"""Margin: measures whether a trainer trained on the samples it was assigned. Protocol section 7.

Training on a sequence leaves a mark: the update lowers the loss on it more than on sequences that nobody had. A copy, a
replay or an idler has no such margin. The gain of the round's mean update is subtracted per sequence first. That
removes what all updates share, which is most of the noise (z-scores of early rounds rise two- to threefold, measured).
"""

from __future__ import annotations

import math

from earnest.validator.gain import Losses, summarise


def margin(own: Losses, own_control: Losses, fresh: Losses, fresh_control: Losses) -> float:
    """Returns the mean controlled gain on the trainer's own sequences minus that on fresh ones, less one se.

    All are gains in nats per byte, float64 [sequences]; se is that of a difference of two independent means.
    """
    on_own, on_fresh = summarise(own - own_control), summarise(fresh - fresh_control)
    return on_own.mean - on_fresh.mean - math.hypot(on_own.se, on_fresh.se)
