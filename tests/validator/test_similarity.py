"""Similarity: only an update that precedes another proves a copy; in a round the larger margin decides."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from earnest.client.run.record import LogPosition
from earnest.protocol.recipe import CodecChoice, Scoring
from earnest.training.codecs import Update, make_codec
from earnest.training.diloco.state import Spec
from earnest.validator.similarity import (
    Likeness,
    PastUpdate,
    index_overlap,
    most_like,
    original_of,
    outdone,
    precedes,
    recent,
    remember,
    residual_cosines,
    similarities,
    too_alike,
)

SPEC = Spec((("weight", (64, 128)),))
DENSE = make_codec(CodecChoice("dense-bf16"), SPEC)
SPARSE = make_codec(CodecChoice("topk-2bit", k=64), SPEC)


def noise(seed: int) -> Tensor:
    return torch.randn(SPEC.size, generator=torch.Generator().manual_seed(seed))


def dense(flat: Tensor) -> Update:
    return DENSE.encode(SPEC.split(flat)).update


def sparse(flat: Tensor) -> Update:
    return SPARSE.encode(SPEC.split(flat)).update


def honest(seed: int, common: float = 3.0) -> Tensor:
    """What all trainers learn, and what only this one's data teach; the raw cosine of two is 0.9."""
    return common * noise(0) + noise(seed)


def published(update: Update, seat: int = 0, round_: int = 3, block: int | None = None) -> PastUpdate:
    at = LogPosition(100 + round_ if block is None else block, seat)
    return PastUpdate(round_, seat, f"trainer {seat}", at, bytes([seat]) * 32, update)


BASE = 2
"""The round whose state the updates of round 3 are based on."""


def compare(current: list[PastUpdate], earlier: list[PastUpdate]) -> dict[int, Likeness]:
    return most_like(current, earlier, similarities(current, earlier), BASE)


def beaten(current: list[PastUpdate], *margins: float | None) -> dict[int, Likeness]:
    by_seat = {past.seat: margin for past, margin in zip(current, margins, strict=True)}
    return outdone(current, similarities(current, []), by_seat, Scoring())


# Identity


def test_an_identical_update_of_an_earlier_round_makes_the_later_one_a_copy():
    first, second = published(dense(noise(1)), 0, round_=2), published(dense(noise(1)), 1)
    assert original_of(second, [first], BASE) is first
    assert original_of(first, [first, second], 1) is None


def test_the_first_of_several_originals_is_named():
    late = published(dense(noise(1)), 0)
    copies = [published(dense(noise(1)), seat, round_=round_) for seat, round_ in ((1, 2), (5, 1))]
    assert original_of(late, copies, BASE) is copies[1]


def test_committing_first_in_the_same_round_proves_nothing():
    framer, victim = published(dense(noise(1)), 0, block=100), published(dense(noise(1)), 1, block=101)
    assert original_of(victim, [framer, victim], BASE) is None


def test_with_overlap_the_round_before_proves_nothing_either():
    """Its commitments are still open when the state of base(r) and the assignment of r are known."""
    framer, victim = published(dense(noise(1)), 0, round_=2), published(dense(noise(1)), 1, round_=3)
    assert not precedes(framer, victim, base_round=1)
    assert precedes(replace(framer, round=1), victim, base_round=1)


def test_repeating_its_own_earlier_update_is_a_copy_too():
    earlier, now = published(dense(noise(1)), round_=2), published(dense(noise(1)), round_=3)
    assert original_of(now, [earlier, now], BASE) is earlier
    assert original_of(now, [earlier, now], base_round=1) is earlier


def test_an_update_that_differs_in_one_number_is_no_copy():
    nearly = noise(1)
    nearly[7] += 1
    assert original_of(published(dense(nearly), 1), [published(dense(noise(1)), 0, round_=2)], BASE) is None


# One round: the larger margin


@pytest.mark.parametrize("encode", [dense, sparse])
def test_of_identical_updates_the_one_with_the_larger_margin_is_kept(encode):
    framer, victim = published(encode(noise(1)), 0, block=100), published(encode(noise(1)), 1, block=101)
    losers = beaten([framer, victim], 0.0005, 0.01)
    assert {seat: likeness.original.seat for seat, likeness in losers.items()} == {0: 1}


def test_one_framer_of_two_seats_is_beaten_by_both():
    current = [published(dense(honest(seed)), seat) for seat, seed in ((0, 1), (1, 1), (2, 2))]
    assert set(beaten(current, 0.0, 0.01, 0.02)) == {0}


def test_margins_that_are_not_positive_decide_nothing():
    first, second = published(dense(noise(1)), 0), published(dense(noise(1)), 1)
    assert beaten([first, second], -0.001, -0.002) == {}
    assert beaten([first, second], 0.0, -0.002) == {}


def test_without_margins_the_earlier_commitment_is_kept():
    first, second = published(dense(noise(1)), 0, block=101), published(dense(noise(1)), 1, block=100)
    assert set(beaten([first, second], None, None)) == {0}
    assert set(beaten([first, second], 0.01, 0.01)) == {0}


