"""Scalars of the next state: shares of the seats, and the clip norm. Protocol section 10.

All float64 on the host, rounded once when they are applied to float32 tensors (`earnest.training.diloco.outer`).
"""

from collections.abc import Sequence


def shares(consensus: Sequence[int]) -> dict[int, float]:
    """Returns share_i = c_i / sum c of the seats with c_i > 0, in seat order; empty if there is none."""
    total = sum(consensus)
    return {seat: c / total for seat, c in enumerate(consensus) if c > 0}


def clip_norm(previous: Sequence[tuple[float, int]], recipe_norm: float) -> float:
    """Returns the norm to which updates are clipped.

    `previous` holds (norm, c) of the last counted round's accepted updates. The c-weighted lower median of their norms
    is the smallest norm with at least half of the weight at or below it, so tiny updates without weight do not move it.
    It is `recipe_norm` in round 0, and while no round counted.
    """
    counted = sorted((norm, c) for norm, c in previous if c > 0)
    total, below = sum(c for _, c in counted), 0
    for norm, c in counted:
        below += c
        if 2 * below >= total:
            return norm
    return recipe_norm


def clip_factor(norm: float, limit: float) -> float:
    """Returns min(1, clip norm / norm). Raises ValueError for a norm that is not positive (malformed)."""
    if not norm > 0:
        raise ValueError(f"an update of norm {norm} is malformed")
    return min(1.0, limit / norm)
