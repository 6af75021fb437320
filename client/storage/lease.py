"""A lease on a data folder or a key, which one node at a time may use."""

import fcntl
import os
from pathlib import Path
from typing import Self

from earnest.base.errors import JournalLocked, StorageError


class Lease:
    """A lease, held from construction until `close` or the end of the process, SIGKILL included.

    It is the kernel's lock on the file `path`. The file itself is not removed; it contains the process id of the last
    holder. Raises JournalLocked while another process holds the lease.
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
                "wait for that process, or stop it; a node that uses an operator key does not lock the owner's key",
            ) from error
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Releases the lease; closing twice does nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
