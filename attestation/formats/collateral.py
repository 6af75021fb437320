"""Collateral: what Intel signs about its machines, in the canonical form whose SHA-256 is on chain. Section 11.

Collateral is the JSON of DCAP libraries: certificate chains, two revocation lists, TCB info and QE identity with
their signatures, the signed texts as strings, byte for byte. Its optional `pck_certificate_chain` would override the
chain inside a quote, so the canonical form leaves it out.
"""

from hashlib import sha256
from typing import Final

from earnest.base.strict_json import JsonError, read_json, write_json

MAX_COLLATERAL_BYTES: Final = 1 << 18
"""Limit of collateral. Genuine collateral has about 20 KB; a revocation list may grow."""

COLLATERAL_FIELDS: Final = (
    "pck_crl",
    "pck_crl_issuer_chain",
    "qe_identity",
    "qe_identity_issuer_chain",
    "qe_identity_signature",
    "root_ca_crl",
    "tcb_info",
    "tcb_info_issuer_chain",
    "tcb_info_signature",
)
OVERRIDE: Final = "pck_certificate_chain"


class CollateralError(ValueError):
    """Bytes that are not collateral, with the reason."""


def canonical_collateral(data: bytes) -> bytes:
    """Returns the canonical bytes of collateral in any layout: nine strings as canonical JSON.

    Raises CollateralError if it is too large, not JSON, or has not exactly the known fields as strings.
    """
    try:
        document = read_json(data, max_bytes=MAX_COLLATERAL_BYTES)
    except JsonError as error:
        raise CollateralError(f"collateral: {error}") from error
    if not isinstance(document, dict):
        raise CollateralError("collateral: not an object")
    document.pop(OVERRIDE, None)
    if odd := sorted(document.keys() ^ set(COLLATERAL_FIELDS)):
        raise CollateralError(
            f"collateral: {'unknown' if odd[0] in document else 'missing'} field {odd[0]!r}"
        )
    for name, value in document.items():
        if not isinstance(value, str):
            raise CollateralError(f"collateral: {name} is not a string")
    canonical = write_json(document)
    if len(canonical) > MAX_COLLATERAL_BYTES:
        raise CollateralError(f"collateral: larger than {MAX_COLLATERAL_BYTES} bytes")
    return canonical


def collateral_digest(data: bytes) -> bytes:
    """Returns the SHA-256 of the canonical bytes. Raises CollateralError."""
    return sha256(canonical_collateral(data)).digest()
