"""Keys stay in their files, and only the right password opens them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from eth_account import Account

from earnest.base.errors import KeystoreError, WrongPassword
from earnest.client.chain.signer import Signer, import_key, keystore_address, new_keystore
from tests.client.chain.conftest import key_of

WEAK = 2  # scrypt n: these keys guard nothing


@pytest.fixture
def keystore(tmp_path: Path) -> Path:
    path = tmp_path / "keys" / "trainer.json"
    import_key(path, "correct horse", key_of("trainer"), scrypt_n=WEAK)
    return path


def test_a_key_comes_back_with_its_password(keystore: Path) -> None:
    assert Signer.load(keystore, "correct horse").address == Signer(key_of("trainer")).address
    assert keystore_address(keystore) == Signer(key_of("trainer")).address


def test_other_wallets_can_read_the_file(keystore: Path) -> None:
    assert Account.decrypt(json.loads(keystore.read_text()), "correct horse") == key_of("trainer")


def test_a_file_of_another_wallet_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "geth.json"
    path.write_text(json.dumps(Account.encrypt(key_of("trainer"), "pw", kdf="pbkdf2", iterations=2)))
    assert Signer.load(path, "pw").address == Signer(key_of("trainer")).address


def test_a_new_key_is_the_randomness_it_was_given(tmp_path: Path) -> None:
    signer = new_keystore(tmp_path / "a.json", "pw", lambda size: b"\x07" * size, scrypt_n=WEAK)
    assert signer.address == Signer(b"\x07" * 32).address


def test_a_wrong_password_is_a_clear_error(keystore: Path) -> None:
    with pytest.raises(WrongPassword, match="does not open") as raised:
        Signer.load(keystore, "incorrect horse")
    assert raised.value.fix


def test_a_key_is_never_overwritten(keystore: Path) -> None:
    before = keystore.read_bytes()
    with pytest.raises(KeystoreError, match="exists already"):
        new_keystore(keystore, "pw", os.urandom, scrypt_n=WEAK)
    assert keystore.read_bytes() == before


def test_only_the_owner_may_read_the_file(keystore: Path) -> None:
    assert keystore.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "not json", '{"version": 1}', '{"version": 3}', "\udcff"]
)
def test_a_broken_file_is_a_clear_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(KeystoreError, match="not a keystore v3 file"):
        Signer.load(path, "pw")


def test_a_damaged_ciphertext_is_a_wrong_password_at_most(keystore: Path) -> None:
    content = json.loads(keystore.read_text())
    content["crypto"]["ciphertext"] = "00" * 32
    keystore.write_text(json.dumps(content))
    with pytest.raises(KeystoreError):
        Signer.load(keystore, "correct horse")


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(KeystoreError, match="earnest keys new"):
        Signer.load(tmp_path / "none.json", "pw")


def test_nothing_printed_holds_the_key(keystore: Path) -> None:
    signer = Signer.load(keystore, "correct horse")
    assert key_of("trainer").hex() not in f"{signer} {signer!r} {keystore.read_text()}"


def test_the_same_transaction_is_signed_the_same_way_twice() -> None:
    transaction = {
        "type": 2,
        "chainId": 1,
        "nonce": 0,
        "gas": 21_000,
        "maxFeePerGas": 2,
        "maxPriorityFeePerGas": 1,
        "to": Signer(key_of("stranger")).address,
        "data": b"",
        "value": 1,
    }
    signer = Signer(key_of("trainer"))
    assert signer.sign(transaction) == signer.sign(transaction)
    assert Account.recover_transaction(signer.sign(transaction).raw) == signer.address
