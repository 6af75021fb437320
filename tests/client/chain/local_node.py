"""A JSON-RPC node on a real port, with a transaction pool, that can be made to misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from eth_tester import EthereumTester, PyEVMBackend
from eth_tester.exceptions import BlockNotFound, TransactionFailed
from eth_utils.exceptions import ValidationError
from hexbytes import HexBytes
from web3 import EthereumTesterProvider, Web3
from web3.exceptions import ContractLogicError

CHAIN_ID = 131277322940537  # what eth-tester answers
Params = list[Any]
Mischief = Callable[[str, Params, Callable[[], Any]], Any]
"""Gets the method, its parameters and the honest answer (as a function); returns what to answer instead."""


class RpcError(Exception):
    """Answered as a JSON-RPC error."""

    def __init__(self, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.message, self.data = message, data


class Garbage(Exception):
    """Answered as these raw bytes, with this HTTP status."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        super().__init__(body)
        self.body, self.status = body, status


class Hangup(Exception):
    """The connection is closed without an answer."""


class World:
    """The chain itself. With `automine` each transaction gets a block; else they wait for `mine`."""

    def __init__(self, automine: bool = True) -> None:
        self.tester = EthereumTester(PyEVMBackend())
        self.provider = EthereumTesterProvider(self.tester)
        web3 = Web3(self.provider, middleware=[])
        self.request = self.provider.request_func(web3, web3.middleware_onion)
        self.automine = automine
        self.pool: dict[tuple[str, int], bytes] = {}
        self.delivered: list[str] = []  # hashes, in order of first arrival
        self.least_replacement_percent = 110

    def fund(self, account: str, wei: int) -> None:
        rich = self.tester.get_accounts()[0]
        self.tester.send_transaction({"from": rich, "to": account, "value": wei, "gas": 21_000})

    def mine(self, blocks: int = 1) -> None:
        """Puts every transaction that is next in line into a block, then adds empty blocks."""
        for (sender, nonce), raw in sorted(self.pool.items()):
            if nonce == self._count(sender):
                self.request("eth_sendRawTransaction", ["0x" + raw.hex()])
            if nonce < self._count(sender):
                del self.pool[sender, nonce]
        self.tester.mine_blocks(blocks)

    def take(self, raw: bytes) -> str:
        """Accepts a transaction into the pool, as geth would."""
        transaction = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
        sender, nonce = Account.recover_transaction(raw), int(transaction["nonce"])
        digest = "0x" + Web3.keccak(raw).hex().removeprefix("0x")
        known = self.pool.get((sender, nonce))
        if known == raw:
            raise RpcError("already known")
        if nonce < self._count(sender):
            raise RpcError(f"nonce too low: next nonce {self._count(sender)}, tx nonce {nonce}")
        if known is not None and _fee(raw) * 100 < _fee(known) * self.least_replacement_percent:
            raise RpcError("replacement transaction underpriced")
        self.pool[sender, nonce] = raw
        self.delivered.append(digest)
        if self.automine:
            self.mine(0)
        return digest

    def pending(self, sender: str) -> int:
        nonce = self._count(sender)
        while (sender, nonce) in self.pool:
            nonce += 1
        return nonce

    def _count(self, sender: str) -> int:
        return self.tester.get_nonce(sender)

    def answer(self, method: str, params: Params) -> Any:
        """The honest answer; raises RpcError."""
        if method == "eth_sendRawTransaction":
            return self.take(bytes.fromhex(params[0][2:]))
        if method == "eth_getTransactionCount" and params[1] == "pending":
            return self.pending(params[0])
        try:
            response = self.request(method, params)
        except TransactionFailed as error:
            raise RpcError(str(error)) from None
        except ContractLogicError as error:
            raise RpcError("execution reverted", error.data) from None
        except (ValidationError, BlockNotFound) as error:
            raise RpcError(str(error)) from None
        answer: dict[str, Any] = dict(response)
        if "error" in answer:
            raise RpcError(answer["error"]["message"])
        return answer["result"]


class LocalNode:
    """Serves a world over HTTP. Set `mischief` to lie; `asked` counts requests by method."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.mischief: Mischief | None = None
        self.asked: dict[str, int] = {}
        self._lock = threading.Lock()
        node = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    status, answer = node.respond(body)
                except Hangup:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://user:hunter2@127.0.0.1:{self._server.server_port}/v3/secret-token?key=secret-key"

    def respond(self, body: dict[str, Any]) -> tuple[int, bytes]:
        method, params = body["method"], body["params"]

        def honest() -> Any:
            with self._lock:
                return self.world.answer(method, params)

        self.asked[method] = self.asked.get(method, 0) + 1
        response: dict[str, Any] = {"jsonrpc": "2.0", "id": body["id"]}
        try:
            response["result"] = self.mischief(method, params, honest) if self.mischief else honest()
        except RpcError as error:
            response["error"] = {"code": -32000, "message": error.message, "data": error.data}
        except Garbage as garbage:
            return garbage.status, garbage.body
        return 200, json.dumps(_wire(response)).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def only(method: str, lie: Callable[[Any], Any]) -> Mischief:
    """Changes the answers to one method, and is honest about the others."""
    return lambda asked, params, honest: lie(honest()) if asked == method else honest()


def refuse(method: str, message: str, data: Any = None) -> Mischief:
    """Answers one method with a JSON-RPC error."""

    def mischief(asked: str, params: Params, honest: Callable[[], Any]) -> Any:
        if asked == method:
            raise RpcError(message, data)
        return honest()

    return mischief


def garbage(body: bytes, status: int = 200) -> Mischief:
    """Answers everything with these bytes."""

    def mischief(asked: str, params: Params, honest: Callable[[], Any]) -> Any:
        raise Garbage(body, status)

    return mischief


def asleep(seconds: float) -> Mischief:
    """Answers too late."""

    def mischief(asked: str, params: Params, honest: Callable[[], Any]) -> Any:
        time.sleep(seconds)
        return honest()

    return mischief


def hangup_after(method: str) -> Mischief:
    """Does what it is asked, then closes the connection without a word."""

    def mischief(asked: str, params: Params, honest: Callable[[], Any]) -> Any:
        answer = honest()
        if asked == method:
            raise Hangup
        return answer

    return mischief


def _fee(raw: bytes) -> int:
    return int(TypedTransaction.from_bytes(HexBytes(raw)).as_dict()["maxFeePerGas"])


def _wire(value: Any) -> Any:
    """As JSON-RPC writes it: numbers as hex."""
    if isinstance(value, dict) or hasattr(value, "items"):
        return {key: entry if key in ("id", "code") else _wire(entry) for key, entry in dict(value).items()}
    if isinstance(value, list | tuple):
        return [_wire(entry) for entry in value]
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return hex(value) if isinstance(value, int) and not isinstance(value, bool) else value
