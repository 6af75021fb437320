"""Frames on the socket arrive whole, and a closed connection is noticed."""

import socket
from threading import Thread

import pytest
import torch

from earnest.training.parallel.frames import Disconnected, receive_frame, send_frame


def test_fields_and_tensors_arrive() -> None:
    ours, theirs = socket.socketpair()
    tensors = {"a": torch.randn(300, 1000), "b": torch.tensor(2.5), "c": torch.empty(0, 4)}
    sender = Thread(target=send_frame, args=(ours, {"do": "x", "ids": [1, 2]}, tensors))
    sender.start()
    fields, back = receive_frame(theirs)
    sender.join()
    assert fields == {"do": "x", "ids": [1, 2]}
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], value) for name, value in tensors.items())


@pytest.mark.parametrize("sent", [b"", b"\x10\x00", b"\x02\x00\x00\x00{"])
def test_an_end_that_closes_in_the_middle_is_gone(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(sent)
    ours.close()
    with pytest.raises(Disconnected):
        receive_frame(theirs)


def test_silence_is_a_timeout() -> None:
    _ours, theirs = socket.socketpair()
    theirs.settimeout(0.05)
    with pytest.raises(TimeoutError):
        receive_frame(theirs)


@pytest.mark.parametrize(
    "head",
    [
        b"[",
        b"[]",
        b"{}",
        b'{"fields": 5, "tensors": []}',
        b'{"fields": {}, "tensors": [5]}',
        b'{"fields": {}, "tensors": [["a", [-1]]]}',
        b'{"fields": {}, "tensors": [["a", ["x"]]]}',
        b'{"fields": {}, "tensors": [["a", [1099511627776, 1099511627776]]]}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_an_end_that_speaks_garbage_is_gone(head: bytes) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(len(head).to_bytes(4, "little") + head)
    with ours, theirs, pytest.raises(Disconnected):
        receive_frame(theirs)


def test_no_memory_is_taken_for_a_head_that_no_end_of_ours_sends() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(b"\xff\xff\xff\xff")
    with ours, theirs, pytest.raises(Disconnected, match="head of 4294967295 bytes"):
        receive_frame(theirs)
