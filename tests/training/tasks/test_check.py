"""`check_task` passes what is deterministic and names what is not."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from earnest.protocol.recipe import Inner, Recipe, Scoring
from earnest.training.tasks.check import CheckReport, TaskUnderTest, _examine, _probe, check_task
from earnest.training.tasks.task import Batch, Task, TaskError

HERE = __name__


class Plain(Task):
    """A sound task; what is wrong with the others is what they change."""

    def __init__(self, size: int = 200) -> None:
        self.pool_size, self.warmup_ids, self.report_ids = size, range(size, size + 10), range(20)
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(size + 10, 6, generator=generator)

    def build_model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))

    def batches(self, split: str, seed: int, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        size = {"train": len(self.inputs), "report": 20}.get(split, 0)
        if not all(0 <= sample < size for sample in sample_ids):
            raise ValueError("no such samples")
        for start in range(0, len(sample_ids), batch):
            inputs = self.inputs[list(sample_ids[start : start + batch])]
            yield Batch(inputs, inputs.sum(1, keepdim=True))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs) - batch.targets).square().mean(1)


class GlobalWeights(Plain):
    def build_model(self, seed: int) -> nn.Module:
        return nn.Linear(6, 1)


class ShuffledByPython(Plain):
    def batches(self, split: str, seed: int, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        ids = list(sample_ids)
        random.shuffle(ids)
        return super().batches(split, seed, ids, batch)


class NoisyLoss(Plain):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, batch) + 0.01 * float(np.random.rand())


class RunningMean(Plain):
    def build_model(self, seed: int) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(6), super().build_model(seed))


class HalfPrecision(Plain):
    def build_model(self, seed: int) -> nn.Module:
        return super().build_model(seed).to(torch.float64)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, Batch(batch.inputs.double(), batch.targets.double())).float()


class Idle(Plain):
    def build_model(self, seed: int) -> nn.Module:
        model = super().build_model(seed)
        model.register_parameter("never", nn.Parameter(torch.zeros(3)))
        return model


class OneLoss(Plain):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, batch).mean(0, keepdim=True)


class Infinite(Plain):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, batch) / (0.0 if not model.training else 1.0)


class Wraps(Plain):
    """Python's negative indices and a modulus: every id is some sample."""

    def batches(self, split: str, seed: int, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        return super().batches(split, seed, [sample % 20 for sample in sample_ids], batch)


class WrongError(Plain):
    def batches(self, split: str, seed: int, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        for start in range(0, len(sample_ids), batch):
            inputs = self.inputs[list(sample_ids[start : start + batch])]
            yield Batch(inputs, inputs.sum(1, keepdim=True))


class Centred(Plain):
    """A batch's mean leaks into each of its losses."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, Batch(batch.inputs - batch.inputs.mean(0), batch.targets))


class OwnClock(Plain):
    """Gives other samples each time it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = itertools.count()

    def batches(self, split: str, seed: int, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        return super().batches(split, seed, list(sample_ids)[next(self.asked) % 2 :], batch)


class WarmupInPool(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.warmup_ids = range(10)


class Downloads(Plain):
    def build_model(self, seed: int) -> nn.Module:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", 9), timeout=0.1)
        return super().build_model(seed)


class Dies(Plain):
    def build_model(self, seed: int) -> nn.Module:
        os._exit(7)


class ByProcess(Plain):
    """Passes every check that one process can make."""

    def build_model(self, seed: int) -> nn.Module:
        return super().build_model(seed + os.getpid())


def look(task: Task, number: int = 0) -> dict[str, Any]:
    """What one process sees, in this one."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    request = {"task": "x:Y", "options": {}, "recipe": None, "threads": 1, "steps": 3, "number": number}
    answer = _examine(task, request, [])
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    return answer


def failures(answer: Mapping[str, Any]) -> dict[str, str]:
    return {name: detail for name, ok, detail in answer["results"] if not ok}


def failed(report: CheckReport) -> set[str]:
    return {result.name for result in report.results if not result.ok}


def test_a_sound_task_passes_every_examine() -> None:
    first, second = look(Plain()), look(Plain(), number=1)
    assert failures(first) == failures(second) == {}
    assert first["digests"] == second["digests"]
    assert first["parameters"] == 33
    assert set(first["payload_bytes"]) == {"dense-bf16", "int8", "topk-2bit", "lowrank-int4"}
    assert 0 < first["step_s"] < 1
    assert first["step_tokens"] == 8


@pytest.mark.parametrize(
    ("task", "check", "seen"),
    [
        (GlobalWeights, "no use of the process's random generators", "build_model draws"),
        (ShuffledByPython, "no use of the process's random generators", "batches draws"),
        (NoisyLoss, "no use of the process's random generators", "loss draws"),
        (RunningMean, "no buffer learns", "running_mean changes"),
        (HalfPrecision, "parameters are float32, finite and trained", "float64"),
        (Idle, "parameters are float32, finite and trained", "never is not trained"),
        (OneLoss, "loss is one finite float32 per sequence", "[1] for 8 sequences"),
        (Infinite, "loss is one finite float32 per sequence", "not finite"),
        (Wraps, "unknown ids and splits are refused", "instead of ValueError"),
        (WrongError, "unknown ids and splits are refused", "instead of ValueError"),
        (Centred, "a sequence's loss does not depend on its batch", "measured alone it differs"),
        (OwnClock, "samples come in the order given", "8"),
        (WarmupInPool, "pool, warm-up and report samples fit", "warm-up id 0 is in the pool"),
    ],
)
def test_what_is_wrong_is_named(task: type[Plain], check: str, seen: str) -> None:
    found = failures(look(task()))
    assert seen in found.get(check, ""), found


def test_a_recipe_that_the_task_cannot_feed() -> None:
    recipe = Recipe(
        f"{HERE}:Plain",
        201,
        inner=Inner(steps=2, batch=4),
        scoring=Scoring(held_out=2, own=2),
        max_payload_bytes=10,
    )
    request = {
        "recipe": recipe.to_json().decode(),
        "threads": 1,
        "steps": 2,
        "number": 0,
        "task": "",
        "options": {},
    }
    found = failures(_examine(Plain(), request, []))
    assert "201 samples, the task has 200" in found["pool, warm-up and report samples fit"]
    assert "of 10 bytes" in found["an update fits max_payload_bytes"]
    warm = replace(recipe, pool_size=200, warmup_steps=3, max_payload_bytes=10_000)
    found = failures(_examine(Plain(), {**request, "recipe": warm.to_json().decode()}, []))
    assert list(found.values()) == ["the warm-up needs 12 samples, 10 are reserved"]


# In processes of their own


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a node would: this module is on its path."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


def test_an_error_that_only_another_process_shows_is_found() -> None:
    report = check_task(TaskUnderTest(f"{HERE}:ByProcess", {}))
    assert failed(report) == {"same weights", "same losses", "same update"}


def test_a_task_has_no_network() -> None:
    answer = _probe(TaskUnderTest(f"{HERE}:Downloads", {}), 1, 3, 0)
    assert failures(answer) == {"no network": "socket.getaddrinfo 127.0.0.1"}


def test_a_crash_is_a_finding_and_takes_nothing_with_it() -> None:
    report = check_task(TaskUnderTest(f"{HERE}:Dies", {}))
    assert [(r.name, r.ok) for r in report.results] == [("runs", False)]
    assert "ended with 7" in report.results[0].detail


def test_a_task_that_cannot_be_loaded_is_an_error() -> None:
    with pytest.raises(TaskError, match="cannot be imported"):
        check_task(TaskUnderTest("no.such:Task", {}))
