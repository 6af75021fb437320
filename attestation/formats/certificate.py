"""Parses the parts of a certificate that the registry uses: signed part, public key, platform id. Section 11.

Strict DER: lengths are checked before use, and only what a quote's chain contains is supported. Names, dates and
extensions are left to the off-chain verifier. The registry proves the two positions that it uses by the bytes before
them, inside the part that the CA signed.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Final

SPKI_PREFIX: Final = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")
"""SubjectPublicKeyInfo of a P-256 key up to its x coordinate: 27 bytes."""

PPID_PREFIX: Final = bytes.fromhex("301e060a2a864886f84d010d01010410")
"""The PPID of Intel's SGX extension (OID 1.2.840.113741.1.13.1.1) up to its 16 bytes."""

ECDSA_SHA256: Final = bytes.fromhex("300a06082a8648ce3d040302")
PPID: Final = 16
MAX_CERTIFICATE: Final = 4096
MAX_CHAIN: Final = 8

_SEQUENCE, _INTEGER, _BIT_STRING = 0x30, 0x02, 0x03
_PEM = re.compile(
    rb"-----BEGIN CERTIFICATE-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END CERTIFICATE-----(?:\r?\n|$)"
)


class CertificateError(ValueError):
    """Bytes that are no certificate of a quote's chain, with the reason."""


def pem_to_ders(pem: bytes) -> list[bytes]:
    """Returns the certificates of a PEM chain, in order. Raises CertificateError for anything else between them."""
    ders: list[bytes] = []
    at = 0
    while at < len(pem):
        match = _PEM.match(pem, at)
        if match is None:
            raise CertificateError(f"no certificate at byte {at} of the chain")
        if len(ders) == MAX_CHAIN:
            raise CertificateError(f"more than {MAX_CHAIN} certificates")
        try:
            ders.append(base64.b64decode(re.sub(rb"[\r\n]", b"", match[1]), validate=True))
        except binascii.Error as error:
            raise CertificateError(f"certificate {len(ders)} is not base64: {error}") from error
        at = match.end()
    if not ders:
        raise CertificateError("no certificate")
    return ders


@dataclass(frozen=True)
class Certificate:
    """One DER certificate, signed with ECDSA over SHA-256, for a P-256 key. Build it with `parse_certificate`."""

    der: bytes
    tbs: bytes
    """The part that the issuer signed."""

    signature: tuple[int, int]
    """r, s; s is not normalised to the lower half."""

    key_at: int
    """Offset of the public key's x in `tbs`."""

    ppid_at: int
    """Offset of the PPID in `tbs`; 0 if there is none (not a PCK certificate)."""

    @property
    def public_key(self) -> bytes:
        """x, y: 64 bytes."""
        return self.tbs[self.key_at : self.key_at + 64]

    @property
    def ppid(self) -> bytes | None:
        """The platform's id, 16 bytes; None in a certificate without it."""
        return self.tbs[self.ppid_at : self.ppid_at + PPID] if self.ppid_at else None

    @property
    def signature_bytes(self) -> bytes:
        """r, s: 64 bytes."""
        return b"".join(number.to_bytes(32, "big") for number in self.signature)


def parse_certificate(der: bytes) -> Certificate:
    """Finds the signed part, the key and the PPID of a certificate. Raises CertificateError."""
    if len(der) > MAX_CERTIFICATE:
        raise CertificateError(f"{len(der)} bytes are more than a certificate's {MAX_CERTIFICATE}")
    content, end = _element(der, 0, _SEQUENCE, "the certificate")
    if end != len(der):
        raise CertificateError("bytes after the certificate")
    _, tbs_end = _element(der, content, _SEQUENCE, "the signed part")
    tbs = der[content:tbs_end]
    _, algorithm_end = _element(der, tbs_end, _SEQUENCE, "the signature's algorithm")
    if der[tbs_end:algorithm_end] != ECDSA_SHA256:
        raise CertificateError("not signed with ECDSA over SHA-256")
    bits, bits_end = _element(der, algorithm_end, _BIT_STRING, "the signature")
    if bits_end != end or der[bits : bits + 1] != b"\0":
        raise CertificateError("the signature is not a whole number of bytes")
    return Certificate(
        der=der,
        tbs=tbs,
        signature=_signature(der[bits + 1 : bits_end]),
        key_at=_only(tbs, SPKI_PREFIX, 64, "P-256 public key"),
        ppid_at=_only(tbs, PPID_PREFIX, PPID, "PPID") if PPID_PREFIX in tbs else 0,
    )


def _signature(der: bytes) -> tuple[int, int]:
    content, end = _element(der, 0, _SEQUENCE, "the signature's numbers")
    first, first_end = _element(der, content, _INTEGER, "r")
    second, second_end = _element(der, first_end, _INTEGER, "s")
    if second_end != end or end != len(der):
        raise CertificateError("bytes after the signature")
    return _number(der[first:first_end]), _number(der[second:second_end])


def _number(raw: bytes) -> int:
    if not raw or raw[0] & 0x80 or (len(raw) > 1 and raw[0] == 0 and not raw[1] & 0x80):
        raise CertificateError("r or s is not the shortest positive number")
    number = int.from_bytes(raw, "big")
    if number >= 1 << 256:
        raise CertificateError("r or s is longer than 32 bytes")
    return number


def _only(tbs: bytes, prefix: bytes, size: int, what: str) -> int:
    """Returns the offset of the value after `prefix`, which must occur exactly once."""
    if (count := tbs.count(prefix)) != 1:
        raise CertificateError(f"{what} occurs {count} times, expected once")
    at = tbs.index(prefix) + len(prefix)
    if at + size > len(tbs):
        raise CertificateError(f"the {what} is cut off")
    return at


def _element(der: bytes, at: int, tag: int, what: str) -> tuple[int, int]:
    """Returns start and end of the content of the DER element at `at`."""
    if at + 2 > len(der) or der[at] != tag:
        raise CertificateError(f"{what} is not where it should be")
    first = der[at + 1]
    at += 2
    if first >= 0x80:
        count = first & 0x7F
        length = int.from_bytes(der[at : at + count], "big")
        if not 1 <= count <= 2 or at + count > len(der) or length < (0x80 if count == 1 else 0x100):
            raise CertificateError(f"the length of {what} is not DER")
        at += count
    else:
        length = first
    if at + length > len(der):
        raise CertificateError(f"{what} is cut off")
    return at, at + length
