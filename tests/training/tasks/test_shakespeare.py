"""The bundled task: every byte at its place, and no training on the report split."""

import math
from importlib.resources import files
from itertools import pairwise

import pytest
import torch

from earnest.protocol.recipe import Recipe
from earnest.training.diloco.state import read_parameters
from earnest.training.tasks.shakespeare import Shakespeare, demo_recipe
from earnest.training.tasks.task import load_task

TASK = Shakespeare()
TEXT = (files("earnest.training.tasks") / "corpus" / "shakespeare-plays.txt").read_bytes()
BORDER = int(len(TEXT) * 0.9)


def window(split: str, sample: int) -> bytes:
    """Inputs and the last target of one sample."""
    (batch,) = TASK.batches(split, 0, [sample], 1)
    return bytes(batch.inputs[0].tolist()) + bytes(batch.targets[0, -1:].tolist())


def test_train_and_report_windows_come_from_their_parts_of_the_text() -> None:
    assert all(window("train", i) in TEXT[:BORDER] for i in range(0, 68_000, 2_000))
    assert all(window("report", i) in TEXT[BORDER:] for i in range(0, 7_000, 500))


def test_targets_are_the_inputs_one_byte_later() -> None:
    (batch,) = TASK.batches("report", 0, [0, 5, 9], 3)
    assert batch.inputs.shape == batch.targets.shape == (3, 64)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert bytes(batch.inputs[1].tolist()) == TEXT[BORDER + 320 : BORDER + 384]


def test_every_window_has_one_id() -> None:
    windows = TASK.pool_size + len(TASK.warmup_ids)
    assert windows == (BORDER - 1) // 64
    assert len({i * TASK._stride % windows for i in range(windows)}) == windows


def test_any_range_of_ids_is_spread_over_the_text() -> None:
    windows = TASK.pool_size + len(TASK.warmup_ids)
    places = sorted(i * TASK._stride % windows for i in TASK.warmup_ids)
    gaps = [b - a for a, b in pairwise(places)]
    assert max(gaps) < 3 * windows / len(places)


def test_samples_come_in_the_order_given_and_the_last_batch_is_smaller() -> None:
    ids = [40, 3, 17, 8, 9]
    batches = list(TASK.batches("train", 0, ids, 2))
    assert [len(batch.inputs) for batch in batches] == [2, 2, 1]
    rows = [bytes(row.tolist()) for batch in batches for row in batch.inputs]
    assert rows == [window("train", i)[:-1] for i in ids]
    assert list(TASK.batches("train", 0, [], 2)) == []


def test_pool_lasts_the_demo_in_one_pass() -> None:
    assert TASK.pool_size >= 6 * 4 * 150 * 16 + 512
    assert list(TASK.warmup_ids) == list(range(TASK.pool_size, TASK.pool_size + 300 * 16))
    assert len(TASK.report_ids) == len(set(TASK.report_ids)) == 256


@pytest.mark.parametrize(("split", "sample"), [("train", -1), ("train", 68_647), ("report", 7_627)])
def test_unknown_samples_are_refused(split: str, sample: int) -> None:
    with pytest.raises(ValueError, match="sample ids of split"):
        next(TASK.batches(split, 0, [sample], 1))


def test_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="no split 'test'"):
        next(TASK.batches("test", 0, [0], 1))


@pytest.mark.parametrize(
    "options", [{"width": 65}, {"width": 1 << 20}, {"layers": 0}, {"heads": 0}, {"context": 1 << 30}]
)
def test_sizes_that_make_no_model_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        Shakespeare(**options)


def test_models_follow_the_seed_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first, second, other = (read_parameters(TASK.build_model(seed)) for seed in (5, 5, 6))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["bytes.weight"], other["bytes.weight"])


def test_loss_of_an_untrained_model_is_the_uniform_guess() -> None:
    (batch,) = TASK.batches("report", 0, TASK.report_ids[:8], 8)
    losses = TASK.loss(TASK.build_model(0), batch)
    assert losses.shape == (8,)
    assert losses.mean().item() == pytest.approx(math.log(256), abs=0.1)


def test_loss_of_a_sequence_does_not_depend_on_its_neighbours() -> None:
    model = TASK.build_model(0)
    alone = [TASK.loss(model, batch).item() for batch in TASK.batches("report", 0, [3, 4], 1)]
    (both,) = TASK.batches("report", 0, [3, 4], 2)
    assert TASK.loss(model, both).tolist() == pytest.approx(alone, abs=1e-5)


def test_the_model_sees_no_later_byte() -> None:
    model = TASK.build_model(0)
    (batch,) = TASK.batches("report", 0, [0], 1)
    changed = batch.inputs.clone()
    changed[0, 40:] = 0
    before, after = model(batch.inputs), model(changed)
    assert torch.allclose(before[0, :40], after[0, :40], atol=1e-6)
    assert not torch.allclose(before[0, 40:], after[0, 40:], atol=1e-3)


@pytest.mark.parametrize("codec", ["dense-bf16", "topk-2bit"])
def test_demo_recipes_are_valid_files_and_load_their_task(codec: str) -> None:
    recipe = demo_recipe(codec, trainers=4, seed=3)
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert (recipe.codec.name, recipe.seed, recipe.inner.steps, recipe.inner.batch) == (codec, 3, 150, 16)
    assert load_task(recipe.task, recipe.task_options).pool_size == recipe.pool_size


def test_demo_recipe_refuses_more_trainers_than_the_text_feeds() -> None:
    with pytest.raises(ValueError, match="too small"):
        demo_recipe("dense-bf16", trainers=27, seed=0)


def test_demo_recipe_refuses_an_unknown_codec() -> None:
    with pytest.raises(ValueError, match="no codec named"):
        demo_recipe("gzip", trainers=4, seed=0)