def test_a_seat_that_was_not_measured_beats_nobody():
    first, second = published(dense(noise(1)), 0), published(dense(noise(1)), 1)
    table = similarities([first, second], [])
    assert outdone([first, second], table, {1: 0.01}, Scoring()) == {}


def test_an_update_is_comparable_for_eight_rounds():
    history = [published(dense(noise(1)), round_=round_) for round_ in range(12)]
    assert [one.round for one in recent(history, 10)] == [2, 3, 4, 5, 6, 7, 8, 9]


# Sparse: overlap of indices


def test_overlap_is_the_share_of_common_indices():
    flat = noise(1)
    assert index_overlap(sparse(flat), sparse(flat)) == 1
    assert index_overlap(sparse(flat), sparse(-flat)) == 1
    assert index_overlap(sparse(flat), sparse(noise(2))) < 0.1


def test_chunks_without_change_are_no_likeness():
    """Such a chunk names the same first indices for everyone, and a model may have many of them."""
    one, other = noise(1), noise(2)
    one[4096:], other[4096:] = 0, 0
    assert index_overlap(sparse(one), sparse(other)) < 0.1


def test_a_copy_with_a_third_of_its_indices_replaced_is_too_alike_at_once():
    original = noise(1)
    top = original.abs().view(2, 4096).topk(64).indices + torch.tensor([[0], [4096]])
    disguised = original.clone()
    disguised[top[:, :20].reshape(-1)] = 0
    first, second = published(sparse(original), 0), published(sparse(disguised), 1)
    losers = beaten([first, second], 0.01, 0.0)
    assert set(losers) == {1}
    assert losers[1].value == pytest.approx(44 / 64, abs=0.02)
    assert compare([second], [replace(first, round=2)])[1].value == losers[1].value


def test_a_few_indices_sent_alone_are_similar_to_nobody():
    """One chunk of an own honest update, committed first, once made every later honest one "similar"."""
    full = noise(1)
    part = full.clone()
    part[64:] = 0
    assert index_overlap(sparse(part), sparse(full)) < 0.1
    assert beaten([published(sparse(part), 0), published(sparse(full), 1)], 0.02, 0.01) == {}


# Dense: what is left of the cosine


def cosines(*flats: Tensor) -> np.ndarray:
    return residual_cosines([dense(flat) for flat in flats], [])


def test_honest_updates_that_point_the_same_way_have_nothing_else_in_common():
    table = cosines(*(honest(seed) for seed in range(1, 6)))
    np.fill_diagonal(table, 0)
    raw = torch.cosine_similarity(honest(1), honest(2), dim=0)
    assert raw > 0.85
    assert np.abs(table).max() < 0.25


def test_a_noisy_copy_is_found():
    copy = honest(1) + 0.3 * noise(9)
    table = cosines(honest(1), honest(2), honest(3), copy)
    assert table[3, 0] > 0.65
    assert max(table[3, 1], table[3, 2]) < 0.65


@pytest.mark.parametrize(
    "bystander", [lambda: 3 * noise(8), lambda: -honest(8)], ids=["noise", "turned around"]
)
def test_a_hostile_bystander_does_not_make_honest_updates_look_alike(bystander):
    table = cosines(honest(1), honest(2), honest(3), bystander())[:3, :3]
    np.fill_diagonal(table, 0)
    assert np.abs(table).max() < 0.3


def test_two_updates_alone_have_no_common_direction_to_take_out():
    assert abs(cosines(honest(1), honest(2))[1, 0]) < 1e-3
    assert abs(cosines(honest(1), honest(1))[1, 0]) < 1e-3
    assert not cosines(honest(1)).any()


def test_earlier_rounds_are_compared_too():
    earlier = [published(dense(honest(5)), 1, round_=1)]
    now = [published(dense(honest(seed)), seat) for seat, seed in ((2, 6), (3, 7), (4, 5))]
    likeness = compare(now, earlier)
    assert likeness[4].original is earlier[0]
    assert likeness[4].value > 0.95
    assert likeness[3].value < 0.3


def test_a_trainers_own_earlier_update_is_no_likeness():
    earlier = [published(dense(honest(5)), 4, round_=1)]
    now = [published(dense(honest(seed)), seat) for seat, seed in ((2, 6), (3, 7), (4, 5))]
    assert 4 not in compare(now, earlier)


def test_a_round_without_updates_has_no_likeness():
    assert compare([], []) == {}
    assert compare([], [published(dense(noise(1)), round_=2)]) == {}


def test_cosines_of_round_zero_say_nothing():
    late, original = published(dense(honest(1)), 1, round_=0), published(dense(honest(1)), 0, round_=0)
    likeness = Likeness(0.99, original)
    assert not too_alike(late, likeness, Scoring())
    assert too_alike(replace(late, round=1), likeness, Scoring())
    assert not too_alike(replace(late, round=1), replace(likeness, value=0.64), Scoring())


def test_likeness_is_remembered_for_eight_rounds():
    memory = remember({}, ["copier"], 1)
    assert memory == {"copier": (1,)}
    assert remember(memory, ["copier"], 9) == {"copier": (1, 9)}
    assert remember(memory, ["copier"], 10) == {"copier": (10,)}
    assert remember(memory, [], 10) == {}
