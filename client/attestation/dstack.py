"""Quotes from the dstack guest agent, over its unix socket.

`POST /GetQuote` with `report_data` as hex answers with `quote` (hex), `event_log` (JSON text), `report_data` and
`vm_config`: the guest agent's unversioned API, which every release serves. The event log replays to the registers of
the quote; dstack measures the compose file, and with it the container images, into RTMR3.
"""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from earnest.client.attestation.attester import (
    AttesterError,
    NoTeeError,
    Quoted,
    check_quote_is_for,
    check_report_data,
)
from earnest.client.attestation.roots import INTEL_ROOT_ID
from earnest.protocol.nesting import check_depth

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
    """Quotes of the dstack machine that this container runs on; its compose file must mount the agent's socket.

    `socket_path` is found where dstack puts it unless given; `timeout_s` is for each read and write.
    """

    def __init__(self, socket_path: Path | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._given = socket_path
        self._timeout_s = timeout_s

    @property
    def kind(self) -> str:
        return "dstack"

    @property
    def root_id(self) -> bytes:
        return INTEL_ROOT_ID

    def quote(self, report_data: bytes) -> Quoted:
        """A quote over 64 bytes and its event log. Raises NoTeeError without an agent, AttesterError for no quote."""
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
        return Quoted(raw, event_log.encode() or None)

    def _socket(self) -> Path:
        if self._given is not None:
            return self._given
        return next((path for path in SOCKETS if path.exists()), SOCKETS[0])

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = _UnixConnection(self._socket(), self._timeout_s)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read(MAX_ANSWER_BYTES + 1)
        except (OSError, HTTPException) as error:
            told = getattr(error, "strerror", None) or str(error) or type(error).__name__
            kind = (
                NoTeeError if isinstance(error, FileNotFoundError | ConnectionRefusedError) else AttesterError
            )
            raise kind(
                f"the dstack agent at {self._socket()} does not answer: {told}",
                "run in a dstack machine, with the agent's socket mounted",
            ) from error
        finally:
            connection.close()
        if len(content) > MAX_ANSWER_BYTES:
            raise AttesterError("the dstack agent's answer is too long", "update dstack")
        try:
            check_depth(content)
            answer = json.loads(content)
        except ValueError as error:
            raise AttesterError("the dstack agent's answer is not JSON", "update dstack") from error
        if not isinstance(answer, dict) or response.status != 200:
            reason = answer.get("error") if isinstance(answer, dict) else None
            raise AttesterError(
                f"the dstack agent refused with status {response.status}: {str(reason)[:MAX_REASON_CHARS]}",
                "see the agent's log; GetQuote needs Intel TDX",
            )
        return answer


class _UnixConnection(HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("dstack", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
