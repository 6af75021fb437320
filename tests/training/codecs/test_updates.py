"""Adding an update to a sum without unpacking it gives the bits that unpacking would; on any number of threads."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from earnest.protocol.recipe import CodecChoice
from earnest.training.codecs import Codec, make_codec
from earnest.training.codecs.bits import pack, packed_bytes, read_unary, rice_width, unary, unpack
from earnest.training.codecs.update import BLOCK
from earnest.training.diloco.state import Spec
from tests.training.codecs.updates import random_update

WIDE = Spec((("a", (500, 611)), ("b", (7,)), ("c", (BLOCK + 3,)), ("d", (70, 90))))
CHOICES = [
    CodecChoice("dense-bf16"),
    CodecChoice("int8"),
    CodecChoice("int8", chunk=1000),
    CodecChoice("topk-2bit"),
    CodecChoice("topk-2bit", k=1000, chunk=65_536),
    CodecChoice("topk-2bit", k=7, chunk=7),
    CodecChoice("lowrank-int4", rank=8),
]
EVERY = pytest.mark.parametrize(
    "codec", [make_codec(choice, WIDE) for choice in CHOICES], ids=[f"{c.name}-{c.chunk}" for c in CHOICES]
)


@EVERY
def test_adding_in_place_gives_the_bits_of_the_dense_rule(codec: Codec) -> None:
    updates = [codec.encode(random_update(WIDE, seed)).update for seed in range(3)]
    total, weight = torch.zeros(WIDE.size), torch.zeros(WIDE.size)
    expected, sent = np.zeros(WIDE.size, np.float32), np.zeros(WIDE.size, np.float32)
    for factor, update in zip((0.1, 0.7234567, 1 / 3), updates, strict=True):
        update.add_to(total, factor)
        update.add_sent_to(weight, factor)
        expected = expected + update.flat().numpy() * np.float32(factor)
        sent = sent + update.sent().numpy() * np.float32(factor)
    assert total.numpy().tobytes() == expected.tobytes()
    assert weight.numpy().tobytes() == sent.tobytes()


@EVERY
def test_norm_is_that_of_the_numbers(codec: Codec) -> None:
    update = codec.encode(random_update(WIDE, 1)).update
    assert update.norm == pytest.approx(update.flat().double().norm().item(), rel=1e-12)


@EVERY
def test_round_trip(codec: Codec) -> None:
    encoded = codec.encode(random_update(WIDE, 1))
    decoded = codec.decode(encoded.payload)
    assert decoded.content == encoded.update.content
    assert torch.equal(decoded.flat(), encoded.update.flat())
    assert len(encoded.payload) <= codec.payload_bytes
    assert decoded.flat().signbit().logical_and(decoded.flat() == 0).sum() == 0


def test_updates_are_the_same_on_one_thread_and_on_two() -> None:
    codecs = [make_codec(choice, WIDE) for choice in CHOICES]
    payloads = [codec.encode(random_update(WIDE, 1)).payload for codec in codecs]
    before, seen = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            flats = [codec.decode(payload).flat() for codec, payload in zip(codecs, payloads, strict=True)]
            seen.append([flat.numpy().tobytes() for flat in flats])
    finally:
        torch.set_num_threads(before)
    assert seen[0] == seen[1]


def test_a_sixty_fourth_of_a_model_costs_less_than_a_two_hundredth_of_its_bytes() -> None:
    spec = Spec((("a", (1800, 1800)), ("b", (60_000,))))
    assert spec.size == 3_300_000
    payload = make_codec(CodecChoice("topk-2bit", k=64), spec).encode(random_update(spec, 1)).payload
    assert 200 * len(payload) < spec.dense_bytes


# Bits


@given(st.integers(1, 16), st.data())
@settings(max_examples=60)
def test_fields_are_one_little_endian_stream(width: int, data: st.DataObject) -> None:
    fields = data.draw(st.lists(st.integers(0, 2**width - 1), min_size=1, max_size=40))
    packed = pack(np.array(fields), width)
    stream = sum(field << width * i for i, field in enumerate(fields))
    assert packed.tobytes() == stream.to_bytes(packed_bytes(len(fields), width), "little")
    assert unpack(packed, len(fields), width, "fields").tolist() == fields


def test_fields_of_no_width_take_no_room() -> None:
    assert pack(np.zeros(9, np.int32), 0).size == 0
    assert unpack(np.empty(0, np.uint8), 9, 0, "fields").tolist() == [0] * 9


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40))
@settings(max_examples=40)
def test_quotients_are_unary(quotients: list[int]) -> None:
    packed = unary(np.array(quotients))
    bits = "".join("0" * quotient + "1" for quotient in quotients)
    assert packed.tobytes() == int(bits[::-1], 2).to_bytes(-(-len(bits) // 8), "little")
    assert read_unary(packed, len(quotients)).tolist() == quotients


@pytest.mark.parametrize(
    ("k", "chunk", "width"),
    [(64, 4096, 5), (32, 4096, 6), (128, 4096, 4), (1024, 65_536, 5), (1, 65_536, 15), (7, 7, 0)],
)
def test_width_of_the_low_halves(k: int, chunk: int, width: int) -> None:
    assert rice_width(k, chunk) == width


MEASURE = """
import resource, sys, torch
torch.set_num_threads(1)
from earnest.training.codecs import make_codec
from earnest.training.diloco.state import Spec
from earnest.protocol.recipe import CodecChoice
spec = Spec((("a", (2000, 8000)),))
codec = make_codec(CodecChoice(sys.argv[1], error_feedback=0.5), spec)
small = Spec((("a", (50, 80)),))
make_codec(CodecChoice(sys.argv[1], error_feedback=0.5), small).encode({"a": torch.ones(50, 80)})
update = {"a": torch.randn(2000, 8000, generator=torch.Generator().manual_seed(1))}
state = {"residual/a": torch.ones(2000, 8000)}
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
encoded = codec.encode(update, state)
print((peak() - before) / spec.dense_bytes, len(encoded.payload) / spec.dense_bytes)
"""


@pytest.mark.parametrize("name", ["topk-2bit", "int8", "lowrank-int4"])
def test_encoding_needs_no_more_memory_than_the_update_and_some_blocks(name: str) -> None:
    """Beyond update and old residual: what is owed, which becomes the new residual; the payload; blocks.

    64 MB of update; the matrix library keeps some megabytes of its own.
    """
    command = [sys.executable, "-c", MEASURE, name]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    extra, payload = map(float, printed.split())
    assert extra <= 1.25 + payload
