"""Policies, and the hashes that bind an enclave's key, computed a second time here."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_hash.auto import keccak

from earnest.attestation.formats.certificate import parse_certificate
from earnest.attestation.formats.quote import QuoteError, claims, parse_quote, pck_chain, quote_calldata
from earnest.protocol.attestation import (
    INTEL_ROOT_KEY,
    MAX_PCK_CAS,
    MAX_PLATFORM_KEYS,
    MAX_TTL_S,
    MAX_WORKLOADS,
    SGX_QE_PRODUCT,
    SGX_QE_SIGNER,
    TD_QE_PRODUCT,
    TD_QE_SIGNER,
    Policy,
    PolicyError,
    challenge,
    key_binding,
    key_entry,
    pck_hash,
    platform_hash,
    root_id,
    round_statement,
)
from tests.attestation.vectors import read

REGISTRY, TRAINER, KEY = ("0x" + digit * 40 for digit in "123")
QUOTE = parse_quote(read("quotes/tdx4-b0c06f-phala.bin"))
POLICY = Policy(
    root_id=root_id(INTEL_ROOT_KEY),
    pck_cas=(bytes(range(64)), b"\xee" * 64),
    qe_signer=TD_QE_SIGNER,
    qe_product=TD_QE_PRODUCT,
    qe_min_svn=4,
    workloads=(b"\x11" * 32, b"\x22" * 32),
    ttl_s=604_800,
    platform_keys=2,
    platform_bond=10**20,
    evaluation_floor=17,
    guardian="0x" + "Ab" * 20,
    document=b"\x33" * 32,
)


def word(number: int) -> bytes:
    return number.to_bytes(32, "big")


def address(text: str) -> bytes:
    return bytes(12) + bytes.fromhex(text[2:])


# What a key is bound to.


def test_a_challenge_names_chain_registry_run_trainer_and_block() -> None:
    assert challenge(1337, REGISTRY, 7, TRAINER, 99, b"\x0b" * 32) == keccak(
        keccak(b"earnest/challenge/v1")
        + word(1337)
        + address(REGISTRY)
        + word(7)
        + address(TRAINER)
        + word(99)
        + b"\x0b" * 32
    )


def test_a_binding_names_chain_registry_trainer_key_run_and_challenge() -> None:
    assert key_binding(1337, REGISTRY, TRAINER, KEY, 7, b"\x0c" * 32) == keccak(
        keccak(b"earnest/enclave-key/v1")
        + word(1337)
        + address(REGISTRY)
        + address(TRAINER)
        + address(KEY)
        + word(7)
        + b"\x0c" * 32
    )


def test_a_round_statement_names_chain_registry_run_round_and_manifest() -> None:
    assert round_statement(1337, REGISTRY, 7, 3, b"\x0d" * 32) == keccak(
        keccak(b"earnest/round-statement/v1")
        + word(1337)
        + address(REGISTRY)
        + word(7)
        + word(3)
        + b"\x0d" * 32
    )


def test_ids_are_hashes_of_what_they_name() -> None:
    assert root_id(INTEL_ROOT_KEY) == pck_hash(INTEL_ROOT_KEY) == keccak(INTEL_ROOT_KEY)
    assert platform_hash(bytes(16)) == keccak(bytes(16))
    assert key_entry(KEY) == keccak(address(KEY))
    for wrong in (b"", bytes(63), bytes(65)):
        with pytest.raises(ValueError, match="64 bytes"):
            root_id(wrong)
    with pytest.raises(ValueError, match="16 bytes"):
        platform_hash(bytes(15))


def test_intels_constants_are_those_of_its_certificates_and_quotes() -> None:
    assert parse_certificate(read("roots/intel_sgx_root_ca.der")).public_key == INTEL_ROOT_KEY
    assert (QUOTE.qe.mrsigner, QUOTE.qe.product) == (TD_QE_SIGNER, TD_QE_PRODUCT)
    sgx = parse_quote(read("quotes/sgx3-00a06711-phala.bin")).qe
    assert (sgx.mrsigner, sgx.product) == (SGX_QE_SIGNER, SGX_QE_PRODUCT)


# Evidence.


def test_the_registrys_calldata_is_the_quote_and_its_certificate_without_the_rest() -> None:
    pck, issuer = pck_chain(QUOTE)
    evidence = quote_calldata(QUOTE, (bytes(64), issuer.public_key))
    assert evidence.ca == 1
    assert evidence.pck[evidence.key_at :][:64] == pck.public_key
    assert evidence.pck[evidence.ppid_at :][:16] == pck.ppid
    assert evidence.quote == QUOTE.signed
    assert claims(QUOTE).pck == pck_hash(pck.public_key)
    with pytest.raises(QuoteError, match="not one of the policy's"):
        quote_calldata(QUOTE, (bytes(64),))
    with pytest.raises(QuoteError, match="the registry accepts at most 1536 bytes"):
        quote_calldata(replace(QUOTE, qe_auth=bytes(129)), (issuer.public_key,))


def test_an_unusable_chain_is_refused_with_a_reason() -> None:
    certificates = QUOTE.chain.split(b"-----END CERTIFICATE-----\n")
    first, second = (part + b"-----END CERTIFICATE-----\n" for part in certificates[:2])
    for chain, reason in (
        (b"", "no certificate"),
        (first, "the CA's certificate is missing"),
        (second + first, "no PPID"),
        (first[:100], "no certificate at byte 0"),
    ):
        with pytest.raises(QuoteError, match=f"PCK certificate chain: .*{reason}"):
            pck_chain(replace(QUOTE, chain=chain))


# Policies.


def test_a_policys_hash_is_that_of_its_abi_encoding() -> None:
    types = "(bytes32,(bytes32,bytes32)[],bytes32,uint16,uint16,bytes32[],uint32,uint16,uint128,uint32,address,bytes32)"
    values = (
        POLICY.root_id,
        [(key[:32], key[32:]) for key in POLICY.pck_cas],
        TD_QE_SIGNER,
        2,
        4,
        [b"\x11" * 32, b"\x22" * 32],
        604_800,
        2,
        10**20,
        17,
        "0x" + "ab" * 20,
        b"\x33" * 32,
    )
    assert POLICY.encode() == encode([types], [values])
    assert POLICY.hash() == keccak(POLICY.encode())
    assert POLICY.encode()[:32] == word(32)


def test_a_policy_reads_back_from_its_json_and_from_any_layout_of_it() -> None:
    canonical = POLICY.to_json()
    read_back = Policy.from_json(canonical)
    assert read_back.hash() == POLICY.hash()
    assert read_back.to_json() == canonical
    loose = json.dumps(dict(reversed(json.loads(canonical).items())), indent=2).encode()
    assert Policy.from_json(loose) == read_back
    assert b" " not in canonical


OUT_OF_RANGE: dict[str, list[Any]] = {
    "root_id": [b"", bytes(31), bytes(33)],
    "pck_cas": [(), (bytes(63),), (bytes(64),) * (MAX_PCK_CAS + 1)],
    "qe_signer": [bytes(31)],
    "qe_product": [-1, 1 << 16],
    "qe_min_svn": [-1, 1 << 16],
    "workloads": [(), (bytes(31),), (bytes(32),) * (MAX_WORKLOADS + 1)],
    "ttl_s": [0, MAX_TTL_S + 1],
    "platform_keys": [0, MAX_PLATFORM_KEYS + 1],
    "platform_bond": [-1, 1 << 128],
    "evaluation_floor": [-1, 1 << 32],
    "guardian": ["", "0x" + "a" * 39, "0x" + "g" * 40, "00" + "a" * 40],
    "document": [bytes(31)],
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_a_policy_out_of_range_is_refused(name: str) -> None:
    assert set(OUT_OF_RANGE) == {field.name for field in fields(Policy)}
    for value in OUT_OF_RANGE[name]:
        with pytest.raises(PolicyError):
            replace(POLICY, **{name: value})


NO_POLICY: dict[str, object] = {
    "ttl_s": True,
    "qe_product": 2.0,
    "qe_min_svn": "4",
    "guardian": 7,
    "root_id": "0x" + "AB" * 32,
    "document": "0x zz",
    "qe_signer": "ab" * 32,
    "workloads": "0x" + "11" * 32,
    "pck_cas": [7],
    "platform_bond": None,
}


@pytest.mark.parametrize("name", NO_POLICY)
def test_json_of_another_type_is_refused(name: str) -> None:
    values = json.loads(POLICY.to_json()) | {name: NO_POLICY[name]}
    with pytest.raises(PolicyError, match=name):
        Policy.from_json(json.dumps(values).encode())


def test_json_that_is_no_policy_is_refused() -> None:
    values = json.loads(POLICY.to_json())
    missing = {name: value for name, value in values.items() if name != "document"}
    for text in (
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 60_000,
        b" " * 70_000,
        json.dumps(missing).encode(),
        json.dumps(values | {"more": 1}).encode(),
        POLICY.to_json()[:-1] + b',"ttl_s":1}',
        b'{"ttl_s":' + b"9" * 5_000 + b"}",
    ):
        with pytest.raises(PolicyError):
            Policy.from_json(text)
