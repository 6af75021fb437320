"""Files that a command is given: read up to a limit, written whole, with a reason where that fails."""

from pathlib import Path

from earnest.cli.exits import UsageError

MAX_FILE_BYTES = 1 << 20


def read_file(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Raises UsageError for a file that cannot be read or is larger than anything of the kind."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "give the path of a file") from error
    if len(content) > limit:
        raise UsageError(f"{path} has more than {limit} bytes", "give the right file")
    return content


def write_file(path: Path, content: bytes, *, new: bool = False) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb" if new else "wb") as file:
            file.write(content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", "choose another path") from error
