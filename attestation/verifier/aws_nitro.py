"""Verifies AWS Nitro attestation documents: COSE_Sign1 with ES384, certified by the Nitro Enclaves root.

Format: "Verifying the root of trust" of github.com/aws/aws-nitro-enclaves-nsm-api. The enclave's certificate is valid
for three hours, so a document can only be verified at a time near the one it was made.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import cbor2
from cryptography import x509
from eth_hash.auto import keccak

from earnest.attestation.roots import AWS_NITRO_ENCLAVES_ROOT_G1
from earnest.attestation.verifier.certificate_chain import (
    CERTIFICATE_ERRORS,
    MAX_CHAIN,
    chain_fault,
    load_certificate,
    signature_holds,
)
from earnest.attestation.verifier.verification import Check, Verification, conclude

MAX_DOCUMENT_BYTES = 16_384
MAX_CERTIFICATE_BYTES = 1024
COSE_SIGN1 = b"\xd2"
"""The tag that may precede a message."""

ALGORITHM, ES384 = 1, -35
BREAK = 0xFF
MAX_DEPTH = 8
PCR_BYTES = 48
MAX_PCRS = 32
CLOCK_SKEW_S = 300

UNCHECKED = ("revocation of the enclave's certificates (AWS publishes CRLs)",)


@dataclass(frozen=True)
class NitroDocument:
    """A parsed document; `signed` is the part that the signature covers."""

    made_at: int
    """Unix seconds, by the hypervisor's clock."""

    pcrs: dict[int, bytes]
    certificate: x509.Certificate
    bundle: tuple[x509.Certificate, ...]
    """Issuers, the root first."""

    user_data: bytes
    nonce: bytes
    public_key: bytes
    signed: bytes
    signature: bytes


def parse_nitro_document(data: bytes) -> NitroDocument:
    """Parses a document, tagged or not; leaves no byte unread. Raises one of CERTIFICATE_ERRORS."""
    message = _cbor(data.removeprefix(COSE_SIGN1), "the document")
    if not isinstance(message, list) or len(message) != 4:
        raise ValueError("not a COSE_Sign1 message")
    protected, unprotected, payload, signature = message
    if not all(isinstance(part, bytes) for part in (protected, payload, signature)) or unprotected != {}:
        raise ValueError("not a COSE_Sign1 message")
    if _cbor(protected, "the header") != {ALGORITHM: ES384}:
        raise ValueError("the signature's algorithm is not ES384")
    fields = _cbor(payload, "the payload")
    if not isinstance(fields, dict) or fields.get("digest") != "SHA384":
        raise ValueError("not a Nitro attestation document")
    made_at, bundle = fields.get("timestamp"), fields.get("cabundle")
    if type(made_at) is not int or not 0 < made_at < 2**50:
        raise ValueError("no time in milliseconds")
    if not isinstance(bundle, list) or not 1 <= len(bundle) < MAX_CHAIN:
        raise ValueError("no bundle of issuers")
    return NitroDocument(
        made_at=made_at // 1000,
        pcrs=_pcrs(fields.get("pcrs")),
        certificate=_certificate(fields.get("certificate")),
        bundle=tuple(_certificate(der) for der in bundle),
        user_data=_optional(fields, "user_data"),
        nonce=_optional(fields, "nonce"),
        public_key=_optional(fields, "public_key"),
        signed=cbor2.dumps(["Signature1", protected, b"", payload]),
        signature=signature,
    )


