"""Access to the embedded chain: a web3 provider in the process, and an HTTP JSON-RPC server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from web3.providers.base import JSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse

from earnest.deploy.devnet.chain import Devnet
from earnest.deploy.devnet.rpc import MAX_REQUEST_BYTES, answer


@contextmanager
def serve(
    devnet: Devnet,
    host: str = "127.0.0.1",
    port: int = 8545,
    block_time_s: float = 1.0,
    *,
    clock: Callable[[], float],
) -> Iterator[DevnetServer]:
    """Serves the chain over HTTP JSON-RPC in a thread and mines a block every `block_time_s` seconds.

    clock: unix seconds, usually `time.time`; a chain that is ahead of it stays as far ahead. Port 0: any free port.
    At the end of the block the server and the clock stop; the chain stays. Raises OSError if the address is not free.
    """
    with devnet.follow(clock), DevnetServer(devnet, host, port, block_time_s) as server:
        yield server


class DevnetProvider(JSONBaseProvider):
    """The chain as a web3 provider in the process. Requests and responses have the same bytes as over HTTP."""

    def __init__(self, devnet: Devnet) -> None:
        super().__init__()
        self.devnet = devnet

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        return self.decode_rpc_response(answer(self.devnet, self.encode_rpc_request(method, params)))

    def is_connected(self, show_traceback: bool = False) -> bool:
        return True


class DevnetServer:
    """A context manager: serves a chain over HTTP and mines a block every `block_time_s` seconds."""

    def __init__(self, devnet: Devnet, host: str, port: int, block_time_s: float) -> None:
        self._devnet = devnet
        self._host = host
        self._port = port
        self._block_time_s = block_time_s
        self._ready = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="devnet", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    def __enter__(self) -> DevnetServer:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application(client_max_size=MAX_REQUEST_BYTES)
        application.router.add_post("/", self._post)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
            self._port = runner.addresses[0][1]
        except OSError as error:
            self._failure = error
            return
        finally:
            self._ready.set()
            if self._failure is not None:
                await runner.cleanup()
        mining, stopping = asyncio.create_task(self._mine()), asyncio.create_task(self._stop.wait())
        await asyncio.wait({mining, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await runner.cleanup()
        if mining.done():
            mining.result()  # it never returns, so this raises what stopped it
        mining.cancel()

    async def _post(self, request: web.Request) -> web.Response:
        body = await request.read()  # over MAX_REQUEST_BYTES aiohttp answers 413
        response = await asyncio.to_thread(answer, self._devnet, body)
        return web.Response(body=response, content_type="application/json")

    async def _mine(self) -> None:
        due = self._loop.time()
        while True:
            due = max(due + self._block_time_s, self._loop.time())
            await asyncio.sleep(due - self._loop.time())
            await asyncio.to_thread(self._devnet.mine)
