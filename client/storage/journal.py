"""A node's journal: salts, commitments and open transactions that must survive a crash, in one SQLite file.

It also stores small values by key. A write is synced to disk when its call (or the enclosing `transaction`) returns, so
that a killed node continues after a restart. A damaged journal is an error and is never replaced by an empty one:
without its salt a commitment cannot be revealed, which costs bond.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from earnest.base.errors import StorageError
from earnest.client.chain.outbox import Intent, Status
from earnest.client.storage import salts
from earnest.client.storage.database import Database, JournalForeign, Migration
from earnest.client.storage.lease import Lease

__all__ = ["Journal", "JournalForeign"]

APPLICATION_ID = 0x4541524E  # "EARN", in the file's header

MIGRATIONS: tuple[Migration, ...] = (
    (
        "CREATE TABLE identity (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
        salts.TABLE,
        # Amounts of wei do not fit SQLite's 64-bit integers: they are decimal text.
        """CREATE TABLE intents (
            name TEXT PRIMARY KEY, recipient TEXT NOT NULL, data BLOB NOT NULL, value TEXT NOT NULL,
            gas INTEGER NOT NULL, nonce INTEGER NOT NULL, max_fee TEXT NOT NULL, tip TEXT NOT NULL,
            hashes TEXT NOT NULL, status TEXT NOT NULL, created_block INTEGER NOT NULL, deadline INTEGER
        ) WITHOUT ROWID""",
        "CREATE INDEX intents_open ON intents (nonce) WHERE status = 'open'",
    ),
)
"""Upgrades from each version to the next. Only append to them: existing nodes have files of every version."""


class Journal:
    """The journal at `path`, created if missing, leased until `close` or the end of the process.

    `owner` is the address of the seat's owner, `deployment` a text that names the chain and its contracts; both are
    written once and must match at every later start. Safe to use from several threads. Implements the outbox's
    `IntentStore`.

    Raises JournalLocked (another node uses it), JournalCorrupt (damaged, or written by another program),
    JournalForeign (another owner or deployment, or a newer version), StorageError (disk full, no permission).
    """

    def __init__(self, path: Path, owner: str, deployment: str = "") -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot create {path.parent}: {error.strerror}", "choose another data folder"
            ) from error
        self._lease = Lease(path.with_name(f"{path.name}.lock"), f"journal {path}")
        try:
            self._database = Database(path, APPLICATION_ID, MIGRATIONS)
            self.salts = salts.Salts(self._database)
            try:
                self._identify({"owner": owner.lower(), "deployment": deployment})
            except BaseException:
                self._database.close()
                raise
        except BaseException:
            self._lease.close()
            raise

    def close(self) -> None:
        """Closes the file and releases the lease."""
        self._database.close()
        self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def transaction(self) -> AbstractContextManager[None]:
        """Commits and syncs all writes inside at its end, or none of them. A nested one joins the outer."""
        return self._database.transaction()

    # Values by key

    def get(self, key: str) -> bytes | None:
        """Returns the value last put under `key`, or None."""
        row = self._database.row("SELECT value FROM entries WHERE key = ?", key)
        return None if row is None else row[0]

    def put(self, key: str, value: bytes) -> None:
        """Writes `value` under `key`."""
        with self.transaction():
            self._database.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", key, value)

    # Open transactions (the outbox's IntentStore)

    def add_intent(self, intent: Intent) -> None:
        """Writes a new intent, replacing a closed one of its name. Raises ValueError if that one is still open."""
        with self.transaction():
            earlier = self.intent(intent.name)
            if earlier is not None and earlier.status == Status.OPEN:
                raise ValueError(f"intent {intent.name} is still open")
            self._write_intent(intent)

    def update_intent(self, intent: Intent) -> None:
        """Overwrites the intent of this name. Raises KeyError if there is none."""
        with self.transaction():
            if self.intent(intent.name) is None:
                raise KeyError(intent.name)
            self._write_intent(intent)

    def intent(self, name: str) -> Intent | None:
        """Returns the intent of this name, or None."""
        row = self._database.row("SELECT * FROM intents WHERE name = ?", name)
        return None if row is None else self._read_intent(row)

    def open_intents(self) -> list[Intent]:
        """Returns every open intent, lowest nonce first."""
        rows = self._database.execute("SELECT * FROM intents WHERE status = 'open' ORDER BY nonce")
        return [self._read_intent(row) for row in rows]

    def _write_intent(self, intent: Intent) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO intents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *(intent.name, intent.to, intent.data, str(intent.value), intent.gas, intent.nonce),
            *(str(intent.max_fee), str(intent.tip), " ".join(intent.hashes), str(intent.status)),
            *(intent.created_block, intent.deadline),
        )

    def _read_intent(self, row: tuple[Any, ...]) -> Intent:
        name, to, data, value, gas, nonce, max_fee, tip, hashes, status, created_block, deadline = row
        try:
            return Intent(
                name=name,
                to=to,
                data=data,
                value=int(value),
                gas=gas,
                nonce=nonce,
                max_fee=int(max_fee),
                tip=int(tip),
                hashes=tuple(hashes.split()),
                status=Status(status),
                created_block=created_block,
                deadline=deadline,
            )
        except ValueError as error:
            raise self._database.corrupt(f"the intent {name}: {error}") from error

    def _identify(self, identity: dict[str, str]) -> None:
        """Writes owner and deployment of a new journal. Raises JournalForeign if an existing one has others."""
        with self.transaction():
            for name, value in identity.items():
                self._database.execute("INSERT OR IGNORE INTO identity VALUES (?, ?)", name, value)
            for name, saved in self._database.execute("SELECT name, value FROM identity"):
                if saved != identity.get(name):
                    raise JournalForeign(
                        f"journal {self.path} belongs to {name} {saved}, not {identity.get(name)}",
                        "give this node its own data folder",
                    )
