"""How much is sent follows the update, inside the recipe's limits (DiLoCoX), and so do the inner steps."""

import numpy as np
import pytest
import torch

from earnest.protocol.recipe import CodecChoice, Inner, Recipe
from earnest.training.codecs import (
    Codec,
    CodecState,
    LowrankInt4,
    PayloadError,
    Topk2Bit,
    inner_steps,
    make_codec,
)
from earnest.training.codecs.adaptive import WINDOW, SizeLimits, choose
from earnest.training.diloco.state import Spec
from tests.training.codecs.updates import SMALL, random_update, update_of

FEW = Topk2Bit(SMALL, k=8, chunk=16, k_min=2, energy=0.9)
MATRIX = Spec((("w", (60, 70)),))
LOW = LowrankInt4(MATRIX, rank=12, rank_min=2, energy=0.9)


def peaks(count: int) -> dict[str, torch.Tensor]:
    """`count` numbers of one size in both whole chunks of 16, all others a thousandth."""
    return update_of(SMALL, [1.0 if i % 16 < count and i < 32 else 1e-3 for i in range(36)])


def of_rank(rank: int) -> dict[str, torch.Tensor]:
    """Equal singular values."""
    generator = torch.Generator().manual_seed(rank)
    left = torch.linalg.qr(torch.randn(60, rank, generator=generator)).Q
    return {"w": left @ torch.linalg.qr(torch.randn(70, rank, generator=generator)).Q.T}


def sent_k(payload: bytes) -> int:
    return getattr(FEW.decode(payload), "k")  # noqa: B009


def sent_rank(payload: bytes) -> int:
    return len(getattr(LOW.decode(payload), "factors")[0].weights)  # noqa: B009


@pytest.mark.parametrize(("count", "k"), [(1, 2), (2, 2), (4, 4), (5, 5), (16, 8)])
def test_k_is_the_smallest_that_keeps_the_share_within_limits(count: int, k: int) -> None:
    assert sent_k(FEW.encode(peaks(count)).payload) == k


@pytest.mark.parametrize(("true", "rank"), [(1, 2), (4, 4), (8, 8), (50, 12)])
def test_rank_is_the_smallest_that_keeps_the_share_within_limits(true: int, rank: int) -> None:
    encoded = LOW.encode(of_rank(true))
    for _ in range(2):
        encoded = LOW.encode(of_rank(true), encoded.state)
    assert sent_rank(encoded.payload) == rank


def test_what_is_sent_is_the_mean_of_a_window_and_falls_slowly() -> None:
    state, sent = CodecState(), []
    for count in [8] * 3 + [2] * 6:
        encoded = FEW.encode(peaks(count), state)
        state = encoded.state
        sent.append(sent_k(encoded.payload))
    assert sent == [8, 8, 8, 7, 6, 5, 4, 2, 2]
    assert state["history"].tolist() == [8.0, *[2.0] * WINDOW]


def test_a_window_is_the_last_five_and_rounded_up() -> None:
    state, got = CodecState(), []
    for measure in (8, 2, 2, 2, 2, 2, 3):
        kept = np.array([0.0] * (measure - 1) + [1.0] * (8 - measure + 1) + [1.0])
        value, state = choose(SizeLimits(2, 8, 0.9), kept, state)
        got.append(value)
    assert got == [8, 5, 4, 4, 4, 2, 3]


def test_adaptive_payloads_are_smaller_where_the_update_allows() -> None:
    fixed = make_codec(CodecChoice("topk-2bit", k=8, chunk=16), SMALL)
    small, large = FEW.encode(peaks(2)).payload, FEW.encode(peaks(16)).payload
    assert len(small) < len(large) <= FEW.payload_bytes
    assert fixed.encode(peaks(16)).payload == large


@pytest.mark.parametrize(
    ("codec", "wider", "update", "name"),
    [
        (FEW, Topk2Bit(SMALL, k=9, chunk=16), random_update(SMALL, 1), "k is 9, the recipe allows 2 to 8"),
        (FEW, Topk2Bit(SMALL, k=1, chunk=16), random_update(SMALL, 1), "k is 1, the recipe allows 2 to 8"),
        (LOW, LowrankInt4(MATRIX, rank=13), of_rank(30), "rank is 13, the recipe allows 2 to 12"),
        (LOW, LowrankInt4(MATRIX, rank=1), of_rank(30), "rank is 1, the recipe allows 2 to 12"),
        (
            LOW,
            LowrankInt4(MATRIX, rank=5),
            {"w": torch.ones(60, 70)},
            "the rank is higher than any matrix needs",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_payload_that_the_recipe_does_not_allow_is_refused(
    codec: Codec, wider: Codec, update: dict[str, torch.Tensor], name: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        codec.decode(wider.encode(update).payload)
    assert caught.value.reason == name


def test_a_payload_within_limits_is_the_same_as_that_of_a_fixed_k() -> None:
    for k in range(2, 9):
        payload = Topk2Bit(SMALL, k, chunk=16).encode(random_update(SMALL, k)).payload
        assert sent_k(payload) == k


def recipe(steps: int = 100, steps_min: int = 20) -> Recipe:
    choice = CodecChoice("topk-2bit", k=64, k_min=8, energy=0.9)
    return Recipe("a:B", 10**6, inner=Inner(steps=steps, steps_min=steps_min, batch=32), codec=choice)


@pytest.mark.parametrize(
    ("history", "steps"),
    [
        ([40.0, 40.0], 100),
        ([40.0, 40.0, 20.0], 75),
        ([40.0, 20.0, 20.0, 20.0, 20.0, 20.0], 50),
        ([60.0, 8.0], 20),
        ([10.0, 60.0], 100),
    ],
)
def test_inner_steps_fall_with_the_measure_within_the_recipes_limits(
    history: list[float], steps: int
) -> None:
    assert inner_steps(recipe(), {"history": torch.tensor(history)}) == steps


def test_inner_steps_are_the_recipes_before_anything_was_measured_or_where_they_are_fixed() -> None:
    assert inner_steps(recipe(), None) == inner_steps(recipe(), {}) == 100
    assert inner_steps(recipe(steps_min=0), {"history": torch.tensor([60.0, 8.0])}) == 100


@pytest.mark.parametrize(("least", "most", "energy"), [(0, 8, 0.5), (9, 8, 0.5), (1, 8, 1.0), (1, 8, -0.1)])
def test_impossible_limits_are_refused(least: int, most: int, energy: float) -> None:
    with pytest.raises(ValueError, match="1 <= least <= most"):
        SizeLimits(least, most, energy)
