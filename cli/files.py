"""Reads and writes the files named on the command line. Errors say what to do."""

from pathlib import Path

from earnest.cli.exits import UsageError

MAX_FILE_BYTES = 1 << 20


def read_file(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Returns the content of a file. Raises UsageError if it cannot be read or has more than `limit` bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "give the path of a readable file"
        ) from error
    if len(content) > limit:
        raise UsageError(f"{path} has more than {limit} bytes", "check that this is the right file")
    return content


def write_file(path: Path, content: bytes, *, new: bool = False) -> None:
    """Writes a file and the folders above it, replacing a file of that name unless it must be `new`.

    Raises UsageError if it cannot be written, or exists and must be new.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb" if new else "wb") as file:
            file.write(content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", "choose another path") from error
