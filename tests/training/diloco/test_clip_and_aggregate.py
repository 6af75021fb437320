"""The next state has the same bits everywhere: checked against one operation at a time in numpy (section 10)."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from earnest.training.codecs import Codec, DenseBf16, Topk2Bit, Update
from earnest.training.diloco.clip_and_aggregate import aggregate
from earnest.training.diloco.outer_step import outer_step
from earnest.training.diloco.state import State, to_bytes
from tests.training.codecs.updates import SMALL, bf16, random_update, topk_file, update_of

DENSE, SPARSE = DenseBf16(SMALL), Topk2Bit(SMALL, k=4, chunk=16)
SHARES = {0: 0.1, 2: 0.6, 5: 0.3}
F32 = np.float32


def updates_of(codec: Codec) -> list[tuple[int, Update]]:
    return [(seat, codec.encode(random_update(SMALL, seat)).update) for seat in (5, 0, 1, 2)]


def flat(tensors: dict[str, torch.Tensor]) -> np.ndarray:
    return SMALL.join(tensors).numpy()


@pytest.mark.parametrize("codec", [DENSE, SPARSE], ids=lambda codec: codec.name)
@pytest.mark.parametrize("mode", ["mean", "contributor-mean"])
def test_aggregate_multiplies_then_adds_in_seat_order(codec: Codec, mode: str) -> None:
    updates, limit = updates_of(codec), 5.0
    by_seat = dict(updates)
    total, weight = np.zeros(36, F32), np.zeros(36, F32)
    for seat in (0, 2, 5):
        factor = min(1.0, limit / by_seat[seat].norm)
        total = total + by_seat[seat].flat().numpy() * F32(SHARES[seat] * factor)
        weight = weight + by_seat[seat].sent().numpy() * F32(SHARES[seat])
    if mode == "contributor-mean":
        total = total / np.maximum(weight, F32(0.5 / 3))
    assert flat(aggregate(updates, SHARES, limit, mode)).tobytes() == total.astype(F32).tobytes()


def test_order_in_which_updates_arrive_does_not_matter() -> None:
    updates = updates_of(DENSE)
    one = aggregate(updates, SHARES, 5.0, "mean")
    two = aggregate(updates[::-1], dict(reversed(SHARES.items())), 5.0, "mean")
    assert flat(one).tobytes() == flat(two).tobytes()


def test_an_update_above_the_clip_norm_is_scaled_to_it() -> None:
    update = DENSE.encode(random_update(SMALL, 1)).update
    clipped = flat(aggregate([(0, update)], {0: 1.0}, update.norm / 4, "mean"))
    assert np.array_equal(clipped, update.flat().numpy() * F32(0.25))
    untouched = flat(aggregate([(0, update)], {0: 1.0}, update.norm, "mean"))
    assert np.array_equal(untouched, update.flat().numpy())


def sparse(places: list[int], value: float) -> Update:
    """`value` at four places of the first chunk; the other chunks are zeros."""
    zeros = [([0, 1, 2, 3], [0] * 4, 0, 0), ([0], [0], 0, 0)]
    return SPARSE.decode(topk_file([(places, [0b10] * 4, 0, bf16(value)), *zeros]))


def test_contributor_mean_gives_a_tiny_weight_little_influence_on_a_coordinate_it_sends_alone() -> None:
    updates = [(0, sparse([0, 1, 2, 3], 4.0)), (1, sparse([2, 3, 4, 5], 8.0))]
    tiny = 1 / 65_536
    shared = flat(aggregate(updates, {0: 1 - tiny, 1: tiny}, 1e9, "contributor-mean"))
    assert shared[:2].tolist() == [4, 4]
    assert shared[4:6].max() == 8 * tiny / 0.25


def test_contributor_mean_divides_by_those_who_sent_and_leaves_the_rest_zero() -> None:
    updates = [(0, sparse([0, 1, 2, 3], 4.0)), (1, sparse([2, 3, 4, 5], 8.0))]
    shares = {0: 0.75, 1: 0.25}
    plain = flat(aggregate(updates, shares, 1e9, "mean"))
    assert plain[:7].tolist() == [3, 3, 5, 5, 2, 2, 0]
    shared = flat(aggregate(updates, shares, 1e9, "contributor-mean"))
    assert shared[:7].tolist() == [4, 4, 5, 5, 8, 8, 0]


def test_a_seat_without_share_changes_nothing() -> None:
    updates = updates_of(DENSE)
    without = [(seat, update) for seat, update in updates if seat != 1]
    for shares in (SHARES, SHARES | {1: 0.0}):
        got = aggregate(updates, shares, 5.0, "mean")
        assert flat(got).tobytes() == flat(aggregate(without, SHARES, 5.0, "mean")).tobytes()


def test_a_counted_seat_without_its_update_is_an_error_not_a_different_state() -> None:
    with pytest.raises(ValueError, match=r"seats \[5\] are missing"):
        aggregate([u for u in updates_of(DENSE) if u[0] != 5], SHARES, 5.0, "mean")


@pytest.mark.parametrize("shares", [{}, {0: 0.0}])
def test_an_empty_round_takes_no_step(shares: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="no update counts"):
        aggregate(updates_of(DENSE), shares, 5.0, "mean")


def test_unknown_aggregation_is_refused() -> None:
    with pytest.raises(ValueError, match="no aggregation named 'median'"):
        aggregate(updates_of(DENSE), SHARES, 5.0, "median")


def test_a_zero_update_cannot_be_clipped() -> None:
    with pytest.raises(ValueError, match="malformed"):
        aggregate([(0, DENSE.encode(update_of(SMALL, [0.0] * 36)).update)], {0: 1.0}, 1.0, "mean")


def test_nesterov_multiplies_then_adds() -> None:
    state = State(random_update(SMALL, 1), random_update(SMALL, 2), 3.0)
    gradient = random_update(SMALL, 3)
    after = outer_step(state, gradient, 0.7, 0.9)
    d, mu, lr = flat(gradient), F32(0.9), F32(0.7)
    b = flat(state.momentum) * mu + d
    assert flat(after.momentum).tobytes() == b.tobytes()
    assert after.clip_norm == 3.0
    assert flat(after.parameters).tobytes() == (flat(state.parameters) - (b * mu + d) * lr).tobytes()


def test_nesterov_is_that_of_torch_up_to_rounding() -> None:
    start, gradients = random_update(SMALL, 1), [random_update(SMALL, seed) for seed in range(5)]
    parameter = torch.nn.Parameter(SMALL.join(start))
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    state = State.start(start, 1.0)
    for gradient in gradients:
        parameter.grad = SMALL.join(gradient)
        optimizer.step()
        state = outer_step(state, gradient, 0.7, 0.9)
    assert torch.allclose(SMALL.join(state.parameters), parameter.detach(), atol=1e-5)


def test_a_step_leaves_the_state_before_it_untouched() -> None:
    state = State(random_update(SMALL, 1), random_update(SMALL, 2), 3.0)
    before = to_bytes(state)
    outer_step(state, random_update(SMALL, 3), 0.7, 0.9)
    assert to_bytes(state) == before


@pytest.mark.parametrize(("level", "threads"), [("default", 1), ("avx2", 2), ("avx512", 1)])
def test_next_state_is_the_same_on_every_vector_unit_and_thread_count(level: str, threads: int) -> None:
    command = [sys.executable, "-m", "tests.training.codecs.golden", str(threads)]
    environment = os.environ | {"ATEN_CPU_CAPABILITY": level}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.strip()[:16] == "6c0911b3ba4ec36a"
