"""One aggregation and one outer step on inputs made of integers: only the arithmetic under test can move a bit.

`python -m tests.training.codecs.golden THREADS` prints the digest of the next state.
"""

import hashlib
import sys

import torch

from earnest.training.codecs import DenseBf16, Topk2Bit
from earnest.training.diloco.clip_and_aggregate import aggregate
from earnest.training.diloco.outer_step import outer_step
from earnest.training.diloco.state import Parameters, Spec, State, to_bytes

WIDE = Spec((("a", (300, 333)), ("b", (7,))))  # large enough for torch to split it among threads


def ramp(step: int) -> Parameters:
    return WIDE.split(((torch.arange(WIDE.size) * step) % 1009 - 504).float() / 7)


def digest() -> str:
    shares = {0: 0.1, 2: 0.6, 5: 0.3}
    state = State(ramp(11), ramp(13), 1000.0)
    for codec in (DenseBf16(WIDE), Topk2Bit(WIDE, 64)):
        updates = [(seat, codec.encode(ramp(seat + 2)).update) for seat in shares]
        gradient = aggregate(updates, shares, state.clip_norm, "contributor-mean")
        state = outer_step(state, gradient, 0.7, 0.9)
    return hashlib.sha256(to_bytes(state)).hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    print(digest())
