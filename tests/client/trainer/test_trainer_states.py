"""States that a trainer carries from round to round, after updates that counted and updates that did not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from earnest.client.storage.journal import Journal
from earnest.client.storage.objects import ObjectStore
from earnest.client.trainer.trainer_states import ROUNDS_KEPT, TrainerStates
from earnest.training.diloco.engine import TrainerState

FEEDBACK = 0.5


def memory(residual: float, inner: float = 0.0) -> TrainerState:
    codec = {"residual/w": torch.tensor([residual]), "history": torch.tensor([3.0])}
    return TrainerState({"w/exp_avg": torch.tensor([inner])}, codec)


def residual(found: TrainerState) -> float | None:
    return found.codec["residual/w"].item() if "residual/w" in found.codec else None


class Trainer:
    """Works round after round: each sends half of what is owed and of a new update of 1."""

    def __init__(
        self, journal: Journal, store: ObjectStore, decided: Callable[[int], int], vain: set[int]
    ) -> None:
        counted = lambda round: round not in vain  # noqa: E731
        self.states = TrainerStates(1, journal, store, FEEDBACK, decided, counted)

    def work(self, round: int) -> None:
        start = self.states.start(round)
        owed = FEEDBACK * (residual(start) or 0.0) + 1.0
        self.states.end(round, memory(owed / 2, inner=float(round)).to_bytes())


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    store = ObjectStore(tmp_path / "private")
    with Journal(tmp_path / "journal.sqlite", "0x" + "11" * 20) as journal:
        yield lambda decided, vain=(): Trainer(journal, store, decided, set(vain))


def apart(round: int) -> int:
    return round - 1


def beside(round: int) -> int:
    return round - 2


def owed(rounds: int) -> float:
    """What is owed after so many rounds that counted."""
    left = 0.0
    for _ in range(rounds):
        left = (FEEDBACK * left + 1) / 2
    return left


def test_a_round_that_counted_leaves_what_it_owes(make: Callable[..., Trainer]) -> None:
    trainer = make(apart)
    for round in range(3):
        trainer.work(round)
    assert residual(trainer.states.start(3)) == pytest.approx(owed(3))


@pytest.mark.parametrize("vain", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 1, 2}])
def test_a_void_round_owes_nothing_and_keeps_the_optimizer(
    make: Callable[..., Trainer], vain: set[int]
) -> None:
    trainer = make(apart, vain)
    for round in range(3):
        trainer.work(round)
    start = trainer.states.start(3)
    assert (residual(start) or 0.0) == pytest.approx(owed(3 - len(vain)))
    assert start.inner["w/exp_avg"].item() == 2.0
    assert start.codec["history"].item() == 3.0


def test_with_overlap_a_round_is_taken_back_once_its_outcome_is_known(make: Callable[..., Trainer]) -> None:
    trainer = make(beside, {1})
    for round in range(3):
        trainer.work(round)
    before, after = owed(1), (FEEDBACK * owed(1) + 1) / 2
    now = (FEEDBACK * after + 1) / 2
    start = trainer.states.start(3)
    assert residual(start) == pytest.approx(now - FEEDBACK * (after - before))
    trainer.work(3)
    assert residual(trainer.states.start(4)) == pytest.approx((FEEDBACK * residual(start) + 1) / 2), "once"  # type: ignore[operator]


def test_with_overlap_a_pause_lets_both_outcomes_be_known_at_once(make: Callable[..., Trainer]) -> None:
    trainer = make(beside, {1, 2})
    for round in range(3):
        trainer.work(round)
    assert residual(trainer.states.start(5)) == pytest.approx(owed(1))


def test_the_same_start_is_found_again_after_a_restart(make: Callable[..., Trainer]) -> None:
    trainer = make(apart, {1})
    for round in range(2):
        trainer.work(round)
    first = trainer.states.start(2).to_bytes()
    assert trainer.states.start(2).to_bytes() == make(apart, {1}).states.start(2).to_bytes() == first


def test_who_was_away_for_long_starts_afresh(make: Callable[..., Trainer]) -> None:
    trainer = make(apart)
    trainer.work(0)
    assert trainer.states.start(ROUNDS_KEPT).codec
    assert trainer.states.start(ROUNDS_KEPT + 1) == TrainerState()


def test_a_long_run_keeps_no_more_states_than_it_may_ask_for(
    make: Callable[..., Trainer], tmp_path: Path
) -> None:
    trainer = make(beside, {3, 11, 17})
    sizes = []
    for round in range(40):
        if round not in (20, 21, 29):
            trainer.work(round)
        sizes.append(len(list((tmp_path / "private").iterdir())))
    assert max(sizes[20:]) <= 2 * (ROUNDS_KEPT + 2)
    assert trainer.states.start(40).to_bytes() != TrainerState().to_bytes()
    for round in range(40 - ROUNDS_KEPT, 40):
        assert trainer.states._read(round, "end") is not None
        assert trainer.states._read(round, "start") is not None
