"""The blocks of docs/own-model.md work, and DiLoCo without a chain gives the same updates as in a run."""

from __future__ import annotations

import importlib
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from earnest.training import (
    CodecChoice,
    DiLoCo,
    Inner,
    Outer,
    Privacy,
    PrivateBatches,
    Recipe,
    Scoring,
    Task,
    load_task,
    recipe_for,
    simulate,
    task_of,
)
from earnest.training.diloco.engine import TrainerState, train_round
from earnest.training.diloco.initial import initial_state
from earnest.training.diloco.state import State, to_bytes
from earnest.training.diloco.tensorfile import PayloadError
from earnest.training.tasks.own import load_private
from earnest.training.tasks.task import TaskError

PAGE = Path(__file__).parents[2] / "docs/own-model.md"
BLOCKS = re.findall(r"^```python(?: file=(\S+))?\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)

INPUTS = torch.randn(400, 8, generator=torch.Generator().manual_seed(3))
SAMPLES = [(x, x.sum(0, keepdim=True)) for x in INPUTS]


def loss(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - targets).square().mean(1)


MyTask = task_of(lambda: torch.nn.Linear(8, 1), SAMPLES[:320], loss, report=SAMPLES[320:], warmup=16)
RECIPE = recipe_for(MyTask(), f"{__name__}:MyTask", inner=Inner(steps=4, batch=4, lr=0.1))


def test_the_page_s_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found: list[dict[str, Any]] = []
    for name, code in BLOCKS:
        if name:
            (tmp_path / name).write_text(code)
            importlib.invalidate_caches()
        else:
            scope: dict[str, Any] = {}
            exec(code, scope)
            found.append(scope)
    inputs, targets = next(iter(load_private("my_data:data").batches(0, 1, 16))).inputs, (16, 1)
    assert found[1]["MyTask"]().build_model(0)(inputs).shape == targets
    for name in ("my_model", "my_data"):
        monkeypatch.delitem(sys.modules, name)
    assert len(BLOCKS) == 4
    one, other = (trainer.model.weight for trainer in found[0]["trainers"])
    assert torch.equal(one, other)
    assert not torch.equal(one, found[0]["first"].weight)
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 3
    assert losses[2] < losses[0] / 2


def test_the_first_block_is_about_ten_lines() -> None:
    around = [
        line for line in BLOCKS[0][1].splitlines() if line.strip() and not line.startswith(("import", "from"))
    ]
    assert len(around) <= 11


def test_importing_the_client_stays_light() -> None:
    code = "import sys, earnest.client; sys.exit('torch' in sys.modules or 'web3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        importlib.import_module("earnest.training").Nonsense  # noqa: B018


def test_every_exported_name_is_there() -> None:
    client = importlib.import_module("earnest.training")
    assert all(getattr(client, name).__name__ == name for name in client.__all__)


# DiLoCo around a loop


def trained(diloco: DiLoCo, seed: int) -> bytes:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(diloco.model.parameters(), lr=0.05)
    while not diloco.step():
        inputs = torch.randn(16, 8, generator=generator)
        loss(diloco.model, inputs, inputs.sum(1, keepdim=True)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return diloco.update()


def pair(**options: Any) -> list[DiLoCo]:
    made = []
    for _ in range(2):
        torch.manual_seed(1)
        made.append(DiLoCo(torch.nn.Linear(8, 1), steps=5, **options))
    return made


@pytest.mark.parametrize("codec", ["dense-bf16", CodecChoice("topk-2bit", k=4, chunk=8, error_feedback=0.9)])
def test_trainers_end_every_round_with_equal_models_that_have_learnt(codec: str | CodecChoice) -> None:
    trainers = pair(codec=codec, outer=Outer(lr=0.7, momentum=0.5))
    before = loss(trainers[0].model, INPUTS, INPUTS.sum(1, keepdim=True)).mean().item()
    for round in range(4):
        payloads = [trained(trainer, 10 * round + place) for place, trainer in enumerate(trainers)]
        assert payloads[0] != payloads[1]
        for trainer in trainers:
            trainer.apply(payloads)
        assert to_bytes(trainers[0].base) == to_bytes(trainers[1].base)
        assert torch.equal(trainers[0].model.weight, trainers[1].model.weight)  # type: ignore[arg-type]
    assert loss(trainers[0].model, INPUTS, INPUTS.sum(1, keepdim=True)).mean().item() < before / 2


def test_plain_averaging_is_the_mean_of_the_models() -> None:
    trainers = pair(outer=Outer(lr=1.0, momentum=0.0))
    payloads = [trained(trainer, place) for place, trainer in enumerate(trainers)]
    ends = [trainer.model.weight.detach().clone() for trainer in trainers]  # type: ignore[union-attr]
    trainers[0].apply(payloads)
    assert torch.allclose(trainers[0].model.weight, (ends[0] + ends[1]) / 2, atol=5e-3)  # type: ignore[arg-type]


def test_a_malformed_payload_is_refused() -> None:
    trainer = pair()[0]
    with pytest.raises(PayloadError):
        trainer.apply([b"\x80\x05."])
    with pytest.raises(ValueError, match="no payload"):
        trainer.apply([])


# Tasks of one's own


def test_a_task_of_one_s_own_can_be_named_by_a_recipe() -> None:
    task = load_task(RECIPE.task, RECIPE.task_options)
    assert Task in type(task).__mro__
    assert (task.pool_size, list(task.warmup_ids), len(task.report_ids)) == (304, list(range(304, 320)), 80)
    assert Recipe.from_json(RECIPE.to_json()) == RECIPE
    assert (RECIPE.scoring.held_out, RECIPE.scoring.own) == (19, 16)
    assert 0 < RECIPE.max_payload_bytes < 1000


def test_its_models_follow_the_seed_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    weights = [MyTask().build_model(seed).weight for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])  # type: ignore[arg-type]
    assert not torch.equal(weights[0], weights[2])  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)


