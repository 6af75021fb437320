"""One process of a parallel trainer, started by torchrun: it does what the first process is told by the node.

The first process reads a command from the node's socket and hands it to all. While there is none, it hands round that
there is none: nobody waits longer than a heartbeat, and a process that is gone is noticed at once. Whatever goes wrong
that is not the same on all processes ends the process; torchrun then ends the others, and the node starts anew.
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
from earnest.training.parallel.frames import Disconnected, receive_frame, send_frame
from earnest.training.parallel.gradients import Gradients
from earnest.training.parallel.grid import Grid, Tensors, all_agree, broadcast_bytes
from earnest.training.parallel.layout import Layout, LayoutError
from earnest.training.parallel.part import Part, collect, hand_out
from earnest.training.tasks.task import load_task

HEARTBEAT_S = 1.0
Made = TypeVar("Made")


def main(arguments: Sequence[str] | None = None) -> None:
    """`torchrun ... -m earnest.training.parallel [--timeout S]`; the node adds `--socket PATH` on its own host."""
    parser = argparse.ArgumentParser(
        "earnest.training.parallel", description="one process of a parallel trainer"
    )
    parser.add_argument("--socket", help="where the trainer node listens (only the first process needs it)")
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="seconds after which a silent process is dead"
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
        print("the trainer node is gone", flush=True)
    dist.destroy_process_group()


def _connect(path: str) -> socket.socket:
    node = socket.socket(socket.AF_UNIX)
    node.connect(path)
    return node


class Worker:
    """Obeys commands until there is an end to them. `node` is the socket on rank 0, None elsewhere."""

    def __init__(self, node: socket.socket | None) -> None:
        self._node = node
        self._part: Part | None = None
        self._rounds = 0

    def run(self) -> None:
        pids = _pids()
        if self._node:
            send_frame(self._node, {"pids": pids})
        while True:
            fields, tensors = self._next()
            if "do" not in fields:  # no command, or a hurry that came too late
                continue
            try:
                answer, back = getattr(self, f"_{fields['do']}")(fields, tensors)
            except EarnestError as error:
                answer, back = _said(error), {}
            if self._node:
                send_frame(self._node, answer, back)

    def _next(self) -> tuple[dict[str, Any], Tensors]:
        """The next command, its tensors on rank 0 only; an empty one after a heartbeat without."""
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
        said = json.dumps(fields).encode() if self._node else None
        return json.loads(broadcast_bytes(said)), tensors

    # Commands. Each returns the answer's fields and tensors; only rank 0's go anywhere.

    def _begin(self, fields: dict[str, Any], _: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Loads the task and makes this process's part. What fails on one host fails on all."""
        torch.set_num_threads(fields["threads"])
        recipe = Recipe.from_json(fields["recipe"].encode())
        task, device = _together(
            lambda: (load_task(recipe.task, recipe.task_options), choose_device(fields["device"]))
        )
        grid = Grid.of(Layout.parse(fields["layout"]), device)
        self._part, self._rounds = _together(lambda: Part(grid, task, recipe)), fields["rounds"]
        return {}, {}

    def _load(self, fields: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Takes over `<name>/parameter` and `<name>/momentum` of the canonical state, as many as there are."""
        part, taken = self._ready(), Tensors()
        hand_out(part, tensors, taken.__setitem__)
        pairs = {key.partition("/")[0] for key in taken}
        part.load(
            {name: taken[f"{name}/parameter"] for name in pairs},
            {name: taken[f"{name}/momentum"] for name in pairs},
            float.fromhex(fields["clip_norm"]),
        )
        return {}, {}

    def _outer(self, fields: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Every stage takes the outer step on its own part; answers with the digests of what came out."""
        part, gradient = self._ready(), Tensors()
        hand_out(part, tensors, gradient.__setitem__)
        part.advance(gradient, fields["lr"], fields["momentum"])
        digests = part.digests()
        dist.all_reduce(digests)
        names = [name for name, _ in part.spec.shapes]
        return {"digests": {n: d.numpy().tobytes().hex() for n, d in zip(names, digests, strict=True)}}, {}

    def _read(self, _: dict[str, Any], __: Tensors) -> tuple[dict[str, Any], Tensors]:
        """The canonical state, put together from its parts."""
        part = self._ready()
        parameters, momentum = collect(part, part.state.parameters), collect(part, part.state.momentum)
        back = _in_folder("parameter/", parameters) | _in_folder("momentum/", momentum)
        return {"clip_norm": part.state.clip_norm.hex()}, back

    def _train(self, fields: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
        """A round's inner steps from the state that was loaded; tensors in and out are the inner optimizer's.

        Answers `gradient/<name>` and `inner/<name>/<slot>`.
        """
        part = self._ready()
        part.inner = {}
        hand_out(part, tensors, part.inner.__setitem__)
        losses, tokens = self._steps(part, fields["ids"], fields["round"])
        end = part.read()
        gradient = collect(part, {n: start - end[n] for n, start in part.state.parameters.items()})
        inner = collect(part, part.inner)
        back = _in_folder("gradient/", gradient) | _in_folder("inner/", inner)
        return {"losses": losses, "tokens": tokens}, back

    def _steps(self, part: Part, ids: Sequence[int], round: int) -> tuple[list[float], int]:
        inner, seed = part.recipe.inner, part.recipe.seed
        part.write(part.state.parameters)
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

    def _ready(self) -> Part:
        if self._part is None:
            raise LayoutError("no recipe was given to the processes", "send begin first")
        return self._part

    def _hurried(self, step: int) -> bool:
        """Gives the node a sign of life after a step; whether the node has said meanwhile that the time is up."""
        if self._node is None:
            return False
        send_frame(self._node, {"progress": step})
        told, _, _ = select.select([self._node], [], [], 0)
        return bool(told) and "hurry" in receive_frame(self._node)[0]


def _together(make: Callable[[], Made]) -> Made:
    """What `make` makes, unless it fails on any process: then it has failed on all. Collective."""
    made: Made | None = None
    trouble: EarnestError | None = None
    try:
        made = make()
    except EarnestError as error:
        trouble = error
    if not all_agree(trouble is None) or made is None:
        raise trouble or LayoutError("another process cannot do this", "look at the other hosts' logs")
    return made


def _pids() -> list[int]:
    """Of the processes on rank 0's host, so that the node can end them. Collective."""
    pids = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    pids[dist.get_rank()] = os.getpid()
    dist.all_reduce(pids)
    return pids[: int(os.environ.get("LOCAL_WORLD_SIZE", "1"))].tolist()


def _said(error: EarnestError) -> dict[str, Any]:
    return {"error": type(error).__name__, "cause": error.cause, "fix": error.fix}


def _in_folder(folder: str, tensors: Tensors) -> Tensors:
    return {folder + name: value for name, value in tensors.items()}
