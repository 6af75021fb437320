"""Salts: each commitment of a seat, saved with its salt and everything else that its reveal needs.

They are rows of the node's journal. Without its salt a commitment cannot be revealed, which costs bond.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from earnest.client.storage.database import Database
from earnest.protocol.manifest import Manifest
from earnest.protocol.run import Role

WORD = 32

TABLE = """CREATE TABLE commitments (
    run INTEGER NOT NULL, round INTEGER NOT NULL, role INTEGER NOT NULL,
    commitment BLOB NOT NULL, salt BLOB NOT NULL, manifest BLOB, words BLOB NOT NULL,
    PRIMARY KEY (run, round, role)
) WITHOUT ROWID"""


@dataclass(frozen=True)
class SavedCommitment:
    """A seat's commitment in a round, with the salt and everything else that its reveal needs."""

    run: int
    round: int
    role: Role
    commitment: bytes
    salt: bytes
    manifest: Manifest | None
    """A trainer's manifest."""

    words: tuple[bytes, ...]
    """A validator's report, as the 32-byte words that it reveals."""


class Salts:
    """The commitments and salts in a journal's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(
        self,
        run: int,
        round: int,
        role: Role,
        commitment: bytes,
        salt: bytes,
        *,
        manifest: Manifest | None = None,
        words: Sequence[bytes] = (),
    ) -> SavedCommitment:
        """Saves a commitment before its transaction is sent; on return it survives a power cut.

        A seat commits once per round: the first commitment saved is kept, and returned by every later call; send that
        one. Raises RuntimeError inside a `transaction`, where it could not be durable on return.
        """
        if self._database.in_transaction:
            raise RuntimeError("a commitment saved inside a transaction would not be durable on return")
        encoded = None if manifest is None else msgspec.json.encode(manifest)
        with self._database.transaction():
            self._database.execute(
                "INSERT OR IGNORE INTO commitments VALUES (?, ?, ?, ?, ?, ?, ?)",
                *(run, round, int(role), commitment, salt, encoded, b"".join(words)),
            )
        saved = self.find(run, round, role)
        if saved is None:
            raise self._database.corrupt("a commitment that was just written is missing")
        return saved

    def find(self, run: int, round: int, role: Role) -> SavedCommitment | None:
        """Returns the commitment saved for this role in this round, or None."""
        row = self._database.row(
            "SELECT commitment, salt, manifest, words FROM commitments WHERE (run, round, role) = (?, ?, ?)",
            *(run, round, int(role)),
        )
        if row is None:
            return None
        digest, salt, encoded, words = row
        try:
            manifest = None if encoded is None else msgspec.json.decode(encoded, type=Manifest)
        except msgspec.DecodeError as error:
            raise self._database.corrupt(f"the manifest of run {run}, round {round}: {error}") from error
        pieces = tuple(words[i : i + WORD] for i in range(0, len(words), WORD))
        return SavedCommitment(run, round, Role(role), digest, salt, manifest, pieces)