def verify_nitro_document(
    document: bytes,
    at: int,
    *,
    root: bytes = AWS_NITRO_ENCLAVES_ROOT_G1,
    nonce: bytes | None = None,
    user_data: bytes | None = None,
    images: Collection[bytes] | None = None,
) -> Verification:
    """Verifies a document at Unix second `at`; never raises for hostile input.

    The document must contain `nonce` and `user_data` unless they are None. `images` are the PCR0 values (SHA-384 of
    enclave images, 48 bytes) that the policy checks accept; None accepts any image.
    """
    try:
        pinned = load_certificate(root)
        parsed = parse_nitro_document(document)
        key = parsed.certificate.public_key()
    except CERTIFICATE_ERRORS as error:
        return conclude(
            [Check("Nitro document format", False, str(error))], unusable=True, unchecked=UNCHECKED
        )
    fault = chain_fault([parsed.certificate, *reversed(parsed.bundle)], pinned, at)
    signed = signature_holds(key, parsed.signature, parsed.signed)
    image = parsed.pcrs.get(0, b"")
    age = at - parsed.made_at
    genuine = [
        Check("Nitro document format", True, f"{len(parsed.pcrs)} registers"),
        Check("Nitro chain", not fault, fault or "leads to the pinned root"),
        Check("Nitro signature", signed, "by the enclave's key" if signed else "not by the enclave's key"),
        Check("Nitro time", age >= -CLOCK_SKEW_S, f"made {age} s before"),
        Check(
            "Nitro debug", any(image), "off" if any(image) else "PCR0 is zero: anyone may read the console"
        ),
    ]
    for name, required, actual in (
        ("Nitro nonce", nonce, parsed.nonce),
        ("Nitro user data", user_data, parsed.user_data),
    ):
        if required is not None:
            same = required == actual
            genuine.append(Check(name, same, "as required" if same else "another challenge"))
    allowed = images is None or image in images
    policy = [Check("Nitro image", allowed, f"PCR0 {image.hex()[:32]}..")]
    bound = parsed.nonce + parsed.user_data + parsed.public_key
    return conclude(
        genuine,
        policy,
        tee="nitro",
        workload=keccak(b"".join(parsed.pcrs.get(index, bytes(PCR_BYTES)) for index in range(3))),
        replay_key=keccak(bound) if bound else None,
        unchecked=UNCHECKED if nonce is not None else (*UNCHECKED, "freshness: no nonce was required"),
    )


def _cbor(data: bytes, what: str) -> Any:
    """Decodes `data`, which must be exactly one plain CBOR value. Raises ValueError."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"{what} is larger than {MAX_DOCUMENT_BYTES} bytes")
    _check_plain(data, what)
    try:
        return cbor2.loads(data)
    except (cbor2.CBORDecodeError, TypeError, RecursionError) as error:
        raise ValueError(f"{what} is not CBOR: {error}") from error


def _check_plain(data: bytes, what: str) -> None:
    """Raises ValueError unless `data` is one value of numbers, strings of stated length, lists, maps and null.

    Tags make a decoder build dates, decimals, patterns and shared references; a document needs none of them.
    """
    at, left = 0, [1]  # values still to come in each container that is open; below zero: until a break
    while left:
        if left[-1] == 0:
            left.pop()
            continue
        if at >= len(data) or len(left) > MAX_DEPTH:
            raise ValueError(f"{what} ends early, or is too deep")
        kind, size = data[at] >> 5, data[at] & 31
        at += 1
        if data[at - 1] == BREAK and left[-1] < 0:
            left.pop()
            continue
        left[-1] -= 1
        if 24 <= size < 28:
            width = 1 << (size - 24)
            size, at = int.from_bytes(data[at : at + width]), at + width
        elif size >= 28 and not (size == 31 and kind in (4, 5)):
            raise ValueError(f"{what} is not plain CBOR")
        elif size == 31:
            size = -1
        if kind == 6 or (kind == 7 and not 20 <= size <= 22):
            raise ValueError(f"{what} is not plain CBOR")
        if kind in (2, 3):
            at += size
        elif kind in (4, 5):
            left.append(size * (kind - 3))
    if at != len(data):
        raise ValueError(f"bytes after {what}" if at < len(data) else f"{what} ends early")


def _pcrs(value: Any) -> dict[int, bytes]:
    if not isinstance(value, dict) or not 1 <= len(value) <= MAX_PCRS:
        raise ValueError("no measurement registers")
    for index, digest in value.items():
        if type(index) is not int or not 0 <= index < MAX_PCRS:
            raise ValueError("a register's number is out of range")
        if not isinstance(digest, bytes) or len(digest) != PCR_BYTES:
            raise ValueError(f"register {index} does not have {PCR_BYTES} bytes")
    return value


def _certificate(value: Any) -> x509.Certificate:
    if not isinstance(value, bytes) or not 1 <= len(value) <= MAX_CERTIFICATE_BYTES:
        raise ValueError(f"a certificate does not have 1 to {MAX_CERTIFICATE_BYTES} bytes")
    return x509.load_der_x509_certificate(value)


def _optional(fields: dict[Any, Any], name: str) -> bytes:
    value = fields.get(name)
    if value is not None and not isinstance(value, bytes):
        raise ValueError(f"{name} is not bytes")
    return value or b""
