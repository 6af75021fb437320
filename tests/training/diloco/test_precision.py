"""The choice of the device, and training in reduced precision where a device supports it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from earnest.training.diloco.engine import CPU, Machine, TrainerState, TrainingDiverged, train_round
from earnest.training.diloco.precision import DeviceError, Precision, choose_device
from tests.training.diloco.test_engine import IDS, RECIPE, STATE, TASK, flat

HERE = torch.device("cpu")


def trained(precision: str = "fp32", machine: Machine = CPU, **inner: object) -> torch.Tensor:
    recipe = replace(RECIPE, inner=replace(RECIPE.inner, precision=precision, **inner))
    local = train_round(TASK, recipe, STATE, IDS, 0, 2, TrainerState(), machine=machine)
    return flat(local.pseudo_gradient)


def away(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


def test_auto_takes_the_cpu_where_there_is_nothing_better() -> None:
    better = torch.cuda.is_available() or torch.backends.mps.is_available()
    assert (choose_device("auto") == HERE) is not better


@pytest.mark.parametrize("name", ["cuda:99", "toaster"])
def test_a_device_that_is_not_here_is_an_error_with_a_fix(name: str) -> None:
    with pytest.raises(DeviceError, match=r"is not available.*name cpu, cuda"):
        choose_device(name)


def test_a_precision_that_the_device_lacks_is_an_error_with_a_fix() -> None:
    with pytest.raises(DeviceError, match="trains in bf16, which meta does not support"):
        Precision(torch.device("meta"), "bf16")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_reduced_precision_gives_another_update_but_not_by_much(precision: str) -> None:
    exact, reduced = trained(), trained(precision)
    assert 0 < away(reduced, exact) < 0.3
    assert torch.equal(trained(precision), reduced)


def test_a_gradient_that_overflows_is_not_taken_and_lowers_the_scale() -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer, precision = torch.optim.SGD(model.parameters(), lr=0.1), Precision(HERE, "fp16")
    before = model.weight.detach().clone()
    for factor in (1e38, 1.0):
        optimizer.zero_grad()
        precision.backward(model.weight.sum() * factor)
        precision.step(optimizer, model.parameters(), 1.0)
        moved = not torch.equal(model.weight, before)
        assert moved is (factor == 1.0)
    assert precision.saved()["scaler/scale"].item() == 2.0**15


def test_clipping_sees_the_gradient_without_its_scale() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer, precision = torch.optim.SGD(model.parameters(), lr=1.0), Precision(HERE, "fp16")
    before = model.weight.detach().clone()
    precision.backward(3 * model.weight[0, 0] + 4 * model.weight[0, 1])
    precision.step(optimizer, model.parameters(), 1.0)
    assert torch.allclose(before - model.weight.detach(), torch.tensor([[0.6, 0.8]]), atol=1e-5)


def test_the_loss_scale_continues_where_it_was() -> None:
    first, second = Precision(HERE, "fp16"), Precision(HERE, "fp16")
    first.restore({"scaler/scale": torch.tensor(1024.0), "scaler/_growth_tracker": torch.tensor(7.0)})
    second.restore(first.saved())
    kept = {name: value.item() for name, value in second.saved().items()}
    assert kept == {"scaler/scale": 1024.0, "scaler/_growth_tracker": 7.0}
    assert Precision(HERE, "fp32").saved() == {}


def test_micro_batches_give_the_same_update_within_rounding() -> None:
    whole, parts = trained(), trained(machine=Machine("cpu", micro_batch=3))
    assert away(parts, whole) < 1e-3
    assert not torch.equal(parts, whole), "other sums, other last bits: nothing to hide"


def test_a_compiled_model_gives_the_same_update_within_rounding() -> None:
    assert away(trained(machine=Machine("cpu", compile="eager")), trained()) < 1e-3


def test_a_gradient_that_is_not_finite_ends_the_round_at_once() -> None:
    class Broken(type(TASK)):
        def loss(self, model, batch):  # type: ignore[no-untyped-def]
            losses = super().loss(model, batch)
            return losses + (losses - losses.detach()).abs().sqrt()  # its slope at 0 is not finite

    task = Broken(layers=1, width=16, heads=2, context=16)
    for clip in (1.0, 0.0):
        recipe = replace(RECIPE, inner=replace(RECIPE.inner, clip=clip, steps=1))
        with pytest.raises(TrainingDiverged, match="is not finite"):
            train_round(task, recipe, STATE, IDS[:8], 0, 2, TrainerState())
