"""Detects chain features that not every chain has, by calls that change nothing."""

from __future__ import annotations

from earnest.base.errors import Reverted
from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.endpoints import Chain

P256_PRECOMPILE = "0x0000000000000000000000000000000000000100"
"""Address of the precompile that verifies P-256 signatures (EIP-7951, earlier RIP-7212)."""

GOOD_SIGNATURE = (
    bytes.fromhex(  # digest, r, s, x, y: a test vector shared by the first implementations of RIP-7212
        "4cee90eb86eaa050036147a12d49004b6b9c72bd725d39d4785011fe190f0b4d"
        "a73bd4903f0ce3b639bbbf6e8e80d16931ff4bcf5993d58468e8fb19086e8cac"
        "36dbcd03009df8c59286b162af3bd7fcc0450c9aa81be5d10d312af6c66b1d60"
        "4aebd3099c618202fcfe16ae7770b0c49ab5eadf74b754204a3bb6060e44eff3"
        "7618b065f9832de4ca6ca971a7a1adc826d0f7c00181a5fb2ddf79ae00b4e10e"
    )
)
BAD_SIGNATURE = bytes(32) + GOOD_SIGNATURE[32:]
ONE = (1).to_bytes(32)


def has_p256(chain: Chain, at: BlockRef) -> bool:
    """Returns True if the precompile accepts a good signature and rejects a bad one; enclave keys need it.

    Raises ChainError if the chain cannot be read.
    """
    return _answer(chain, GOOD_SIGNATURE, at) == ONE and _answer(chain, BAD_SIGNATURE, at) == b""


def _answer(chain: Chain, data: bytes, at: BlockRef) -> bytes | None:
    try:
        return chain.call(P256_PRECOMPILE, data, at)
    except Reverted:  # an ordinary contract at this address
        return None
