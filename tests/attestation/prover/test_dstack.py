"""Quotes from the dstack guest agent: recorded answers, replayed over a real unix socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

import dcap_qvl
import pytest

from earnest.attestation.prover.attester import AttesterError, NoTeeError
from earnest.attestation.prover.dstack import MAX_ANSWER_BYTES, DstackAttester
from earnest.attestation.roots import INTEL_ROOT_ID

DATA = Path(__file__).parents[2] / "data" / "attestation" / "quotes"
QUOTE = (DATA / "tdx4-90c06f-dstack.bin").read_bytes()
EVENT_LOG = (DATA / "tdx4-90c06f-dstack.eventlog.json").read_text()
REPORT_DATA = bytes(dcap_qvl.parse_quote(QUOTE).report.report_data)
RECORDED = {"quote": QUOTE.hex(), "event_log": EVENT_LOG, "report_data": REPORT_DATA.hex(), "vm_config": "{}"}


class Agent:
    """The guest agent at `socket`: answers every request with `status` and `body`, and remembers them."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.status = 200
        self.body: bytes = json.dumps(RECORDED).encode()
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def serve(self) -> ThreadingUnixStreamServer:
        agent = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                agent.asked.append((self.path, json.loads(content)))
                self.send_response(agent.status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(agent.body)

            def address_string(self) -> str:
                return "unix"

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return ThreadingUnixStreamServer(str(self.socket), Handler)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    found = Agent(tmp_path / "dstack.sock")
    with found.serve() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def test_a_recorded_exchange_gives_the_genuine_quote_and_its_event_log(agent: Agent) -> None:
    attester = DstackAttester(agent.socket)
    quoted = attester.quote(REPORT_DATA)
    assert quoted.quote == QUOTE
    assert quoted.event_log == EVENT_LOG.encode()
    assert quoted.collateral is None
    assert agent.asked == [("/GetQuote", {"report_data": REPORT_DATA.hex()})]
    assert (attester.kind, attester.root_id) == ("dstack", INTEL_ROOT_ID)


def test_a_replayed_quote_is_noticed(agent: Agent) -> None:
    with pytest.raises(AttesterError, match="other report data"):
        DstackAttester(agent.socket).quote(bytes(64))


def test_a_missing_agent_and_a_failing_one_give_different_errors(tmp_path: Path, agent: Agent) -> None:
    with pytest.raises(NoTeeError, match="does not answer"):
        DstackAttester(tmp_path / "none.sock").quote(REPORT_DATA)
    agent.status, agent.body = 400, b'{"error": "TDX is not available"}'
    with pytest.raises(AttesterError, match="400: TDX is not available") as caught:
        DstackAttester(agent.socket).quote(REPORT_DATA)
    assert not isinstance(caught.value, NoTeeError)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"[]", "refused"),
        (b"{}", "no quote"),
        (b'{"quote": 7, "event_log": ""}', "no quote"),
        (b'{"quote": "zz", "event_log": ""}', "not hex"),
        (b'{"quote": "", "event_log": ""}', "plausible"),
        (b'{"quote": "04", "event_log": ""}', "no quote"),
        (b'{"quote": "%s", "event_log": ""}' % (b"00" * 20_000), "plausible"),
        (b" " * (MAX_ANSWER_BYTES + 1), "larger than"),
        (b'{"quote": "%s", "event_log": "\\ud800"}' % QUOTE.hex().encode(), "not text"),
        (b"[" * 100_000, "nested deeper"),
        (('["\\"",' + "[" * 100_000 + '"').encode("utf-16-le"), "not UTF-8"),
    ],
    ids=[
        *("empty", "html", "list", "nothing", "number", "text", "none", "short", "long", "endless"),
        *("surrogate", "deep", "deep-in-utf-16"),
    ],
)
def test_an_odd_answer_is_an_error(agent: Agent, body: bytes, reason: str) -> None:
    agent.body = body
    with pytest.raises(AttesterError, match=reason):
        DstackAttester(agent.socket).quote(REPORT_DATA)


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "silent.sock"))
    listening.listen()
    yield lambda: tmp_path / "silent.sock"
    listening.close()


def test_a_silent_agent_is_not_waited_for_without_end(silent: Callable[[], Path]) -> None:
    with pytest.raises(AttesterError, match="timed out"):
        DstackAttester(silent(), timeout_s=0.05).quote(REPORT_DATA)


def test_a_slow_agent_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    """Each read is answered in time, the whole never: a node that waited would not reveal."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "slow.sock"))
    listening.listen()
    gone = threading.Event()

    def drip() -> None:
        taken, _ = listening.accept()
        with taken, suppress(OSError):
            taken.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not gone.wait(0.01):
                taken.sendall(b" ")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    with listening, pytest.raises(AttesterError, match="timed out"):
        DstackAttester(tmp_path / "slow.sock", timeout_s=0.2).quote(REPORT_DATA)
    gone.set()
    thread.join(10)


@pytest.mark.parametrize(
    "answer", [b"\xff\xd8" * 100, b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200\r\n" + b"a: b\r\n" * 500]
)
def test_an_answer_other_than_http_is_an_error(tmp_path: Path, answer: bytes) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "odd.sock"))
    listening.listen()

    def say() -> None:
        taken, _ = listening.accept()
        with taken, suppress(OSError):
            taken.recv(1 << 16)
            taken.sendall(answer)

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    with listening, pytest.raises(AttesterError, match="does not answer") as caught:
        DstackAttester(tmp_path / "odd.sock", timeout_s=5).quote(REPORT_DATA)
    assert caught.value.cause.isascii()
    thread.join(10)
