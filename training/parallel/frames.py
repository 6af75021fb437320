"""Frames on the socket between the trainer node and its workers: JSON fields, then float32 tensors.

The socket is a Unix socket in a folder that only their user can enter, between the node and the first worker on the
same machine. Nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from earnest.base.strict_json import read_json

MAX_HEAD = 64 << 20
"""Limit of a frame's JSON (sample ids, names of tensors), bytes."""


class Disconnected(Exception):
    """The other end has closed the connection, or sent something that is not a frame."""


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
    """Returns the next frame's fields and tensors. Raises Disconnected, TimeoutError."""
    length = bytearray(4)
    _exactly(source, memoryview(length))
    if (size := int.from_bytes(length, "little")) > MAX_HEAD:
        raise Disconnected(f"a frame's head of {size} bytes")
    text = bytearray(size)
    _exactly(source, memoryview(text))
    tensors = {}
    try:
        head = read_json(bytes(text), max_bytes=MAX_HEAD)
        fields = dict(head["fields"])
        for name, shape in head["tensors"]:
            value = torch.empty(math.prod(shape))
            _exactly(source, _bytes(value))
            tensors[str(name)] = value.view(shape)
    except (ValueError, TypeError, LookupError, RuntimeError) as error:
        raise Disconnected(f"not a frame: {error}") from error
    return fields, tensors


def in_folder(folder: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors with `folder` before each name."""
    return {folder + name: value for name, value in tensors.items()}


def out_of_folders(tensors: Mapping[str, Tensor], *folders: str) -> Iterator[dict[str, Tensor]]:
    """Yields the tensors of each folder, without the folder in their names."""
    for folder in folders:
        yield {name[len(folder) :]: value for name, value in tensors.items() if name.startswith(folder)}


def _bytes(tensor: Tensor) -> memoryview:
    """Returns the memory of a contiguous float32 CPU tensor, without a copy."""
    return memoryview(tensor.view(-1).numpy().view(np.uint8))  # type: ignore[arg-type]


def _exactly(source: socket.socket, into: memoryview) -> None:
    """Receives until `into` is full. Raises Disconnected."""
    received = 0
    while received < len(into):
        try:
            count = source.recv_into(into[received:])
        except ConnectionResetError as error:
            raise Disconnected from error
        if count == 0:
            raise Disconnected
        received += count
