"""One worker's part of the model and of its inner optimizer.

The inner optimizer is the task's own, made for the whole model and then reduced to the parameters of this part: how a
parameter is trained does not depend on the split. The outer step is the node's, which holds the run's state anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn, optim
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from earnest.protocol.recipe import Recipe
from earnest.training.diloco.optimizers import restore_state, saved_state
from earnest.training.diloco.precision import Precision
from earnest.training.parallel.grid import Grid, Tensors, receive_tensors, send_tensors
from earnest.training.parallel.layout import LayoutError
from earnest.training.parallel.stages import PipelineSplit, split_model
from earnest.training.tasks.task import Task


class ModelPart:
    """One worker's part of a model. `parameters`: those of its stage, in the model's order.

    Tensors in `inner` are full, or this worker's shards. `owned`: names of the parameters that this stage reports; the
    other `parameters` are copies of tied weights.
    """

    def __init__(self, grid: Grid, task: Task, recipe: Recipe) -> None:
        layout, inner = grid.layout, recipe.inner
        _refuse(inner.precision == "fp16", "fp16 needs loss scaling over all processes", "use bf16 or fp32")
        _refuse(
            layout.sharded and inner.optimizer == "muon",
            "Muon needs whole matrices",
            "use dp instead of fsdp",
        )
        self.grid, self.task, self.recipe = grid, task, recipe
        self.precision = Precision(grid.device, inner.precision)
        self.model = task.build_model(recipe.seed)
        self.order = [name for name, _ in self.model.named_parameters()]
        self.split = self._split()
        self.module = self.split.modules[grid.stage] if self.split else self.model
        self._drop_the_rest()
        self.model.to(grid.device)
        if layout.sharded:
            _shard(self.model, grid)
        names = self.split.names(grid.stage) if self.split else self.order
        self.owned = self.split.owned(grid.stage) if self.split else self.order
        parameters = dict(self.model.named_parameters())
        self.parameters: dict[str, nn.Parameter] = {name: parameters[name] for name in names}
        self.inner: Tensors = {}

    # The inner optimizer

    def optimizer(self) -> optim.Optimizer:
        """Returns the task's inner optimizer for this part's parameters, with the state `inner`."""
        optimizer = self.task.optimizer(self.model, self.recipe.inner)
        mine = {id(p) for p in self.parameters.values()}
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) in mine]
        placed = {key: self._placed(key.partition("/")[0], value) for key, value in self.inner.items()}
        restore_state(optimizer, self.model, placed)
        return optimizer

    def keep(self, optimizer: optim.Optimizer) -> None:
        """Copies the inner optimizer's state into `inner`, `<parameter>/<slot>`."""
        self.inner = {key: local(value) for key, value in saved_state(optimizer, self.model).items()}

    # Parameters, full tensors and shards

    def write(self, parameters: Mapping[str, Tensor]) -> None:
        """Overwrites this part's parameters."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                local(parameter).copy_(parameters[name])

    def read(self) -> Tensors:
        """Copies this part's parameters, float32 on the CPU."""
        return {
            name: local(parameter).detach().to("cpu", torch.float32, copy=True)
            for name, parameter in self.parameters.items()
        }

    def to_local(self, name: str, full: Tensor) -> Tensor:
        """Returns this worker's share of a full tensor of parameter `name`."""
        parameter = self.parameters[name]
        if not isinstance(parameter, DTensor) or full.shape != parameter.shape:
            return full
        shard = distribute_tensor(
            full.to(self.grid.device), parameter.device_mesh, parameter.placements, src_data_rank=None
        )
        return shard.to_local().to("cpu", copy=True)

    def to_full(self, name: str, share: Tensor) -> Tensor:
        """Reverses `to_local`. Collective among the replicas of a stage if parameters are sharded."""
        placed = self._placed(name, share)
        return placed.full_tensor().cpu() if isinstance(placed, DTensor) else share

    def _placed(self, name: str, share: Tensor) -> Tensor:
        """Returns `share` on the device, as a DTensor if it is a shard."""
        parameter = self.parameters[name]
        value = share.to(self.grid.device, copy=True)
        if not isinstance(parameter, DTensor) or share.shape != local(parameter).shape or not share.dim():
            return value
        return DTensor.from_local(
            value,
            parameter.device_mesh,
            parameter.placements,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    # Construction

    def _split(self) -> PipelineSplit | None:
        layout = self.grid.layout
        if layout.stages == 1:
            return None
        sample = next(iter(self.task.batches("train", self.recipe.seed, [0], 1)))
        with Precision(torch.device("cpu"), self.recipe.inner.precision).forward():
            return split_model(self.task, self.model, layout.stages, sample)

    def _drop_the_rest(self) -> None:
        """Frees the memory of the other stages' parameters; their shapes stay, for the optimizer's rules."""
        mine = {id(p) for p in self.module.parameters()}
        for parameter in self.model.parameters():
            if id(parameter) not in mine:
                parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)


def scatter(part: ModelPart, tensors: Mapping[str, Tensor]) -> Tensors:
    """Sends rank 0's `tensors` to all who hold their parameter; returns this worker's share. Collective.

    A key is a parameter's name, or that name, a slash, and more.
    """
    grid = part.grid
    for rank in range(1, grid.layout.processes if grid.rank == 0 else 0):
        stage = rank // grid.layout.replicas
        names = set(part.split.names(stage) if part.split else part.order)
        send_tensors({k: v for k, v in tensors.items() if k.partition("/")[0] in names}, rank)
    arriving = tensors.items() if grid.rank == 0 else receive_tensors(0)
    named = ((key, key.partition("/")[0], value) for key, value in arriving)
    return {key: part.to_local(name, value) for key, name, value in named if name in part.parameters}


def gather(part: ModelPart, tensors: Mapping[str, Tensor]) -> Tensors:
    """Returns the full tensors of all stages on rank 0, {} elsewhere. Collective.

    Each stage sends the tensors of the parameters that it owns. All workers have the same kind of keys: a name, or a
    name, a slash, and more.
    """
    grid = part.grid
    owned = set(part.owned)
    full = {
        key: part.to_full(key.partition("/")[0], value)
        for key, value in sorted(tensors.items())
        if key.partition("/")[0] in owned
    }
    if grid.rank:
        if grid.replica == 0:
            send_tensors(full, 0)
        return {}
    for stage in range(1, grid.layout.stages):
        full |= dict(receive_tensors(grid.process(stage)))
    return full


def _shard(model: nn.Module, grid: Grid) -> None:
    """Applies FSDP2: each element of a list of modules is gathered separately, the rest with the root."""
    mesh = grid.mesh["replica"]
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            for module in child:
                fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def local(tensor: Tensor) -> Tensor:
    """Returns this worker's shard of a sharded tensor, and any other tensor unchanged."""
    return cast(Tensor, tensor.to_local()) if isinstance(tensor, DTensor) else tensor


def _refuse(condition: bool, cause: str, fix: str) -> None:
    if condition:
        raise LayoutError(f"{cause}, which this layout cannot give", fix)
