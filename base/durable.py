"""Atomic files: written under a temporary name, synced, renamed, and the folder synced."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

UNFINISHED = ".unfinished-"


@contextmanager
def unfinished(folder: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Opens a new file in `folder` under a temporary hidden name, readable by its owner only.

    The file is removed at the end of the block, unless `finish` has renamed it. A process that is killed inside leaves
    the hidden file behind, until `sweep`.
    """
    handle, name = tempfile.mkstemp(prefix=UNFINISHED, dir=folder)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, temporary
    finally:
        temporary.unlink(missing_ok=True)


def finish(file: BinaryIO, temporary: Path, path: Path) -> None:
    """Syncs `file` and renames it from `temporary` to `path`, replacing any file there; durable on return."""
    file.flush()
    os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_durably(path: Path, content: bytes) -> None:
    """Writes `content` to `path` atomically; on return it survives a power cut."""
    with unfinished(path.parent) as (file, temporary):
        file.write(content)
        finish(file, temporary, path)


def sweep(folder: Path) -> None:
    """Removes temporary files that killed processes left below `folder`; no other process may be writing there."""
    for left in folder.rglob(f"{UNFINISHED}*"):
        left.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Makes the file's content survive a power cut."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes names created, replaced or removed in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
