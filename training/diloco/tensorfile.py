"""Canonical safetensors files: given tensors have exactly one file, and only that one is accepted.

A reader states the tensors it expects. That fixes every byte of the header, so the header is compared and nothing that
the file claims is allocated. The header of a refused file is parsed only to say why. The canonical form is what the
safetensors library writes: widest dtype first, then by name, header padded with spaces to 8 bytes.
"""

import json
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from io import BytesIO
from typing import NamedTuple

import numpy as np

from earnest.base.strict_json import read_json

HEADER_LIMIT = 1 << 20
MAX_DIMENSIONS = 16
WIDTHS = {"F32": 4, "BF16": 2, "U8": 1}
_NUMPY = {"F32": "<f4", "BF16": "<u2", "U8": "|u1"}


class PayloadError(ValueError):
    """The file is not the canonical encoding of any update; `reason` says why, as text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Entry(NamedTuple):
    """One tensor of a file: F32, U8, or BF16 (whose numpy form is its raw bits as uint16)."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return WIDTHS[self.dtype] * math.prod(self.shape)


def file_bytes(entries: Sequence[Entry]) -> int:
    """Returns the exact size of the file of `entries`, bytes."""
    return len(header(entries)) + sum(entry.nbytes for entry in entries)


def header(entries: Sequence[Entry]) -> bytes:
    """Returns length prefix and JSON header of the canonical file. Raises ValueError if they exceed HEADER_LIMIT."""
    fields, start = {}, 0
    for name, dtype, shape in _ordered(entries):
        end = start + Entry(name, dtype, shape).nbytes
        fields[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise ValueError(f"a header of {len(text)} bytes is above the limit of {HEADER_LIMIT}")
    return len(text).to_bytes(8, "little") + text


def write(tensors: Mapping[Entry, np.ndarray]) -> bytes:
    """Returns the canonical file of `tensors`."""
    entries = _ordered([*tensors])
    return write_parts(entries, (np.asarray(tensors[entry], _NUMPY[entry.dtype]) for entry in entries))


def write_parts(entries: Sequence[Entry], parts: Iterable[np.ndarray]) -> bytes:
    """Returns the canonical file of `entries`. `parts`: all numbers in the file's order, in pieces of any size.

    Only one piece has to be in memory at a time.
    """
    file = BytesIO()
    file.write(header(entries))
    for part in parts:
        contiguous = np.ascontiguousarray(part, part.dtype.newbyteorder("<"))
        file.write(contiguous.reshape(-1).view(np.uint8).data)
    return file.getvalue()


def read(data: bytes, entries: Sequence[Entry]) -> dict[str, np.ndarray]:
    """Returns the tensors of `data` as read-only views; it must be the canonical file of exactly `entries`.

    Raises PayloadError, before allocating memory, for any other file. Does not check the numbers: NaN passes.
    """
    expected = header(entries)
    if not data.startswith(expected):
        raise PayloadError(_refusal(data, entries))
    size = len(expected) + sum(entry.nbytes for entry in entries)
    if len(data) < size:
        raise PayloadError(f"truncated: {len(data)} bytes, expected {size}")
    if len(data) > size:
        raise PayloadError(f"oversized: {len(data)} bytes, expected {size}")
    tensors, offset = {}, len(expected)
    for entry in _ordered(entries):
        count = math.prod(entry.shape)
        tensors[entry.name] = np.frombuffer(data, _NUMPY[entry.dtype], count, offset).reshape(entry.shape)
        offset += entry.nbytes
    return tensors


def entries_of(data: bytes, names: Container[str] | None = None) -> list[Entry]:
    """Returns the tensors that a file's header claims, all among `names`; `read` then checks the claim.

    Without `names` use it only for trusted files: the number of tensors is limited only by the header's size.
    """
    fields = _fields(data)
    if (
        names is not None
        and (extra := next((name for name in fields if name not in names), None)) is not None
    ):
        raise PayloadError(f"extra key in the header: {extra[:64]!r}")
    try:
        entries = [Entry(name, field["dtype"], tuple(field["shape"])) for name, field in fields.items()]
        if not all(e.dtype in WIDTHS and _is_shape(e.shape) for e in entries):
            raise PayloadError("header names a dtype or shape that is not supported")
    except (TypeError, KeyError) as error:
        raise PayloadError("header has a malformed entry") from error
    return entries


def _is_shape(shape: tuple) -> bool:
    """Returns True if a shape is a list of few, bounded integers, so that its product is bounded."""
    return len(shape) <= MAX_DIMENSIONS and all(type(n) is int and 0 <= n < 1 << 48 for n in shape)


def _ordered(entries: Sequence[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: (-WIDTHS[entry.dtype], entry.name))


def _fields(data: bytes) -> dict:
    """Returns the parsed header, after checking its length and depth."""
    if len(data) < 8:
        raise PayloadError("truncated: no room for a header length")
    length = int.from_bytes(data[:8], "little")
    if length > HEADER_LIMIT:
        if data[0] == 0x80 and data[1] <= 5:
            raise PayloadError("a pickle, which is never loaded")
        if data.startswith(b"PK"):
            raise PayloadError("a zip archive (torch.save?), which is never loaded")
        raise PayloadError(f"header length {length} is above the limit of {HEADER_LIMIT}")
    if length > len(data) - 8:
        raise PayloadError(f"truncated: a header of {length} bytes in a file of {len(data)}")
    try:
        fields = read_json(data[8 : 8 + length], max_bytes=HEADER_LIMIT)
    except ValueError as error:
        raise PayloadError("header is not JSON") from error
    if not isinstance(fields, dict):
        raise PayloadError("header is not a JSON object")
    return fields


def _refusal(data: bytes, entries: Sequence[Entry]) -> str:
    """Returns the first difference between the beginning of `data` and the header of `entries`, as text."""
    try:
        fields = _fields(data)
    except PayloadError as error:
        return error.reason
    expected = {entry.name: entry for entry in entries}
    for name in fields:
        if name not in expected:
            return f"extra key in the header: {name[:64]!r}"
    for name, (_, dtype, shape) in expected.items():
        field = fields.get(name)
        if not isinstance(field, dict):
            return f"tensor missing: {name}"
        if field.get("dtype") != dtype:
            return f"wrong dtype of {name}: expected {dtype}"
        if field.get("shape") != list(shape):
            return f"wrong shape of {name}: expected {list(shape)}"
    return "header is not canonical"
