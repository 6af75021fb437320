"""NVIDIA GPUs: real reports verify, and a change of any part is detected."""

from __future__ import annotations

import json
import random
from base64 import b64decode, b64encode
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from earnest.attestation.roots import NVIDIA_DEVICE_IDENTITY_CA
from earnest.attestation.verifier.nvidia import MAX_EVIDENCE_BYTES, parse_gpu_report, verify_gpu_evidence
from earnest.attestation.verifier.verification import Verification
from tests.attestation.vectors import read
from tests.attestation.verifier.certificates import NOW, Issued, chain, key, pem, raw_signature

AT = 1_764_500_000
HOPPER = read("nvidia/hopper_evidence.json")
FOUR = read("nvidia/multi_gpu_hopper.json")
NONCE = bytes.fromhex(json.loads(HOPPER)[0]["nonce"])
SIGNATURE = 96


def blackwell() -> bytes:
    report = bytes.fromhex(read("nvidia/blackwell_report.hex").decode())
    return encoded([entry(report, read("nvidia/blackwell_cert_chain.txt"), "BLACKWELL")])


def entry(report: bytes, certificates: bytes, arch: str = "HOPPER") -> dict[str, str]:
    return {
        "arch": arch,
        "certificate": b64encode(certificates).decode(),
        "evidence": b64encode(report).decode(),
        "nonce": report[4:36].hex(),
    }


def encoded(entries: Any) -> bytes:
    return json.dumps(entries).encode()


def failed(found: Verification) -> list[str]:
    return [check.name for check in found.failed]


REPORT = b64decode(json.loads(HOPPER)[0]["evidence"])
CHAIN = b64decode(json.loads(HOPPER)[0]["certificate"])

FIRMWARE = parse_gpu_report(REPORT).opaque[20]
DICE = ("2.23.133.5.4.1", bytes.fromhex("06096086480165030402020430") + FIRMWARE, False)
MADE = chain(Issued("GH100 made for a test", authority=False, extensions=[DICE]), Issued("maker"))


def made(report: bytes = REPORT, certificates: list[x509.Certificate] | None = None) -> bytes:
    """A report signed by a device of another maker: everything but its root is as it should be."""
    signed = report[:-SIGNATURE]
    signature = raw_signature(key("GH100 made for a test"), signed)
    return encoded([entry(signed + signature, pem(certificates or MADE))])


def verify_made(evidence: bytes, **more: Any) -> Verification:
    return verify_gpu_evidence(evidence, NOW, root=MADE[-1].public_bytes(Encoding.DER), **more)


@pytest.mark.parametrize(("evidence", "count"), [(HOPPER, 1), (FOUR, 4), (blackwell(), 1)])
def test_real_evidence_verifies_and_says_what_was_not_checked(evidence: bytes, count: int) -> None:
    found = verify_gpu_evidence(evidence, AT, gpus=count)
    assert (found.accepted, found.policy_accepted, found.reason) == (True, True, "")
    assert sum(check.name.endswith(" signature") for check in found.checks) == count
    for missing in ("RIM", "OCSP", "in the machine that requested it", "no nonce was required"):
        assert any(missing in entry for entry in found.unchecked)


def test_the_report_tells_chip_driver_and_firmware() -> None:
    (told,) = [
        check.reason for check in verify_gpu_evidence(HOPPER, AT).checks if check.name == "GPU 0 signature"
    ]
    assert told == "GH100 A01 GSP FMC LF, driver 590.12, VBIOS 96.00.A5.00.01"


def test_all_gpus_answer_the_nonce_that_was_asked_for() -> None:
    found = verify_gpu_evidence(FOUR, AT, nonce=NONCE)
    assert found.accepted
    assert not any("nonce" in entry for entry in found.unchecked)
    assert failed(verify_gpu_evidence(FOUR, AT, nonce=bytes(32))) == ["GPU nonce"]


def test_gpus_under_different_nonces_are_refused() -> None:
    other = bytearray(REPORT)
    other[4] ^= 1
    entries = [json.loads(made())[0], json.loads(made(bytes(other)))[0]]
    assert failed(verify_made(encoded(entries))) == ["GPU nonce", "GPU identity"]


def test_one_gpu_shown_twice_is_one() -> None:
    assert failed(verify_gpu_evidence(encoded(json.loads(HOPPER) * 2), AT)) == ["GPU identity"]


