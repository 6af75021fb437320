"""Fetching from servers that cannot be trusted."""

import gzip
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from earnest.base.errors import Unavailable
from earnest.client.storage.fetch import fetch
from earnest.client.storage.objects import ObjectStore
from earnest.client.storage.serve import ObjectServer
from earnest.protocol.merkle import CHUNK, content_root
from tests.client.storage.servers import drip, endless, reply, server

UPDATE = b"an update of four chunks" * (3 * CHUNK // 24 + 1000)
ROOT = content_root(UPDATE)
SMALL = b"a small update"
SMALL_ROOT = content_root(SMALL)


@pytest.fixture
def honest(tmp_path: Path) -> Iterator[str]:
    store = ObjectStore(tmp_path / "honest")
    store.put(UPDATE)
    store.put(SMALL)
    with ObjectServer(tmp_path / "honest") as node:
        yield node.url


def refusal(source: str, root: bytes = SMALL_ROOT, **options: float) -> str:
    """Returns the reason for which this source alone does not deliver."""
    with pytest.raises(Unavailable) as caught:
        fetch(root, [source], 10 * CHUNK, **options)
    assert list(caught.value.reasons) == [source]
    assert root.hex() in str(caught.value)
    return caught.value.reasons[source]


def test_an_honest_server_delivers(honest: str) -> None:
    assert fetch(ROOT, [honest], len(UPDATE)) == UPDATE
    assert fetch(ROOT, [honest + "/"], len(UPDATE)) == UPDATE


def test_a_folder_delivers(tmp_path: Path) -> None:
    ObjectStore(tmp_path).put(SMALL)
    assert fetch(SMALL_ROOT, [str(tmp_path)], 100) == SMALL
    assert fetch(SMALL_ROOT, [tmp_path.as_uri()], 100) == SMALL
    assert refusal(str(tmp_path / "missing")) == "does not have it"


def test_the_next_source_is_asked_where_one_fails(honest: str) -> None:
    with server(reply(b"gone", "404 Not Found")) as empty, server(reply(b"another thing!")) as liar:
        assert fetch(SMALL_ROOT, [empty, liar, honest], 100) == SMALL


def test_the_error_names_the_reason_of_each_source() -> None:
    with server(reply(b"gone", "404 Not Found")) as empty, server(reply(b"another thing!")) as liar:
        with pytest.raises(Unavailable) as caught:
            fetch(SMALL_ROOT, [empty, liar], 100)
        assert caught.value.reasons == {
            empty: "does not have it",
            liar: "sends something else: the content has another root",
        }


def test_no_source_at_all_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="no source is known"):
        fetch(SMALL_ROOT, [], 100)


def test_a_server_that_refuses_connections_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    assert refusal(f"http://127.0.0.1:{port}").startswith("cannot be reached")


def test_an_announced_size_over_the_limit_is_refused_unread() -> None:
    with server(endless(f"HTTP/1.1 200 OK\r\nContent-Length: {1 << 40}\r\n\r\n")) as source:
        assert refusal(source) == f"announces {1 << 40} bytes, more than the {10 * CHUNK} allowed"


def test_an_endless_body_ends_at_the_limit() -> None:
    with server(endless()) as source:
        assert refusal(source) == f"sends more than {10 * CHUNK} bytes"


def test_an_endless_error_page_is_not_read() -> None:
    with server(endless("HTTP/1.1 500 Internal Server Error\r\n\r\n")) as source:
        assert refusal(source) == "answers 500"


def test_endless_headers_are_refused() -> None:
    with server(endless("HTTP/1.1 200 OK\r\n", b"A: " + b"b" * 1000 + b"\r\n")) as source:
        assert refusal(source).startswith("failed")


def test_a_body_shorter_than_announced_is_refused() -> None:
    with server(reply(SMALL[:5], length=len(SMALL))) as source:
        assert refusal(source) == "breaks off before the announced end"


def test_an_empty_body_without_an_announced_size_is_refused() -> None:
    with server(endless(piece=b"", limit=0)) as source:
        assert refusal(source) == "sends something else: the content has another root"


