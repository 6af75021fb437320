"""The HTTP server of a node's public objects: read-only, by exact name, with limits.

An object's name is its root, and a payload's root is public only once it is revealed. The folder cannot be listed, so
nobody can read a payload early. Only regular files named by 64 hex digits are served.
"""

import asyncio
import re
import threading
from asyncio import Transport
from pathlib import Path
from typing import Self

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from earnest.base.errors import StorageError

NAME = re.compile(r"/([0-9a-f]{64})")
MAX_CONNECTIONS = 128
CONNECTION_S = 300.0
HEADERS = {
    "Content-Type": "application/octet-stream",
    "Cache-Control": "public, max-age=31536000, immutable",
    "X-Content-Type-Options": "nosniff",
}


class ObjectServer:
    """Serves the objects of one folder over HTTP from its own thread: GET and HEAD `/<64 hex digits>`, with Range.

    Port 0 chooses a free one. At most `max_connections` are open at once (further ones are closed without an answer),
    each for at most `connection_s` seconds, so that idle or slow readers cannot use up the node's sockets. Raises
    StorageError if the address cannot be used. Use as a context manager, or call `start` and `close`.
    """

    def __init__(
        self,
        folder: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        max_connections: int = MAX_CONNECTIONS,
        connection_s: float = CONNECTION_S,
    ) -> None:
        self.host, self.port = host, port
        self._folder = folder
        self._limits = max_connections, connection_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="object-server", daemon=True)

    @property
    def url(self) -> str:
        """Base URL of this server; other machines reach it only if the host is public."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def start(self) -> Self:
        """Binds the address and starts serving."""
        self._thread.start()
        try:
            self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        except OSError as error:
            self._stop_loop()
            raise StorageError(
                f"cannot serve objects on {self.host}:{self.port}: {error.strerror}",
                "choose another --serve HOST:PORT, or stop the program that uses it",
            ) from error
        return self

    def close(self) -> None:
        """Stops serving and closes every connection."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result()
            self._stop_loop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _listen(self) -> int:
        self._connections = _BoundedServer(self._answer, *self._limits)
        self._listener = await self._loop.create_server(self._connections, self.host, self.port)
        return self._listener.sockets[0].getsockname()[1]

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        name = NAME.fullmatch(request.path)
        path = self._folder / name[1] if name else None
        if path is None or path.is_symlink() or not path.is_file():
            return web.Response(status=404)
        return web.FileResponse(path, headers=HEADERS)

    async def _hang_up(self) -> None:
        self._listener.close()
        for connection in self._connections.connections:
            connection.force_close()
        await self._connections.shutdown(0)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _BoundedServer(web.Server):
    """An HTTP server that limits the number of open connections and the lifetime of each."""

    def __init__(self, answer, max_connections: int, connection_s: float) -> None:
        super().__init__(answer, access_log=None)
        self._max_connections, self._connection_s = max_connections, connection_s
        self._ends: dict[RequestHandler, asyncio.TimerHandle] = {}

    def connection_made(self, handler: RequestHandler, transport: Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._ends) >= self._max_connections:
            transport.abort()
            return
        self._ends[handler] = asyncio.get_running_loop().call_later(self._connection_s, transport.abort)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        if end := self._ends.pop(handler, None):
            end.cancel()
        super().connection_lost(handler, exc)
