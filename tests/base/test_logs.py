"""Logs show events and never a secret."""

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from earnest.base.logs import HIDDEN, Redactor, configure_logs, redacted_url

PASSWORD = "correct horse"
KEY = "0x" + "4c" * 32
TOKEN = "9aa3d95b3bc440fa88ea12eaa4456161"
RPC = f"https://mainnet.example.org:8443/v3/{TOKEN}?key={TOKEN}"
NOW = 1_800_000_000.25


@pytest.fixture(autouse=True)
def leave_logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("earnest")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before
    structlog.reset_defaults()


@pytest.fixture(params=["text", "json"])
def stream(request: pytest.FixtureRequest) -> io.StringIO:
    written = io.StringIO()
    secrets = [PASSWORD, KEY]
    configure_logs(written, lambda: NOW, json=request.param == "json", level="debug", secrets=secrets)
    return written


def node_log() -> structlog.stdlib.BoundLogger:
    return structlog.get_logger("earnest.client.node.node")


def test_no_secret_is_found_in_the_logs_however_it_gets_there(stream: io.StringIO) -> None:
    log = node_log().bind(rpc=RPC)
    log.info("started", password=PASSWORD, private_key=KEY, salt=b"\x01\x02" * 16, Password="another one")
    log.info(f"connecting to {RPC} with {PASSWORD}", nested={"urls": [RPC, (RPC,)], "password": "third one"})
    log.info("signer", key=KEY, raw=bytes.fromhex(KEY[2:]), upper=KEY.upper(), bare=KEY[2:])
    log.info("typed", given=SecretStr("typed secret"), error=ValueError(f"{RPC} says no"))
    structlog.contextvars.bind_contextvars(endpoint=RPC)
    log.info("bound")
    structlog.contextvars.clear_contextvars()
    logging.getLogger("aiohttp.client").warning("GET %s failed for %s", RPC, PASSWORD)
    try:
        raise ConnectionError(f"cannot reach {RPC} as {PASSWORD}")
    except ConnectionError:
        log.exception("failed")
        logging.getLogger("web3.providers").exception("failed too")

    written = stream.getvalue()
    assert written.count("mainnet.example.org:8443") >= 8
    hidden = [
        PASSWORD,
        KEY[2:],
        KEY[2:].upper(),
        TOKEN,
        "0102" * 4,
        "another one",
        "third one",
        "typed secret",
    ]
    for secret in hidden:
        assert secret not in written, secret


def test_an_event_keeps_its_public_values(stream: io.StringIO) -> None:
    node_log().info("sent", round=4, hash="0x" + "ab" * 32, root=b"\x01" * 32, gas=39_000, ok=True, none=None)
    written = stream.getvalue()
    for part in ("sent", "ab" * 32, "01" * 32, "39000", "True" if "{" not in written else "true"):
        assert part in written


def test_a_json_line_is_one_document_with_the_given_time() -> None:
    written = io.StringIO()
    configure_logs(written, lambda: NOW, json=True)
    node_log().info("sent", round=4, hashes=("a", "b"))
    assert json.loads(written.getvalue()) == {
        "event": "sent",
        "round": 4,
        "hashes": ["a", "b"],
        "level": "info",
        "timestamp": "2027-01-15T08:00:00.250+00:00",
    }


def test_a_name_only_logger_belongs_to_its_module() -> None:
    written = io.StringIO()
    configure_logs(written, lambda: NOW, level="warning")
    node_log().info("quiet")
    node_log().warning("loud")
    assert "quiet" not in written.getvalue()
    assert "loud" in written.getvalue()


def test_libraries_are_heard_from_warning_up(stream: io.StringIO) -> None:
    logging.getLogger("aiohttp.server").info("chatter")
    logging.getLogger("aiohttp.server").warning("trouble")
    assert "chatter" not in stream.getvalue()
    assert "trouble" in stream.getvalue()


def test_configuring_again_replaces_the_stream(stream: io.StringIO) -> None:
    again = io.StringIO()
    configure_logs(again, lambda: NOW)
    node_log().info("moved")
    assert stream.getvalue() == ""
    assert again.getvalue().count("moved") == 1


def test_a_secret_loaded_later_is_hidden_from_then_on() -> None:
    written = io.StringIO()
    redactor = configure_logs(written, lambda: NOW)
    redactor.hide(KEY)
    node_log().info("loaded", key=KEY)
    assert KEY[2:] not in written.getvalue()


def test_a_traceback_is_plain_text_without_a_warning(stream: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            raise RuntimeError("broken")
        except RuntimeError:
            node_log().exception("failed")
    lines = stream.getvalue()
    assert "Traceback" in lines
    if not lines.startswith("{"):
        assert "\nRuntimeError: broken\n" in lines


def test_a_hostile_message_cannot_write_a_line_or_move_the_cursor(stream: io.StringIO) -> None:
    node_log().warning(
        "refused\r\x1b[2K\nall is well", reason="no\r\x1b[2K\x1b[1Aall is well\x07", name="two\nlines"
    )
    written = stream.getvalue()
    assert written.count("\n") == 1
    for control in "\r\x1b\x07":
        assert control not in written


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
        ("http://127.0.0.1:8545/", "http://127.0.0.1:8545"),
        ("http://[::1]:8545/key", "http://[::1]:8545/" + HIDDEN),
        (RPC, "https://mainnet.example.org:8443/" + HIDDEN),
        ("https://user:pass@example.org", "https://example.org/" + HIDDEN),
        ("https://example.org?key=1", "https://example.org/" + HIDDEN),
        ("https://example.org#key", "https://example.org/" + HIDDEN),
        ("wss://example.org/ws/key", "wss://example.org/" + HIDDEN),
        ("http://example.org:port/key", HIDDEN),
        ("http://[::1/key", HIDDEN),
    ],
)
def test_a_url_shows_only_where_it_goes(url: str, shown: str) -> None:
    assert redacted_url(url) == shown


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=0, max_size=20))
def test_no_text_around_a_url_brings_its_token_out(around: str) -> None:
    assert TOKEN not in Redactor().text(f"{around}{RPC}{around}")


def test_a_secret_too_short_to_be_one_hides_nothing() -> None:
    assert Redactor(["", "0x", "ab"]).text("about") == "about"


def test_the_longer_of_two_secrets_is_hidden_whole() -> None:
    assert Redactor(["hors", "horse battery"]).text("a horse battery") == f"a {HIDDEN}"
