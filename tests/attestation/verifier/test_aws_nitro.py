"""AWS Nitro: a real document verifies at its time, a debug enclave's never, and the form is strict."""

from __future__ import annotations

import random
from typing import Any

import cbor2
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from earnest.attestation.roots import AWS_NITRO_ENCLAVES_ROOT_G1
from earnest.attestation.verifier.aws_nitro import (
    MAX_DOCUMENT_BYTES,
    parse_nitro_document,
    verify_nitro_document,
)
from earnest.attestation.verifier.verification import Verification
from tests.attestation.vectors import read
from tests.attestation.verifier.certificates import NOW, Issued, chain, key, raw_signature

AT = 1_766_668_537
DEBUG_AT = 1_766_650_846


def document(name: str) -> bytes:
    """The COSE message in a recorded file: length in the two bytes before it, shifted by two."""
    raw = read(f"aws/{name}.bin")
    return raw[4 : 4 + (int.from_bytes(raw[2:4], "little") >> 2)]


DOCUMENT, DEBUG = document("nitro_attestation"), document("nitro_attestation_debug")


def failed(found: Verification) -> list[str]:
    return [check.name for check in found.failed]


def test_a_real_document_verifies_in_its_three_hours() -> None:
    found = verify_nitro_document(DOCUMENT, AT)
    assert (found.accepted, found.policy_accepted, found.reason) == (True, True, "")
    assert failed(verify_nitro_document(DOCUMENT, AT + 3 * 3600 + 1)) == ["Nitro chain"]
    assert failed(verify_nitro_document(DOCUMENT, AT - 3600)) == ["Nitro chain", "Nitro time"]


def test_a_debug_enclave_is_refused_although_signed() -> None:
    found = verify_nitro_document(DEBUG, DEBUG_AT)
    assert (found.accepted, failed(found)) == (False, ["Nitro debug"])


def test_the_pinned_root_is_amazons() -> None:
    assert read("roots/aws_nitro_enclaves_root_g1.pem").strip() == AWS_NITRO_ENCLAVES_ROOT_G1.strip()
    other = read("roots/nvidia_device_identity_ca.pem")
    assert failed(verify_nitro_document(DOCUMENT, AT, root=other)) == ["Nitro chain"]


def test_the_image_is_the_policys() -> None:
    image = parse_nitro_document(DOCUMENT).pcrs[0]
    assert verify_nitro_document(DOCUMENT, AT, images=[image]).policy_accepted
    found = verify_nitro_document(DOCUMENT, AT, images=[bytes(48)])
    assert (found.accepted, found.policy_accepted, failed(found)) == (True, False, ["Nitro image"])


def test_a_document_without_the_nonce_asked_for_is_refused() -> None:
    assert failed(verify_nitro_document(DOCUMENT, AT, nonce=b"challenge")) == ["Nitro nonce"]
    assert failed(verify_nitro_document(DOCUMENT, AT, user_data=b"other")) == ["Nitro user data"]


def test_a_signature_is_of_its_document() -> None:
    mine, other = cbor2.loads(DOCUMENT), cbor2.loads(DEBUG)
    swapped = cbor2.dumps([*mine[:3], other[3]])
    assert failed(verify_nitro_document(swapped, AT)) == ["Nitro signature"]


# An enclave made for the tests: AWS's forms, other keys

PATH = chain(Issued("enclave", authority=False), Issued("zone"), Issued("root"))
ROOT = PATH[-1].public_bytes(Encoding.DER)
FIELDS: dict[str, Any] = {
    "module_id": "i-test",
    "digest": "SHA384",
    "timestamp": NOW * 1000,
    "pcrs": {index: bytes([index + 1]) * 48 for index in range(3)},
    "certificate": PATH[0].public_bytes(Encoding.DER),
    "cabundle": [certificate.public_bytes(Encoding.DER) for certificate in PATH[:0:-1]],
    "public_key": None,
    "user_data": b"binding",
    "nonce": b"challenge",
}


def made(fields: Any = FIELDS, algorithm: Any = -35, unprotected: Any = None, tag: bool = False) -> bytes:
    protected, payload = cbor2.dumps({1: algorithm}), cbor2.dumps(fields)
    signed = cbor2.dumps(["Signature1", protected, b"", payload])
    message = [protected, unprotected or {}, payload, raw_signature(key("enclave"), signed)]
    return cbor2.dumps(cbor2.CBORTag(18, message) if tag else message)


@pytest.mark.parametrize("tag", [False, True])
def test_a_good_enclave_passes(tag: bool) -> None:
    found = verify_nitro_document(made(tag=tag), NOW, root=ROOT, nonce=b"challenge", user_data=b"binding")
    assert (found.accepted, found.policy_accepted, found.reason) == (True, True, "")


def test_a_document_from_the_future_is_refused() -> None:
    late = made({**FIELDS, "timestamp": (NOW + 3600) * 1000})
    assert failed(verify_nitro_document(late, NOW, root=ROOT)) == ["Nitro time"]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "ends early"),
        (DOCUMENT + b"\0", "bytes after"),
        (bytes(MAX_DOCUMENT_BYTES + 1), "larger than"),
        (b"\x9b\x00\xff\xff\xff\xff\xff\xff\xff", "ends early"),
        (b"\x81" * 1000, "too deep"),
        (cbor2.dumps([b"", {}, b""]), "not a COSE_Sign1"),
        (cbor2.dumps({1: 2}), "not a COSE_Sign1"),
        (cbor2.dumps(cbor2.CBORTag(35, "(a+)+")), "not plain CBOR"),
        (made(unprotected={1: -35}), "not a COSE_Sign1"),
        (made(algorithm=-7), "not ES384"),
        (made({**FIELDS, "digest": "SHA256"}), "not a Nitro attestation document"),
        (made([1]), "not a Nitro attestation document"),
        (made({**FIELDS, "timestamp": 1.5}), "not plain CBOR"),
        (made({**FIELDS, "timestamp": "now"}), "no time"),
        (made({**FIELDS, "pcrs": {}}), "no measurement registers"),
        (made({**FIELDS, "pcrs": {0: b"short"}}), "does not have 48 bytes"),
        (made({**FIELDS, "pcrs": {"0": bytes(48)}}), "out of range"),
        (made({**FIELDS, "pcrs": {40: bytes(48)}}), "out of range"),
        (made({**FIELDS, "cabundle": []}), "no bundle"),
        (made({**FIELDS, "cabundle": [b"x"] * 9}), "no bundle"),
        (made({**FIELDS, "certificate": bytes(2000)}), "a certificate does not have"),
        (made({**FIELDS, "certificate": b"x"}), ""),
        (made({**FIELDS, "nonce": "text"}), "nonce is not bytes"),
    ],
)
def test_a_malformed_document_is_unusable_with_a_reason(raw: bytes, reason: str) -> None:
    found = verify_nitro_document(raw, NOW, root=ROOT)
    assert (found.accepted, found.unusable) == (False, True)
    assert reason in found.reason


def test_hostile_bytes_are_a_verdict_and_no_crash() -> None:
    rng = random.Random(11)
    for _ in range(300):
        raw = bytearray(DOCUMENT)
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        cut = rng.choice((len(raw), rng.randrange(len(raw))))
        found = verify_nitro_document(bytes(raw[:cut]), AT)
        assert not found.accepted or bytes(raw[:cut]) == DOCUMENT