@pytest.mark.parametrize("offset", [4, 36, 45, 100, 2000, 3600, -100, -96, -1])
def test_no_byte_of_a_report_can_be_altered(offset: int) -> None:
    altered = bytearray(REPORT)
    altered[offset] ^= 1
    found = verify_gpu_evidence(encoded([entry(bytes(altered), CHAIN)]), AT)
    assert not found.accepted


def test_a_report_is_its_own_gpus() -> None:
    second = json.loads(FOUR)[1]
    swapped = encoded([{**second, "certificate": json.loads(FOUR)[0]["certificate"]}])
    assert failed(verify_gpu_evidence(swapped, AT)) == ["GPU 0 signature"]


def test_another_makers_root_is_refused() -> None:
    assert verify_made(made()).accepted
    assert failed(verify_gpu_evidence(made(), NOW)) == ["GPU 0 chain"]
    assert failed(verify_gpu_evidence(HOPPER, AT, root=read("roots/aws_nitro_enclaves_root_g1.pem"))) == [
        "GPU 0 chain"
    ]


def test_the_pinned_root_is_nvidias() -> None:
    assert read("roots/nvidia_device_identity_ca.pem").strip() == NVIDIA_DEVICE_IDENTITY_CA.strip()


def test_firmware_other_than_the_certified_is_refused() -> None:
    for dice in (("2.23.133.5.4.1", DICE[1][:13] + bytes(48), False), ("1.2.3", b"\x05\x00", False)):
        device = Issued("GH100 made for a test", authority=False, extensions=[dice])
        path = chain(device, Issued("maker"))
        assert failed(verify_made(made(certificates=path))) == ["GPU 0 firmware id"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"arch": "BLACKWELL"}, "the certificate HOPPER"), ({"nonce": "00" * 32}, "nonce is not the report's")],
)
def test_the_file_may_not_contradict_the_signed_report(change: dict[str, str], reason: str) -> None:
    found = verify_gpu_evidence(encoded([{**json.loads(HOPPER)[0], **change}]), AT)
    assert failed(found) == ["GPU 0 claims"]
    assert reason in found.reason


def test_count_and_architecture_are_the_policys() -> None:
    found = verify_gpu_evidence(HOPPER, AT, gpus=2)
    assert (found.accepted, found.policy_accepted, failed(found)) == (True, False, ["GPU count"])
    found = verify_gpu_evidence(HOPPER, AT, architectures=("BLACKWELL",))
    assert (found.accepted, found.policy_accepted, failed(found)) == (True, False, ["GPU architecture"])


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (b"", "Expecting value"),
        (b"{}", "not a list"),
        (b"[]", "not a list"),
        (b"[" * 50_000, "nested deeper"),
        (b"[1]", "lacks one of the texts"),
        (b" " * (MAX_EVIDENCE_BYTES + 1), "larger than"),
        (encoded([entry(b"", CHAIN)]), "0 bytes are no GPU report"),
        (encoded([entry(bytes(4000), CHAIN)]), "not a request"),
        (encoded([entry(REPORT[:37] + bytes(4000), CHAIN)]), "not a measurements response"),
        (encoded([entry(REPORT[:2000], CHAIN)]), "ends early"),
        (encoded([entry(REPORT + b"\0", CHAIN)]), "more bytes than its fields"),
        (encoded([entry(REPORT, b"")]), ""),
        (encoded([{**entry(REPORT, CHAIN), "evidence": "%"}]), "base64"),
        (encoded(json.loads(HOPPER) * 65), "not a list of 1 to 64"),
    ],
)
def test_malformed_evidence_is_unusable_with_a_reason(evidence: bytes, reason: str) -> None:
    found = verify_gpu_evidence(evidence, AT)
    assert (found.accepted, found.policy_accepted, found.unusable) == (False, False, True)
    assert reason in found.reason


def test_hostile_bytes_are_a_verdict_and_no_crash() -> None:
    rng = random.Random(3)
    for _ in range(300):
        raw = bytearray(b64decode(json.loads(HOPPER)[0][rng.choice(("evidence", "certificate"))]))
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        altered = bytes(raw)
        evidence = entry(altered, CHAIN) if len(raw) == len(REPORT) else entry(REPORT, altered)
        if altered not in (REPORT, CHAIN):
            found = verify_gpu_evidence(encoded([evidence]), AT)
            assert not found.accepted or len(raw) != len(REPORT)
