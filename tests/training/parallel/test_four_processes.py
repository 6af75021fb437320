"""Four processes: longer pipelines, and pipelines of replicas."""

from collections.abc import Iterator

import pytest

from earnest.protocol.recipe import Recipe
from earnest.training.parallel import Layout, ParallelTrainer, Rendezvous, WorkerGroup
from tests.training.parallel.rounds import (
    IDS,
    ROUNDS,
    alone,
    chain,
    relative,
    same_bits,
    same_state,
    shakespeare,
    start,
    two_rounds,
)

ROUNDING = 3e-6


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerGroup]:
    group = WorkerGroup(Rendezvous(local_processes=4), timeout_s=30.0)
    yield group
    group.close()


def trainer(workers: WorkerGroup, recipe: Recipe, layout: str) -> ParallelTrainer:
    return ParallelTrainer(recipe, ROUNDS, Layout.parse(layout), workers)


def test_four_stages_that_take_whole_batches_give_the_bits_of_one_process(workers: WorkerGroup) -> None:
    recipe = shakespeare()
    wanted, kept = two_rounds(alone(recipe), start(recipe))
    found, trainer_state = two_rounds(trainer(workers, recipe, "pp4"), start(recipe))
    assert same_bits(found, wanted)
    assert same_state(trainer_state, kept)


@pytest.mark.parametrize("layout", ["pp4-mb2", "pp4-mb8", "pp2-dp2", "pp2-dp2-mb2", "dp4", "fsdp4"])
def test_every_layout_differs_from_one_process_by_rounding_alone(workers: WorkerGroup, layout: str) -> None:
    recipe = shakespeare()
    wanted, _ = two_rounds(alone(recipe), start(recipe))
    parallel = trainer(workers, recipe, layout)
    found, trainer_state = two_rounds(parallel, start(recipe))
    again, kept = two_rounds(parallel, start(recipe))
    assert relative(found, wanted) < ROUNDING
    assert same_bits(found, again)
    assert same_state(trainer_state, kept)


@pytest.mark.parametrize("batch", [1, 3])
def test_replicas_without_samples_keep_step_with_the_others(workers: WorkerGroup, batch: int) -> None:
    recipe = chain("Tied", batch=batch)
    wanted, _ = two_rounds(alone(recipe), start(recipe), IDS[:7])
    for layout in ("pp2-dp2", "dp4", "fsdp4"):
        found, _ = two_rounds(trainer(workers, recipe, layout), start(recipe), IDS[:7])
        assert relative(found, wanted) < ROUNDING, layout
