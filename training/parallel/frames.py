"""What goes over the socket between the node and its workers: a JSON line, then float32 tensors.

One end is the trainer node, the other the first worker, on the same machine, over a Unix socket in a folder that
only their user can enter. Nothing else listens there, and no bytes become code.
"""

from __future__ import annotations

import hashlib
import json
import math
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from earnest.base.strict_json import check_depth

MAX_HEAD = 64 << 20
"""Bytes of a frame's JSON: ids of samples and names of tensors."""


class Disconnected(Exception):
    """The other end is gone, or says what no end of ours says."""


def send_frame(
    to: socket.socket, fields: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None
) -> None:
    """Sends `fields` (JSON values) and float32 CPU tensors by name. Raises Disconnected, TimeoutError."""
    listed = [[name, list(value.shape)] for name, value in (tensors or {}).items()]
    head = json.dumps({"fields": dict(fields), "tensors": listed}).encode()
    try:
        to.sendall(len(head).to_bytes(4, "little") + head)
        for value in (tensors or {}).values():
            to.sendall(_bytes(value.detach().contiguous()))
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Disconnected from error


def receive_frame(source: socket.socket) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The next frame's fields and tensors. Raises Disconnected, TimeoutError."""
    length = bytearray(4)
    _exactly(source, memoryview(length))
    if (size := int.from_bytes(length, "little")) > MAX_HEAD:
        raise Disconnected(f"a frame's head of {size} bytes")
    text = bytearray(size)
    _exactly(source, memoryview(text))
    tensors = {}
    try:
        check_depth(bytes(text))
        head = json.loads(text)
        fields = dict(head["fields"])
        for name, shape in head["tensors"]:
            value = torch.empty(math.prod(shape))
            _exactly(source, _bytes(value))
            tensors[str(name)] = value.view(shape)
    except (ValueError, TypeError, LookupError, RuntimeError) as error:
        raise Disconnected(f"no frame: {error}") from error
    return fields, tensors


def digest(parameter: Tensor, momentum: Tensor) -> bytes:
    """SHA-256 of one parameter's bytes and its momentum's: equal exactly where the state agrees on it."""
    sha = hashlib.sha256(_bytes(parameter.contiguous()))
    sha.update(_bytes(momentum.contiguous()))
    return sha.digest()


def _bytes(tensor: Tensor) -> memoryview:
    """A contiguous float32 CPU tensor's own memory."""
    return memoryview(tensor.view(-1).numpy().view(np.uint8))  # type: ignore[arg-type]


def _exactly(source: socket.socket, into: memoryview) -> None:
    """Fills `into`."""
    got = 0
    while got < len(into):
        try:
            n = source.recv_into(into[got:])
        except ConnectionResetError as error:
            raise Disconnected from error
        if n == 0:
            raise Disconnected
        got += n
