"""The processes of one trainer as a grid, stages by replicas, and how they hand tensors to each other.

All of it is collective: every process calls the same functions in the same order, which is the order in which the
command (`worker`) or a sorted list of names says so, never the order in which something became ready.
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
    """This process's place. `pipeline` links the stages of one replica, `peers` the replicas of one stage."""

    layout: Layout
    mesh: DeviceMesh
    rank: int
    device: torch.device

    @classmethod
    def of(cls, layout: Layout, device: torch.device) -> Grid:
        """Collective. With CUDA a process takes the device of its place on its host.

        Raises LayoutError unless there are exactly as many processes as the layout needs, on a CPU or CUDA each.
        """
        processes, found = dist.get_world_size(), device
        if processes != layout.processes:
            raise LayoutError(
                f"{layout} needs {layout.processes} processes, there are {processes}",
                "start as many processes as the layout has stages times replicas",
            )
        if found.type == "cuda":
            found = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(found)
        elif found.type != "cpu":
            raise LayoutError(f"several processes do not train on {found}", "name cpu or cuda")
        shape = (layout.stages, layout.replicas)
        mesh = init_device_mesh(found.type, shape, mesh_dim_names=("stage", "replica"))
        return cls(layout, mesh, dist.get_rank(), found)

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
        """The rank at a place."""
        return stage * self.layout.replicas + replica

    def groups(self, sets: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], dist.ProcessGroup]:
        """For each set of stages, the group of those stages in this process's replica. Collective.

        Every process makes every group, of all replicas, in the same order: a group made in another order on
        another process is another group, and the first reduction in it hangs.
        """
        mine = {}
        for stages in sorted(set(sets)):
            for replica in range(self.layout.replicas):
                group = dist.new_group([self.process(stage, replica) for stage in stages])
                if replica == self.replica and self.stage in stages:
                    mine[stages] = group
        return mine


def broadcast_bytes(data: bytes | None) -> bytes:
    """Rank 0's `data`, on every process. Collective."""
    length = torch.tensor([len(data or b"")], dtype=torch.int64)
    dist.broadcast(length, 0)
    content = torch.empty(int(length), dtype=torch.uint8)
    if data:
        content.copy_(torch.from_numpy(np.frombuffer(data, np.uint8).copy()))
    if len(content):
        dist.broadcast(content, 0)
    return content.numpy().tobytes()


def all_agree(fine: bool) -> bool:
    """Whether every process says so. Collective."""
    answer = torch.tensor([int(fine)])
    dist.all_reduce(answer, dist.ReduceOp.MIN)
    return bool(answer.item())


def send_tensors(tensors: Mapping[str, Tensor], to: int) -> None:
    """Float32 tensors by name to one process, one tensor at a time; `receive_tensors` there."""
    head = json.dumps([[name, list(value.shape)] for name, value in tensors.items()]).encode()
    dist.send(torch.tensor([len(head)]), to)
    dist.send(torch.from_numpy(np.frombuffer(head, np.uint8).copy()), to)
    for value in tensors.values():
        if value.numel():
            dist.send(value.detach().to("cpu", torch.float32).contiguous().view(-1), to)


def receive_tensors(source: int) -> Iterator[tuple[str, Tensor]]:
    """What `send_tensors` sent, one at a time: the caller keeps of each what it needs before the next arrives."""
    length = torch.empty(1, dtype=torch.int64)
    dist.recv(length, source)
    head = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(head, source)
    for name, shape in json.loads(head.numpy().tobytes()):
        flat = torch.empty(math.prod(shape))
        if len(flat):
            dist.recv(flat, source)
        yield name, flat.view(shape)
