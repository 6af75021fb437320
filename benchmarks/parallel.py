"""Compares a trainer of several processes with one process: errors, bits, seconds.

    python -m benchmarks.parallel [--steps 30] [--layers 4] [--width 64] [--batch 16] [--json FILE]

For each layout: whether the update of a round has the bits of the single process's; their difference (L2, as a share
of the update's norm) after the first step, after all steps from a new model, and after all steps from one that has
been trained for four times as many; seconds per step. A new model at a constant rate amplifies any rounding, so compare
with the second line: the single process with its batch in four pieces, which differs only in the order of sums. Seconds
are of this machine, on which all processes share the cores.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from earnest.protocol.recipe import Inner, Recipe, Scoring
from earnest.training.diloco.engine import CPU, LocalTrainer, SingleProcess, TrainerState
from earnest.training.diloco.initial import initial_state
from earnest.training.diloco.state import Spec, State
from earnest.training.parallel import Layout, ParallelTrainer, Rendezvous, WorkerGroup
from earnest.training.tasks.shakespeare import Shakespeare

LAYOUTS = ("pp2", "pp2-mb4", "dp2", "fsdp2", "pp4", "pp4-mb4", "pp2-dp2", "pp2-dp2-mb4", "dp4", "fsdp4")


@dataclass(frozen=True)
class Line:
    """`first`, `new`, `trained`: relative L2 errors of the update."""

    layout: str
    processes: int
    same_bits: bool
    first: float
    new: float
    trained: float
    step_s: float

    def __str__(self) -> str:
        bits = "yes" if self.same_bits else "no"
        error = " | ".join(f"{e:.1e}" if e else "0" for e in (self.first, self.new, self.trained))
        return f"| {self.layout} | {self.processes} | {bits} | {error} | {1000 * self.step_s:.0f} |"


def update(trainer: LocalTrainer, state: State, ids: range) -> tuple[Tensor, float]:
    """Returns a round's pseudo-gradient, flat, and the seconds that it took."""
    began = time.perf_counter()
    local = trainer.train(state, ids, 0, TrainerState())
    return Spec.of(state.parameters).join(local.pseudo_gradient), time.perf_counter() - began


def after(trainer: LocalTrainer, state: State, ids: range) -> State:
    """Returns the state at the end of a round, without momentum."""
    local = trainer.train(state, ids, 0, TrainerState())
    return State.start(
        {n: v - local.pseudo_gradient[n] for n, v in state.parameters.items()}, state.clip_norm
    )


Rounds = list[tuple[State, range]]


def compare(name: str, count: int, trainer: LocalTrainer, wanted: list[Tensor], rounds: Rounds) -> Line:
    update(trainer, *rounds[0])  # processes start, buffers are made
    found = [update(trainer, state, ids) for state, ids in rounds]
    errors = [float((a - b).norm() / b.norm()) for (a, _), b in zip(found, wanted, strict=True)]
    same = all(torch.equal(a, b) for (a, _), b in zip(found, wanted, strict=True))
    return Line(name, count, same, *errors, found[2][1] * len(rounds[0][1]) / len(rounds[2][1]))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 30), ("layers", 4), ("width", 64), ("batch", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings = {"layers": options.layers, "width": options.width, "heads": 4, "context": 64}
    task = Shakespeare(**settings)
    recipe = Recipe(
        task="earnest.training.tasks.shakespeare:Shakespeare",
        pool_size=task.pool_size,
        task_options=dict(settings),
        inner=Inner(steps=options.steps, batch=options.batch),
        scoring=Scoring(held_out=2, own=2),
    )
    state = initial_state(task, recipe)
    size = Spec.of(state.parameters).size
    print(
        f"{size:,} parameters, {options.steps} steps of {options.batch} samples, one CPU thread a process\n"
    )
    print("| layout | processes | same bits | error: 1 step | all, new model | all, trained | ms per step |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    alone, batch, all_ids = (
        SingleProcess(task, recipe, 1),
        range(options.batch),
        range(recipe.samples_per_seat),
    )
    trained = after(alone, state, range(1000, 1000 + 4 * len(all_ids)))
    rounds: Rounds = [(state, batch), (state, all_ids), (trained, all_ids)]
    wanted = [update(alone, *round)[0] for round in rounds]
    lines = [compare("single process", 1, alone, wanted, rounds)]
    pieces = replace(alone, machine=replace(CPU, micro_batch=max(1, options.batch // 4)))
    lines.append(compare("single process, batch in four", 1, pieces, wanted, rounds))
    print(*lines, sep="\n", flush=True)
    for count in (2, 4):
        processes = WorkerGroup(Rendezvous(local_processes=count))
        for layout in (found for name in LAYOUTS if (found := Layout.parse(name)).processes == count):
            trainer = ParallelTrainer(recipe, 1, layout, processes)
            lines.append(compare(str(layout), count, trainer, wanted, rounds))
            print(lines[-1], flush=True)
        processes.close()
    if options.json:
        options.json.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")


if __name__ == "__main__":
    main()
