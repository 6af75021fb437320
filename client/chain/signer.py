"""Keys: keystore v3 files, and transactions signed on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_keyfile.keyfile import create_keyfile_json, extract_key_from_keyfile
from eth_utils.address import is_address, to_checksum_address

from earnest.base.errors import KeystoreError, WrongPassword
from earnest.base.strict_json import read_json

STRONG_SCRYPT_N = 1 << 18
"""scrypt's cost in the keystore standard, about a second; use less only for keys without value."""


@dataclass(frozen=True)
class Signed:
    """A signed transaction, ready to send, and its hash (0x-prefixed hex)."""

    raw: bytes
    hash: str


class Signer:
    """Signs with one key. The same transaction always gives the same bytes (RFC 6979)."""

    def __init__(self, key: bytes) -> None:
        self._account: LocalAccount = Account.from_key(key)

    @classmethod
    def load(cls, path: Path, password: str) -> Signer:
        """Loads the key of a keystore v3 file. Raises KeystoreError or WrongPassword."""
        account = keystore_address(path)
        try:
            return cls(extract_key_from_keyfile(str(path), password.encode()))
        except (ValueError, KeyError, TypeError, NotImplementedError) as error:
            if isinstance(error, ValueError) and "MAC" in str(error):
                raise WrongPassword(
                    f"the password does not open {path}, the key of {account}",
                    "check the password file; a lost password cannot be recovered",
                ) from None
            raise _broken(path) from None

    @property
    def address(self) -> str:
        """The account's address, checksummed."""
        return self._account.address

    def sign(self, transaction: Mapping[str, Any]) -> Signed:
        """Signs a transaction given by chainId, nonce, gas, maxFeePerGas, maxPriorityFeePerGas, to, data, value."""
        signed = self._account.sign_transaction(dict(transaction))
        return Signed(bytes(signed.raw_transaction), "0x" + bytes(signed.hash).hex())

    def __repr__(self) -> str:
        return f"Signer({self.address})"


def new_keystore(
    path: Path, password: str, random: Callable[[int], bytes], scrypt_n: int = STRONG_SCRYPT_N
) -> Signer:
    """Creates a key in a new file. `random(32)` returns the key: pass `secrets.token_bytes`."""
    return import_key(path, password, random(32), scrypt_n)


def import_key(path: Path, password: str, key: bytes, scrypt_n: int = STRONG_SCRYPT_N) -> Signer:
    """Writes a key (32 bytes) to a new keystore file of mode 0600, reads it back, and returns its signer.

    Raises KeystoreError if the file exists: a key is never overwritten.
    """
    keystore = create_keyfile_json(key, password.encode(), kdf="scrypt", iterations=scrypt_n)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise KeystoreError(
            f"{path} exists already", "choose another name; keys are never overwritten"
        ) from None
    with os.fdopen(handle, "w") as file:
        json.dump(keystore, file)
        file.flush()
        os.fsync(file.fileno())
    signer = Signer.load(path, password)
    if signer.address != Signer(key).address:
        raise KeystoreError(f"{path} does not hold the key that was written", "check the disk, and try again")
    return signer


def keystore_address(path: Path) -> str:
    """Returns the account of a keystore file; needs no password. Raises KeystoreError."""
    account = _read(path).get("address")
    if not is_address(account):
        raise _broken(path)
    return to_checksum_address(str(account))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path.read_bytes())
    except FileNotFoundError:
        raise KeystoreError(f"there is no key file {path}", "make one with `earnest keys new`") from None
    except (OSError, ValueError):
        raise _broken(path) from None
    if not isinstance(content, dict) or content.get("version") != 3:
        raise _broken(path)
    return content


def _broken(path: Path) -> KeystoreError:
    return KeystoreError(f"{path} is not a keystore v3 file", "restore it from a backup")
