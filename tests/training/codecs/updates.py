"""Updates for the codec tests, and a second, slow writer of topk-2bit files in plain Python."""

import json
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from earnest.training.diloco.state import Spec

SMALL = Spec((("a.weight", (3, 5)), ("b", (9,)), ("c.weight", (2, 2, 3))))  # 36 numbers: chunks of 16, 16, 4

FACTORED = Spec(
    (("a.weight", (4, 5)), ("b", (4,)), ("c.weight", (3, 4)))
)  # 36 numbers, one matrix for rank 1


def update_of(spec: Spec, values: Sequence[float]) -> dict[str, Tensor]:
    return spec.split(torch.tensor(values, dtype=torch.float32))


def random_update(spec: Spec, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return spec.split(torch.randn(spec.size, generator=generator))


def bf16(number: float) -> int:
    """Raw bits of a number that bfloat16 holds exactly."""
    bits = struct.unpack("<I", struct.pack("<f", number))[0]
    assert bits & 0xFFFF == 0
    return bits >> 16


Chunk = tuple[list[int], list[int], int, int]  # places, codes, raw low, raw high


def topk_file(chunks: Sequence[Chunk], k: int = 4, width: int = 1, **changes: bytes) -> bytes:
    """A topk-2bit file; `width` as the page says for 4 of 16; `changes` replace whole tensors."""
    gaps = [gap for places, *_ in chunks for gap in _gaps(places)]
    codes = [code for chunk in chunks for code in chunk[1]]
    unary = "".join("0" * (gap >> width) + "1" for gap in gaps)
    bodies = {
        "scales": b"".join(struct.pack("<HH", low, high) for _, _, low, high in chunks),
        "codes": _stream(codes, 2),
        "k": struct.pack("<I", k),
        "lows": _stream([gap % (1 << width) for gap in gaps], width),
        "quotients": _stream([int(bit) for bit in unary], 1),
    } | changes
    parts: dict[str, tuple[str, list[int] | None, bytes]] = {
        n: ("U8", None, body) for n, body in bodies.items()
    }
    return safetensors_file(parts | {"scales": ("BF16", [len(chunks), 2], bodies["scales"])})


def _gaps(places: list[int]) -> list[int]:
    return [place - before - 1 for before, place in zip([-1, *places], places, strict=False)]


def safetensors_file(parts: dict[str, tuple[str, list[int] | None, bytes]], **extra: object) -> bytes:
    fields, start = dict[str, object](), 0
    for name, (dtype, shape, body) in parts.items():
        end = start + len(body)
        fields[name] = {"dtype": dtype, "shape": shape or [len(body)], "data_offsets": [start, end]}
        start = end
    text = json.dumps(fields | extra, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(body for _, _, body in parts.values())


def _stream(numbers: list[int], width: int) -> bytes:
    """Little-endian bit stream, spare bits zero."""
    total = sum(number << width * i for i, number in enumerate(numbers))
    return total.to_bytes(-(-width * len(numbers) // 8), "little")
