"""A lease on something that one node at a time may use: a data folder, a key."""

import fcntl
import os
from pathlib import Path
from typing import Self

from earnest.base.errors import JournalLocked, StorageError


class Lease:
    """Held from construction until `close` or the end of the process, however it ends (SIGKILL included).

    It is the kernel's lock on the file `path`, which stays behind empty of meaning: only the lock counts.
    The file holds the process id of whoever took the lease last. Raises JournalLocked if another holder is
    alive.
    """

    def __init__(self, path: Path, what: str) -> None:
        try:
            self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"cannot open {path}: {error.strerror}", "check that the folder exists and is writable"
            ) from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._handle, 20, 0).decode("ascii", "replace").strip() or "unknown"
            self.close()
            raise JournalLocked(
                f"{what} is in use by another node (process {holder})",
                "wait for that process, or stop it; a node with an operator key of its own leaves the owner's key free",
            ) from error
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the lease; closing twice does nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
