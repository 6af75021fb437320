from dataclasses import fields, replace

import pytest
from eth_account.messages import encode_typed_data
from eth_hash.auto import keccak
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.manifest import FIELD_TYPES, TYPE, Manifest, commitment, slot

addresses = st.binary(min_size=20, max_size=20).map(lambda raw: "0x" + raw.hex())
words = st.binary(min_size=32, max_size=32)
counts = st.integers(0, 2**64 - 1)
manifests = st.builds(
    Manifest,
    run=st.integers(0, 2**256 - 1),
    round=st.integers(0, 2**32 - 1),
    trainer=addresses,
    base_state=words,
    update=words,
    samples=words,
    trace=words,
    steps=counts,
    tokens=counts,
    size=counts,
)
TRAINER, RUNS = "0x" + "11" * 20, "0x" + "22" * 20
MANIFEST = Manifest(1, 2, TRAINER, b"\1" * 32, b"\2" * 32, b"\3" * 32, bytes(32), 150, 153_600, 240_000)


def test_type_is_the_one_on_the_protocol_page():
    assert TYPE == (
        "Manifest(uint256 run,uint32 round,address trainer,bytes32 base_state,bytes32 update,bytes32 samples,"
        "bytes32 trace,uint64 steps,uint64 tokens,uint64 size)"
    )


@given(manifests)
def test_hash_is_eip_712_hash_struct(manifest):
    message = encode_typed_data(
        domain_data={"name": "any"},
        message_types={"Manifest": [{"name": name, "type": kind} for name, kind in FIELD_TYPES.items()]},
        message_data=dict(zip(FIELD_TYPES, manifest.as_tuple(), strict=True)),
    )
    assert manifest.hash() == message.body


def test_every_field_is_in_the_hash():
    others = {replace(MANIFEST, **{field: changed(MANIFEST, field)}).hash() for field in FIELD_TYPES}
    assert len(others | {MANIFEST.hash()}) == len(FIELD_TYPES) + 1
    assert [field.name for field in fields(Manifest)] == list(FIELD_TYPES)


def changed(manifest: Manifest, field: str):
    value = getattr(manifest, field)
    return RUNS if field == "trainer" else b"\7" * 32 if isinstance(value, bytes) else value + 1


COMMITMENT = {
    "chain_id": 1337,
    "contract": RUNS,
    "run": 1,
    "round": 2,
    "trainer": TRAINER,
    "manifest_hash": MANIFEST.hash(),
    "salt": b"\5" * 32,
}


def test_commitment_is_over_abi_encode():
    encoded = b"".join(
        [
            (1337).to_bytes(32, "big"),
            bytes(12) + b"\x22" * 20,
            (1).to_bytes(32, "big"),
            (2).to_bytes(32, "big"),
            bytes(12) + b"\x11" * 20,
            MANIFEST.hash(),
            b"\5" * 32,
        ]
    )
    assert commitment(**COMMITMENT) == keccak(encoded)


@pytest.mark.parametrize("part", COMMITMENT)
def test_a_commitment_binds(part):
    value = COMMITMENT[part]
    other = (
        "0x" + "33" * 20 if isinstance(value, str) else bytes(32) if isinstance(value, bytes) else value + 1
    )
    assert commitment(**{**COMMITMENT, part: other}) != commitment(**COMMITMENT)


def test_slot_keeps_28_bytes_and_the_round():
    word = slot(bytes(range(32)), 65_535)
    assert word == bytes(range(28)) + b"\x00\x00\xff\xff"