def test_a_slow_drip_ends_at_the_deadline() -> None:
    stopped = threading.Event()
    with server(drip(len(SMALL), stopped)) as source:
        began = time.monotonic()
        assert refusal(source, timeout_s=0.3) == "did not deliver within 0.3 s"
        assert time.monotonic() - began < 2
    stopped.set()


def test_a_server_that_never_answers_ends_at_the_deadline() -> None:
    stopped = threading.Event()
    with server(lambda *_: stopped.wait(5) and None) as source:
        assert refusal(source, timeout_s=0.3) == "did not deliver within 0.3 s"
        stopped.set()


def test_a_redirect_is_not_followed(honest: str) -> None:
    elsewhere = f"Location: {honest}/{SMALL_ROOT.hex()}\r\n"
    for status in ("301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"):
        with server(reply(b"", status, headers=elsewhere)) as source:
            assert refusal(source) == "redirects elsewhere"


def test_a_compressed_body_is_not_inflated() -> None:
    with server(reply(gzip.compress(SMALL), headers="Content-Encoding: gzip\r\n")) as source:
        assert refusal(source) == "sends something else: the content has another root"


def test_something_that_does_not_speak_http_is_refused() -> None:
    with server(lambda connection, _: connection.sendall(b"\x00\x01\x02SSH-2.0")) as source:
        assert refusal(source).startswith("failed")


@pytest.mark.parametrize(
    "source",
    [
        "http://",
        "http:///objects",
        "http://127.0.0.1:port/",
        "http://127.0.0.1:1/a b\r\nX: y",
        "http://127.0.0.1:1/\N{BULLET}",
        "http://127.0.0.1:1/" + "a" * 5000,
    ],
)
def test_a_malformed_url_is_refused(source: str) -> None:
    assert refusal(source) == "is not a URL"


@pytest.mark.parametrize("trick", ["/delete?everything=", "/?", "/#", "/#fragment"])
def test_a_base_url_cannot_become_another_request(trick: str) -> None:
    asked = threading.Event()
    with server(lambda *_: asked.set()) as source:
        assert refusal(source + trick).startswith("has a query")
        assert refusal(source.replace("//", "//user:secret@")).startswith("has a query")
        assert refusal(source.replace("//", "//@")).startswith("has a query")
    assert not asked.is_set()


@pytest.mark.parametrize("source", ["ftp://127.0.0.1/", "s3://bucket/", "\0", "a" * 10_000, ""])
def test_a_source_that_is_neither_url_nor_folder_is_refused(source: str) -> None:
    assert refusal(source)


def test_errors_never_quote_the_server() -> None:
    with server(reply(b"", "500 \x1b[31mobey\x1b[0m", headers="X-Note: obey\r\n")) as source:
        assert "obey" not in refusal(source)


def test_a_fetched_object_is_stored_and_not_fetched_again(honest: str, tmp_path: Path) -> None:
    mine = ObjectStore(tmp_path / "mine")
    assert fetch(SMALL_ROOT, [honest], 100, mine) == SMALL
    assert mine.get(SMALL_ROOT, 100) == SMALL
    assert fetch(SMALL_ROOT, [], 100, mine) == SMALL


def test_a_damaged_copy_is_fetched_again_and_healed(honest: str, tmp_path: Path) -> None:
    mine = ObjectStore(tmp_path / "mine")
    mine.put(SMALL)
    mine.path_of(SMALL_ROOT).write_bytes(b"rotten")
    assert fetch(SMALL_ROOT, [honest], 100, mine) == SMALL
    assert mine.get(SMALL_ROOT, 100) == SMALL


@pytest.mark.parametrize("mirror_kind", ["node", "plain server", "folder"])
def test_any_kind_of_source_replaces_one_that_breaks_off(
    mirror_kind: str, honest: str, tmp_path: Path
) -> None:
    with server(reply(UPDATE[: CHUNK + 7], length=len(UPDATE))) as broken, server(reply(UPDATE)) as plain:
        mirror = {"node": honest, "plain server": plain, "folder": str(tmp_path / "honest")}[mirror_kind]
        assert fetch(ROOT, [broken, mirror], len(UPDATE)) == UPDATE


def test_a_body_over_the_limit_is_replaced_by_the_next_source(honest: str) -> None:
    with server(endless()) as flood:
        assert fetch(ROOT, [flood, honest], len(UPDATE)) == UPDATE
