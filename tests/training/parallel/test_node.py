"""A trainer node whose rounds are trained by several processes is, for the run, a trainer like any other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from earnest.protocol.verdicts import Verdict
from earnest.training.diloco.engine import LocalRound, LocalTrainer, TrainerState
from earnest.training.diloco.state import State
from earnest.training.parallel import Layout, ParallelTrainer, Rendezvous, WorkerGroup
from tests.client.world import OPTIONS, make_world, tiny_recipe

T0, V0 = "trainer-0", "validator-0"


@dataclass
class Unlucky:
    """A parallel trainer that loses a process before its second round."""

    parallel: ParallelTrainer
    killed: bool = False
    bound: int = 0

    def during(self, stop: Callable[[], bool], late: Callable[[], bool]) -> Unlucky:
        self.bound += 1
        self.parallel.during(stop, late)
        return self

    def train(self, state: State, ids: Sequence[int], round: int, trainer_state: TrainerState) -> LocalRound:
        if round == 1 and not self.killed:
            self.killed = True
            os.kill(self.parallel.workers.pids[0], signal.SIGKILL)
        return self.parallel.train(state, ids, round, trainer_state)


RECIPE = tiny_recipe(task_options={**OPTIONS, "layers": 2}, max_payload_bytes=1 << 20)
ROUNDS = 2


def updates(folder: Path, trainer: LocalTrainer | None) -> list[bytes]:
    """The roots of the payloads that a run's only trainer committed to; all were accepted."""
    with make_world(folder, attacks=("none",), validators=1, rounds=ROUNDS, recipe=RECIPE) as world:
        world.node(T0, trainer=trainer)
        world.play()
        record = world.nodes[V0].record
        assert [record.settled(round).verdicts for round in range(ROUNDS)] == [(Verdict.ACCEPTED,)] * ROUNDS
        return [record.round(round).manifests[0].update for round in range(ROUNDS)]


def test_the_node_commits_to_the_bytes_of_a_single_process_and_outlives_its_workers(tmp_path: Path) -> None:
    wanted = updates(tmp_path / "one", None)
    workers = WorkerGroup(Rendezvous(local_processes=2), timeout_s=20.0)
    unlucky = Unlucky(ParallelTrainer(RECIPE, ROUNDS, Layout(stages=2), workers, device="cpu"))
    try:
        assert updates(tmp_path / "two", unlucky) == wanted
    finally:
        workers.close()
    assert unlucky.killed
    assert unlucky.bound == 3, "two rounds, one of them tried twice"
