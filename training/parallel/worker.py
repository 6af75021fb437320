"""One worker of a parallel trainer, started by torchrun: executes the commands that the node sends to the first worker.

The first worker reads a command from the node's socket and broadcasts it. While there is none it broadcasts an empty
command at every heartbeat, so that a worker that died is noticed at once. An error that is not the same on all workers
ends the worker; torchrun then ends the others, and the node starts new ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from earnest.base.errors import EarnestError
from earnest.protocol.recipe import Recipe
from earnest.training.diloco.engine import TrainingDiverged, step_seed
from earnest.training.diloco.optimizers import learning_rate, set_rate
from earnest.training.diloco.precision import choose_device
from earnest.training.parallel.frames import (
    Disconnected,
    in_folder,
    out_of_folders,
    receive_frame,
    send_frame,
)
from earnest.training.parallel.gradients import Gradients
from earnest.training.parallel.grid import Grid, Tensors, all_agree, broadcast_bytes
from earnest.training.parallel.layout import Layout, LayoutError
from earnest.training.parallel.model_part import ModelPart, gather, scatter
from earnest.training.tasks.task import load_task

HEARTBEAT_S = 1.0
Made = TypeVar("Made")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs `torchrun ... -m earnest.training.parallel [--timeout S]`; the node adds `--socket PATH` on its own host."""
    parser = argparse.ArgumentParser(
        "earnest.training.parallel", description="one process of a parallel trainer"
    )
    parser.add_argument("--socket", help="socket of the trainer node (only for the first process)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        help="seconds after which a process that does not answer counts as dead",
    )
    options = parser.parse_args(arguments)
    if os.environ.get("RANK") == "0" and options.socket is None:
        parser.error("the first process needs --socket: the trainer node starts it, on its own machine")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=options.timeout))
    node = _connect(options.socket) if dist.get_rank() == 0 else None
    try:
        Worker(node).run()
    except Disconnected:
        print("the trainer node closed the connection", flush=True)
    dist.destroy_process_group()


def _connect(path: str) -> socket.socket:
    node = socket.socket(socket.AF_UNIX)
    node.connect(path)
    return node


class Worker:
    """Executes the node's commands. `node`: the socket on rank 0, None elsewhere."""

    def __init__(self, node: socket.socket | None) -> None:
        self._node = node
        self._part: ModelPart | None = None
        self._rounds = 0

    def run(self) -> None:
        pids = _pids()
        if self._node:
            send_frame(self._node, {"pids": pids})
        while True:
            fields, tensors = self._next()
            if "do" not in fields:  # no command, or a "hurry" that arrived after the round
                continue
            try:
                answer, results = getattr(self, f"_{fields['do']}")(fields, tensors)
            except EarnestError as error:
                answer, results = _error_fields(error), {}
            if self._node:
                send_frame(self._node, answer, results)

    def _next(self) -> tuple[dict[str, Any], Tensors]:
        """Returns the next command, with its tensors on rank 0 only; an empty one after each heartbeat without one."""
        fields, tensors = {}, {}
        if self._node:
            self._node.settimeout(HEARTBEAT_S)
            try:
                self._node.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                pass
            else:
                self._node.settimeout(None)
                fields, tensors = receive_frame(self._node)
        command = json.dumps(fields).encode() if self._node else None
        return json.loads(broadcast_bytes(command)), tensors

    # Commands. Each returns the answer's fields and tensors; only those of rank 0 are sent.

    def _begin(self, fields: dict[str, Any], _: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Loads the task and makes this worker's part of the model. A failure on one host is raised on all."""
        torch.set_num_threads(fields["threads"])
        recipe = Recipe.from_json(fields["recipe"].encode())
        task, device = _together(
            lambda: (load_task(recipe.task, recipe.task_options), choose_device(fields["device"]))
        )
        grid = Grid.of(Layout.parse(fields["layout"]), device)
        self._part, self._rounds = _together(lambda: ModelPart(grid, task, recipe)), fields["rounds"]
        return {}, {}

    def _train(self, fields: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Takes a round's inner steps. Tensors in: `parameter/<name>` and `inner/<name>/<slot>`.

        Returns losses and tokens, `gradient/<name>` and `inner/<name>/<slot>`.
        """
        if self._part is None:
            raise LayoutError("the workers have no recipe", "send begin first")
        part = self._part
        start, part.inner = (
            scatter(part, group) for group in out_of_folders(tensors, "parameter/", "inner/")
        )
        losses, tokens = self._steps(part, start, fields["ids"], fields["round"])
        end = part.read()
        gradient = gather(part, {name: value - end[name] for name, value in start.items()})
        inner = gather(part, part.inner)
        results = in_folder("gradient/", gradient) | in_folder("inner/", inner)
        return {"losses": losses, "tokens": tokens}, results

    def _steps(
        self, part: ModelPart, start: Tensors, ids: Sequence[int], round: int
    ) -> tuple[list[float], int]:
        """Trains from the parameters `start`; returns the losses and the number of tokens."""
        inner, seed = part.recipe.inner, part.recipe.seed
        part.write(start)
        optimizer, gradients = part.optimizer(), Gradients(part)
        steps, losses, tokens = math.ceil(len(ids) / inner.batch), [], 0
        for step, batch in enumerate(part.task.batches("train", seed, ids, inner.batch)):
            position = round * inner.steps + step * inner.steps / steps
            set_rate(optimizer, learning_rate(inner, position, self._rounds * inner.steps))
            torch.manual_seed((step_seed(seed, round, step) + part.grid.rank) % 2**63)
            loss, norm = gradients.of(batch)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise TrainingDiverged(
                    "the local loss or gradient is not finite", "lower the recipe's inner learning rate"
                )
            if inner.clip:
                nn.utils.clip_grads_with_norm_(part.parameters.values(), inner.clip, norm)
            optimizer.step()
            losses.append(loss)
            tokens += batch.targets.numel()
            if not all_agree(not self._hurried(step)):
                break
        part.keep(optimizer)
        return losses, tokens

    def _hurried(self, step: int) -> bool:
        """Reports a step to the node; returns True if the node has asked to end the round."""
        if self._node is None:
            return False
        send_frame(self._node, {"progress": step})
        readable, _, _ = select.select([self._node], [], [], 0)
        return bool(readable) and "hurry" in receive_frame(self._node)[0]


def _together(make: Callable[[], Made]) -> Made:
    """Returns the result of `make`; raises an error on all processes if it fails on any. Collective."""
    made: Made | None = None
    failure: EarnestError | None = None
    try:
        made = make()
    except EarnestError as error:
        failure = error
    if not all_agree(failure is None) or made is None:
        raise failure or LayoutError(
            "another process failed to start the round", "read the other hosts' logs"
        )
    return made


def _pids() -> list[int]:
    """Returns the process ids on rank 0's host, so that the node can end them. Collective."""
    pids = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    pids[dist.get_rank()] = os.getpid()
    dist.all_reduce(pids)
    return pids[: int(os.environ.get("LOCAL_WORLD_SIZE", "1"))].tolist()


def _error_fields(error: EarnestError) -> dict[str, Any]:
    return {"error": type(error).__name__, "cause": error.cause, "fix": error.fix}
