"""Scalars of the next state: shares of the seats, and the clip norm. Protocol section 10.

All float64 on the host, rounded once when they are applied to float32 tensors
(`earnest.training.diloco.clip_and_aggregate`).
"""

from collections.abc import Sequence


def shares(consensus: Sequence[int]) -> dict[int, float]:
    """Returns share_i = c_i / sum c of the seats with c_i > 0, in seat order; empty if there is none."""
    total = sum(consensus)
    return {seat: c / total for seat, c in enumerate(consensus) if c > 0}


def clip_norm(counted: Sequence[tuple[float, int]], current: float) -> float:
    """Returns the next clip norm, from (norm, c) of the updates that counted and the round's own clip norm.

    It is the smallest norm with at least half of the weight at or below it (c-weighted lower median), but at least half
    of `current`, so that tiny updates cannot have everybody else clipped, or not counted, in the next round. It stays
    `current` if no update counted.
    """
    norms = sorted((norm, c) for norm, c in counted if c > 0)
    total = sum(c for _, c in norms)
    below = 0
    for norm, c in norms:
        below += c
        if 2 * below >= total:
            return max(norm, current / 2)
    return current


def least_divisor(seats: int) -> float:
    """Returns the least divisor of a coordinate in a contributor mean: half of an equal share of `seats`.

    Otherwise a coordinate that only one seat of tiny weight sends would be divided by that weight, and applied in full.
    """
    return 0.5 / seats


def clip_factor(norm: float, limit: float) -> float:
    """Returns min(1, clip norm / norm). Raises ValueError for a norm that is not positive (malformed)."""
    if not norm > 0:
        raise ValueError(f"an update of norm {norm} is malformed")
    return min(1.0, limit / norm)
