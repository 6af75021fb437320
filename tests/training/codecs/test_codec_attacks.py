"""Payloads made to mislead a decoder: numbers that overflow, one update written in several ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from earnest.training.codecs import PayloadError, Topk2Bit
from earnest.training.codecs.bits import pack, packed_bytes, rice_width, unary
from earnest.training.codecs.update import square_sum
from earnest.training.diloco.state import Spec
from earnest.training.diloco.tensorfile import read, write


@pytest.mark.parametrize("beyond", [1 << 31, (1 << 32) - 65_536, 1 << 32])
def test_a_gap_beyond_32_bits_is_out_of_range(beyond: int) -> None:
    """Only a model of two thousand million parameters leaves room for such a gap; its shape is all that is needed."""
    codec = Topk2Bit(Spec((("w", (1 << 32,)),)), 1, 65_536)
    width, count = rice_width(1, codec.chunk), codec.chunks
    gaps = np.zeros(count, np.int64)
    gaps[0] = beyond
    quotients = unary(gaps >> width)
    bodies = {
        "scales": np.tile(np.array([0, 0x3F80], np.uint16), (count, 1)),
        "codes": pack(np.full(count, 2, np.uint8), 2),
        "k": np.frombuffer((1).to_bytes(4, "little"), np.uint8),
        "lows": np.zeros(packed_bytes(count, width), np.uint8),
        "quotients": quotients,
    }
    payload = write({entry: bodies[entry.name] for entry in codec._layout(1, len(quotients))})
    with pytest.raises(PayloadError, match="index out of range"):
        codec.decode(payload)


def test_one_update_under_another_k_is_the_same_update() -> None:
    """A model smaller than a chunk keeps as many numbers under several k: a copy may not be dressed up so."""
    codec = Topk2Bit(Spec((("w", (1000,)),)), 63, 4096, k_min=16, energy=0.9999)
    original = codec.encode({"w": torch.linspace(-1, 1, 1000)})
    tensors = read(original.payload, codec._layout(63, _quotients(codec, original.payload)))
    told = {**tensors, "k": np.frombuffer((62).to_bytes(4, "little"), np.uint8)}
    layout = codec._layout(62, len(told["quotients"]))
    copy = codec.decode(write({entry: told[entry.name] for entry in layout}))
    assert copy.payload != original.payload
    assert torch.equal(copy.flat(), original.update.flat())
    assert copy.content == original.update.content


def test_a_chunk_of_zeros_tells_no_update_from_another() -> None:
    codec = Topk2Bit(Spec((("w", (4096 + 64,)),)), 64, 4096, k_min=16, energy=0.9)
    update = torch.zeros(4096 + 64)
    update[-1] = 1.0  # the last chunk keeps one number whatever k is
    found = [Topk2Bit(codec.spec, k, 4096, k_min=k, energy=0.9).encode({"w": update}) for k in (16, 64)]
    few, many = (codec.decode(one.payload) for one in found)
    assert few.payload != many.payload
    assert few.content == many.content


def test_other_numbers_are_another_update() -> None:
    codec = Topk2Bit(Spec((("w", (256,)),)), 8, 64)
    numbers = torch.linspace(0.1, 1, 256)
    moved = numbers.roll(1)
    contents = {codec.encode({"w": one}).update.content for one in (numbers, -numbers, 2 * numbers, moved)}
    assert len(contents) == 4


def test_norms_of_more_numbers_than_float64_adds_up_are_exact() -> None:
    count, most = (1 << 22) + 5, (1 << 31) - 1
    assert square_sum(np.full(count, 1, np.uint16), np.full(count, most)) == count * most


def _quotients(codec: Topk2Bit, payload: bytes) -> int:
    return codec._read(payload)[0]["quotients"].nbytes
