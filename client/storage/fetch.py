"""Fetches an object from strangers: limited in bytes and time, verified, from the first source that delivers it.

A source is the base URL that a seat registered, so its bytes are hostile until they hash to the root. Its server may
send without end, drip, lie about lengths, or redirect. That is why this reads HTTP with aiohttp: obstore follows
redirects and reads error pages of any length, which is right for a bucket of one's own and wrong here.
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
from earnest.protocol.merkle import CHUNK, content_root

MAX_URI_CHARS = 2048
PIECE = 1 << 16


class _Refused(Exception):
    """This source does not deliver; the message says why, without quoting what it sent."""


def fetch(
    root: bytes,
    sources: Sequence[str],
    max_bytes: int,
    store: ObjectStore | None = None,
    *,
    timeout_s: float = 30.0,
) -> bytes:
    """Returns the verified object with this root, from `store` or else from the first source that delivers it.

    A fetched object is put into `store`, which also repairs a damaged copy there. Sources are `http(s)://` base URLs or
    local folders (a path or `file://`); each gets `timeout_s` seconds.

    Raises Unavailable if no source delivered at most `max_bytes` with this root; each source's reason is in `.reasons`.
    """
    download = _Download(root, max_bytes)
    if store is not None and (stored := _stored(store, root, max_bytes)) is not None:
        return stored
    reasons: dict[str, str] = {}
    for source in sources:
        try:
            content = asyncio.run(_from_source(download, source, timeout_s))
        except _Refused as refusal:
            reasons[source] = str(refusal)
            continue
        if store is not None:
            store.put(content, root)
        return content
    why = "; ".join(f"{source}: {reason}" for source, reason in reasons.items()) or "no source is known"
    raise Unavailable(
        f"object {object_name(root)} is not available: {why}",
        "check the network, or add a mirror that has the object",
        reasons,
    )


def _stored(store: ObjectStore, root: bytes, max_bytes: int) -> bytes | None:
    try:
        return store.get(root, max_bytes)
    except (Unavailable, WrongContent):
        return None


class _Download:
    """The bytes of one object received from one source, and their limits."""

    def __init__(self, root: bytes, max_bytes: int) -> None:
        self.name = object_name(root)
        self.received = bytearray()
        self._root = root
        self._limit = max_bytes

    def expect(self, total: int) -> None:
        """Raises _Refused for a source that announces more bytes than the limit."""
        if total > self._limit:
            raise _Refused(f"announces {total} bytes, more than the {self._limit} allowed")

    def add(self, piece: bytes) -> None:
        """Appends the next bytes."""
        if len(self.received) + len(piece) > self._limit:
            raise _Refused(f"sends more than {self._limit} bytes")
        self.received += piece

    def finish(self) -> bytes:
        """Returns the whole object, verified."""
        content = bytes(self.received)
        if content_root(content) != self._root:
            raise _Refused("sends something else: the content has another root")
        return content


async def _from_source(download: _Download, source: str, timeout_s: float) -> bytes:
    download.received.clear()
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
    """GETs `<base>/<name>`: no redirect, cookie, proxy or decompression."""
    _check_base(base)
    url = f"{base.rstrip('/')}/{download.name}"
    try:
        async with (
            aiohttp.ClientSession(
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # the caller has a timeout of its own
            ) as session,
            session.get(url, headers={"Accept-Encoding": "identity"}, allow_redirects=False) as response,
        ):
            _check_response(response, download)
            async for piece in response.content.iter_chunked(PIECE):
                yield piece
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if isinstance(error, TimeoutError):
            raise
        raise _Refused(_plain(error)) from error


def _check_response(response: aiohttp.ClientResponse, download: _Download) -> None:
    if response.status == 404:
        raise _Refused("does not have it")
    if 300 <= response.status < 400:
        raise _Refused("redirects elsewhere")
    if response.status != 200:
        raise _Refused(f"answers {response.status}")
    if response.content_length is not None:
        download.expect(response.content_length)


def _check_base(base: str) -> None:
    """Raises _Refused for a base with more than host and path: it could turn `<base>/<name>` into another request."""
    try:
        parts = urlsplit(base)
        parts.port  # noqa: B018 - raises on a bad port
    except ValueError as error:
        raise _Refused("is not a URL") from error
    if len(base) > MAX_URI_CHARS or not base.isascii() or not base.isprintable() or not parts.hostname:
        raise _Refused("is not a URL")
    if parts.query or parts.fragment or "?" in base or "#" in base or parts.username is not None:
        raise _Refused("has a query, fragment or user name, which a base URL must not have")


async def _read_folder(download: _Download, folder: str) -> AsyncGenerator[bytes, None]:
    path = url2pathname(urlsplit(folder).path) if folder.startswith("file://") else folder
    if "://" in path or "\0" in path:
        raise _Refused("is neither a folder nor an http(s) URL")
    file_path = Path(path) / download.name
    try:
        if not file_path.is_file():
            raise _Refused("does not have it")
        download.expect(file_path.stat().st_size)
        with file_path.open("rb") as file:
            while piece := file.read(CHUNK):
                yield piece
    except OSError as error:
        raise _Refused(_plain(error)) from error


def _plain(error: Exception) -> str:
    """Returns one line that says what happened, without bytes or headers that the source chose."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot be reached ({error.os_error.strerror or 'no such host'})"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "breaks off before the announced end"
    if isinstance(error, OSError) and error.strerror:
        return f"failed ({error.strerror})"
    return f"failed ({type(error).__name__})"
