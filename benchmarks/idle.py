"""How long a trainer waits: `python -m benchmarks.idle`, with and without overlap.

A real node (journal, outbox, codec, commits, reveals) and a validator play a run on the embedded chain in real time.
Only the device is not real: it sleeps for as long as a round's steps would take. Chain windows are 20 % of the round:
with overlap R + S + V + G are, without it R + S + V.
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
from earnest.protocol.recipe import Outer
from earnest.training.diloco.engine import LocalRound, SingleProcess, TrainerState
from earnest.training.diloco.state import State
from tests.client.world import World, make_world, tiny_recipe

CHAIN_ROUND_S = 6_000
"""A round on the chain's clock, which goes faster than ours."""

WINDOWS = {"reveal_s": 300, "report_commit_s": 450, "report_reveal_s": 300, "settle_s": 150, "contest_s": 600}
APART = {**WINDOWS, "commit_s": CHAIN_ROUND_S - 1_200, "report_commit_s": 600}
BESIDE = {**WINDOWS, "commit_s": CHAIN_ROUND_S, "overlap": True}
SHARE = 0.985
"""Of its commit window in which the device trains; the rest is for encoding, committing and looking."""


class Sleeper:
    """A device of a known speed: trains for real, and sleeps until its `seconds` are over."""

    def __init__(self, trainer: SingleProcess, seconds: float) -> None:
        self._trainer, self._seconds = trainer, seconds

    def train(self, state: State, ids: Sequence[int], round: int, memory: TrainerState) -> LocalRound:
        end = time.monotonic() + self._seconds
        local = self._trainer.train(state, ids, round, memory)
        time.sleep(max(0.0, end - time.monotonic()))
        return local


def measure(overlap: bool, round_s: float, rounds: int, folder: Path) -> dict[str, Any]:
    """Plays `rounds` rounds of `round_s` seconds; what the node says of its time, and what a simulation says."""
    params = BESIDE if overlap else APART
    recipe = tiny_recipe(overlap="eager" if overlap else "none", outer=Outer(0.4, 0.9))
    speed = CHAIN_ROUND_S / round_s
    training_s = SHARE * params["commit_s"] / speed
    setup: dict[str, Any] = {"attacks": ("none",), "validators": 1, "rounds": rounds, "idle": ("trainer-0",)}
    with make_world(folder, params=params, recipe=recipe, **setup) as world:
        world.account("trainer-0")
        parts, files = world.account("trainer-0").follow(world.run, lambda: bytes(32))
        sole = SingleProcess(files.task, files.bundle.recipe, rounds)
        node = TrainerNode(parts, files.task, trainer=Sleeper(sole, training_s))
        world.nodes["trainer-0"] = node
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
    """Everybody looks at the chain a few times a second, whose clock goes `speed` times as fast as ours."""
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
    found = []
    for overlap in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(overlap, options.round_s, options.rounds, Path(folder)))
        one = found[-1]
        print(
            f"overlap {'on ' if overlap else 'off'}  idle {one['idle_share']:.2%}  (simulated "
            f"{one['simulated_idle_share']:.2%})  committed {one['rounds_committed']} of {options.rounds}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found[1]["idle_share"] < 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
