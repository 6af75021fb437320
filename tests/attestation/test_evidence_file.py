"""The evidence file: its canonical form and root, and a reader that refuses any other file."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earnest.attestation.evidence_file import (
    MAX_EVIDENCE_BYTES,
    MAX_TEXT_BYTES,
    EvidenceFile,
    EvidenceFileError,
)
from earnest.attestation.formats.collateral import collateral_digest
from earnest.attestation.prover.attester import MAX_QUOTE_BYTES
from earnest.attestation.prover.simulated import SimulatedAttester
from earnest.protocol.merkle import content_root

QUOTED = SimulatedAttester().quote(bytes(64))
assert QUOTED.collateral is not None
EVIDENCE = EvidenceFile(QUOTED.quote, QUOTED.collateral, QUOTED.event_log)
FILE = EVIDENCE.to_bytes()


def test_a_file_reads_back_whole() -> None:
    gpu = '[{"nonce": "é"}]'.encode()
    for evidence in (EVIDENCE, EvidenceFile(QUOTED.quote, QUOTED.collateral, gpu=gpu)):  # type: ignore[arg-type]
        assert EvidenceFile.read(evidence.to_bytes()) == evidence
        assert evidence.root() == content_root(evidence.to_bytes())


def test_collateral_in_any_layout_gives_the_same_file() -> None:
    loose = json.dumps(json.loads(EVIDENCE.collateral), indent=2).encode()
    assert EvidenceFile(QUOTED.quote, loose, QUOTED.event_log).to_bytes() == FILE
    assert EVIDENCE.collateral_digest() == collateral_digest(loose)


def test_a_chain_in_the_collateral_is_left_out() -> None:
    document = {**json.loads(EVIDENCE.collateral), "pck_certificate_chain": "mine"}
    assert b"mine" not in EvidenceFile(QUOTED.quote, json.dumps(document).encode()).to_bytes()
    file = json.loads(FILE)
    file["collateral"]["pck_certificate_chain"] = "mine"
    with pytest.raises(EvidenceFileError, match="canonical form"):
        EvidenceFile.read(json.dumps(file, sort_keys=True, separators=(",", ":")).encode())


def test_the_gpu_digest_is_what_report_data_must_carry() -> None:
    assert EVIDENCE.gpu_digest() == bytes(32)
    assert EvidenceFile(QUOTED.quote, EVIDENCE.collateral, gpu=b"[]").gpu_digest() == sha256(b"[]").digest()


def _changed(**changes: object) -> bytes:
    document = {**json.loads(FILE), **changes}
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[]", "fields"),
        (b"[" * 100_000, "nested deeper"),
        (FILE + b" ", "canonical form"),
        (json.dumps(json.loads(FILE)).encode(), "canonical form"),
        (FILE.replace(b'"version":1', b'"version":1,"version":1'), "a key occurs twice"),
        (_changed(version=2), "version"),
        (_changed(more=1), "fields"),
        (_changed(quote=7), "not hex"),
        (_changed(quote=""), "bytes"),
        (_changed(quote=EVIDENCE.quote.hex().upper()), "canonical form"),
        (_changed(quote="00" * (MAX_QUOTE_BYTES + 1)), "bytes"),
        (_changed(collateral=None), "not an object"),
        (_changed(collateral={}), "missing field"),
        (_changed(event_log=["list"]), "not a string"),
        (_changed(event_log=""), "event log"),
        (_changed(gpu="x" * (MAX_TEXT_BYTES + 1)), "GPU"),
        (_changed(gpu="\ud800"), "UTF-8"),
        (b" " * (MAX_EVIDENCE_BYTES + 1), "bytes"),
    ],
    ids=range(20),
)
def test_anything_else_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(EvidenceFileError, match=reason):
        EvidenceFile.read(content)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(FILE) - 1), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_another_bundle(position: int, value: int) -> None:
    content = FILE[:position] + bytes([value]) + FILE[position + 1 :]
    try:
        read = EvidenceFile.read(content)
    except EvidenceFileError:
        return
    assert read.to_bytes() == content
    assert (read == EVIDENCE) == (content == FILE)
