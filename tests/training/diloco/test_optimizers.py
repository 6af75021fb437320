"""Inner optimizers, their rates over a run, and their state after a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from earnest.protocol.recipe import Inner
from earnest.training.diloco.optimizers import (
    MuonAdamW,
    inner_optimizer,
    learning_rate,
    muon_names,
    restore_state,
    saved_state,
    set_rate,
)
from earnest.training.tasks.shakespeare import Shakespeare

MUON = Inner(optimizer="muon", lr=1e-2, weight_decay=0.1)


def small() -> nn.Module:
    return Shakespeare(layers=1, width=16, heads=2, context=16).build_model(0)


def push(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """One step on random gradients."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


# Rates


def test_wsd_is_flat_until_the_last_fifth_and_ends_at_a_tenth() -> None:
    inner = Inner(lr=0.5, lr_schedule="wsd", round_schedule="constant")
    assert {learning_rate(inner, step, 100) for step in range(81)} == {0.5}
    assert learning_rate(inner, 90, 100) == pytest.approx(0.275)
    assert learning_rate(inner, 100, 100) == pytest.approx(0.05)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "wsd"])
def test_every_schedule_rises_first(schedule: str) -> None:
    inner = Inner(lr=0.5, lr_schedule=schedule, lr_warmup_steps=4)  # type: ignore[arg-type]
    steady = replace(inner, lr_warmup_steps=0)
    rates = [learning_rate(inner, step, 1_000) / learning_rate(steady, step, 1_000) for step in range(6)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_a_rate_past_the_end_is_the_last() -> None:
    inner = Inner(lr=0.5, lr_schedule="cosine", round_schedule="constant")
    assert learning_rate(inner, 11, 10) == learning_rate(inner, 10, 10)


# Muon


def test_muon_trains_the_matrices_inside_and_adamw_the_rest() -> None:
    model = small()
    names = muon_names(model)
    assert names == {f"blocks.0.{name}.weight" for name in ("qkv", "out", "up", "down")}
    optimizer = inner_optimizer(model, MUON)
    push(model, optimizer, 0)
    slots = {name: set(optimizer.state[p]) for name, p in model.named_parameters()}
    assert {name for name, kept in slots.items() if kept == {"momentum_buffer"}} == names
    assert {name for name, kept in slots.items() if kept == {"step", "exp_avg", "exp_avg_sq"}} == (
        slots.keys() - names
    )


def test_the_output_layer_is_known_by_its_shape_or_its_name() -> None:
    wide = nn.ModuleDict({"embed": nn.Embedding(50, 4), "inside": nn.Linear(4, 4), "last": nn.Linear(4, 50)})
    assert muon_names(wide) == {"inside.weight"}
    stage = nn.ModuleDict({"inside": nn.Linear(4, 4), "lm_head": nn.Linear(4, 50)})
    assert muon_names(stage) == {"inside.weight"}


def test_a_part_of_a_model_gets_the_names_of_muons_matrices() -> None:
    last = nn.Linear(4, 50)
    stage = nn.ModuleDict({"last": last})
    optimizer = inner_optimizer(stage, MUON, muon=())
    push(stage, optimizer, 0)
    assert set(optimizer.state[last.weight]) == {"step", "exp_avg", "exp_avg_sq"}


def test_one_rate_moves_both_about_alike() -> None:
    model = small()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = inner_optimizer(model, replace(MUON, weight_decay=0.0))
    set_rate(optimizer, 0.05)
    push(model, optimizer, 0)
    sizes = {n: (p.detach() - before[n]).square().mean().sqrt().item() for n, p in model.named_parameters()}
    assert all(0.003 < size < 0.06 for size in sizes.values()), sizes


def test_a_restored_optimizer_steps_to_the_same_bits_at_the_rate_it_is_given() -> None:
    for inner in (MUON, Inner(lr=1e-2)):
        first, second = small(), small()
        optimizer = inner_optimizer(first, inner)
        set_rate(optimizer, 0.5)
        push(first, optimizer, 0)
        second.load_state_dict(first.state_dict())
        again = inner_optimizer(second, inner)
        restore_state(again, second, saved_state(optimizer, first))
        assert {group["lr"] for group in again.param_groups} == {1e-2}, "a stale rate came along"
        for model, one in ((first, optimizer), (second, again)):
            set_rate(one, 0.01)
            push(model, one, 1)
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_state_of_a_parameter_that_is_not_there_is_refused() -> None:
    model = small()
    with pytest.raises(KeyError):
        restore_state(inner_optimizer(model, MUON), model, {"other.weight/exp_avg": torch.zeros(1)})


def test_a_model_without_matrices_is_adamws_alone() -> None:
    model = nn.LayerNorm(4)
    optimizer = inner_optimizer(model, MUON)
    assert isinstance(optimizer, MuonAdamW)
    push(model, optimizer, 0)
    assert "exp_avg" in optimizer.state[model.weight]


def test_a_linear_round_falls_from_its_full_rate_to_nothing_and_starts_again():
    inner = Inner(steps=4, lr=0.5, round_schedule="linear")
    assert [learning_rate(inner, step, 8) for step in (0, 1, 3, 4, 5.5)] == [0.5, 0.375, 0.125, 0.5, 0.3125]


def test_a_round_decays_from_its_middle_to_nothing():
    inner = Inner(steps=4, lr=0.5, round_schedule="decay")
    assert [learning_rate(inner, step, 8) for step in range(6)] == [0.5, 0.5, 0.5, 0.25, 0.5, 0.5]
