"""The P-256 precompile of the Osaka fork (EIP-7951), which py-evm does not have yet: it stops at Prague.

Input: 160 bytes h || r || s || x || y, big-endian. Output: 32 bytes equal to 1 for a good signature of the digest h
under the public key (x, y), else nothing. It never fails and always costs its gas. A high s is valid, as on the fork.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from eth.abc import ComputationAPI

ADDRESS = (0x100).to_bytes(20)
GAS = 6_900
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
FIELD = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF


def p256_verify(computation: ComputationAPI) -> ComputationAPI:
    """Runs the precompile, as py-evm calls it."""
    computation.consume_gas(GAS, reason="P256VERIFY Precompile")
    if verifies(bytes(computation.msg.data_as_bytes)):
        computation.output = (1).to_bytes(32)
    return computation


def verifies(data: bytes) -> bool:
    """Returns True if `data` is h || r || s || x || y of a good signature. Checks in the order of EIP-7951."""
    if len(data) != 160:
        return False
    digest, (r, s, x, y) = data[:32], (int.from_bytes(data[at : at + 32]) for at in range(32, 160, 32))
    if not (0 < r < ORDER and 0 < s < ORDER and x < FIELD and y < FIELD):
        return False
    try:
        key = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    except ValueError:  # not on the curve, like (0, 0), the encoding of infinity
        return False
    try:
        key.verify(encode_dss_signature(r, s), digest, ec.ECDSA(Prehashed(SHA256())))
    except InvalidSignature:
        return False
    return True
