"""Recomputes a round's seed from block headers. Protocol section 6."""

from typing import Protocol

from earnest.client.chain.blockref import BlockRef
from earnest.client.run.record import RunRecord
from earnest.protocol.seed import SEED_BLOCK, round_seed


class Headers(Protocol):
    """Reads block headers; `Chain` does."""

    def block(self, number: int) -> BlockRef: ...


def seed_of_headers(chain: Headers, record: RunRecord, round: int) -> bytes | None:
    """Returns the seed that two headers give for a round; None before it is drawn, or without `mixHash`.

    It is the stored seed on chains whose `prevrandao` is the header's `mixHash`. Raises BadAnswer if an endpoint has
    not got the blocks.
    """
    seen = record.round(round)
    if seen.seed is None:
        return None
    hashed, drawn = chain.block(seen.seed_requested + SEED_BLOCK), chain.block(seen.seed_drawn)
    return round_seed(hashed.hash, drawn.randomness, record.run, round) if drawn.randomness else None
