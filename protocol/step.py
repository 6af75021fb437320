"""Scalars of the next state: who counts how much, and where updates are clipped. Protocol section 10.

All float64 on the host, rounded once where they meet float32 tensors (`earnest.training.diloco.outer`).
"""

from collections.abc import Sequence


def shares(consensus: Sequence[int]) -> dict[int, float]:
    """share_i = c_i / sum c, for the seats with c_i > 0, in seat order; empty when nobody counts."""
    total = sum(consensus)
    return {seat: c / total for seat, c in enumerate(consensus) if c > 0}


def clip_norm(previous: Sequence[tuple[float, int]], recipe_norm: float) -> float:
    """The norm to which updates are clipped.

    `previous` holds (norm, c) of the last counted round's accepted updates: the c-weighted lower median
    of their norms is the smallest norm with at least half of the weight at or below it. Tiny updates of a
    crowd without weight move nothing. In round 0, and as long as no round counted, it is the recipe's.
    """
    counted = sorted((norm, c) for norm, c in previous if c > 0)
    total, below = sum(c for _, c in counted), 0
    for norm, c in counted:
        below += c
        if 2 * below >= total:
            return norm
    return recipe_norm


def clip_factor(norm: float, limit: float) -> float:
    """min(1, clip norm / norm). A norm that is not positive is malformed (ValueError)."""
    if not norm > 0:
        raise ValueError(f"an update of norm {norm} is malformed")
    return min(1.0, limit / norm)
