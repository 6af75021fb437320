"""The gradient of one batch over all workers: the numbers of a single process, summed in another order.

The loss of a batch of B is the mean of its B losses. Replica r of R has the rows [B r / R, B (r + 1) / R). Its loss is
R / B times the sum of its own, so that the mean over the replicas, which DDP and FSDP2 compute, is the batch's mean
even if R does not divide B. A replica without a row computes one row with weight zero.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.nn.parallel import DistributedDataParallel

from earnest.training.diloco.precision import Precision
from earnest.training.parallel.model_part import ModelPart, local
from earnest.training.parallel.stages import PipelineSplit
from earnest.training.tasks.task import Batch


class Gradients:
    """Computes the gradients of one round. All methods are collective, the constructor included.

    New in every round: DDP fixes its buckets in the first step, and with more than two replicas they determine the
    order of sums. So a round has the same bits after a restart as in a process that has run for days.
    """

    def __init__(self, part: ModelPart) -> None:
        self._part, grid = part, part.grid
        module: nn.Module = _Autocast(part.module, part.precision)
        if grid.layout.replicas > 1 and not grid.layout.sharded:
            module = DistributedDataParallel(module, process_group=grid.peers)
        self._module = module
        self._tied = {name: part.split.holders[name] for name in part.split.tied()} if part.split else {}
        self._groups = grid.groups(self._tied.values())
        self._schedules: dict[int, PipelineScheduleSingle] = {}
        self._rows = Batch(torch.empty(0), torch.empty(0))
        self._divisor = 1.0

    def of(self, batch: Batch) -> tuple[float, Tensor]:
        """Sets `.grad` of this part's parameters; returns the batch's mean loss and the norm of the whole gradient."""
        for parameter in self._part.parameters.values():
            parameter.grad = None
        self._rows, self._divisor = self._share(batch)
        loss = self._through_pipeline() if self._part.split else self._without_pipeline()
        self._add_tied()
        return self._totals(loss)

    def _share(self, batch: Batch) -> tuple[Batch, float]:
        """Returns this replica's rows and the divisor of the sum of their losses: infinity if it has no rows."""
        grid, total = self._part.grid, len(batch.targets)
        start, end = (total * i // grid.layout.replicas for i in (grid.replica, grid.replica + 1))
        own = slice(start, end) if end > start else slice(0, 1)
        rows = Batch(batch.inputs[own], batch.targets[own]).to(grid.device)
        return rows, total / grid.layout.replicas if end > start else math.inf

    def _without_pipeline(self) -> float:
        with self._part.precision.forward():
            losses = self._part.task.loss(self._module, self._rows)
        loss = losses.sum() / self._divisor
        loss.backward()
        return loss.item()

    def _through_pipeline(self) -> float:
        """Returns the replica's loss on its last stage, 0 on the others."""
        grid, count = self._part.grid, len(self._rows.targets)
        schedule = self._schedules.get(count)
        if schedule is None:
            schedule = self._schedules[count] = self._schedule(count)
        losses: list[Tensor] = []
        inputs = (self._rows.inputs,) if grid.stage == 0 else ()
        places = torch.arange(count, device=grid.device) if grid.stage == grid.layout.stages - 1 else None
        schedule.step(*inputs, target=places, losses=losses, return_outputs=False)
        return float(torch.stack(losses).sum()) if losses else 0.0

    def _schedule(self, samples: int) -> PipelineScheduleSingle:
        """Returns a schedule for `samples` rows, in as many equal microbatches as the layout allows.

        Both schedules sum the microbatches' gradients in the same order, so they give the same bits. 1F1B keeps fewer
        activations, but needs at least as many microbatches as stages.
        """
        grid, boundaries = self._part.grid, cast(PipelineSplit, self._part.split).boundaries
        layout = grid.layout
        microbatches = max(m for m in range(1, layout.microbatches + 1) if samples % m == 0)
        stage = PipelineStage(
            self._module,
            grid.stage,
            layout.stages,
            grid.device,
            input_args=boundaries[grid.stage].example(samples // microbatches),
            output_args=boundaries[grid.stage + 1].example(samples // microbatches),
            group=grid.pipeline,
        )
        is_1f1b = layout.schedule == "1f1b" and microbatches >= layout.stages
        schedule = Schedule1F1B if is_1f1b else ScheduleGPipe
        return schedule(stage, microbatches, loss_fn=self._microbatch_loss, scale_grads=False)

    def _microbatch_loss(self, output: Tensor, places: Tensor) -> Tensor:
        rows = Batch(self._rows.inputs[places], self._rows.targets[places])
        with self._part.precision.forward():
            losses = self._part.task.loss(_PrecomputedOutput(output), rows)
        return losses.sum() / self._divisor

    def _add_tied(self) -> None:
        """Sums the gradients of weights in several stages, in order of name on all of them."""
        for name, stages in self._tied.items():
            if self._part.grid.stage in stages:
                dist.all_reduce(self._part.parameters[name].grad, group=self._groups[stages])

    def _totals(self, loss: float) -> tuple[float, Tensor]:
        """Returns the batch's loss and the gradient's norm over all stages, the same on all workers.

        Each tensor's norm comes from the stage that owns it, and the norm of norms is computed in the model's order:
        without shards this gives the bits of `clip_grad_norm_`.
        """
        part, layout = self._part, self._part.grid.layout
        places, totals = {name: i for i, name in enumerate(part.order)}, torch.zeros(len(part.order) + 1)
        totals[-1] = loss
        for name in part.owned if layout.sharded or part.grid.replica == 0 else []:
            norm = torch.linalg.vector_norm(local(cast(Tensor, part.parameters[name].grad)))
            totals[places[name]] = norm**2 if layout.sharded else norm
        dist.all_reduce(totals)
        norms = totals[:-1].sqrt() if layout.sharded else totals[:-1]
        return totals[-1].item() / layout.replicas, torch.linalg.vector_norm(norms)


class _Autocast(nn.Module):
    """A module whose forward pass uses the recipe's precision."""

    def __init__(self, module: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.module, self._precision = module, precision

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._precision.forward():
            return self.module(*args, **kwargs)


class _PrecomputedOutput(nn.Module):
    """Replaces the model in the task's loss: returns the output that the pipeline has already computed."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self._output
