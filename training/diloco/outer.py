"""From the round's counted updates to the next state, the same bits on every machine (Protocol section 10).

Only elementwise float32 multiply, add, subtract and divide, one operation at a time, seats in ascending
order. Scalars are computed in float64 on the host and rounded to float32 once. No `alpha=`, `addcmul`,
`lerp`, `torch.optim` or compilation: they fuse a multiply with an add on some machines and not on others.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from earnest.protocol.step import clip_factor
from earnest.training.codecs import Update
from earnest.training.diloco.state import Parameters, State


def aggregate(
    updates: Sequence[tuple[int, Update]], shares: Mapping[int, float], limit: float, mode: str
) -> Parameters:
    """The outer gradient: updates by seat, clipped to the norm `limit`, weighted by `shares` (sum 1).

    Mode "mean" is the plain weighted sum. In mode "contributor-mean" each coordinate is divided by the sum
    of the shares that sent it (arXiv 2508.15706, reference code); a coordinate that nobody sent is 0. Seats
    without a share are ignored. Raises ValueError if a seat with a share has no update, or if nobody has a
    share.
    """
    counted = {seat: share for seat, share in sorted(shares.items()) if share > 0}
    by_seat = dict(updates)
    missing = counted.keys() - by_seat.keys()
    if missing or not counted:
        raise ValueError(f"updates missing of seats {sorted(missing)}" if missing else "no update counts")
    layout = by_seat[next(iter(counted))].spec
    total, weight = torch.zeros(layout.size), torch.zeros(layout.size)
    for seat, share in counted.items():
        update = by_seat[seat]
        update.add_to(total, share * clip_factor(update.norm, limit))
        update.add_sent_to(weight, share)
    if mode == "contributor-mean":
        sent = weight > 0
        total = torch.where(sent, total / torch.where(sent, weight, 1.0), 0.0)
    elif mode != "mean":
        raise ValueError(f"no aggregation named {mode!r}; there are mean and contributor-mean")
    return layout.split(total)


def outer_step(state: State, outer_gradient: Mapping[str, Tensor], lr: float, momentum: float) -> State:
    """One Nesterov step: b = mu * b + d; theta = theta - lr * (d + mu * b). A void round takes none.

    The clip norm stays as it is: the caller, who knows the round's consensus, sets the next one.
    """
    rate, decay = _float32(lr), _float32(momentum)
    parameters, momenta = {}, {}
    for name, value in state.parameters.items():
        gradient = outer_gradient[name]
        momenta[name] = state.momentum[name] * decay + gradient
        parameters[name] = value - (momenta[name] * decay + gradient) * rate
    return State(parameters, momenta, state.clip_norm)


def _float32(scalar: float) -> Tensor:
    """Round once, here, rather than leave it to the kernel."""
    return torch.tensor(scalar, dtype=torch.float32)
