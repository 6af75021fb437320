"""A reference to one block, at which values are read."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class BlockRef:
    """One block: number, hash (32 bytes) and timestamp (unix seconds); `parent` is its parent's hash.

    `randomness`: the header's `mixHash`, which is `prevrandao` on most chains; empty if the endpoint does not give it.
    """

    number: int
    hash: bytes
    time: int
    parent: bytes = field(default=b"", compare=False)
    randomness: bytes = field(default=b"", compare=False)
