"""The enclave key: made inside a TEE, named by a quote, signs one statement per round."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from eth_keys.datatypes import PrivateKey

from earnest.base.durable import write_durably
from earnest.base.errors import StorageError
from earnest.base.strict_json import read_json, write_json

STATEMENT_BYTES = 32
KEY_BYTES = 32
SIGNATURE_BYTES = 64
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
"""Order of secp256k1."""

VERSION = 1
MAX_FILE_BYTES = 1024


class EnclaveKey:
    """A secp256k1 key that can only sign statements; it is never returned or printed.

    `keep` writes it to a file that only its owner can read, for a restart. The file is as safe as its disk: inside a
    TEE, use an encrypted volume or memory that only the TEE can read.
    """

    __slots__ = ("_key", "address")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES or not 0 < int.from_bytes(secret) < ORDER:
            raise ValueError("not a secp256k1 private key")
        self._key = PrivateKey(secret)
        self.address: str = self._key.public_key.to_checksum_address()

    @staticmethod
    def make(random: Callable[[int], bytes]) -> EnclaveKey:
        """Makes a new key; `random(n)` gives n unpredictable bytes."""
        while True:
            secret = random(KEY_BYTES)
            if 0 < int.from_bytes(secret) < ORDER:
                return EnclaveKey(secret)

    @staticmethod
    def load(path: Path) -> EnclaveKey | None:
        """Reads the key at `path`, None if there is none. Raises StorageError for a wrong or public file."""
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise StorageError(f"{path} can be read by others", f"chmod 600 {path}")
                content = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}", "check permissions") from error
        try:
            document = read_json(content, max_bytes=MAX_FILE_BYTES)
            key = EnclaveKey(bytes.fromhex(document["secret"]))
            if (document["version"], document["address"]) != (VERSION, key.address):
                raise ValueError("other version, or address of another key")
            return key
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(
                f"{path} is not an enclave key", "remove it; a new key is made and registered"
            ) from error

    def keep(self, path: Path) -> None:
        """Writes the key to `path` atomically; durable on return."""
        document = {"version": VERSION, "address": self.address, "secret": self._key.to_bytes().hex()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_durably(path, write_json(document))
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error.strerror}", "check disk and permissions"
            ) from error

    def sign(self, statement: bytes) -> bytes:
        """Signs a statement's hash (32 bytes). Returns r ‖ vs, 64 bytes as in EIP-2098, with low s."""
        if len(statement) != STATEMENT_BYTES:
            raise ValueError(f"a statement's hash has {STATEMENT_BYTES} bytes, not {len(statement)}")
        signature = self._key.sign_msg_hash(statement)
        assert signature.s <= ORDER // 2
        vs = signature.s | (signature.v << 255)
        return signature.r.to_bytes(32) + vs.to_bytes(32)

    def __repr__(self) -> str:
        return f"EnclaveKey({self.address})"

    def __reduce__(self) -> str:
        raise TypeError("an enclave key cannot be copied")
