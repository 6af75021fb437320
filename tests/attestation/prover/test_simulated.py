"""The simulated attester: the real format, accepted under its own root only, the same bytes every time."""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import sha256, sha384
from typing import get_args

import dcap_qvl
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from earnest.attestation.formats.quote import claims, parse_quote
from earnest.attestation.policy_document import SignedStatus
from earnest.attestation.prover.simulated import (
    DAY,
    MADE,
    SIMULATED,
    QuoteKind,
    SimulatedAttester,
    SimulatedVendor,
)
from earnest.attestation.roots import INTEL_ROOT_ID, INTEL_SGX_ROOT_CA, SIMULATED_ROOT_ID, root_id, root_name
from earnest.protocol.attestation import platform_hash

NOW = MADE + 10 * DAY
REPORT_DATA = bytes(range(64))
FORMATS: tuple[QuoteKind, ...] = ("tdx4", "tdx5", "sgx3")
VENDOR = SimulatedVendor()
INTEL_ROOT = x509.load_pem_x509_certificate(INTEL_SGX_ROOT_CA).public_bytes(Encoding.DER)


def verify(
    quote: bytes, collateral: bytes, root: bytes = VENDOR.root_der, now: int = NOW
) -> dcap_qvl.VerifiedReport:
    return dcap_qvl.verify_with_root_ca(
        quote, dcap_qvl.QuoteCollateralV3.from_json(collateral.decode()), root, now
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_a_quote_is_accepted_under_the_simulated_root_only(kind: QuoteKind) -> None:
    quoted = SimulatedAttester(VENDOR, b"code", format=kind).quote(REPORT_DATA)
    assert quoted.collateral is not None
    assert verify(quoted.quote, quoted.collateral).status == "UpToDate"
    for root in (INTEL_ROOT, SimulatedVendor(b"another seed").root_der):
        with pytest.raises(ValueError, match="root CA CRL"):
            verify(quoted.quote, quoted.collateral, root)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_flipped_bit_anywhere_in_the_signed_part_is_refused(kind: QuoteKind) -> None:
    quoted = SimulatedAttester(VENDOR, b"code", format=kind).quote(REPORT_DATA)
    assert quoted.collateral is not None
    signed = quoted.quote.index(REPORT_DATA) + 64
    for offset in range(12, signed, 41):
        changed = bytearray(quoted.quote)
        changed[offset] ^= 1
        with pytest.raises(ValueError):
            verify(bytes(changed), quoted.collateral)


@pytest.mark.parametrize("status", get_args(SignedStatus))
@pytest.mark.parametrize("tee", ["tdx", "sgx"])
def test_every_tcb_status_can_be_had(tee: str, status: str) -> None:
    attester = SimulatedAttester(VENDOR, format="sgx3" if tee == "sgx" else "tdx4")
    collateral = VENDOR.collateral(attester.tee, status=status, advisories=["INTEL-SA-00001"])
    quote = attester.quote(REPORT_DATA).quote
    if status == "Revoked":
        with pytest.raises(ValueError, match="Revoked"):
            verify(quote, collateral)
    else:
        report = verify(quote, collateral)
        assert (report.status, list(report.advisory_ids)) == (status, ["INTEL-SA-00001"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"revoked_platforms": [0]}, "CertRevoked"),
        ({"revoke_signer": True}, "CertRevoked"),
        ({"least_svn": 4}, "No matching TCB level"),
        ({"qe_status": "Revoked"}, "Revoked"),
        ({"expires": MADE + 5 * DAY}, "expired|CrlExpired"),
        ({"issued": NOW + 1}, "future|not yet|NotYet"),
    ],
)
def test_collateral_can_refuse_a_platform(changes: dict, reason: str) -> None:
    quote = SimulatedAttester(VENDOR).quote(REPORT_DATA).quote
    with pytest.raises(ValueError, match=reason):
        verify(quote, VENDOR.collateral(**changes))


