"""torchft's DiLoCo on the same model, samples and settings as `benchmarks/training.py`, to stand beside ours there.

Needs `pip install -c requirements.lock -e '.[bench]'`. One process per replica, gloo, torchft's lighthouse on loopback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch import multiprocessing as processes
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.multiprocessing.spawn import spawn

from earnest.protocol.recipe import Recipe
from earnest.training.diloco.engine import step_rates
from earnest.training.diloco.optimizers import inner_optimizer, set_rate
from earnest.training.diloco.precision import Precision
from earnest.training.diloco.state import State, from_bytes, read_parameters, write_parameters
from earnest.training.tasks.task import Task

Samples = Callable[[int, int, int], Sequence[Sequence[int]]]
"""(seed, round, rounds) -> the sample ids of each replica."""

LIMIT_MS = 60_000


def installed() -> bool:
    return find_spec("torchft") is not None


def run(
    make_task: Callable[[], Task],
    evaluate: Callable[[Any, State], float],
    samples: Samples,
    recipe: Recipe,
    start: bytes,
    replicas: int,
    rounds: int,
) -> tuple[list[float], int]:
    """Returns the loss after each round, and the bytes that one replica sent. Functions must be importable."""
    coordination: Any = import_module("torchft.coordination")
    lighthouse = coordination.LighthouseServer("127.0.0.1:0", replicas, join_timeout_ms=LIMIT_MS)
    results = processes.get_context("spawn").SimpleQueue()
    arguments = (lighthouse.address(), results, make_task, evaluate, samples, recipe, start, replicas, rounds)
    try:
        spawn(_replica, arguments, nprocs=replicas)
        return results.get()
    finally:
        lighthouse.shutdown()


def _replica(
    rank: int,
    lighthouse: str,
    results: Any,
    make_task: Callable[[], Task],
    evaluate: Callable[[Any, State], float],
    samples: Samples,
    recipe: Recipe,
    start: bytes,
    replicas: int,
    rounds: int,
) -> None:
    torchft: Any = import_module("torchft")
    local_sgd: Any = import_module("torchft.local_sgd")
    torch.set_num_threads(1)
    task, inner, outer = make_task(), recipe.inner, recipe.outer
    model = task.build_model(recipe.seed)
    layout = State.start(read_parameters(model), 1.0).spec
    write_parameters(model, from_bytes(start, layout).parameters)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=replicas,
        use_async_quorum=False,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica-{rank}",
        hostname="127.0.0.1",
        init_sync=False,  # all start alike: else the first round of all but one is thrown away
    )
    counter = _count(manager)
    optimizer = inner_optimizer(model, inner)
    nesterov = torch.optim.SGD(model.parameters(), lr=outer.lr, momentum=outer.momentum, nesterov=True)
    precision, losses = Precision(torch.device("cpu"), inner.precision), []
    with local_sgd.DiLoCo(manager, [model], optimizer, nesterov, sync_every=inner.steps):
        for round in range(rounds):
            ids = samples(recipe.seed, round, rounds)[rank]
            rates = step_rates(recipe, round, rounds, inner.steps)
            for rate, batch in zip(rates, task.batches("train", recipe.seed, ids, inner.batch), strict=True):
                set_rate(optimizer, rate)
                optimizer.zero_grad()
                with precision.forward():
                    loss = task.loss(model, batch).mean()
                precision.backward(loss)
                precision.step(optimizer, model.parameters(), inner.clip)
            if rank == 0:
                losses.append(evaluate(task, State.start(read_parameters(model), 1.0)))
    if rank == 0:
        results.put((losses, counter[0]))
    manager.shutdown()


def _count(manager: Any) -> list[int]:
    """Counts the bytes of every tensor that is averaged."""
    counter, average = [0], manager.allreduce

    def counted(tensor: Tensor, *args: Any, **options: Any) -> Any:
        counter[0] += tensor.numel() * tensor.element_size()
        return average(tensor, *args, **options)

    manager.allreduce = counted
    return counter
