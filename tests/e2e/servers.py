"""Servers that misbehave: endpoints that stop and restart or are on another chain, one that serves wrong objects."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

import requests

from tests.anvil import free_port


class _Quiet(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Proxy:
    """An endpoint in front of another one, on one port for life; down until `up` is called."""

    def __init__(self, target: str) -> None:
        self._port = free_port()
        self._server: ThreadingHTTPServer | None = None

        class Forward(_Quiet):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {"Content-Type": "application/json"}
                self._answer(requests.post(target, data=body, headers=headers, timeout=30).content)

        self._handler = Forward

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def up(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def down(self) -> None:
        """Connections are refused from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


class _Served:
    """A server on a free port, up as long as the `with` block."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Mainnet(_Served):
    """Answers as an endpoint of chain 1, with nothing but its chain id."""

    def __init__(self) -> None:
        class Answer(_Quiet):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": "0x1"}).encode())

        super().__init__(Answer)


class Liar(_Served):
    """Serves the same nonsense whatever object is asked for, and counts how often it was asked."""

    def __init__(self) -> None:
        liar, self.asked = self, 0

        class Lie(_Quiet):
            def do_GET(self) -> None:
                liar.asked += 1
                self._answer(b"trust me" * 2_000)

        super().__init__(Lie)
