"""One update has one encoding; everything else is refused with its own reason (Protocol sections 5 and 13)."""

import hashlib
import math
import pickle
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from earnest.protocol.recipe import CodecChoice
from earnest.training.codecs import (
    Codec,
    DenseBf16,
    Int8,
    LowrankInt4,
    Topk2Bit,
    Update,
    exact_norm,
    make_codec,
)
from earnest.training.diloco.state import Spec, read_parameters
from earnest.training.diloco.tensorfile import PayloadError
from earnest.training.tasks.shakespeare import Shakespeare
from tests.training.codecs.updates import (
    FACTORED,
    SMALL,
    bf16,
    random_update,
    safetensors_file,
    topk_file,
    update_of,
)

DENSE = DenseBf16(SMALL)
SPARSE = Topk2Bit(SMALL, k=4, chunk=16)  # keeps 4 + 4 + 1 of 16 + 16 + 4
INT8 = Int8(SMALL, chunk=16)
LOWRANK = LowrankInt4(FACTORED, rank=1)
CODECS: list[Codec] = [DENSE, SPARSE, INT8, LOWRANK]
ALL = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)

GOOD = [
    ([0, 3, 5, 15], [0b11, 0b00, 0b01, 0b10], bf16(0.5), bf16(2.0)),
    ([1, 2, 3, 4], [0b10, 0b11, 0b10, 0b10], 0, bf16(1.0)),
    ([2], [0b11], 0, bf16(0.25)),
]


def numbers(update: Update) -> list[float]:
    return update.flat().tolist()


# What comes out


def test_dense_keeps_every_number_to_eight_bits() -> None:
    update = random_update(SMALL, 1)
    sent = DENSE.encode(update).update.dense()
    for name, value in update.items():
        assert torch.equal(sent[name], value.to(torch.bfloat16).float())


def test_sparse_sends_what_the_page_says() -> None:
    decoded = SPARSE.decode(topk_file(GOOD))
    expected = [0.0] * 36
    expected[0], expected[3], expected[5], expected[15] = -2.0, 0.5, -0.5, 2.0
    expected[17], expected[18], expected[19], expected[20] = 1.0, -1.0, 1.0, 1.0
    expected[34] = -0.25
    assert numbers(decoded) == expected
    assert decoded.indices is not None
    assert decoded.indices.tolist() == [0, 3, 5, 15, 17, 18, 19, 20, 34]
    assert decoded.sent().nonzero().flatten().tolist() == decoded.indices.tolist()


def test_sparse_keeps_the_largest_of_every_chunk_at_their_groups_means() -> None:
    values = [0.0] * 36
    values[1], values[2], values[7], values[9], values[10] = 8.0, -6.0, 1.0, -2.0, 0.5
    sent = numbers(SPARSE.encode(update_of(SMALL, values)).update)
    assert sent[:16] == [0, 7, -7, 0, 0, 0, 0, 1.5, 0, -1.5, 0, 0, 0, 0, 0, 0]


