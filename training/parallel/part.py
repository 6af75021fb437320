"""What one process holds: its part of the model and of the canonical state, and both of its optimizers.

The outer optimizer's part is the stage's tensors of the state, parameters and momentum: `outer_step` is elementwise,
so a stage that takes it alone gets the bits that the whole would have got. The inner optimizer is the task's own,
made for the whole model and then left with the parameters that are here: which parameter is trained how does not
depend on the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn, optim
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from earnest.protocol.recipe import Recipe
from earnest.training.diloco.optimizers import restore_state, saved_state
from earnest.training.diloco.outer import outer_step
from earnest.training.diloco.precision import Precision
from earnest.training.diloco.state import Spec, State
from earnest.training.parallel.frames import digest
from earnest.training.parallel.grid import Grid, Tensors, receive_tensors, send_tensors
from earnest.training.parallel.layout import LayoutError
from earnest.training.parallel.stages import Cut, cut
from earnest.training.tasks.task import Task


class Part:
    """One process's part. `parameters`: those that are here, by the model's names, in the model's order.

    Tensors of `state` and `inner` are what is here of them: whole, or this process's shard. `owned` names are
    the ones that this process's stage answers for; the rest of `parameters` are copies of tied weights.
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
        shapes = sorted((name, tuple(p.shape)) for name, p in self.model.named_parameters())
        self.spec = Spec(tuple(shapes))
        self.order = [name for name, _ in self.model.named_parameters()]
        self.cut = self._cut()
        self.module = self.cut.modules[grid.stage] if self.cut else self.model
        self._drop_the_rest()
        self.model.to(grid.device)
        if layout.sharded:
            _shard(self.model, grid)
        held = self.cut.held(grid.stage) if self.cut else self.order
        self.owned = self.cut.owned(grid.stage) if self.cut else self.order
        found = dict(self.model.named_parameters())
        self.parameters: dict[str, nn.Parameter] = {name: found[name] for name in held}
        self.state = State({}, {}, 1.0)
        self.inner: Tensors = {}

    # The canonical state and its outer step

    def load(
        self, parameters: Mapping[str, Tensor], momentum: Mapping[str, Tensor], clip_norm: float
    ) -> None:
        """Overwrites what is given of the state; both maps have the same names, whole tensors or shards."""
        self.state = State(
            {**self.state.parameters, **parameters}, {**self.state.momentum, **momentum}, clip_norm
        )

    def advance(self, outer_gradient: Mapping[str, Tensor], lr: float, momentum: float) -> None:
        """The outer optimizer's step on this part alone (protocol section 10)."""
        self.state = outer_step(self.state, outer_gradient, lr, momentum)

    def digests(self) -> Tensor:
        """Uint8 [parameters, 32] in the order of `spec`: of this part's owned tensors, zero elsewhere. Collective."""
        rows = torch.zeros(len(self.spec.shapes), 32, dtype=torch.uint8)
        for i, (name, _) in enumerate(self.spec.shapes):
            if name in self.owned:
                whole = (
                    self.whole(name, self.state.parameters[name]),
                    self.whole(name, self.state.momentum[name]),
                )
                if self.grid.replica == 0:
                    rows[i] = torch.frombuffer(bytearray(digest(*whole)), dtype=torch.uint8)
        return rows

    # The inner optimizer

    def optimizer(self) -> optim.Optimizer:
        """The task's inner optimizer of the parameters that are here, in the state of `inner`."""
        made = self.task.optimizer(self.model, self.recipe.inner)
        here = {id(p) for p in self.parameters.values()}
        for group in made.param_groups:
            group["params"] = [p for p in group["params"] if id(p) in here]
        placed = {key: self._placed(key.partition("/")[0], value) for key, value in self.inner.items()}
        restore_state(made, self.model, placed)
        return made

    def keep(self, optimizer: optim.Optimizer) -> None:
        """Copies the inner optimizer's state into `inner`, `<parameter>/<slot>`."""
        self.inner = {key: local(value) for key, value in saved_state(optimizer, self.model).items()}

    # Between whole tensors and what is here of them

    def write(self, parameters: Mapping[str, Tensor]) -> None:
        """Overwrites the model's parameters that are here."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                local(parameter).copy_(parameters[name])

    def read(self) -> Tensors:
        """Copies of the model's parameters that are here, float32 on the CPU."""
        return {
            name: local(parameter).detach().to("cpu", torch.float32, copy=True)
            for name, parameter in self.parameters.items()
        }

    def here(self, name: str, whole: Tensor) -> Tensor:
        """Of a whole tensor of parameter `name`, what this process holds."""
        parameter = self.parameters[name]
        if not isinstance(parameter, DTensor) or whole.shape != parameter.shape:
            return whole
        shard = distribute_tensor(
            whole.to(self.grid.device), parameter.device_mesh, parameter.placements, src_data_rank=None
        )
        return shard.to_local().to("cpu", copy=True)

    def whole(self, name: str, here: Tensor) -> Tensor:
        """The inverse of `here`. Collective among the replicas of a stage where parameters are sharded."""
        placed = self._placed(name, here)
        return placed.full_tensor().cpu() if isinstance(placed, DTensor) else here

    def _placed(self, name: str, here: Tensor) -> Tensor:
        parameter = self.parameters[name]
        value = here.to(self.grid.device, copy=True)
        if not isinstance(parameter, DTensor) or here.shape != local(parameter).shape or not here.dim():
            return value
        return DTensor.from_local(
            value,
            parameter.device_mesh,
            parameter.placements,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    # Making the part

    def _cut(self) -> Cut | None:
        layout = self.grid.layout
        if layout.stages == 1:
            return None
        sample = next(iter(self.task.batches("train", self.recipe.seed, [0], 1)))
        with Precision(torch.device("cpu"), self.recipe.inner.precision).forward():
            return cut(self.task, self.model, layout.stages, sample)

    def _drop_the_rest(self) -> None:
        """Leaves of the other stages' parameters the shape, for the optimizer's rules, and no memory."""
        mine = {id(p) for p in self.module.parameters()}
        for parameter in self.model.parameters():
            if id(parameter) not in mine:
                parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)


