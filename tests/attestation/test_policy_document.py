"""The policy document: canonical, hashed, and strict about everything that a sponsor may write."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from eth_hash.auto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from earnest.attestation.policy_document import (
    GPU_ARCHITECTURES,
    MAX_DOCUMENT_BYTES,
    MAX_GRACE_S,
    TCB_STATUSES,
    PolicyDocument,
    PolicyDocumentError,
)

SUBSETS = st.sets(st.sampled_from(TCB_STATUSES), min_size=1).map(tuple)
DOCUMENTS = st.builds(
    PolicyDocument,
    statuses=SUBSETS,
    grace_s=st.integers(0, MAX_GRACE_S),
    evaluation_floor=st.integers(0, 2**32 - 1),
    denied_advisories=st.sets(st.from_regex(r"\AINTEL-SA-[0-9]{5}\Z"), max_size=3).map(tuple),
    denied_families=st.sets(st.from_regex(r"\A[0-9A-F]{12}\Z"), max_size=3).map(tuple),
    allow_smt=st.booleans(),
    margin_s=st.integers(0, 30 * 86_400),
    events=st.dictionaries(
        st.text(min_size=1, max_size=9), st.binary(max_size=8).map(bytes.hex), max_size=3
    ).map(lambda events: tuple(events.items())),
    gpus=st.integers(0, 64),
    gpu_architectures=st.sets(st.sampled_from(GPU_ARCHITECTURES)).map(tuple),
)


@settings(max_examples=50, deadline=None)
@given(DOCUMENTS)
def test_a_document_reads_back_from_its_canonical_bytes(document: PolicyDocument) -> None:
    canonical = document.to_json()
    assert PolicyDocument.from_json(canonical) == document
    assert canonical.isascii()
    assert document.hash() == keccak(canonical)
    loose = json.dumps(json.loads(canonical), indent=2).encode()
    assert PolicyDocument.from_json(loose).hash() == document.hash()


def test_keys_left_out_have_their_default() -> None:
    assert PolicyDocument.from_json(b"{}") == PolicyDocument()
    assert PolicyDocument.from_json(b'{"gpus": 8}') == PolicyDocument(gpus=8)


def test_the_default_hash_is_pinned() -> None:
    """Runs name documents by it: a new field, or another default, is another document."""
    assert PolicyDocument().to_json() == (
        b'{"allow_cached_keys":true,"allow_dynamic_platform":true,"allow_smt":true,"denied_advisories":[],'
        b'"denied_families":[],"evaluation_floor":0,"events":[],"gpu_architectures":["HOPPER","BLACKWELL"],'
        b'"gpus":0,"grace_s":0,"margin_s":86400,"statuses":["UpToDate"]}'
    )


def test_every_field_changes_the_hash() -> None:
    changes: dict[str, Any] = {
        "statuses": ("OutOfDate",),
        "grace_s": 1,
        "evaluation_floor": 1,
        "denied_advisories": ("INTEL-SA-00001",),
        "denied_families": ("B0C06F000000",),
        "allow_dynamic_platform": False,
        "allow_smt": False,
        "allow_cached_keys": False,
        "margin_s": 0,
        "events": (("compose-hash", "00"),),
        "gpus": 1,
        "gpu_architectures": ("HOPPER",),
    }
    assert changes.keys() == {field.name for field in fields(PolicyDocument)}
    hashes = {PolicyDocument(**{name: value}).hash() for name, value in changes.items()}
    assert len(hashes | {PolicyDocument().hash()}) == len(changes) + 1


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"statuses": []}, "no status is accepted"),
        ({"statuses": ["Revoked"]}, "'Revoked' is none of"),
        ({"statuses": ["UpToDate", "UpToDate"]}, "has an entry twice"),
        ({"statuses": "UpToDate"}, "statuses: not a list"),
        ({"statuses": [1]}, r"statuses\[0\]: 1 is not str"),
        ({"grace_s": -1}, "grace_s is not in"),
        ({"grace_s": MAX_GRACE_S + 1}, "grace_s is not in"),
        ({"grace_s": True}, "True is not int"),
        ({"grace_s": 1.0}, "1.0 is not int"),
        ({"evaluation_floor": 2**32}, "evaluation_floor is not in"),
        ({"denied_advisories": ["INTEL-SA-1"]}, "not INTEL-SA- and five digits"),
        ({"denied_advisories": ["INTEL-SA-0000١"]}, "not INTEL-SA- and five digits"),
        ({"denied_advisories": [f"INTEL-SA-{i:05}" for i in range(257)]}, "more than 256"),
        ({"denied_families": ["b0c06f000000"]}, "not 12 upper-case"),
        ({"allow_smt": 1}, "1 is not bool"),
        ({"margin_s": 31 * 86_400}, "margin_s is not in"),
        ({"events": [["", "00"]]}, "a name must have 1 to 128"),
        ({"events": [["x", "0"]]}, "lower-case hexadecimal"),
        ({"events": [["x", "AB"]]}, "lower-case hexadecimal"),
        ({"events": [["x", "00" * 1025]]}, "lower-case hexadecimal"),
        ({"events": [["x"]]}, r"events\[0\]: not a list of 2"),
        ({"events": [["x", "00"], ["x", "01"]]}, "a name occurs twice"),
        ({"gpus": 65}, "gpus is not in"),
        ({"gpu_architectures": ["AMPERE"]}, "'AMPERE' is none of"),
        ({"more": 1}, "unknown key 'more'"),
    ],
)
def test_a_wrong_value_is_refused_by_name(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(PolicyDocumentError, match=reason):
        PolicyDocument.from_json(json.dumps(changed).encode())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"[]", "not an object"),
        (b"[" * 5000, "nested deeper"),
        (b'{"gpus": NaN}', "NaN is not a number"),
        (b'{"gpus": 1, "gpus": 2}', "a key occurs twice"),
        (b" " * (MAX_DOCUMENT_BYTES + 1), "larger than"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_a_malformed_document_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(PolicyDocumentError, match=reason):
        PolicyDocument.from_json(data)
