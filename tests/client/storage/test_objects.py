"""Content-addressed objects: what is stored is found by its root, whole or not at all."""

import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from earnest.base.durable import unfinished, write_durably
from earnest.base.errors import StorageError, Unavailable, WrongContent
from earnest.client.storage.objects import ObjectStore
from earnest.client.storage.serve import ObjectServer
from earnest.protocol.merkle import CHUNK, content_root

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]


def content(size: int) -> bytes:
    return (sha256(str(size).encode()).digest() * (size // 32 + 1))[:size]


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "objects" if request.param == "folder" else "memory://")


@pytest.mark.parametrize("size", SIZES)
def test_a_stored_object_is_found_by_its_root(store: ObjectStore, size: int) -> None:
    root = store.put(content(size))
    assert root == content_root(content(size))
    assert store.has(root)
    assert store.get(root, size) == content(size)


def test_the_name_is_the_root_in_hex(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    root = store.put(b"update")
    assert [path.name for path in tmp_path.iterdir()] == [root.hex()]
    assert store.path_of(root).read_bytes() == b"update"


def test_an_object_that_is_not_there_is_unavailable(store: ObjectStore) -> None:
    root = content_root(b"nowhere")
    assert not store.has(root)
    with pytest.raises(Unavailable, match=root.hex()):
        store.get(root, 100)


def test_an_object_over_the_limit_is_refused_at_one_byte_too_many(store: ObjectStore) -> None:
    root = store.put(b"12345")
    assert store.get(root, 5) == b"12345"
    with pytest.raises(WrongContent, match="5 bytes, more than the 4 allowed"):
        store.get(root, 4)


def test_a_damaged_object_is_found_and_putting_it_again_heals_it(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    root = store.put(content(CHUNK + 1))
    store.path_of(root).write_bytes(content(CHUNK) + b"!")
    with pytest.raises(WrongContent, match="damaged"):
        store.get(root, 2 * CHUNK)
    assert store.put(content(CHUNK + 1)) == root
    assert store.get(root, 2 * CHUNK) == content(CHUNK + 1)


def test_a_truncated_object_is_damaged(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    root = store.put(content(CHUNK + 1))
    os.truncate(store.path_of(root), CHUNK)
    with pytest.raises(WrongContent, match="damaged"):
        store.get(root, 2 * CHUNK)


def test_only_a_root_is_a_name(store: ObjectStore) -> None:
    for wrong in (b"", b"\x00" * 31, b"\x00" * 33):
        with pytest.raises(ValueError, match="32 bytes"):
            store.has(wrong)


def test_only_a_folder_has_paths() -> None:
    with pytest.raises(StorageError, match="not a folder"):
        ObjectStore("memory://").path_of(bytes(32))


def test_another_nodes_objects_are_read_over_http_and_not_written(tmp_path: Path) -> None:
    root = ObjectStore(tmp_path).put(content(CHUNK + 1))
    with ObjectServer(tmp_path) as server:
        remote = ObjectStore(server.url)
        assert remote.has(root)
        assert not remote.has(bytes(32))
        assert remote.get(root, 2 * CHUNK) == content(CHUNK + 1)
        with pytest.raises(Unavailable):
            remote.get(bytes(32), 100)
        with pytest.raises(StorageError, match="failed"):
            remote.put(b"mine now")


def test_a_store_whose_server_is_down_says_so() -> None:
    with pytest.raises(StorageError, match="failed"):
        ObjectStore("http://127.0.0.1:9").get(bytes(32), 100)


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), unfinished(tmp_path) as (file, _):
        file.write(b"half of an upd")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_small_file_is_replaced_whole(tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        write_durably(tmp_path / "memory", content)
        assert (tmp_path / "memory").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["memory"]


KILLED_WRITER = """
import sys, time
from pathlib import Path
from earnest.base.durable import unfinished
with unfinished(Path(sys.argv[1])) as (file, temporary):
    file.write(b"half of an upd")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


def test_a_writer_killed_half_way_leaves_no_object(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_WRITER, str(tmp_path)], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        writer.send_signal(signal.SIGKILL)
    left = [path.name for path in tmp_path.iterdir()]
    assert len(left) == 1
    assert left[0].startswith(".unfinished-")
    assert not ObjectStore(tmp_path).has(content_root(b"half of an upd"))
