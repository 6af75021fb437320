"""AMD SEV-SNP: real reports have valid signatures, but are refused for other reasons; a good one is accepted."""

from __future__ import annotations

import random
import struct
from functools import cache
from hashlib import sha256
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from earnest.attestation.roots import AMD_ROOTS
from earnest.attestation.verifier.amd_snp import (
    MAX_CHAIN_BYTES,
    POLICY_DEBUG,
    POLICY_MIGRATION,
    REPORT_BYTES,
    SIGNED_BYTES,
    verify_snp_report,
)
from earnest.attestation.verifier.verification import Verification
from tests.attestation.vectors import read
from tests.attestation.verifier.certificates import NOW, Issued, issue, key, pem, raw_signature, rsa_key

pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number")

AT = 1_785_000_000
MILAN = read("roots/amd_ask_ark_milan.pem")
REPORT, VCEK = read("amd/report_milan.bin"), read("amd/report_milan_vcek.pem")
DEBUG_REPORT, DEBUG_VCEK = read("amd/debug_report_milan.bin"), read("amd/debug_vcek_milan.der")


def failed(found: Verification) -> list[str]:
    return [check.name for check in found.failed]


# Real reports


def test_milan_is_refused_by_policy_only() -> None:
    found = verify_snp_report(REPORT, VCEK, MILAN, AT)
    assert (found.accepted, found.policy_accepted, failed(found)) == (True, False, ["SNP generation"])
    assert verify_snp_report(REPORT, VCEK, MILAN, AT, generations=("Milan",)).policy_accepted
    assert any("revocation" in entry for entry in found.unchecked)


def test_a_debug_guest_is_refused_whatever_the_policy() -> None:
    found = verify_snp_report(DEBUG_REPORT, DEBUG_VCEK, MILAN, AT, generations=("Milan",))
    assert (found.accepted, failed(found)) == (False, ["SNP debug"])


def test_a_report_is_its_own_chips() -> None:
    found = verify_snp_report(REPORT, DEBUG_VCEK, MILAN, AT, generations=("Milan",))
    assert failed(found) == ["SNP signature", "SNP chip", "SNP TCB"]


@pytest.mark.parametrize("other", ["genoa", "turin"])
def test_a_chip_is_of_its_generations_root(other: str) -> None:
    found = verify_snp_report(REPORT, VCEK, read(f"roots/amd_ask_ark_{other}.pem"), AT)
    assert "SNP chain" in failed(found)


@pytest.mark.parametrize(("name", "generation"), [("milan", "Milan"), ("genoa", "Genoa"), ("turin", "Turin")])
def test_the_pinned_roots_are_amds(name: str, generation: str) -> None:
    _, root = x509.load_pem_x509_certificates(read(f"roots/amd_ask_ark_{name}.pem"))
    assert AMD_ROOTS[sha256(root.public_bytes(Encoding.DER)).digest()] == generation
    assert root.subject.rfc4514_string().startswith(f"CN=ARK-{generation}")


@pytest.mark.parametrize(
    "offset", [0, 8, 0x30, 0x50, 0x90, 0x180, 0x1A0, SIGNED_BYTES - 1, SIGNED_BYTES, 0x2E8]
)
def test_no_byte_of_a_report_can_be_altered(offset: int) -> None:
    altered = bytearray(REPORT)
    altered[offset] ^= 1
    assert not verify_snp_report(bytes(altered), VCEK, MILAN, AT, generations=("Milan",)).accepted


def test_time_counts() -> None:
    assert failed(verify_snp_report(REPORT, VCEK, MILAN, 1_500_000_000, generations=("Milan",))) == [
        "SNP chain"
    ]


# A machine made for the tests: AMD's forms, other keys

CHIP = bytes(range(64))
TCB = {"1": 7, "2": 0, "3": 21, "8": 213}
OIDS = "1.3.6.1.4.1.3704.1"


