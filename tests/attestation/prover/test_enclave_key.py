"""The enclave key: signs statements as the contract recovers them, and is never returned or printed."""

from __future__ import annotations

import copy
import json
import os
from hashlib import sha256
from pathlib import Path

import pytest
from eth_keys.datatypes import Signature

from earnest.attestation.prover.enclave_key import ORDER, EnclaveKey
from earnest.base.errors import StorageError

KEY = EnclaveKey(b"\x11" * 32)


def recovered(statement: bytes, signature: bytes) -> str:
    """The address that ecrecover finds for r ‖ vs, which refuses a high s."""
    r, vs = int.from_bytes(signature[:32]), int.from_bytes(signature[32:])
    s, v = vs & ((1 << 255) - 1), vs >> 255
    assert 0 < s <= ORDER // 2
    return Signature(vrs=(v, r, s)).recover_public_key_from_msg_hash(statement).to_checksum_address()


@pytest.mark.parametrize("number", range(24))
def test_a_signature_recovers_to_the_address(number: int) -> None:
    statement = sha256(b"statement %d" % number).digest()
    signature = KEY.sign(statement)
    assert len(signature) == 64
    assert recovered(statement, signature) == KEY.address
    assert KEY.sign(statement) == signature


def test_both_parities_occur() -> None:
    parities = {KEY.sign(sha256(b"%d" % i).digest())[32] >> 7 for i in range(16)}
    assert parities == {0, 1}


def test_only_a_hash_is_signed() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        KEY.sign(b"text")


def test_a_kept_key_comes_back_and_is_the_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "inside" / "key"
    KEY.keep(path)
    found = EnclaveKey.load(path)
    assert found is not None and found.address == KEY.address
    assert path.stat().st_mode & 0o777 == 0o600
    assert EnclaveKey.load(tmp_path / "none") is None


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "key"
    KEY.keep(path)
    path.chmod(0o640)
    with pytest.raises(StorageError, match="read by others"):
        EnclaveKey.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff",
        json.dumps({"version": 1, "secret": "22" * 32, "address": KEY.address}).encode(),
        json.dumps({"version": 1, "secret": "00" * 32, "address": KEY.address}).encode(),
        json.dumps({"version": 2, "secret": "11" * 32, "address": KEY.address}).encode(),
        json.dumps({"version": 1, "secret": "11" * 32, "address": KEY.address}).encode() + b" " * 2000,
    ],
)
def test_a_file_that_is_no_key_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StorageError, match="not an enclave key"):
        EnclaveKey.load(path)


def test_the_key_is_neither_printed_nor_copied() -> None:
    assert "1111" not in repr(KEY) and KEY.address in repr(KEY)
    for copied in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied"):
            copied(KEY)


def test_a_new_key_is_random_and_valid() -> None:
    draws = iter([bytes(32), ORDER.to_bytes(32), b"\x05" * 32])
    assert EnclaveKey.make(lambda size: next(draws)).address == EnclaveKey(b"\x05" * 32).address
    assert EnclaveKey.make(os.urandom).address != EnclaveKey.make(os.urandom).address
