"""Measures how long a trainer waits, with and without overlap: `python -m benchmarks.idle`.

A real node (journal, outbox, codec, commits, reveals) and a validator play a run on the embedded chain in real time.
Only the device is simulated: it sleeps for as long as a round's steps would take. 20 % of a round are chain windows:
with overlap reveal, report commit, report reveal and settle window (R + S + V + G), without overlap the first three.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from benchmarks.simulated_idle import simulate_idle
from earnest.client.trainer.node import TrainerNode
from earnest.demo.world import World
from earnest.protocol.recipe import Outer
from earnest.training.diloco.engine import LocalRound, SingleProcess, TrainerState
from earnest.training.diloco.state import State
from earnest.training.tasks.task import load_task
from tests.client.world import make_world, tiny_recipe

CHAIN_ROUND_S = 6_000
"""Length of a round on the chain's clock, which runs faster than the wall clock."""

WINDOWS = {"reveal_s": 300, "report_commit_s": 450, "report_reveal_s": 300, "settle_s": 150, "contest_s": 600}
APART = {**WINDOWS, "commit_s": CHAIN_ROUND_S - 1_200, "report_commit_s": 600}
BESIDE = {**WINDOWS, "commit_s": CHAIN_ROUND_S, "overlap": True}
SHARE = 0.985
"""Share of the commit window in which the device trains; the rest is for encoding, committing and polling."""


class Sleeper:
    """A device of known speed: trains, then sleeps until `seconds` have passed."""

    def __init__(self, trainer: SingleProcess, seconds: float) -> None:
        self._trainer, self._seconds = trainer, seconds

    def train(self, state: State, ids: Sequence[int], round: int, memory: TrainerState) -> LocalRound:
        end = time.monotonic() + self._seconds
        local = self._trainer.train(state, ids, round, memory)
        time.sleep(max(0.0, end - time.monotonic()))
        return local


def measure(overlap: bool, round_s: float, rounds: int, folder: Path) -> dict[str, Any]:
    """Plays `rounds` rounds of `round_s` seconds; returns the node's timesheet and the simulated idle share."""
    params = BESIDE if overlap else APART
    recipe = tiny_recipe(overlap="eager" if overlap else "none", outer=Outer(0.4, 0.9))
    speed = CHAIN_ROUND_S / round_s
    training_s = SHARE * params["commit_s"] / speed
    setup: dict[str, Any] = {"attacks": ("none",), "validators": 1, "rounds": rounds, "idle": ("trainer-0",)}
    with make_world(folder, params=params, recipe=recipe, **setup) as world:
        task = load_task(recipe.task, recipe.task_options)
        sleeper = Sleeper(SingleProcess(task, recipe, rounds), training_s)
        node = world.node("trainer-0", trainer=sleeper)
        assert isinstance(node, TrainerNode)
        world.devnet.travel(world.schedule.start - int(speed))
        _play(world, speed)
        committed = [r for r in range(rounds) if node.record.round(r).manifests]
        expected = simulate_idle(world.schedule, training_s * speed, rounds, latency_s=0.0)
        return {
            "overlap": overlap,
            "round_s": round_s,
            "rounds": rounds,
            "rounds_committed": len(committed),
            "simulated_idle_share": expected,
            **node.timesheet.as_dict(),
        }


def _play(world: World, speed: float) -> None:
    """Steps every node ten times a second, on a chain whose clock runs `speed` times as fast as the wall clock."""
    began, first = time.monotonic(), world.devnet.now()
    while not all(node.finished for node in world.nodes.values()):
        now = first + int((time.monotonic() - began) * speed)
        if now > world.devnet.now():
            world.devnet.travel(now)
        for node in world.nodes.values():
            node.step(wait=False)
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--round-s", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    measured = []
    for overlap in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            measured.append(measure(overlap, options.round_s, options.rounds, Path(folder)))
        last = measured[-1]
        print(
            f"overlap {'on ' if overlap else 'off'}  idle {last['idle_share']:.2%}  (simulated "
            f"{last['simulated_idle_share']:.2%})  committed {last['rounds_committed']} of {options.rounds}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")
    return 0 if measured[1]["idle_share"] < 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