@cache
def machine() -> tuple[bytes, bytes, dict[bytes, str]]:
    """A chip's certificate, its issuers, and the roots that pin them."""
    components = [(f"{OIDS}.3.{part}", b"\x02\x02" + svn.to_bytes(2), False) for part, svn in TCB.items()]
    chip = Issued("chip", authority=False, extensions=[*components, (f"{OIDS}.4", CHIP, False)])
    root = issue(Issued("ARK"), "ARK", rsa_key("ARK"), rsa_key("ARK"))
    ask = issue(Issued("ASK", path_length=0), "ARK", rsa_key("ASK"), rsa_key("ARK"))
    vcek = issue(chip, "ASK", key("chip"), rsa_key("ASK"))
    pinned = {sha256(root.public_bytes(Encoding.DER)).digest(): "Genoa"}
    return vcek.public_bytes(Encoding.DER), pem([ask, root]), pinned


def report(
    policy: int = 0x30000, vmpl: int = 0, algorithm: int = 1, data: bytes = bytes(64), snp: int = 21
) -> bytes:
    raw = bytearray(REPORT_BYTES)
    struct.pack_into("<IIQ", raw, 0, 3, 0, policy)
    struct.pack_into("<II", raw, 0x30, vmpl, algorithm)
    raw[0x50:0x90], raw[0x180:0x188], raw[0x1A0:0x1E0] = data, bytes((7, 0, 0, 0, 0, 0, snp, 213)), CHIP
    signature = raw_signature(key("chip"), bytes(raw[:SIGNED_BYTES]))
    raw[0x2A0:0x2D0], raw[0x2E8:0x318] = signature[:48][::-1], signature[48:][::-1]
    return bytes(raw)


def verify_made(raw: bytes, **more: Any) -> Verification:
    vcek, issuers, roots = machine()
    return verify_snp_report(raw, vcek, issuers, NOW, roots=roots, **more)


def test_a_good_machine_passes() -> None:
    found = verify_made(report(data=b"\7" * 64), report_data=b"\7" * 64)
    assert (found.accepted, found.policy_accepted, found.reason) == (True, True, "")
    assert found.report_data == b"\7" * 64


@pytest.mark.parametrize(
    ("raw", "name", "accepted"),
    [
        (report(policy=0x30000 | POLICY_DEBUG), "SNP debug", False),
        (report(algorithm=2), "SNP signature", False),
        (report(snp=20), "SNP TCB", False),
        (report(data=b"\1" * 64), "SNP report data", False),
        (report(vmpl=1), "SNP privilege level", True),
        (report(policy=0x30000 | POLICY_MIGRATION), "SNP migration", True),
    ],
)
def test_each_rule_refuses(raw: bytes, name: str, accepted: bool) -> None:
    found = verify_made(raw, report_data=bytes(64))
    assert (found.accepted, found.policy_accepted, failed(found)) == (accepted, False, [name])


def test_a_higher_level_passes_where_the_policy_says_so() -> None:
    assert verify_made(report(vmpl=1), vmpl=1).policy_accepted


def test_roots_of_nobody_are_refused() -> None:
    vcek, issuers, _ = machine()
    found = verify_snp_report(report(), vcek, issuers, NOW)
    assert failed(found)[0] == "SNP chain"
    assert found.reason == "SNP chain: the root is none of AMD's"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"report": b""}, "0 bytes are no SNP report"),
        ({"report": REPORT + b"\0"}, "are no SNP report"),
        ({"report": b"\x09" + REPORT[1:]}, "version 9 is unknown"),
        ({"report": REPORT[:-1] + b"\1"}, "longer than 384 bits"),
        ({"vcek": b""}, ""),
        ({"vcek": bytes(MAX_CHAIN_BYTES + 1)}, "too large"),
        ({"issuers": b""}, ""),
        ({"issuers": VCEK}, ""),
    ],
)
def test_a_malformed_report_is_unusable_with_a_reason(change: dict[str, bytes], reason: str) -> None:
    found = verify_snp_report(**{"report": REPORT, "vcek": VCEK, "issuers": MILAN, **change}, at=AT)
    assert (found.accepted, found.unusable) == (False, True)
    assert reason in found.reason


def test_hostile_bytes_are_a_verdict_and_no_crash() -> None:
    rng = random.Random(5)
    vcek = x509.load_pem_x509_certificate(VCEK).public_bytes(Encoding.DER)
    for _ in range(150):
        parts = [bytearray(REPORT), bytearray(vcek)]
        target = rng.choice(parts)
        for _ in range(rng.randrange(1, 4)):
            target[rng.randrange(len(target))] ^= 1 << rng.randrange(8)
        verify_snp_report(bytes(parts[0]), bytes(parts[1]), MILAN, AT)
