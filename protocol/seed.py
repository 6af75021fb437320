"""Randomness: everything random in a round is derived from one seed. Protocol section 6.

Anyone draws the seed on chain, with `seed` in `contracts/TrainingRuns.vy`. b is the block of the first call; a later
call sets b anew if nobody stored the seed in time.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from struct import unpack

from eth_hash.auto import keccak

from earnest.protocol.hashing import keccak_abi

WORD_RANGE = 2**64

ASSIGNMENT = "assignment"
HELD_OUT = "held-out"
OWN = "own"
"""Purposes of a round's seed: the assignment of a later round, the held-out sample, and a trainer's own samples."""


SEED_BLOCK = 1
"""Number of blocks from the request to the block whose hash enters the seed."""

SEED_DELAY = 3
"""The seed is drawn more than this many blocks after the request, so that the builder of the hashed block cannot know
the randomness of the drawing block."""


def round_seed(block_hash: bytes, randomness: bytes, run: int, round: int) -> bytes:
    """Returns keccak256(blockhash(b+1), prevrandao, run, round).

    b is the block of the request; `randomness` is the `mixHash` in the header of the block that drew the seed.
    """
    return keccak_abi(["bytes32", "bytes32", "uint256", "uint256"], [block_hash, randomness, run, round])


def fallback_seed(run: int, round: int) -> bytes:
    """Returns keccak256(run, round): the seed of assignments that no earlier round has a seed for."""
    return keccak_abi(["uint256", "uint256"], [run, round])


def tagged(seed: bytes, purpose: str) -> bytes:
    """Returns the seed of one purpose, keccak256(keccak256("earnest/<purpose>/v1"), seed).

    Draws for different purposes are independent: without tags, the held-out sample of a round would be the first ids
    assigned in the next.
    """
    return keccak_abi(["bytes32", "bytes32"], [keccak(f"earnest/{purpose}/v1".encode()), seed])


def words(seed: bytes) -> Iterator[int]:
    """Yields 64-bit words of SHA-256(seed ‖ uint64 counter), counter from 0, four from each, all little-endian."""
    counter = 0
    while True:
        yield from unpack("<4Q", sha256(seed + counter.to_bytes(8, "little")).digest())
        counter += 1


def _below(n: int, stream: Iterator[int]) -> int:
    """Returns a uniform number in [0, n): the first word below the largest multiple of n, modulo n."""
    limit = WORD_RANGE - WORD_RANGE % n
    return next(word for word in stream if word < limit) % n


def shuffled(ids: Sequence[int], seed: bytes, count: int | None = None) -> list[int]:
    """Returns the first `count` (default: all) of a forward Fisher-Yates shuffle of `ids`.

    For i = 0, 1, ..: swap i with i + (a number below n - i). The last position needs no word, so
    `shuffled(ids, seed, k) == shuffled(ids, seed)[:k]`.
    """
    pool, n = list(ids), len(ids)
    count = n if count is None else min(count, n)
    stream = words(seed)
    for i in range(min(count, n - 1)):
        j = i + _below(n - i, stream)
        pool[i], pool[j] = pool[j], pool[i]
    return pool[:count]
