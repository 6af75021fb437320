"""The outer gradient: a round's updates, clipped to the clip norm and averaged, bit-identical everywhere (section 10).

Only elementwise float32 multiply, add, subtract and divide, one operation at a time, seats in ascending order. Scalars
are computed in float64 on the host and rounded to float32 once. No `alpha=`, `addcmul`, `lerp`, `torch.optim` or
compilation: they fuse a multiply with an add on some machines and not on others.
"""

from collections.abc import Mapping, Sequence

import torch

from earnest.protocol.step import clip_factor, least_divisor
from earnest.training.codecs import Update
from earnest.training.codecs.update import float32
from earnest.training.diloco.state import Parameters


def aggregate(
    updates: Sequence[tuple[int, Update]], shares: Mapping[int, float], clip_norm: float, mode: str
) -> Parameters:
    """Returns the outer gradient: updates by seat, clipped to norm `clip_norm`, weighted by `shares` (sum 1).

    Mode "mean" is the weighted sum. In mode "contributor-mean" each coordinate is divided by the sum of the shares
    that sent it (arXiv 2508.15706, reference code); a coordinate that nobody sent is 0. Seats without a share are
    ignored. Raises ValueError if a seat with a share has no update, or if no seat has a share.
    """
    counted = {seat: share for seat, share in sorted(shares.items()) if share > 0}
    by_seat = dict(updates)
    missing = counted.keys() - by_seat.keys()
    if missing or not counted:
        raise ValueError(f"updates of seats {sorted(missing)} are missing" if missing else "no update counts")
    spec = by_seat[next(iter(counted))].spec
    total, weight = torch.zeros(spec.size), torch.zeros(spec.size)
    for seat, share in counted.items():
        update = by_seat[seat]
        update.add_to(total, share * clip_factor(update.norm, clip_norm))
        update.add_sent_to(weight, share)
    if mode == "contributor-mean":
        total = total / torch.maximum(weight, float32(least_divisor(len(counted))))
    elif mode != "mean":
        raise ValueError(f"no aggregation named {mode!r}; there are mean and contributor-mean")
    return spec.split(total)