def hand_out(part: Part, tensors: Mapping[str, Tensor] | None, take: Callable[[str, Tensor], None]) -> None:
    """Rank 0's `tensors`, each to all who hold the parameter it belongs to; calls `take(key, here)`. Collective.

    A key is a parameter's name, or that name, a slash, and more.
    """
    grid = part.grid
    for rank in range(1, grid.layout.processes if grid.rank == 0 else 0):
        stage = rank // grid.layout.replicas
        held = set(part.cut.held(stage) if part.cut else part.order)
        send_tensors({k: v for k, v in (tensors or {}).items() if k.partition("/")[0] in held}, rank)
    arriving = (tensors or {}).items() if grid.rank == 0 else receive_tensors(0)
    for key, value in arriving:
        name = key.partition("/")[0]
        if name in part.parameters:
            take(key, part.here(name, value))


def collect(part: Part, mine: Mapping[str, Tensor]) -> Tensors:
    """Whole tensors of all stages on rank 0, of what each holds in `mine` of what it owns; elsewhere {}. Collective.

    Every process gives the same kind of keys: a name, or a name, a slash, and more.
    """
    grid = part.grid
    owned = set(part.owned)
    wholes = {
        key: part.whole(key.partition("/")[0], value)
        for key, value in sorted(mine.items())
        if key.partition("/")[0] in owned
    }
    if grid.rank:
        if grid.replica == 0:
            send_tensors(wholes, 0)
        return {}
    for stage in range(1, grid.layout.stages):
        wholes |= dict(receive_tensors(grid.process(stage)))
    return wholes


def _shard(model: nn.Module, grid: Grid) -> None:
    """FSDP2: every element of a list of modules is gathered on its own, the rest with the root."""
    mesh = grid.mesh["replica"]
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            for module in child:
                fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def local(tensor: Tensor) -> Tensor:
    """Of a sharded tensor this process's shard, of any other all of it."""
    return cast(Tensor, tensor.to_local()) if isinstance(tensor, DTensor) else tensor


def _refuse(condition: bool, cause: str, fix: str) -> None:
    if condition:
        raise LayoutError(f"{cause}, which this layout cannot give", fix)
