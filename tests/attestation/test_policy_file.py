"""The policy file: both halves in one, strict, and made from quotes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from earnest.attestation.formats.quote import Quote, parse_quote
from earnest.attestation.policy_document import PolicyDocument
from earnest.attestation.policy_file import PolicyFile, PolicyFileError
from earnest.attestation.prover.simulated import SimulatedAttester, SimulatedVendor
from earnest.attestation.roots import INTEL_ROOT_ID, SIMULATED_NAME

VENDOR = SimulatedVendor()


def quote(code: bytes = b"code", vendor: SimulatedVendor = VENDOR, **changes: object) -> Quote:
    return parse_quote(SimulatedAttester(vendor, code, **changes).quote(bytes(64)).quote)  # type: ignore[arg-type]


POLICY = PolicyFile.from_quotes([quote()])


def test_a_policy_from_a_quote_pins_what_the_quote_has() -> None:
    policy = POLICY.policy
    assert policy.root_id == VENDOR.root_id
    assert policy.pck_cas == (VENDOR.ca_public,)
    assert (policy.qe_signer, policy.qe_product, policy.qe_min_svn) == (VENDOR.qe_signer, 2, 4)
    assert policy.workloads == (SimulatedAttester(VENDOR, b"code").workload,)
    assert policy.document == PolicyDocument().hash()
    assert POLICY.root_name == SIMULATED_NAME
    assert POLICY.hash == policy.hash()


def test_several_quotes_give_every_workload_and_each_ca_once() -> None:
    policy = PolicyFile.from_quotes([quote(b"a"), quote(b"b"), quote(b"a", platform=1)]).policy
    assert policy.workloads == (quote(b"a").workload(), quote(b"b").workload())
    assert policy.pck_cas == (VENDOR.ca_public,)


def test_the_root_can_be_given() -> None:
    assert PolicyFile.from_quotes([quote()], root=INTEL_ROOT_ID).policy.root_id == INTEL_ROOT_ID


def test_quotes_that_fit_no_policy_are_refused() -> None:
    with pytest.raises(PolicyFileError, match="no quote is given"):
        PolicyFile.from_quotes([])
    with pytest.raises(PolicyFileError, match="one TEE type"):
        PolicyFile.from_quotes([quote(), quote(format="sgx3")])
    with pytest.raises(PolicyFileError, match="16 workloads"):
        PolicyFile.from_quotes([quote(b"%d" % i) for i in range(17)])
    with pytest.raises(PolicyFileError, match="ttl_s"):
        PolicyFile.from_quotes([quote()], ttl_s=0)


def test_a_file_reads_back_whole_in_any_layout(tmp_path: Path) -> None:
    for content in (POLICY.to_bytes(), POLICY.to_text().encode()):
        assert PolicyFile.from_bytes(content) == POLICY
    path = tmp_path / "policy.json"
    path.write_text(POLICY.to_text())
    assert PolicyFile.read(path).hash == POLICY.hash


def test_a_document_that_the_policy_does_not_name_is_refused() -> None:
    with pytest.raises(PolicyFileError, match="names document"):
        PolicyFile(POLICY.policy, replace(POLICY.document, grace_s=5))


def _changed(**changes: object) -> bytes:
    return json.dumps({**json.loads(POLICY.to_bytes()), **changes}).encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b"[" * 9999, "nested deeper"),
        (b"[]", "fields"),
        (_changed(more=1), "fields"),
        (_changed(policy={}), "fields"),
        (_changed(policy=None), "fields"),
        (_changed(document={"statuses": ["Revoked"]}), "Revoked"),
        (_changed(document={"grace_s": 7}), "names document"),
        (POLICY.to_bytes().replace(b'"policy":', b'"policy":{},"policy":'), "twice"),
        (b" " * 200_000, "larger than"),
    ],
    ids=range(10),
)
def test_anything_else_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(PolicyFileError, match=reason):
        PolicyFile.from_bytes(content)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match="No such file"):
        PolicyFile.read(tmp_path / "none")