def test_its_samples_come_in_order_and_unknown_ones_are_refused() -> None:
    batches = list(MyTask().batches("train", 0, [7, 2, 5], 2))
    assert torch.equal(torch.cat([batch.inputs for batch in batches]), INPUTS[[7, 2, 5]])
    for split, sample in (("train", 320), ("report", 80), ("train", -1), ("test", 0)):
        with pytest.raises(ValueError, match=r"sample ids of split|no split"):
            list(MyTask().batches(split, 0, [sample], 1))


def test_private_batches_are_those_of_the_round() -> None:
    def make(round: int) -> Any:
        generator = torch.Generator().manual_seed(round)
        while True:
            inputs = torch.randn(4, 8, generator=generator)
            yield inputs, inputs.sum(1, keepdim=True)

    private, task = PrivateBatches(make, b"r" * 32), MyTask()
    first, again, other = (
        train_round(
            task, RECIPE, initial_state(task, RECIPE), range(12), r, 2, TrainerState(), private=private
        )
        for r in (0, 0, 1)
    )
    assert first.steps == 3
    assert torch.equal(first.pseudo_gradient["weight"], again.pseudo_gradient["weight"])
    assert not torch.equal(first.pseudo_gradient["weight"], other.pseudo_gradient["weight"])
    with pytest.raises(ValueError, match="32 bytes"):
        PrivateBatches(make, b"short")


DATA = PrivateBatches(lambda round: [], b"d" * 32)


def test_private_data_is_loaded_by_name() -> None:
    assert load_private(f"{__name__}:DATA") is DATA
    assert load_private(f"{__name__}:make_data").root == b"m" * 32


def make_data() -> PrivateBatches:
    return PrivateBatches(lambda round: [], b"m" * 32)


@pytest.mark.parametrize(
    ("name", "cause"),
    [("nothing", "not the name"), ("no.such:DATA", "cannot be imported"), (f"{__name__}:SAMPLES", "not private data"),
     (f"{__name__}:missing", "not private data")],
)  # fmt: skip
def test_malformed_private_data_is_refused(name: str, cause: str) -> None:
    with pytest.raises(TaskError, match=cause):
        load_private(name)


# A whole run in this process


@pytest.mark.parametrize("overlap", ["none", "delayed", "eager"])
def test_a_simulated_run_learns_and_is_the_same_again(overlap: str) -> None:
    recipe = recipe_for(MyTask(), "x:Y", inner=RECIPE.inner, outer=Outer(0.7, 0.5), overlap=overlap)
    runs = [list(simulate(MyTask(), recipe, trainers=3, rounds=6)) for _ in range(2)]
    assert [round.number for round in runs[0]] == list(range(6))
    assert to_bytes(runs[0][-1].state) == to_bytes(runs[1][-1].state)
    assert runs[0][-1].report_loss < 0.6 * runs[0][0].report_loss
    assert all(len(set(round.payload_bytes)) == 1 and len(round.losses) == 3 for round in runs[0])


def test_a_simulated_first_round_is_the_outer_step_on_the_trainers_updates() -> None:
    task, recipe = MyTask(), recipe_for(MyTask(), "x:Y", inner=RECIPE.inner, outer=Outer(1.0, 0.0))
    recipe = Recipe.from_json(recipe.to_json())
    (only,) = simulate(task, recipe, trainers=1, rounds=1)
    start: State = initial_state(task, recipe)
    moved = math.sqrt(
        sum((only.state.parameters[n] - v).square().sum().item() for n, v in start.parameters.items())
    )
    assert moved <= start.clip_norm * 1.001
    assert only.losses[0][1] < only.losses[0][0]


def test_noise_raises_the_loss_and_is_reproducible() -> None:
    def last(clip: float, noise: float) -> float:
        privacy = Privacy(clip=clip, noise=noise)
        recipe = recipe_for(MyTask(), "x:Y", inner=RECIPE.inner, data="private", privacy=privacy)
        return list(simulate(MyTask(), recipe, trainers=3, rounds=4))[-1].report_loss

    assert last(100.0, 0.0) < last(1.0, 2.0)
    assert last(1.0, 2.0) == last(1.0, 2.0)


def test_a_simulated_trainer_may_have_data_of_its_own() -> None:
    def only(shift: float) -> PrivateBatches:
        pairs = [(INPUTS[:4] + shift, (INPUTS[:4] + shift).sum(1, keepdim=True))] * 4
        return PrivateBatches(lambda round: pairs, b"r" * 32)

    recipe = recipe_for(MyTask(), "x:Y", inner=RECIPE.inner, data="private")
    runs = [
        next(simulate(MyTask(), recipe, trainers=1, rounds=1, private=[only(shift)])) for shift in (0.0, 1.0)
    ]
    assert runs[0].losses != runs[1].losses


def test_more_trainers_than_the_pool_feeds_are_refused() -> None:
    small = recipe_for(MyTask(), "x:Y", inner=RECIPE.inner, scoring=Scoring(held_out=64, own=2))
    with pytest.raises(ValueError, match="too small"):
        next(simulate(MyTask(), small, trainers=30, rounds=1))
