"""Parsing of certificates in a quote's chain, compared with `cryptography`, and with hostile bytes."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from earnest.attestation.formats.certificate import (
    PPID_PREFIX,
    SPKI_PREFIX,
    Certificate,
    CertificateError,
    parse_certificate,
    pem_to_ders,
)
from earnest.attestation.formats.quote import parse_quote
from tests.attestation.vectors import VECTORS

CHAINS = {name: parse_quote(vector.quote).chain for name, vector in VECTORS.items()}
CHAIN = CHAINS["P01"]
PCK = pem_to_ders(CHAIN)[0]


@pytest.mark.parametrize("name", CHAINS)
def test_certificates_are_read_as_cryptography_reads_them(name: str) -> None:
    ders = pem_to_ders(CHAINS[name])
    assert len(ders) == 3
    for i, der in enumerate(ders):
        ours, theirs = parse_certificate(der), x509.load_der_x509_certificate(der)
        key = theirs.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert b"\4" + ours.public_key == key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        assert ours.tbs == theirs.tbs_certificate_bytes
        assert ours.signature == decode_dss_signature(theirs.signature)
        assert (ours.ppid is not None) == (i == 0)
    assert [parse_certificate(der).der for der in ders] == ders


def test_the_ppid_is_that_of_the_platform() -> None:
    assert parse_certificate(PCK).ppid == bytes.fromhex("811dca2a26b952e85bb6448b097ba4fd")


def test_positions_are_those_of_the_bytes_behind_the_prefix() -> None:
    pck = parse_certificate(PCK)
    assert pck.tbs[pck.key_at - 27 : pck.key_at] == SPKI_PREFIX
    assert pck.tbs[pck.ppid_at - 16 : pck.ppid_at] == PPID_PREFIX


def test_signatures_are_32_bytes_each() -> None:
    small = Certificate(b"", b"", (1, 2), 0, 0)
    assert small.signature_bytes == bytes(31) + b"\1" + bytes(31) + b"\2"


# Hostile bytes.


def edited(at: int, value: bytes) -> bytes:
    return PCK[:at] + value + PCK[at + len(value) :]


def with_signature(numbers: bytes) -> bytes:
    """The PCK certificate with other bytes for its signature."""
    pck = parse_certificate(PCK)
    body = PCK[4 : 4 + len(pck.tbs) + 12] + b"\3" + bytes([len(numbers) + 1, 0]) + numbers
    return b"\x30\x82" + len(body).to_bytes(2, "big") + body


REFUSED = {
    "empty": (b"", "the certificate is not where it should be"),
    "a byte": (b"\x30", "the certificate is not where it should be"),
    "not a sequence": (edited(0, b"\x31"), "the certificate is not where it should be"),
    "cut off": (PCK[:-1], "the certificate is cut off"),
    "bytes behind": (PCK + b"\0", "bytes after the certificate"),
    "indefinite length": (b"\x30\x80" + PCK[4:], "length of the certificate is not DER"),
    "length of three bytes": (b"\x30\x83\0" + PCK[2:], "length of the certificate is not DER"),
    "short length in long form": (b"\x30\x81\x05" + bytes(5), "length of the certificate is not DER"),
    "length cut": (b"\x30\x82\x04", "length of the certificate is not DER"),
    "inner sequence": (edited(4, b"\x31"), "the signed part is not where it should be"),
    "inner too long": (edited(6, b"\xff\xff"), "the signed part is cut off"),
    "signed otherwise": (
        PCK.replace(b"\x2a\x86\x48\xce\x3d\x04\x03\x02", b"\x2a\x86\x48\xce\x3d\x04\x03\x03"),
        "ECDSA",
    ),
    "too long": (bytes(5000), "5000 bytes are more than"),
    "no key": (PCK.replace(SPKI_PREFIX, bytes(27)), "P-256 public key occurs 0 times"),
    "two PPIDs": (
        PCK.replace(
            b"\x04\x10" + bytes.fromhex("811dca2a26b952e85bb6448b097ba4fd"), PPID_PREFIX[-2:] + PPID_PREFIX
        ),
        "PPID occurs 2 times",
    ),
    "negative r": (with_signature(bytes.fromhex("3006020181020101")), "not the shortest positive number"),
    "padded r": (with_signature(bytes.fromhex("300702020001020101")), "not the shortest positive number"),
    "empty r": (with_signature(bytes.fromhex("30050200020101")), "not the shortest positive number"),
    "long r": (with_signature(b"\x30\x26\x02\x21" + b"\1" * 33 + b"\2\1\1"), "longer than 32 bytes"),
    "third number": (with_signature(bytes.fromhex("3009020101020101020101")), "bytes after the signature"),
    "one number": (with_signature(bytes.fromhex("3003020101")), "s is not where it should be"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_malformed_certificate_of_a_chain_is_refused_with_a_reason(what: str) -> None:
    der, reason = REFUSED[what]
    with pytest.raises(CertificateError, match=reason):
        parse_certificate(der)


def test_a_signature_of_small_numbers_is_read() -> None:
    assert parse_certificate(with_signature(bytes.fromhex("3006020101020102"))).signature == (1, 2)


BEGIN, END = b"-----BEGIN CERTIFICATE-----\n", b"-----END CERTIFICATE-----\n"
BAD_CHAINS = {
    "empty": (b"", "no certificate"),
    "text before": (b"hello\n" + CHAIN, "no certificate at byte 0"),
    "text between": (CHAIN.replace(END, END + b"x", 1), "no certificate at byte"),
    "zeros behind": (CHAIN + b"\0", "no certificate at byte"),
    "no end": (BEGIN + b"AAAA\n", "no certificate at byte 0"),
    "not base64": (BEGIN + b"AAA\n" + END, "not base64"),
    "padding inside": (BEGIN + b"AA==AAAA\n" + END, "not base64"),
    "too many": (CHAIN * 3, "more than 8 certificates"),
}


@pytest.mark.parametrize("what", BAD_CHAINS)
def test_a_malformed_chain_is_refused_with_a_reason(what: str) -> None:
    pem, reason = BAD_CHAINS[what]
    with pytest.raises(CertificateError, match=reason):
        pem_to_ders(pem)


def test_lines_may_end_either_way_and_the_last_not_at_all() -> None:
    assert pem_to_ders(CHAIN.replace(b"\n", b"\r\n")) == pem_to_ders(CHAIN)
    assert pem_to_ders(CHAIN.rstrip(b"\n")) == pem_to_ders(CHAIN)


@given(
    st.lists(st.tuples(st.integers(0, len(PCK) - 1), st.integers(0, 255)), max_size=6), st.integers(0, 1400)
)
def test_no_altered_certificate_does_anything_but_parse_or_be_refused(
    changes: list[tuple[int, int]], end: int
) -> None:
    altered = bytearray(PCK)
    for at, value in changes:
        altered[at] = value
    try:
        found = parse_certificate(bytes(altered[:end]))
    except CertificateError:
        return
    assert len(found.public_key) == 64
    assert found.ppid is None or len(found.ppid) == 16


@given(st.binary(max_size=2_000))
def test_no_bytes_do_anything_but_parse_or_be_refused(raw: bytes) -> None:
    for read_it in (parse_certificate, pem_to_ders):
        try:
            read_it(raw)
        except CertificateError:
            continue
