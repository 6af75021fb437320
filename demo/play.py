"""Plays a demo: a whole run on the embedded chain, from deployment to the last refund."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from earnest.client.trainer.node import TrainerNode
from earnest.demo.attacks.enclaves import make_enclave
from earnest.demo.options import PATIENCE_S, DemoOptions
from earnest.demo.result import Member, ResultDocument
from earnest.demo.world import World, number_of, role_of, salts
from earnest.protocol.run import Role

THREADS = 2


@dataclass(frozen=True)
class Demo:
    """A demo that is set up and ready to `play`."""

    world: World
    result: ResultDocument

    def play(self, on_round: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Plays the run to its end, calls `on_round` with each settled round, and returns the result."""
        with ThreadPoolExecutor(THREADS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            while not self.world.finished:
                due = self.world.turn(run_all=pool.map)
                if (settled := self.result.settle_round()) is not None:
                    on_round(settled)
                self.world.devnet.travel(due)
        self.world.refund()
        return self.result.finish()


@contextmanager
def set_up(options: DemoOptions) -> Iterator[Demo]:
    """Deploys the contracts, opens a run, and starts a node for every seat; closes everything at the end."""
    folder = options.output / "nodes"
    if folder.exists():  # of an earlier demo, whose chain is gone
        shutil.rmtree(folder)
    world = World(folder, options.setup())
    try:
        members = [_start(world, options, name) for name in world.seated]
        yield Demo(world, ResultDocument(world, options, members))
    finally:
        world.close()


def _start(world: World, options: DemoOptions, name: str) -> Member:
    """Starts the seat's node; a trainer of an attested run has a SIMULATED machine of its own."""
    cheat, policy = None, world.setup.policy
    if policy is None or role_of(name) is Role.VALIDATOR:
        node = world.node(name)
        honest = not world.cheats(name)
    else:
        cheat, parts = options.cheat(name), world.follow(name)
        honest = cheat is None
        secrets = salts(world.setup.seed, f"{name}'s enclave")
        attested_rounds, forge = make_enclave(
            cheat,
            number_of(name),
            world.account(name),
            world.run,
            policy,
            lambda size: secrets()[:size],
            None if honest else world.attacker(name, parts),
        )
        task = world.files[name].task
        node = TrainerNode(parts, task, patience=PATIENCE_S, forge=forge, attested_rounds=attested_rounds)
        world.nodes[name] = node
    return Member(name, role_of(name), honest, node, cheat)