def test_revoking_one_platform_leaves_the_others() -> None:
    collateral = VENDOR.collateral(revoked_platforms=[0])
    assert (
        verify(SimulatedAttester(VENDOR, platform=1).quote(REPORT_DATA).quote, collateral).status
        == "UpToDate"
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_a_debug_quote_is_signed_and_refused(kind: QuoteKind) -> None:
    quoted = SimulatedAttester(VENDOR, format=kind, debug=True).quote(REPORT_DATA)
    assert quoted.collateral is not None
    with pytest.raises(ValueError, match="Debug"):
        verify(quoted.quote, quoted.collateral)


def test_the_evaluation_number_is_the_collaterals() -> None:
    collateral = VENDOR.collateral(evaluation=7)
    for part in ("tcb_info", "qe_identity"):
        assert json.loads(json.loads(collateral)[part])["tcbEvaluationDataNumber"] == 7


def test_other_code_is_another_measurement_and_another_platform_another_id() -> None:
    own, changed = SimulatedAttester(VENDOR, b"code"), SimulatedAttester(VENDOR, b"c0de")
    other = SimulatedAttester(VENDOR, b"code", platform=1)
    assert own.workload == other.workload != changed.workload
    platforms = [claims(parse_quote(one.quote(REPORT_DATA).quote)).platform for one in (own, changed, other)]
    assert platforms[0] == platforms[1] != platforms[2]
    extension = dcap_qvl.parse_quote(own.quote(REPORT_DATA).quote).pck_extension()
    assert extension is not None and extension.fmspc == b"SIM\x00\x00\x01"


def test_the_event_log_replays_to_the_registers() -> None:
    quoted = SimulatedAttester(VENDOR, b"code").quote(REPORT_DATA)
    assert quoted.event_log is not None
    registers = [bytes(48)] * 4
    for event in json.loads(quoted.event_log):
        registers[event["imr"]] = sha384(registers[event["imr"]] + bytes.fromhex(event["digest"])).digest()
    measured = parse_quote(quoted.quote).measurements()
    assert registers == [measured[f"rtmr{index}"] for index in range(4)]


@pytest.mark.parametrize("kind", FORMATS)
def test_the_registry_can_take_a_simulated_quote_apart(kind: QuoteKind) -> None:
    attester = SimulatedAttester(VENDOR, b"code", platform=3, format=kind)
    quote = parse_quote(attester.quote(REPORT_DATA).quote)
    found = claims(quote)
    assert found.platform == platform_hash(VENDOR.ppid(3))
    assert found.workload == attester.workload
    assert (quote.qe.mrsigner, quote.debug, quote.trailing) == (VENDOR.qe_signer, False, b"")
    assert quote.sept_ve_disabled


def test_every_certificate_says_simulated() -> None:
    certificates = [VENDOR.root, VENDOR.ca, VENDOR.signer, VENDOR.platform_certificate(0)]
    for certificate in certificates:
        for name in (certificate.subject, certificate.issuer):
            assert SIMULATED in name.rfc4514_string()
            assert "CN=SIMULATED " in name.rfc4514_string()


def test_the_same_seed_gives_the_same_bytes_in_another_process() -> None:
    program = (
        "from earnest.attestation.prover.simulated import *\n"
        "from hashlib import sha256\n"
        "q = SimulatedAttester(SimulatedVendor(b'seed'), b'code', format='tdx5').quote(bytes(range(64)))\n"
        "print(sha256(q.quote + q.collateral + q.event_log).hexdigest())"
    )
    there = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()
    here = SimulatedAttester(SimulatedVendor(b"seed"), b"code", format="tdx5").quote(REPORT_DATA)
    assert here.collateral is not None and here.event_log is not None
    assert sha256(here.quote + here.collateral + here.event_log).hexdigest() == there


def test_roots_have_their_names() -> None:
    assert (
        sha256(INTEL_ROOT).hexdigest() == "44a0196b2b99f889b8e149e95b807a350e7424964399e885a7cbb8ccfab674d3"
    )
    assert root_id(INTEL_ROOT) == INTEL_ROOT_ID
    assert root_id(VENDOR.root_pem) == VENDOR.root_id == SIMULATED_ROOT_ID
    assert root_name(INTEL_ROOT_ID) == "Intel SGX Root CA"
    assert root_name(SIMULATED_ROOT_ID) == SIMULATED
    assert root_name(SimulatedVendor(b"mine").root_id) == "unknown root, not Intel's"
