"""The workers of one trainer as a grid of stages by replicas, and transfers of tensors between them.

All functions are collective: every worker calls them in the same order, which follows from the command (`worker`) or a
sorted list of names, never from the order in which something became ready.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from earnest.training.parallel.layout import Layout, LayoutError

Tensors = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Grid:
    """A worker's position. `pipeline`: the group of its replica's stages; `peers`: of its stage's replicas."""

    layout: Layout
    mesh: DeviceMesh
    rank: int
    device: torch.device

    @classmethod
    def of(cls, layout: Layout, device: torch.device) -> Grid:
        """Makes the grid. Collective. With CUDA a worker takes the device of its local rank.

        Raises LayoutError unless the number of workers is the layout's and the device is CPU or CUDA.
        """
        processes = dist.get_world_size()
        if processes != layout.processes:
            raise LayoutError(
                f"{layout} needs {layout.processes} processes, there are {processes}",
                "start as many processes as the layout has stages times replicas",
            )
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        elif device.type != "cpu":
            raise LayoutError(f"several processes cannot train on {device}", "choose cpu or cuda")
        shape = (layout.stages, layout.replicas)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("stage", "replica"))
        return cls(layout, mesh, dist.get_rank(), device)

    @property
    def stage(self) -> int:
        return self.rank // self.layout.replicas

    @property
    def replica(self) -> int:
        return self.rank % self.layout.replicas

    @property
    def pipeline(self) -> dist.ProcessGroup:
        return self.mesh.get_group("stage")

    @property
    def peers(self) -> dist.ProcessGroup:
        return self.mesh.get_group("replica")

    def process(self, stage: int, replica: int = 0) -> int:
        """Returns the rank at a position."""
        return stage * self.layout.replicas + replica

    def groups(self, sets: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], dist.ProcessGroup]:
        """Returns, for each set of stages, the group of those stages in this worker's replica. Collective.

        Every worker creates the groups of all replicas in the same order; otherwise the first reduction would hang.
        """
        mine = {}
        for stages in sorted(set(sets)):
            for replica in range(self.layout.replicas):
                group = dist.new_group([self.process(stage, replica) for stage in stages])
                if replica == self.replica and self.stage in stages:
                    mine[stages] = group
        return mine


def broadcast_bytes(data: bytes | None) -> bytes:
    """Returns rank 0's `data` on every worker. Collective."""
    length = torch.tensor([len(data or b"")], dtype=torch.int64)
    dist.broadcast(length, 0)
    content = torch.empty(int(length), dtype=torch.uint8)
    if data:
        content.copy_(torch.from_numpy(np.frombuffer(data, np.uint8).copy()))
    if len(content):
        dist.broadcast(content, 0)
    return content.numpy().tobytes()


def all_agree(condition: bool) -> bool:
    """Returns True if `condition` is true on every worker. Collective."""
    answer = torch.tensor([int(condition)])
    dist.all_reduce(answer, dist.ReduceOp.MIN)
    return bool(answer.item())


def send_tensors(tensors: Mapping[str, Tensor], to: int) -> None:
    """Sends float32 tensors by name to one worker, which calls `receive_tensors`."""
    head = json.dumps([[name, list(value.shape)] for name, value in tensors.items()]).encode()
    dist.send(torch.tensor([len(head)]), to)
    dist.send(torch.from_numpy(np.frombuffer(head, np.uint8).copy()), to)
    for value in tensors.values():
        if value.numel():
            dist.send(value.detach().to("cpu", torch.float32).contiguous().view(-1), to)


def receive_tensors(source: int) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors that `send_tensors` sent, one at a time."""
    length = torch.empty(1, dtype=torch.int64)
    dist.recv(length, source)
    head = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(head, source)
    for name, shape in json.loads(head.numpy().tobytes()):
        flat = torch.empty(math.prod(shape))
        if len(flat):
            dist.recv(flat, source)
        yield name, flat.view(shape)
