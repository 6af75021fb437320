"""Certificate chains to a pinned root: each rule of RFC 5280 for a straight path, tested alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from earnest.attestation.verifier.certificate_chain import MAX_CHAIN, chain_fault, signature_holds
from tests.attestation.verifier.certificates import END, NOW, START, Issued, chain, issue, key, raw_signature

DEVICE = Issued("device", authority=False)
ISSUER = Issued("issuer", path_length=0)
ROOT = Issued("root", path_length=1)
PATH = chain(DEVICE, ISSUER, ROOT)
PINNED = PATH[-1]


def test_a_chain_leads_to_its_root_with_or_without_it() -> None:
    assert chain_fault(PATH, PINNED, NOW) == ""
    assert chain_fault(PATH[:-1], PINNED, NOW) == ""


def test_another_root_of_the_same_name_is_refused() -> None:
    other = issue(ROOT, "root", holder=key("other"), signer=key("other"))
    assert "device" not in chain_fault(PATH[:-1], other, NOW)
    assert "is not signed by CN=root" in chain_fault(PATH[:-1], other, NOW)
    assert chain_fault(PATH, other, NOW)


@pytest.mark.parametrize("at", [START - 1, END + 1])
def test_each_certificate_has_to_be_valid(at: int) -> None:
    assert "is not valid at" in chain_fault(PATH, PINNED, at)
    assert not any(chain_fault(PATH, PINNED, moment) for moment in (START, END))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_that_has_ended_is_enough(place: int) -> None:
    path = [DEVICE, ISSUER, ROOT]
    path[place] = replace(path[place], ends=NOW - 1)
    ended = chain(*path)
    assert f"CN={path[place].name} is not valid" in chain_fault(ended, ended[-1], NOW)


@pytest.mark.parametrize(
    ("issuer", "fault"),
    [
        (replace(ISSUER, authority=False, path_length=None), "may not sign certificates"),
        (replace(ISSUER, key_cert_sign=False), "may not sign certificates"),
        (
            replace(ISSUER, extensions=[("1.2.3.4", b"\x05\x00", True)]),
            "unknown critical extension",
        ),
        (replace(ISSUER, extensions=[("1.2.3.4", b"\x05\x00", False)]), ""),
    ],
)
def test_an_issuer_has_to_be_an_authority(issuer: Issued, fault: str) -> None:
    path = chain(DEVICE, issuer, ROOT)
    found = chain_fault(path, path[-1], NOW)
    assert fault in found
    assert bool(fault) == bool(found)


def test_a_device_can_not_issue() -> None:
    forged = [issue(Issued("forged", authority=False), "device"), *PATH]
    assert chain_fault(forged, PINNED, NOW) == "CN=device may not sign certificates"


def test_a_path_is_as_long_as_its_authorities_allow() -> None:
    longer = chain(DEVICE, ISSUER, replace(ISSUER, name="middle", path_length=None), ROOT)
    assert chain_fault(longer, longer[-1], NOW) == "CN=root may not sign for so long a chain"


def test_order_gaps_and_lengths_are_faults() -> None:
    assert chain_fault(PATH[1:], PINNED, NOW) == "", "the issuer alone is a chain too"
    assert chain_fault([PATH[1], PATH[0]], PINNED, NOW)
    assert "does not name" in chain_fault(PATH[:1], PINNED, NOW)
    assert chain_fault([PINNED], PINNED, NOW)
    assert chain_fault([PINNED, *PATH], PINNED, NOW)
    assert "are no chain" in chain_fault([], PINNED, NOW)
    assert "are no chain" in chain_fault(PATH[:1] * (MAX_CHAIN + 1), PINNED, NOW)
    assert "no such time" in chain_fault(PATH, PINNED, 2**80)


def test_signatures_are_p384_of_the_whole_message() -> None:
    signer, message = key("device"), b"report"
    signature = raw_signature(signer, message)
    assert signature_holds(signer.public_key(), signature, message)
    assert not signature_holds(signer.public_key(), signature, message + b"s")
    assert not signature_holds(signer.public_key(), signature[:-1], message)
    assert not signature_holds(signer.public_key(), bytes(96), message)
    assert not signature_holds(key("other").public_key(), signature, message)
    assert not signature_holds(None, signature, message)
