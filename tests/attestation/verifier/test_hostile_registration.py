"""Hostile evidence and roots, made to crash a validator."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from earnest.attestation.prover.simulated import SimulatedAttester, SimulatedVendor
from earnest.attestation.verifier.intel import MAX_TIME, verify_quote

VENDOR = SimulatedVendor()
QUOTE = SimulatedAttester(VENDOR).quote(bytes(64)).quote
COLLATERAL = VENDOR.collateral("tdx")
ROOT = x509.load_pem_x509_certificate(VENDOR.root_pem).public_bytes(Encoding.DER)


def test_no_byte_of_the_root_can_be_changed_unnoticed() -> None:
    """A root with another name ends the process inside the verifier's library, where it gets that far."""
    for position in range(0, len(ROOT), 3):
        altered = bytearray(ROOT)
        altered[position] ^= 0x15
        found = verify_quote(QUOTE, COLLATERAL, bytes(altered), VENDOR.made)
        assert not found.accepted
        assert found.failed[0].name == "root certificate", position
        assert found.failed[0].reason


@pytest.mark.parametrize("at", [-1, MAX_TIME, 2**40 - 1, 2**63, 2**80])
def test_a_time_that_no_calendar_has_is_refused(at: int) -> None:
    found = verify_quote(QUOTE, COLLATERAL, ROOT, at)
    assert not found.accepted
    assert found.failed[0].name == "freshness"


def test_the_last_second_of_the_calendar_is_judged() -> None:
    assert "not valid at 9999" in verify_quote(QUOTE, COLLATERAL, ROOT, MAX_TIME - 1).reason
