"""Fetching objects from strangers: bounded in bytes and time, verified, from whichever source delivers.

A source is the base URL that a seat registered, so it is hostile until its bytes hash to the root. Its
server may send without end, drip, lie about lengths, or point elsewhere. That is why this reads HTTP with
aiohttp: obstore follows redirects and reads error pages of any length, which is right for one's own bucket
and wrong here.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import aiohttp

from earnest.base.errors import Unavailable, WrongContent
from earnest.client.storage.objects import ObjectStore, object_name
from earnest.protocol.merkle import CHUNK, content_root, leaf_hash, root_of_leaves

MAX_URI_CHARS = 2048
PIECE = 1 << 16


class _Refused(Exception):
    """This source does not deliver; the message says why, without quoting what it sent."""


def fetch(
    root: bytes,
    size: int | None,
    sources: Sequence[str],
    max_bytes: int,
    store: ObjectStore | None = None,
    *,
    leaves: Sequence[bytes] | None = None,
    timeout_s: float = 30.0,
) -> bytes:
    """The verified object with this root, from `store` or else from the first source that delivers it.

    What is fetched is kept in `store`, which heals a damaged copy there. `size` is what was claimed for it
    (a manifest's, for instance) and must be exact. Sources are `http(s)://` base URLs or local folders (a
    path or `file://`); each gets `timeout_s` seconds in all. With the object's chunk hashes (`leaves`,
    checked against the root) every chunk is verified as it arrives and kept, and the next source continues
    where a bad one stopped.

    Raises WrongContent if `size` exceeds `max_bytes` or the leaves are not the root's, before anything is
    asked; Unavailable if no source delivered, with each one's reason in `.reasons`.
    """
    download = _Download(root, size, max_bytes, leaves)
    if (kept := _kept(store, root, size, max_bytes)) is not None:
        return kept
    reasons: dict[str, str] = {}
    for source in sources:
        try:
            content = asyncio.run(_from_source(download, source, timeout_s))
        except _Refused as refusal:
            reasons[source] = str(refusal)
            continue
        if store is not None:
            store.put(content)
        return content
    told = "; ".join(f"{source}: {reason}" for source, reason in reasons.items()) or "no source is known"
    raise Unavailable(
        f"object {object_name(root)} is not available: {told}",
        "check the network, or add a mirror that has the object",
        reasons,
    )


def _kept(store: ObjectStore | None, root: bytes, size: int | None, max_bytes: int) -> bytes | None:
    if store is None:
        return None
    try:
        content = store.get(root, max_bytes)
    except (Unavailable, WrongContent):
        return None
    return content if size is None or size == len(content) else None


class _Download:
    """What has arrived of one object, and the limits that it must keep to."""

    def __init__(self, root: bytes, size: int | None, max_bytes: int, leaves: Sequence[bytes] | None) -> None:
        if size is not None and size > max_bytes:
            raise WrongContent(
                f"object {object_name(root)} is said to have {size} bytes, more than the {max_bytes} allowed",
                "refuse it, or raise the limit",
            )
        if leaves is not None and root_of_leaves(list(leaves)) != root:
            raise WrongContent(
                f"the chunk hashes given for object {object_name(root)} are not its own",
                "get the hashes from another node, or fetch without them",
            )
        self.name = object_name(root)
        self.received = bytearray()
        self._root, self._size, self._leaves = root, size, leaves
        self._limit = max_bytes if size is None else size

    def expect(self, total: int) -> None:
        """Refuse a source that announces an object of another size."""
        if self._size is not None and total != self._size:
            raise _Refused(f"announces {total} bytes instead of {self._size}")
        if total > self._limit:
            raise _Refused(f"announces {total} bytes, more than the {self._limit} allowed")

    def add(self, piece: bytes) -> None:
        """Take in the next bytes, checking each chunk that they complete where the hashes are known."""
        if len(self.received) + len(piece) > self._limit:
            raise _Refused(f"sends more than {self._limit} bytes")
        first_open = len(self.received) // CHUNK
        self.received += piece
        for index in range(first_open, len(self.received) // CHUNK):
            self._check(index)

    def finish(self) -> bytes:
        """All of the object, verified."""
        content = bytes(self.received)
        if self._size is not None and len(content) != self._size:
            raise _Refused(f"sends {len(content)} bytes instead of {self._size}")
        if content_root(content) != self._root:
            raise _Refused("sends something else: the content has another root")
        return content

    def start_over(self) -> None:
        """Keep only what is verified: whole chunks with known hashes, else nothing."""
        verified = len(self.received) // CHUNK if self._leaves is not None else 0
        del self.received[verified * CHUNK :]

    def _check(self, index: int) -> None:
        if self._leaves is None:
            return
        chunk = bytes(self.received[index * CHUNK : (index + 1) * CHUNK])
        if index >= len(self._leaves) or leaf_hash(chunk) != self._leaves[index]:
            del self.received[index * CHUNK :]
            raise _Refused(f"sends something else: chunk {index} has another hash")


async def _from_source(download: _Download, source: str, timeout_s: float) -> bytes:
    download.start_over()
    pieces = _read_http if source.startswith(("http://", "https://")) else _read_folder
    try:
        async with asyncio.timeout(timeout_s):
            async with aclosing(pieces(download, source)) as arriving:
                async for piece in arriving:
                    download.add(piece)
    except TimeoutError:
        raise _Refused(f"did not deliver within {timeout_s:g} s") from None
    return download.finish()


async def _read_http(download: _Download, base: str) -> AsyncGenerator[bytes, None]:
    """GET `<base>/<name>` from the first missing byte: no redirect, cookie, proxy or decompression."""
    _check_base(base)
    url = f"{base.rstrip('/')}/{download.name}"
    have = len(download.received)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        async with (
            aiohttp.ClientSession(
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # the caller's budget counts
            ) as session,
            session.get(url, headers=headers, allow_redirects=False) as response,
        ):
            skip = _bytes_to_skip(response, download, have)
            async for piece in response.content.iter_chunked(PIECE):
                fresh = piece[skip:]
                skip -= len(piece) - len(fresh)
                yield fresh
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if isinstance(error, TimeoutError):
            raise
        raise _Refused(_plain(error)) from error


def _bytes_to_skip(response: aiohttp.ClientResponse, download: _Download, have: int) -> int:
    """Check status and announced size; tell how much of the body is here already (Range may be ignored)."""
    announced = response.content_length
    if response.status == 206 and have:
        if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise _Refused("answers with another range than the one asked for")
        if announced is not None:
            download.expect(have + announced)
        return 0
    if response.status != 200:
        told = {404: "does not have it", 416: "does not have all of it"}
        refusal = "redirects elsewhere" if 300 <= response.status < 400 else f"answers {response.status}"
        raise _Refused(told.get(response.status, refusal))
    if announced is not None:
        download.expect(announced)
    return have


def _check_base(base: str) -> None:
    """A base URL is host and path, nothing that would turn `<base>/<name>` into another request."""
    try:
        parts = urlsplit(base)
        parts.port  # noqa: B018 - raises on a bad port
    except ValueError as error:
        raise _Refused("is not a URL") from error
    if len(base) > MAX_URI_CHARS or not base.isascii() or not base.isprintable() or not parts.hostname:
        raise _Refused("is not a URL")
    if parts.query or parts.fragment or "?" in base or "#" in base or parts.username is not None:
        raise _Refused("has a query, fragment or user name, which a base URL must not have")


async def _read_folder(download: _Download, place: str) -> AsyncGenerator[bytes, None]:
    path = url2pathname(urlsplit(place).path) if place.startswith("file://") else place
    if "://" in path or "\0" in path:
        raise _Refused("is neither a folder nor an http(s) URL")
    file_path = Path(path) / download.name
    try:
        if not file_path.is_file():
            raise _Refused("does not have it")
        download.expect(file_path.stat().st_size)
        with file_path.open("rb") as file:
            file.seek(len(download.received))
            while piece := file.read(CHUNK):
                yield piece
    except OSError as error:
        raise _Refused(_plain(error)) from error


def _plain(error: Exception) -> str:
    """One line saying what happened, without bytes or headers that the source chose."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot be reached ({error.os_error.strerror or 'no such host'})"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "breaks off before the announced end"
    if isinstance(error, OSError) and error.strerror:
        return f"failed ({error.strerror})"
    return f"failed ({type(error).__name__})"
