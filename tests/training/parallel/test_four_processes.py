"""Four processes: longer pipelines, and pipelines of replicas."""

from collections.abc import Iterator

import pytest

from earnest.protocol.recipe import Recipe
from earnest.training.diloco.engine import TrainerState
from earnest.training.diloco.outer import outer_step
from earnest.training.diloco.state import to_bytes
from earnest.training.parallel import Hosts, Layout, ParallelTrainer, Processes
from tests.training.parallel.rounds import (
    IDS,
    ROUNDS,
    alone,
    chain,
    relative,
    same_bits,
    same_memory,
    shakespeare,
    start,
    two_rounds,
)

ROUNDING = 3e-6


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    found = Processes(Hosts(here=4), timeout_s=30.0)
    yield found
    found.close()


def trainer(processes: Processes, recipe: Recipe, layout: str) -> ParallelTrainer:
    return ParallelTrainer(recipe, ROUNDS, Layout.parse(layout), processes)


def test_four_stages_that_take_whole_batches_give_the_bits_of_one_process(processes: Processes) -> None:
    recipe = shakespeare()
    wanted, kept = two_rounds(alone(recipe), start(recipe))
    found, memory = two_rounds(trainer(processes, recipe, "pp4"), start(recipe))
    assert same_bits(found, wanted)
    assert same_memory(memory, kept)


@pytest.mark.parametrize("layout", ["pp4-mb2", "pp4-mb8", "pp2-dp2", "pp2-dp2-mb2", "dp4", "fsdp4"])
def test_every_layout_differs_from_one_process_by_rounding_alone(processes: Processes, layout: str) -> None:
    recipe = shakespeare()
    wanted, _ = two_rounds(alone(recipe), start(recipe))
    parallel = trainer(processes, recipe, layout)
    found, memory = two_rounds(parallel, start(recipe))
    again, kept = two_rounds(parallel, start(recipe))
    assert relative(found, wanted) < ROUNDING
    assert same_bits(found, again)
    assert same_memory(memory, kept)


@pytest.mark.parametrize("batch", [1, 3])
def test_replicas_without_samples_keep_step_with_the_others(processes: Processes, batch: int) -> None:
    recipe = chain("Tied", batch=batch)
    wanted, _ = two_rounds(alone(recipe), start(recipe), IDS[:7])
    for layout in ("pp2-dp2", "dp4", "fsdp4"):
        found, _ = two_rounds(trainer(processes, recipe, layout), start(recipe), IDS[:7])
        assert relative(found, wanted) < ROUNDING, layout


def test_outer_steps_by_stage_are_the_whole_outer_step_bit_for_bit(processes: Processes) -> None:
    recipe = shakespeare()
    for layout in ("pp4", "pp2-dp2"):
        parallel, state = trainer(processes, recipe, layout), start(recipe)
        gradient = parallel.train(state, IDS, 0, TrainerState()).pseudo_gradient
        parallel.advance(gradient, 0.7, 0.9)
        assert to_bytes(parallel.state()) == to_bytes(outer_step(state, gradient, 0.7, 0.9))