@ALL
@given(values=st.lists(st.sampled_from([0.0, -0.0, 1e-45, -1.0, 1.0, 3.0, 1e30]), min_size=36, max_size=36))
@settings(max_examples=60)
def test_encoder_is_canonical_on_ties_zeros_and_extremes(codec: Codec, values: list[float]) -> None:
    encoded = codec.encode(update_of(codec.spec, values))
    assert len(encoded.payload) <= codec.payload_bytes
    decoded = codec.decode(encoded.payload)
    assert torch.equal(decoded.flat(), encoded.update.flat())
    if codec is not LOWRANK:  # whose quantized columns are no longer orthogonal
        assert codec.encode(decoded.dense()).payload == encoded.payload


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_sparse_writes_the_file_that_a_second_writer_writes(seed: int) -> None:
    encoded = SPARSE.encode(random_update(SMALL, seed))
    update = encoded.update
    assert update.indices is not None
    chunks = []
    for chunk in range(3):
        mine = (update.indices // 16) == chunk
        places, bits = (update.indices[mine] % 16).tolist(), update.bits[mine].tolist()
        magnitudes = sorted({b & 0x7FFF for b in bits})
        high, low = magnitudes[-1], magnitudes[0] if len(magnitudes) > 1 else 0
        chunks.append((places, [(b >> 15) | ((b & 0x7FFF) == high) << 1 for b in bits], low, high))
    assert topk_file(chunks) == encoded.payload


@ALL
def test_same_update_same_bytes_and_content_names_the_update(codec: Codec) -> None:
    first, second, other = (codec.encode(random_update(codec.spec, seed)) for seed in (1, 1, 2))
    assert first.payload == second.payload
    assert first.update.content == second.update.content
    assert first.update.content != other.update.content


@ALL
def test_zero_update_is_encoded_and_has_norm_zero(codec: Codec) -> None:
    encoded = codec.encode(update_of(codec.spec, [0.0] * 36))
    assert encoded.update.norm == 0
    assert not encoded.update.flat().any()


@ALL
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_encoder_refuses_numbers_that_are_not_finite(codec: Codec, bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        codec.encode(update_of(codec.spec, [bad] + [0.0] * 35))


def test_encoder_refuses_tensors_of_another_model() -> None:
    with pytest.raises(ValueError, match="names and shapes"):
        DENSE.encode({"a.weight": torch.zeros(3, 5)})


def test_demo_update_costs_less_than_a_hundredth_of_dense() -> None:
    spec = Spec.of(read_parameters(Shakespeare().build_model(0)))
    codec = make_codec(CodecChoice("topk-2bit", k=64), spec)
    assert spec.size == 119_104
    payload = codec.encode(random_update(spec, 0)).payload
    assert len(payload) == 2664
    assert len(payload) <= codec.payload_bytes == 2780
    assert len(payload) * 170 <= spec.dense_bytes


def test_golden_encodings_do_not_drift() -> None:
    values = [(-1) ** i * ((7 * i) % 37 + 1) / 8 for i in range(36)]
    codecs = [DENSE, SPARSE, INT8]  # the factors of a matrix may differ in a bit from machine to machine
    payloads = [codec.encode(update_of(codec.spec, values)).payload for codec in codecs]
    assert [hashlib.sha256(payload).hexdigest()[:16] for payload in payloads] == [
        "6c21849ce661c114",
        "c7bbb19bfc5173b7",
        "522476f12fcfecce",
    ]


# The norm


def exact(bits: list[int]) -> Fraction:
    """Sum of squares of bfloat16 numbers, in rationals."""
    total = Fraction(0)
    for b in bits:
        exponent, fraction = b >> 7 & 0xFF, b & 0x7F
        mantissa = fraction + (128 if exponent else 0)
        total += (mantissa * Fraction(2) ** (max(exponent, 1) - 134)) ** 2
    return total


@given(st.lists(st.integers(0, 0xFFFF).filter(lambda b: b & 0x7F80 != 0x7F80), max_size=60))
def test_norm_is_the_exact_sum_rounded_once(bits: list[int]) -> None:
    norm = exact_norm(np.array(bits, np.uint16))
    assert norm == math.ldexp(math.sqrt(int(exact(bits) * 2**266)), -133)


def test_norm_does_not_depend_on_order_where_float_sums_do() -> None:
    bits = np.array([bf16(1.0)] * 4000 + [bf16(2.0**20)], np.uint16)
    assert exact_norm(bits) == exact_norm(bits[::-1]) == math.sqrt(2**40 + 4000)


# What is refused: all codecs


def good(codec: Codec) -> bytes:
    return codec.encode(random_update(codec.spec, 1)).payload


def refusal(codec: Codec, payload: bytes) -> str:
    with pytest.raises(PayloadError) as caught:
        codec.decode(payload)
    return caught.value.reason


@ALL
def test_every_truncation_is_refused(codec: Codec) -> None:
    payload = good(codec)
    for length in range(len(payload)):
        assert refusal(codec, payload[:length]).startswith("truncated")


@ALL
def test_trailing_bytes_are_refused(codec: Codec) -> None:
    assert refusal(codec, good(codec) + b"\0").startswith("oversized")


@ALL
@pytest.mark.parametrize("version", range(2, 6))
def test_pickles_are_refused_by_name(codec: Codec, version: int) -> None:
    bytes_of_a_pickle = pickle.dumps({name: [0.0] * 40 for name, _ in SMALL.shapes}, protocol=version)
    assert refusal(codec, bytes_of_a_pickle) == "a pickle, which is never loaded"


@ALL
def test_torch_archives_are_refused_by_name(codec: Codec) -> None:
    assert refusal(codec, b"PK\x03\x04" + bytes(200)).startswith("a zip archive")


@ALL
@pytest.mark.parametrize("length", [2**20 + 1, 2**40, 2**63, 2**64 - 1])
def test_header_length_bombs_are_refused(codec: Codec, length: int) -> None:
    assert "above the limit" in refusal(codec, length.to_bytes(8, "little") + good(codec)[8:])


@ALL
@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"a":' * 50_000, b'{"a":' + b"9" * 5000 + b"}", b"\xff" * 40]
)
def test_headers_that_break_parsers_are_refused(codec: Codec, text: bytes) -> None:
    assert refusal(codec, len(text).to_bytes(8, "little") + text) in {
        "header is not JSON",
        "extra key in the header: 'a'",
        "header has a malformed entry",
    }


@ALL
@pytest.mark.parametrize(
    "text",
    [
        b'{"k":{"dtype":"U8","shape":[' + b",".join([b"9" * 4000] * 200) + b"]}}",
        b'{"weights":{"dtype":"U8","shape":[' + b"9" * 4000 + b"]}}",
        b'{"k":{"dtype":"U8","shape":[-1]}}',
        b'{"weights":{"dtype":"U8","shape":[true,1,2]}}',
        b'{"weights":{"dtype":"U8","shape":[1,281474976710655,2],"data_offsets":[0,562949953421310]}}',
        ("{" + ",".join(f'"\u4e00{i}":{{"dtype":"U8","shape":[]}}' for i in range(20_000)) + "}").encode(),
        b'{"k":1}',
        b'{"weights":{"shape":[1]}}',
        b"{}",
    ],
    ids=range(9),
)
def test_headers_that_claim_too_much_are_refused(codec: Codec, text: bytes) -> None:
    text += b" " * (-len(text) % 8)
    assert refusal(codec, len(text).to_bytes(8, "little") + text + bytes(40))


@ALL
def test_header_that_is_no_object_is_refused(codec: Codec) -> None:
    assert refusal(codec, (8).to_bytes(8, "little") + b"[1,2,3] ") == "header is not a JSON object"


@ALL
def test_header_in_another_layout_is_refused(codec: Codec) -> None:
    payload = good(codec)
    length = int.from_bytes(payload[:8], "little")
    text = payload[8 : 8 + length].replace(b":", b": ")
    assert (
        refusal(codec, len(text).to_bytes(8, "little") + text + payload[8 + length :])
        == "header is not canonical"
    )


@ALL
def test_no_flipped_bit_decodes_to_the_same_update(codec: Codec) -> None:
    payload = good(codec)
    original, accepted = codec.decode(payload), 0
    for place in range(len(payload)):
        for bit in range(8):
            changed = bytearray(payload)
            changed[place] ^= 1 << bit
            try:
                decoded = codec.decode(bytes(changed))
            except PayloadError:
                continue
            accepted += 1
            assert not torch.equal(decoded.flat(), original.flat())
    assert accepted > 0


# What is refused: dense


def dense_file(**changes: tuple[str, list[int] | None, bytes]) -> bytes:
    one = bf16(1.0).to_bytes(2, "little")
    parts: dict[str, tuple[str, list[int] | None, bytes]] = {
        name: ("BF16", list(shape), one * math.prod(shape)) for name, shape in SMALL.shapes
    }
    return safetensors_file(parts | changes)


def test_the_hand_made_dense_file_is_good() -> None:
    assert numbers(DENSE.decode(dense_file())) == [1.0] * 36


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (dense_file(b=("BF16", [3, 3], bytes(18))), "wrong shape of b: expected [9]"),
        (dense_file(b=("F16", [9], bytes(18))), "wrong dtype of b: expected BF16"),
        (dense_file(b=("F32", [9], bytes(36))), "wrong dtype of b: expected BF16"),
        (dense_file(d=("BF16", [1], bytes(2))), "extra key in the header: 'd'"),
        (safetensors_file({}, __metadata__={"x": "y"}), "extra key in the header: '__metadata__'"),
        (safetensors_file({"b": ("BF16", [9], bytes(18))}), "tensor missing: a.weight"),
        (dense_file(b=("BF16", [9], bytes(16) + b"\xc0\x7f")), "NaN"),
        (dense_file(b=("BF16", [9], bytes(16) + b"\x80\xff")), "infinity"),
        (dense_file(b=("BF16", [9], bytes(16) + b"\x00\x80")), "negative zero"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_dense_refuses(payload: bytes, reason: str) -> None:
    assert refusal(DENSE, payload) == reason


# What is refused: sparse


def test_the_hand_made_sparse_file_is_good() -> None:
    assert SPARSE.decode(topk_file(GOOD)).norm > 0


def changed(chunk: int, **fields: Any) -> bytes:
    """GOOD with places, codes, low or high of one chunk replaced."""
    names = ("places", "codes", "low", "high")
    places, codes, low, high = (
        fields.get(name, value) for name, value in zip(names, GOOD[chunk], strict=True)
    )
    return topk_file([*GOOD[:chunk], (places, codes, low, high), *GOOD[chunk + 1 :]])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (changed(0, places=[0, 3, 5, 16]), "index out of range"),
        (changed(2, places=[4]), "index out of range"),
        (changed(1, places=[13, 14, 15, 16]), "index out of range"),
        (changed(0, places=[0, 3, 5, 4095]), "wrong size of quotients"),
        (topk_file(GOOD, quotients=b""), "wrong size of quotients"),
        (topk_file(GOOD, quotients=b"\xff\x01\0"), "spare bytes follow the quotients"),
        (topk_file(GOOD, quotients=b"\xff\x03"), "10 quotients for 9 indices"),
        (topk_file(GOOD, quotients=b"\xff"), "8 quotients for 9 indices"),
        (topk_file(GOOD, k=3), "k is 3, the recipe allows 4 to 4"),
        (topk_file(GOOD, k=2**32 - 1), "k is 4294967295, the recipe allows 4 to 4"),
        (topk_file(GOOD, k=0), "k is 0, the recipe allows 4 to 4"),
        (changed(0, low=bf16(2.0)), "low magnitude is not below high"),
        (changed(0, low=bf16(4.0)), "low magnitude is not below high"),
        (changed(0, low=0), "low magnitude must be zero exactly if unused"),
        (changed(1, low=bf16(0.5)), "low magnitude must be zero exactly if unused"),
        (changed(0, codes=[0b01, 0b00, 0b01, 0b00]), "high magnitude is not used"),
        (changed(0, high=0xC000), "negative magnitude"),
        (changed(1, low=0x8000), "negative magnitude"),
        (changed(0, high=0x7FC0), "NaN"),
        (changed(0, high=0x7F80), "infinity"),
        (changed(1, high=0, codes=[0] * 4), "a chunk of zeros is not in its plain form"),
        (changed(1, high=0, places=[0, 1, 2, 3]), "a chunk of zeros is not in its plain form"),
        (
            changed(1, high=0, low=1, places=[0, 1, 2, 3], codes=[0] * 4),
            "a chunk of zeros is not in its plain form",
        ),
        (topk_file(GOOD, lows=b"\x00\x02"), "spare bits of the lows are set"),
        (topk_file([*GOOD[:2], ([2], [0b0111], 0, bf16(0.25))]), "spare bits of the codes are set"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sparse_refuses(payload: bytes, reason: str) -> None:
    assert refusal(SPARSE, payload) == reason


def test_plain_chunk_of_zeros_is_accepted() -> None:
    payload = changed(1, high=0, places=[0, 1, 2, 3], codes=[0] * 4)
    assert numbers(SPARSE.decode(payload))[16:32] == [0.0] * 16


def test_sparse_refuses_another_count_of_entries() -> None:
    more = [([0, 3, 5, 7, 15], [0b11, 0b00, 0b01, 0b10, 0b10], bf16(0.5), bf16(2.0)), *GOOD[1:]]
    assert refusal(SPARSE, topk_file(more)).startswith("10 quotients for 9")


def test_every_refusal_has_its_own_reason() -> None:
    marks = [*test_dense_refuses.pytestmark, *test_sparse_refuses.pytestmark]  # type: ignore[attr-defined]
    reasons = {reason for mark in marks for _, reason in mark.args[1]}
    assert all(a != b for a, b in pairwise(sorted(reasons)))
    assert len(reasons) >= 17


# Which codec


@pytest.mark.parametrize(("k", "chunk"), [(0, 16), (17, 16), (64, 65_537)])
def test_sparse_refuses_impossible_settings(k: int, chunk: int) -> None:
    with pytest.raises(ValueError, match="1 <= k <= chunk <= 65536"):
        Topk2Bit(SMALL, k, chunk)


def test_unknown_codec_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no codec named 'zip'"):
        CodecChoice("zip")


@given(size=st.integers(1, 80), most=st.integers(1, 16), least=st.integers(1, 16), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_no_payload_is_larger_than_the_largest(size: int, most: int, least: int, seed: int) -> None:
    spec = Spec((("w", (size,)),))
    bound = Topk2Bit(spec, max(least, most), 16, k_min=min(least, most), energy=0.5).payload_bytes
    for k in (least, most):
        fixed = Topk2Bit(spec, k, 16)
        assert len(fixed.encode(random_update(spec, seed)).payload) <= fixed.payload_bytes <= bound


@given(size=st.integers(1, 80), k=st.integers(1, 16))
@settings(max_examples=50)
def test_last_chunk_keeps_its_share_rounded_up(size: int, k: int) -> None:
    spec = Spec((("w", (size,)),))
    codec = Topk2Bit(spec, k, 16)
    update = codec.encode(random_update(spec, size)).update
    tail = size % 16 or 16
    assert update.indices is not None
    assert (update.indices >= size - tail).sum() == math.ceil(k * tail / 16)
    assert len(update.indices) == (size - tail) // 16 * k + math.ceil(k * tail / 16)
