"""A model is split by a simple rule, the stages compute what the model computes, and weights have one owner."""

import pytest
import torch
from torch import nn

from earnest.training.parallel.layout import LayoutError
from earnest.training.parallel.stages import PipelineSplit, chain, split_chain, split_model
from earnest.training.tasks.shakespeare import Shakespeare
from earnest.training.tasks.task import Batch, Task
from tests.training.parallel.tasks import Chain, Tied

SHAKESPEARE = Shakespeare(layers=4, width=16, heads=2, context=16)


def split_of(task: Task, n: int) -> PipelineSplit:
    model = task.build_model(3)
    return split_model(task, model, n, next(iter(task.batches("train", 0, [5], 1))))


@pytest.mark.parametrize("task", [SHAKESPEARE, Chain(layers=5)])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_every_parameter_has_one_owner(task: Task, n: int) -> None:
    found = split_of(task, n)
    owned = [name for stage in range(n) for name in found.owned(stage)]
    assert sorted(owned) == sorted(name for name, _ in task.build_model(3).named_parameters())
    assert all(found.owned(stage) for stage in range(n))


def test_the_output_layer_of_the_gpt_is_the_first_stages_embedding() -> None:
    found = split_of(SHAKESPEARE, 3)
    assert found.tied() == ["bytes.weight"]
    assert found.holders["bytes.weight"] == (0, 2)
    assert "bytes.weight" in found.owned(0)
    assert "bytes.weight" in found.names(2)
    assert "bytes.weight" not in found.owned(2)
    assert [b.shape for b in found.boundaries] == [(16,), (16, 16), (16, 16), (16, 256)]


def test_tied_weights_are_added_in_one_order_whatever_the_stages_register_first() -> None:
    found = split_of(Tied(), 2)
    orders = [[name for name, _ in module.named_parameters()] for module in found.modules]
    assert orders[0] != orders[1]
    assert found.tied() == ["scale", "turn.weight", "words.weight"]


def test_a_chain_is_split_where_the_parameters_pass_equal_shares() -> None:
    links = [nn.Linear(4, n, bias=False) for n in (1, 1, 2, 4)]  # 4, 4, 8, 16 of 32
    model = nn.ModuleList([nn.Sequential(*links)])
    assert [name for name, _ in chain(model)] == ["0.0", "0.1", "0.2", "0.3"]
    assert [len(list(stage)) for stage in split_chain(model, 2)] == [3, 1]
    assert [len(list(stage)) for stage in split_chain(model, 4)] == [1, 1, 1, 1]


def test_a_heavy_start_leaves_a_module_for_every_stage() -> None:
    model = nn.Sequential(nn.Linear(64, 64), *(nn.Linear(1, 1) for _ in range(3)))
    assert [len(list(stage)) for stage in split_chain(model, 3)] == [1, 1, 2]
    assert [len(list(stage)) for stage in split_chain(nn.Sequential(*reversed(model)), 3)] == [2, 1, 1]


def test_more_stages_than_modules_are_refused() -> None:
    with pytest.raises(LayoutError, match="cannot make 7 stages"):
        split_of(Chain(layers=4), 7)
    with pytest.raises(LayoutError, match="at most 4 stages"):
        split_of(SHAKESPEARE, 5)


def test_a_model_that_is_no_chain_is_refused_rather_than_trained_wrongly() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(16, 8), nn.Linear(8, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.words(x) * 2)

    class Task(Chain):
        def model(self) -> nn.Module:
            return Skips()

    with pytest.raises(LayoutError, match="do not compute what the model computes"):
        split_of(Task(), 2)


@pytest.mark.parametrize("fault", ["copies", "leaves out"])
def test_stages_hold_the_models_own_parameters_and_all_of_them(fault: str) -> None:
    class Faulty(Chain):
        def stages(self, model: nn.Module, n: int) -> list[nn.Module]:
            first, second = split_chain(model, n)
            if fault == "copies":
                twin = Chain.build_model(self, 3)
                return [split_chain(twin, n)[0], second]
            return [first, second, nn.Identity()][:n]

        def model(self) -> nn.Module:
            made = super().model()
            if fault == "leaves out":
                made.register_parameter("idle", nn.Parameter(torch.ones(1)))
            return made

    task = Faulty()
    with pytest.raises(LayoutError, match=r"not the model's|no stage has"):
        split_model(
            task, task.build_model(3), 2, Batch(torch.zeros(1, 6, dtype=torch.long), torch.zeros(1, 6))
        )
