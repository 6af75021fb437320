"""int8: how numbers are rounded, and what is refused (Protocol sections 5 and 13)."""

import struct

import pytest
import torch

from earnest.training.codecs import Int8, exact_norm
from earnest.training.codecs.int8 import LARGEST, SMALLEST
from earnest.training.diloco.tensorfile import PayloadError
from tests.training.codecs.updates import SMALL, bf16, random_update, safetensors_file, update_of

CODEC = Int8(SMALL, chunk=16)  # chunks of 16, 16, 4
ONE = [127, -127, 64, 1, *[0] * 12]
GOOD = ([bf16(0.5), 0, bf16(2.0)], [*ONE, *[0] * 16, 1, 2, -3, -127])


def int8_file(scales: list[int], codes: list[int]) -> bytes:
    """A second writer, in plain Python."""
    body = struct.pack(f"<{len(codes)}b", *codes)
    return safetensors_file(
        {
            "scales": ("BF16", [len(scales)], struct.pack(f"<{len(scales)}H", *scales)),
            "codes": ("U8", None, body),
        }
    )


def test_a_number_is_its_code_times_its_chunks_scale() -> None:
    update = CODEC.decode(int8_file(*GOOD))
    expected = [63.5, -63.5, 32.0, 0.5, *[0.0] * 28, 2.0, 4.0, -6.0, -254.0]
    assert update.flat().tolist() == expected
    assert update.indices is None
    assert update.norm == pytest.approx(torch.tensor(expected).double().norm().item(), rel=1e-15)


def test_encoder_rounds_halves_to_even_and_uses_the_whole_range() -> None:
    values = [127.0, 0.5, 1.5, -2.5, -127.0, *[0.0] * 31]
    payload = CODEC.encode(update_of(SMALL, values)).payload
    assert payload == int8_file([bf16(1.0), 0, 0], [127, 0, 2, -2, -127, *[0] * 31])


@pytest.mark.parametrize("seed", range(5))
def test_error_is_at_most_half_a_step_and_norm_is_exact(seed: int) -> None:
    codec = Int8(SMALL, chunk=8)
    update = SMALL.join(random_update(SMALL, seed))
    sent = codec.encode(SMALL.split(update)).update
    for at in range(0, 36, 8):
        step = update[at : at + 8].abs().max() / 127
        assert ((sent.flat() - update)[at : at + 8].abs() <= 1.01 * step).all()
    whole = torch.randint(-127, 128, (36,), generator=torch.Generator().manual_seed(seed)).float()
    whole[::8] = 127.0
    sent = codec.encode(SMALL.split(whole)).update
    assert sent.norm == exact_norm((whole.numpy().view("uint32") >> 16).astype("uint16"))


@pytest.mark.parametrize("chunk", [1, 7, 1024, 1536, 4096, 65_536])
def test_squares_of_every_chunk_length_add_up_exactly(chunk: int) -> None:
    spec = type(SMALL)((("w", (2 * chunk + 1,)),))
    update = Int8(spec, chunk).encode({"w": torch.full((2 * chunk + 1,), -127.0)}).update
    assert update.norm == ((2 * chunk + 1) * 127**2) ** 0.5


def test_numbers_too_small_for_a_scale_become_zero_and_the_largest_still_fit() -> None:
    tiny, huge = [1e-37] * 16, [3.0e38, -3.4e38, *[0.0] * 14]
    flat = CODEC.encode(update_of(SMALL, [*tiny, *huge, *[0.0] * 4])).update.flat()
    assert not flat[:16].any()
    assert torch.isfinite(flat).all()
    assert flat[17] == pytest.approx(-3.4e38, rel=0.005)


@pytest.mark.parametrize(
    ("scales", "codes", "reason"),
    [
        ({0: 0x7FC0}, {}, "NaN"),
        ({0: 0x7F80}, {}, "infinity"),
        ({0: bf16(-0.5)}, {}, "negative scale"),
        ({1: 0x8000}, {}, "negative scale"),
        ({0: SMALLEST - 1}, {}, "scale below 2**-126"),
        ({0: LARGEST + 1}, {}, "scale above 1.0078125 * 2**121"),
        ({}, {3: -128}, "a code is -128"),
        ({}, {0: 126, 1: -126}, "a chunk's largest code is not 127"),
        ({}, {35: 126}, "a chunk's largest code is not 127"),
        ({1: bf16(1.0)}, {}, "a chunk's largest code is not 127"),
        ({}, {20: 127}, "a chunk of scale zero has a code"),
    ],
)
def test_int8_refuses(scales: dict[int, int], codes: dict[int, int], reason: str) -> None:
    changed = [dict(enumerate(part)) | change for part, change in zip(GOOD, (scales, codes), strict=True)]
    with pytest.raises(PayloadError) as caught:
        CODEC.decode(int8_file(*(list(part.values()) for part in changed)))
    assert caught.value.reason == reason


@pytest.mark.parametrize("scale", [SMALLEST, LARGEST])
def test_the_outermost_scales_are_exact(scale: int) -> None:
    update = CODEC.decode(int8_file([scale, 0, 0], [*ONE, *[0] * 20]))
    number = 2.0 ** ((scale >> 7) - 127) * (1 + (scale & 127) / 128)
    assert all(torch.isfinite(update.flat()))
    assert update.flat()[:4].tolist() == [127 * number, -127 * number, 64 * number, number]


@pytest.mark.parametrize("chunk", [0, 65_537])
def test_impossible_chunks_are_refused(chunk: int) -> None:
    with pytest.raises(ValueError, match="1 <= chunk <= 65536"):
        Int8(SMALL, chunk)
