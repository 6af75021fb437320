"""The state that local training starts from while the round before is still being scored (Protocol section 4).

With overlap on, round r trains while r-1 is scored, and base(r), the state after r-2, is the newest that all nodes
share. Whatever the start, an update is start - end, the manifest names base(r), and the aggregate is added to the
state after r-1.

- `delayed` starts from base(r): every update is one outer step late (DiLoCoX, arXiv 2506.21263).
- `eager` starts from a preview: base(r) after the outer step that the trainer's own update of round r-1 would make
  alone. It approximates the aggregate that is not known yet (after Kale et al., arXiv 2502.12996). The preview is
  discarded after the round, so its errors do not accumulate.
"""

from __future__ import annotations

from earnest.protocol.recipe import Recipe
from earnest.training.codecs import Update
from earnest.training.diloco.clip_and_aggregate import aggregate
from earnest.training.diloco.outer_step import outer_step
from earnest.training.diloco.state import State


def local_start(recipe: Recipe, base: State, pending: Update | None) -> State:
    """Returns the state that a trainer's inner steps start from.

    `base` is base(r); `pending` the trainer's own update of round r-1 as it was sent, or None if it sent none (it has
    just joined, or missed that round) or if r-1 is in `base` already.
    """
    if recipe.overlap != "eager" or pending is None or pending.norm == 0:
        return base
    outer = recipe.outer
    gradient = aggregate([(0, pending)], {0: 1.0}, base.clip_norm, outer.aggregation)
    return outer_step(base, gradient, outer.lr, outer.momentum)
