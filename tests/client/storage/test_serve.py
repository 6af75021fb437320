"""The object server: read-only, by exact name, bounded."""

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from earnest.base.durable import unfinished
from earnest.base.errors import StorageError
from earnest.client.storage.objects import ObjectStore
from earnest.client.storage.serve import ObjectServer

UPDATE = bytes(range(256)) * 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(b"salt")
    ObjectStore(tmp_path / "objects")
    return tmp_path / "objects"


@pytest.fixture
def name(folder: Path) -> str:
    return ObjectStore(folder).put(UPDATE).hex()


@pytest.fixture
def node(folder: Path) -> Iterator[ObjectServer]:
    with ObjectServer(folder) as server:
        yield server


def ask(node: ObjectServer, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    """The answer to a request sent exactly as written, and its body."""
    connection = HTTPConnection(node.host, node.port, timeout=5)
    connection.putrequest(method, path, skip_host=False, skip_accept_encoding=True)
    for header, value in headers.items():
        connection.putheader(header, value)
    connection.endheaders()
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_an_object_is_served_whole(node: ObjectServer, name: str) -> None:
    response, body = ask(node, f"/{name}")
    assert (response.status, body) == (200, UPDATE)
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert "immutable" in response.headers["Cache-Control"]


def test_head_tells_the_size_without_the_body(node: ObjectServer, name: str) -> None:
    response, body = ask(node, f"/{name}", "HEAD")
    assert (response.status, body) == (200, b"")
    assert response.headers["Content-Length"] == str(len(UPDATE))


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=10-19", 10, 19),
        ("bytes=25599-", 25599, 25599),
        ("bytes=-5", 25595, 25599),
    ],
)
def test_a_range_is_served(node: ObjectServer, name: str, asked: str, first: int, last: int) -> None:
    response, body = ask(node, f"/{name}", Range=asked)
    assert (response.status, body) == (206, UPDATE[first : last + 1])
    assert response.headers["Content-Range"] == f"bytes {first}-{last}/{len(UPDATE)}"


@pytest.mark.parametrize("asked", [f"bytes={len(UPDATE)}-", "bytes=5-2", "bytes=x-y"])
def test_a_range_outside_the_object_is_refused(node: ObjectServer, name: str, asked: str) -> None:
    assert ask(node, f"/{name}", Range=asked)[0].status == 416


def test_an_unknown_object_is_not_found(node: ObjectServer) -> None:
    assert ask(node, "/" + "0" * 64)[0].status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/objects/",
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "//secret",
        "/" + "0" * 63,
        "/" + "0" * 65,
        "/secret",
        "/.unfinished-x",
    ],
)
def test_nothing_but_an_objects_name_is_served(node: ObjectServer, path: str) -> None:
    response, body = ask(node, path)
    assert response.status in (400, 404)
    assert b"salt" not in body


def test_the_name_must_be_exact(node: ObjectServer, name: str) -> None:
    for path in (f"/{name.upper()}", f"/0x{name}", f"/{name}/", f"/./{name}", f"/{name}%0a"):
        assert ask(node, path)[0].status == 404


def test_nothing_is_listed(node: ObjectServer, name: str) -> None:
    assert name.encode() not in ask(node, "/")[1]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(node: ObjectServer, name: str, method: str, folder: Path) -> None:
    assert ask(node, f"/{name}", method)[0].status == 405
    assert (folder / name).read_bytes() == UPDATE


def test_links_and_folders_and_unfinished_files_are_not_objects(node: ObjectServer, folder: Path) -> None:
    (folder / ("a" * 64)).symlink_to(folder.parent / "secret")
    (folder / ("b" * 64)).mkdir()
    with unfinished(folder) as (_, temporary):
        for path in ("/" + "a" * 64, "/" + "b" * 64, f"/{temporary.name}"):
            assert ask(node, path)[0].status == 404


def test_an_object_put_while_serving_is_served(node: ObjectServer, folder: Path) -> None:
    root = ObjectStore(folder).put(b"later")
    assert ask(node, f"/{root.hex()}")[1] == b"later"


def closed_by_server(connection: socket.socket) -> bool:
    """Whether the server hangs up within five seconds without a word."""
    connection.settimeout(5)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_over_the_limit_are_closed_and_the_others_still_served(folder: Path, name: str) -> None:
    with ObjectServer(folder, max_connections=2) as node:
        address = (node.host, node.port)
        with socket.create_connection(address) as first, socket.create_connection(address) as second:
            first.sendall(f"GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert first.recv(12) == b"HTTP/1.1 200"
            second.sendall(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert second.recv(12) == b"HTTP/1.1 404"
            with socket.create_connection(address) as third:
                assert closed_by_server(third)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                assert ask(node, f"/{name}")[1] == UPDATE
                break
            except (TimeoutError, ConnectionError):
                time.sleep(0.01)
        else:
            pytest.fail("a freed connection was never given out again")


def test_a_silent_connection_is_closed_in_time(folder: Path) -> None:
    with (
        ObjectServer(folder, connection_s=0.2) as node,
        socket.create_connection((node.host, node.port)) as silent,
    ):
        silent.sendall(b"GET /")
        assert closed_by_server(silent)


def test_an_address_in_use_is_an_error_with_a_fix(node: ObjectServer, folder: Path) -> None:
    with pytest.raises(StorageError, match=rf"cannot serve objects on 127.0.0.1:{node.port}.*--serve"):
        ObjectServer(folder, port=node.port).start()


def test_closing_frees_the_port_and_is_harmless_twice(folder: Path, name: str) -> None:
    server = ObjectServer(folder).start()
    url, port = server.url, server.port
    server.close()
    server.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/{name}", timeout=1)
    with ObjectServer(folder, port=port) as again:
        assert ask(again, f"/{name}")[1] == UPDATE


def test_the_url_of_an_ipv6_host_has_brackets(folder: Path) -> None:
    assert ObjectServer(folder, "::1", 8000).url == "http://[::1]:8000"
