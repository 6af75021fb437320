"""Content-addressed objects: a file's name is the hex of its content's Merkle root (Protocol section 5).

An `ObjectStore` wraps any obstore backend: a local folder, memory, a read-only HTTP server, a bucket. Every object that
it returns has been hashed after reading, so a damaged disk or a wrong bucket is detected at the first read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError
from obstore.store import HTTPStore, LocalStore, MemoryStore, from_url

from earnest.base.durable import finish, unfinished
from earnest.base.errors import StorageError, Unavailable, WrongContent
from earnest.protocol.merkle import content_root

if TYPE_CHECKING:
    from obstore import GetResult

ROOT_BYTES = 32


def object_name(root: bytes) -> str:
    """Returns the name of the object with this root: 64 lower-case hex digits, no prefix."""
    if len(root) != ROOT_BYTES:
        raise ValueError(f"a root has {ROOT_BYTES} bytes, not {len(root)}")
    return root.hex()


class ObjectStore:
    """Objects by root in one place: a local folder (a path), or a URL that obstore knows.

    `memory://` is private to this instance; `http(s)://` can only be read; `s3://` and others take their
    credentials from the environment. A missing folder is created.
    """

    def __init__(self, place: str | Path) -> None:
        self.folder: Path | None = None
        if isinstance(place, Path) or "://" not in place:
            self.folder = Path(place).resolve()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._backend = LocalStore(self.folder)
        elif place.startswith("memory:"):
            self._backend = MemoryStore()
        elif place.startswith(("http://", "https://")):
            self._backend = HTTPStore.from_url(
                place, client_options={"allow_http": True}, retry_config={"max_retries": 2}
            )
        else:
            self._backend = from_url(place)

    def put(self, content: bytes, root: bytes | None = None) -> bytes:
        """Stores `content` and returns its root; in a folder it is then on disk. Repairs a damaged copy.

        `root` is the root of `content` where it has been verified already.
        """
        root = root or content_root(content)
        if self.folder is None:
            self._upload(root, content)
            return root
        with unfinished(self.folder) as (file, temporary):
            file.write(content)
            finish(file, temporary, self.folder / object_name(root))
        return root

    def has(self, root: bytes) -> bool:
        """Returns True if an object of that name exists; only `get` verifies its content."""
        try:
            obstore.head(self._backend, object_name(root))
        except FileNotFoundError:
            return False
        except BaseError as error:
            raise _unreachable(error) from error
        return True

    def get(self, root: bytes, max_bytes: int) -> bytes:
        """Returns the object's verified content.

        Raises Unavailable (not here), WrongContent (damaged, or more than `max_bytes`, checked before reading),
        StorageError (the backend failed).
        """
        result = self._open(root)
        if (size := result.meta["size"]) > max_bytes:
            raise WrongContent(
                f"object {object_name(root)} has {size} bytes, more than the {max_bytes} allowed",
                "request an object of the expected kind, or raise the limit",
            )
        try:
            content = bytes(result.bytes())
        except BaseError as error:
            raise _unreachable(error) from error
        if content_root(content) != root:
            raise _damaged(root)
        return content

    def discard(self, root: bytes) -> None:
        """Removes the object if it exists. Raises StorageError if the backend fails."""
        try:
            obstore.delete(self._backend, object_name(root))
        except FileNotFoundError:
            return
        except BaseError as error:
            raise _unreachable(error) from error

    def path_of(self, root: bytes) -> Path:
        """Returns the object's path in a folder, existing or not. Raises StorageError for any other backend."""
        if self.folder is None:
            raise StorageError("this object store is not a folder", "use a store that was made from a path")
        return self.folder / object_name(root)

    def _open(self, root: bytes) -> GetResult:
        try:
            return obstore.get(self._backend, object_name(root))
        except FileNotFoundError as error:
            raise Unavailable(
                f"object {object_name(root)} is not in the store", "fetch it from a node that has it"
            ) from error
        except BaseError as error:
            raise _unreachable(error) from error

    def _upload(self, root: bytes, content: bytes | Path) -> None:
        try:
            obstore.put(self._backend, object_name(root), content)
        except BaseError as error:
            raise _unreachable(error) from error


def _damaged(root: bytes) -> WrongContent:
    return WrongContent(
        f"object {object_name(root)} is damaged: its content has another root",
        "fetch it again from another node, and check the disk",
    )


def _unreachable(error: BaseError) -> StorageError:
    first_line = str(error).partition("\n")[0]
    return StorageError(f"the object store failed: {first_line}", "check its address, credentials and disk")
