"""`keccak256(a, b, ..)` as the protocol page writes it: over `abi.encode`. Protocol section 13."""

from collections.abc import Sequence
from typing import Any

from eth_abi.abi import encode
from eth_hash.auto import keccak


def keccak_abi(types: Sequence[str], values: Sequence[Any]) -> bytes:
    """Returns `keccak256(abi.encode(values))`, 32 bytes.

    Raises `eth_abi.exceptions.EncodingError` when a value does not fit its type.
    """
    return keccak(encode(types, values))
