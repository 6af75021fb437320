"""An SQLite file that is durable at every commit, migrates itself, and is never silently recreated."""

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from earnest.base.durable import sync_file, sync_folder
from earnest.base.errors import JournalCorrupt, StorageError

UNUSABLE = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_BUSY")

Migration = Sequence[str]
"""Statements that upgrade the file from one `user_version` to the next."""


class JournalForeign(StorageError):
    """The journal belongs to another account or deployment, or to a newer version of earnest."""


class Database:
    """The SQLite file at `path`, created if missing: WAL, synchronous=FULL, readable by its owner only.

    Safe to use from several threads. Raises JournalCorrupt (damaged, or written by another program),
    JournalForeign (written by a newer version), StorageError (disk full, no permission) here and from every
    method.
    """

    def __init__(self, path: Path, application_id: int, migrations: Sequence[Migration]) -> None:
        self.path = path
        self._application_id, self._migrations = application_id, migrations
        self._mutex = threading.RLock()
        self._busy = False
        if not path.exists():
            self._create()
        self._connection = self._connect(path)
        try:
            self._check()
            self._set_durable()
            self._migrate()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Closes the file; committed writes are on disk already."""
        with self._mutex:
            self._connection.close()

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Executes one statement and returns its rows."""
        with self._mutex:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.DatabaseError as error:
                raise self._failure(error) from error

    def row(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        """Executes one statement and returns its first row, or None."""
        return next(iter(self.execute(sql, *values)), None)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits and syncs all writes inside at its end, or none of them. A nested one joins the outer."""
        with self._mutex:
            if self._busy:
                yield
                return
            self.execute("BEGIN IMMEDIATE")
            self._busy = True
            try:
                yield
                self.execute("COMMIT")
            finally:
                self._busy = False
                if self._connection.in_transaction:
                    self.execute("ROLLBACK")

    @property
    def in_transaction(self) -> bool:
        """True while the calling thread is inside `transaction`."""
        with self._mutex:
            return self._busy

    def corrupt(self, cause: str) -> JournalCorrupt:
        """Returns the error to raise for impossible content."""
        return JournalCorrupt(
            f"journal {self.path} is damaged: {cause}",
            "restore a backup; do not delete it while commitments are unrevealed, since it holds their salts",
        )

    def _create(self) -> None:
        """Creates the file under another name and renames it, so that a crash leaves no half-made journal."""
        if self.path.with_name(f"{self.path.name}-wal").exists():
            raise self.corrupt("the main file is missing, but its write-ahead log is there")
        draft = self.path.with_name(f"{self.path.name}.draft")
        try:
            draft.unlink(missing_ok=True)
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.execute(f"PRAGMA application_id = {self._application_id}")
                connection.execute("VACUUM")  # a header, even before the first table
            sync_file(draft)
            os.replace(draft, self.path)
            sync_folder(self.path.parent)
        except (OSError, sqlite3.OperationalError) as error:
            raise StorageError(
                f"cannot create journal {self.path}: {error}", "check permissions and free space"
            ) from error

    def _connect(self, path: Path) -> sqlite3.Connection:
        try:
            return sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except sqlite3.DatabaseError as error:
            raise self._failure(error) from error

    def _check(self) -> None:
        if self._pragma("application_id") != self._application_id:
            raise self.corrupt("it was written by another program")
        if (result := self._pragma("quick_check(1)")) != "ok":
            raise self.corrupt(str(result))
        if self._pragma("user_version") > len(self._migrations):
            raise JournalForeign(
                f"journal {self.path} was written by a newer version of earnest", "upgrade earnest"
            )

    def _set_durable(self) -> None:
        self.execute("PRAGMA synchronous = FULL")
        self.execute("PRAGMA fullfsync = ON")
        if self._pragma("journal_mode = WAL") != "wal":
            raise StorageError(
                f"the folder of journal {self.path} cannot hold a write-ahead log",
                "use a data folder on a local disk",
            )

    def _migrate(self) -> None:
        for version in range(self._pragma("user_version"), len(self._migrations)):
            with self.transaction():
                for statement in self._migrations[version]:
                    self.execute(statement)
                self.execute(f"PRAGMA user_version = {version + 1}")

    def _pragma(self, text: str) -> Any:
        row = self.row(f"PRAGMA {text}")
        return row and row[0]

    def _failure(self, error: sqlite3.DatabaseError) -> Exception:
        """Returns the error to raise for one of SQLite; a mistake in our own SQL is returned unchanged."""
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return self.corrupt(str(error))
        if name.startswith(UNUSABLE):
            return StorageError(
                f"journal {self.path} cannot be used: {error}", "check permissions, disk and free space"
            )
        return error
