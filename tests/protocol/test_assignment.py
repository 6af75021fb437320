import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.assignment import SamplePool
from earnest.protocol.seed import ASSIGNMENT, HELD_OUT, shuffled, tagged


def seed(n: int) -> bytes:
    return n.to_bytes(32, "big")


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 8), st.integers(0, 30), st.integers(0, 2**32))
def test_nobody_can_train_on_what_it_is_judged_by(seats, per_seat, held_out, spare, n):
    pool = SamplePool(seats * per_seat + 8 * held_out + spare, per_seat, held_out)
    for r in range(6):
        samples = pool.assign(seed(n + r), range(seats))
        own = [i for block in samples.assigned.values() for i in block]
        judged_by = samples.held_out(seed(n + r + 1))
        assert all(len(block) == per_seat for block in samples.assigned.values())
        assert len(judged_by) == held_out
        assert len({*own, *judged_by}) == seats * per_seat + held_out
        assert {*own, *judged_by} <= set(range(pool.size))


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(0, 60))
def test_no_id_is_assigned_twice_in_a_pass(seats, per_seat, held_out, spare):
    pool = SamplePool(seats * per_seat + 8 * held_out + spare, per_seat, held_out)
    rounds_in_a_pass = (pool.size - 8 * held_out) // (seats * per_seat)
    used: list[int] = []
    for r in range(rounds_in_a_pass):
        for block in pool.assign(seed(r), range(seats)).assigned.values():
            used += block
    assert len(set(used)) == len(used) == rounds_in_a_pass * seats * per_seat


def test_a_pass_ends_when_too_few_ids_remain():
    pool = SamplePool(size=32, per_seat=2, held_out=3)
    assert len(pool.assign(seed(0), [0, 1]).remainder) == 28
    assert len(pool.assign(seed(1), [0, 1]).remainder) == 24
    assert len(pool.assign(seed(2), [0, 1]).remainder) == 28


def test_seats_take_blocks_of_the_shuffled_rest_in_seat_order():
    pool = SamplePool(size=30, per_seat=3, held_out=2)
    first = pool.assign(seed(0), [7, 2])
    order = shuffled(range(30), tagged(seed(0), ASSIGNMENT))
    assert first.assigned == {2: tuple(order[:3]), 7: tuple(order[3:6])}
    assert first.remainder == tuple(sorted(order[6:]))
    second = pool.assign(seed(1), [2])
    assert second.assigned == {2: tuple(shuffled(first.remainder, tagged(seed(1), ASSIGNMENT))[:3])}


def test_held_out_sample_needs_the_rounds_own_seed():
    samples = SamplePool(100, 5, 10).assign(seed(0), [0])
    assert samples.held_out(seed(1)) == tuple(shuffled(samples.remainder, tagged(seed(1), HELD_OUT))[:10])
    assert samples.held_out(seed(1)) != samples.held_out(seed(2))


def test_a_late_joiner_that_replays_gets_the_same():
    early, late = SamplePool(60, 3, 5), SamplePool(60, 3, 5)
    history = [(seed(0), [0]), (seed(1), [0, 1]), (seed(2), []), (seed(3), [1])]
    assert [early.assign(*step) for step in history] == [late.assign(*step) for step in history]


def test_a_round_without_trainers_assigns_nothing():
    pool = SamplePool(40, 3, 5)
    samples = pool.assign(seed(0), [])
    assert samples.assigned == {}
    assert samples.remainder == tuple(range(40))


def test_a_pool_must_leave_eight_held_out_samples_to_draw_from():
    SamplePool(256 * 10 + 8 * 512, 10, 512).check(256)
    with pytest.raises(ValueError, match="a pool of 6655 samples is too small"):
        SamplePool(256 * 10 + 8 * 512 - 1, 10, 512).check(256)


def test_nobody_knows_the_held_out_sample_at_the_end_of_a_pass():
    pool = SamplePool(100, 5, 4)
    for round_ in range(60):
        assert len(pool.assign(seed(round_), [0, 1]).remainder) >= 8 * 4


def test_the_held_out_sample_is_not_what_the_first_seat_trains_on_next():
    pool = SamplePool(10_000, 500, 500)
    held_out = pool.assign(seed(0), [0]).held_out(seed(1))
    following = pool.assign(seed(1), [0]).assigned[0]
    assert len(set(held_out) & set(following)) < 100
