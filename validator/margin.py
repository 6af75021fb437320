"""Did the trainer train on what it was assigned? Protocol section 7, margin.

Work on assigned sequences leaves a mark: the update helps those more than sequences nobody had. A copy, a
replay or an idler has no such margin. Per sequence the gain of the round's mean update is subtracted first;
it removes what all updates share, which is most of the noise (z-scores of early rounds rise two- to
threefold, measured).
"""

from __future__ import annotations

import math

from earnest.validator.gain import Losses, summarise


def margin(own: Losses, own_control: Losses, fresh: Losses, fresh_control: Losses) -> float:
    """Mean controlled gain on the trainer's own sequences minus that on fresh ones, less one standard error.

    All in nats per byte, float64 [sequences]; the error is that of a difference of two independent means.
    """
    here, there = summarise(own - own_control), summarise(fresh - fresh_control)
    return here.mean - there.mean - math.hypot(here.se, there.se)
