"""Gets quotes from the dstack guest agent, over its unix socket.

`POST /GetQuote` with `report_data` as hex answers with `quote` (hex), `event_log` (JSON text), `report_data` and
`vm_config`: the guest agent's unversioned API, which every release serves. The event log replays to the registers of
the quote; dstack measures the compose file, and with it the container images, into RTMR3.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from earnest.attestation.prover.attester import (
    AttesterError,
    NoTeeError,
    Quoted,
    check_quote_is_for,
    check_report_data,
)
from earnest.attestation.roots import INTEL_ROOT_ID
from earnest.base.strict_json import JsonError, read_json, write_json

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SOCKETS = (
    Path("/var/run/dstack.sock"),
    Path("/run/dstack.sock"),
    Path("/var/run/dstack/dstack.sock"),
    Path("/run/dstack/dstack.sock"),
)
MAX_ANSWER_BYTES = 2 << 20
MAX_REASON_CHARS = 200
TIMEOUT_S = 30.0


class DstackAttester:
    """Gets quotes of the dstack machine that this container runs on; its compose file must mount the agent's socket.

    `socket_path` defaults to the usual places; `timeout_s` limits the whole exchange.
    """

    def __init__(
        self,
        socket_path: Path | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket_path = socket_path
        self._timeout_s, self._clock = timeout_s, clock

    @property
    def kind(self) -> str:
        return "dstack"

    @property
    def root_id(self) -> bytes:
        return INTEL_ROOT_ID

    def quote(self, report_data: bytes) -> Quoted:
        """Returns a quote over 64 bytes and its event log. Raises NoTeeError without an agent, else AttesterError."""
        check_report_data(report_data)
        answer = self._post("/GetQuote", {"report_data": report_data.hex()})
        quote, event_log = answer.get("quote"), answer.get("event_log")
        if not isinstance(quote, str) or not isinstance(event_log, str):
            raise AttesterError("the dstack agent's answer has no quote or no event log", "update dstack")
        try:
            raw = bytes.fromhex(quote.removeprefix("0x"))
        except ValueError as error:
            raise AttesterError("the dstack agent's quote is not hex", "update dstack") from error
        check_quote_is_for(raw, report_data, "the dstack agent")
        try:
            return Quoted(raw, event_log.encode() or None)
        except UnicodeEncodeError as error:
            raise AttesterError("the dstack agent's event log is not text", "update dstack") from error

    def _socket(self) -> Path:
        if self._socket_path is not None:
            return self._socket_path
        return next((path for path in SOCKETS if path.exists()), SOCKETS[0])

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = _UnixConnection(self._socket(), _DeadlineSocket(self._timeout_s, self._clock))
        try:
            connection.connect()
            connection.request("POST", path, write_json(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read(MAX_ANSWER_BYTES + 1)
        except (OSError, HTTPException) as error:
            reason = ascii(getattr(error, "strerror", None) or str(error) or type(error).__name__)[1:-1]
            kind = (
                NoTeeError if isinstance(error, FileNotFoundError | ConnectionRefusedError) else AttesterError
            )
            raise kind(
                f"the dstack agent at {self._socket()} does not answer: {reason[:MAX_REASON_CHARS]}",
                "run in a dstack machine, with the agent's socket mounted",
            ) from error
        finally:
            connection.close()
        try:
            answer = read_json(content, max_bytes=MAX_ANSWER_BYTES)
        except JsonError as error:
            raise AttesterError(
                f"the dstack agent's answer cannot be read: {error}", "update dstack"
            ) from error
        if not isinstance(answer, dict) or response.status != 200:
            reason = answer.get("error") if isinstance(answer, dict) else None
            reason = ascii(str(reason))[1:-1][:MAX_REASON_CHARS]
            raise AttesterError(
                f"the dstack agent refused with status {response.status}: {reason}",
                "read the agent's log; GetQuote needs Intel TDX",
            )
        return answer


class _UnixConnection(HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, made: socket.socket) -> None:
        super().__init__("dstack")
        self.sock, self._path = made, path

    def connect(self) -> None:
        self.sock.connect(str(self._path))


class _DeadlineSocket(socket.socket):
    """A unix socket with one time limit for everything, so that an agent that sends slowly cannot delay us."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._clock, self._end = clock, clock() + seconds
        self.settimeout(seconds)

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        if (left := self._end - self._clock()) <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left)
        return super().recv_into(buffer, nbytes, flags)
