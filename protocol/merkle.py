"""Merkle trees. Protocol sections 5 and 13.

Contents (payloads, states, sample lists) are SHA-256 trees over 1 MiB chunks with RFC 6962 prefixes, so that
no leaf is mistaken for an inner node. Admission lists are keccak trees that the contract can check: leaves hashed
twice, pairs sorted.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from struct import pack

from eth_hash.auto import keccak

from earnest.protocol.hashing import keccak_abi

CHUNK = 1 << 20
"""Bytes in a content tree's leaf; the last leaf may be shorter."""

Entry = tuple[str, int]
"""An admitted (address, role)."""


# Content: RFC 6962, section 2.1.


def leaf_hash(chunk: bytes) -> bytes:
    return sha256(b"\x00" + chunk).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def root_of_leaves(leaves: Sequence[bytes]) -> bytes:
    """Returns the root over leaf hashes; that of an empty list is the hash of the empty string."""
    if not leaves:
        return sha256(b"").digest()
    level = list(leaves)
    while len(level) > 1:
        level = _parents(level)
    return level[0]


def _parents(level: Sequence[bytes]) -> list[bytes]:
    """Hashes pairs and promotes an odd last one: the same tree as RFC 6962's split at a power of two."""
    paired = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    return paired + list(level[len(level) - len(level) % 2 :])


def content_leaves(data: bytes | Iterable[bytes]) -> list[bytes]:
    """Returns the leaf hashes of a content's 1 MiB chunks. An iterable's pieces may be of any size."""
    return [leaf_hash(chunk) for chunk in _chunks(data)]


def content_root(data: bytes | Iterable[bytes]) -> bytes:
    """Returns the root of a content, under which it is stored."""
    return root_of_leaves(content_leaves(data))


def _chunks(data: bytes | Iterable[bytes]) -> Iterator[bytes]:
    pieces = [data] if isinstance(data, bytes | bytearray | memoryview) else data
    pending = bytearray()
    for piece in pieces:
        pending += piece
        while len(pending) >= CHUNK:
            yield bytes(pending[:CHUNK])
            del pending[:CHUNK]
    if pending:
        yield bytes(pending)


def samples_root(ids: Iterable[int]) -> bytes:
    """Returns the root of a list of sample ids: the ids as uint32 little-endian, in training order."""
    ids = tuple(ids)
    return content_root(pack(f"<{len(ids)}I", *ids))


# Admission: checked by `join`.


def admission_leaf(address: str, role: int) -> bytes:
    """keccak256(keccak256(address, uint8 role)): hashed twice, so that no inner node is mistaken for a leaf."""
    return keccak(keccak_abi(["address", "uint8"], [address, int(role)]))


def _admission_node(a: bytes, b: bytes) -> bytes:
    return keccak(min(a, b) + max(a, b))


def _admission_levels(entries: Iterable[Entry]) -> list[list[bytes]]:
    """Returns all levels of the tree, leaves (sorted, unique) first; without entries one level with a zero leaf."""
    leaves = sorted({admission_leaf(address, role) for address, role in entries}) or [bytes(32)]
    levels = [leaves]
    while len(levels[-1]) > 1:
        level = levels[-1]
        paired = [_admission_node(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        levels.append(paired + level[len(level) - len(level) % 2 :])
    return levels


def admission_root(entries: Iterable[Entry]) -> bytes:
    """Returns the root of the admitted (address, role) pairs, in any order; zero if there are none."""
    return _admission_levels(entries)[-1][0]


def admission_proof(entries: Iterable[Entry], address: str, role: int) -> list[bytes]:
    """Returns the proof that (address, role) is admitted. Raises KeyError if it is not."""
    levels = _admission_levels(entries)
    leaf = admission_leaf(address, role)
    if leaf not in levels[0]:
        raise KeyError(f"{address} is not admitted in role {int(role)}")
    i = levels[0].index(leaf)
    proof = []
    for level in levels[:-1]:
        if i ^ 1 < len(level):
            proof.append(level[i ^ 1])
        i //= 2
    return proof


def verify_admission(root: bytes, address: str, role: int, proof: Sequence[bytes]) -> bool:
    """Returns True if the proof leads to the root, as the contract checks in `join`."""
    node = admission_leaf(address, role)
    for sibling in proof:
        node = _admission_node(node, sibling)
    return node == root
