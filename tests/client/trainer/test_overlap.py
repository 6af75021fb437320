"""A trainer that trains one round while the round before is revealed, judged and settled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from earnest.client.trainer.node import TrainerNode
from earnest.client.trainer.timesheet import TRAINING
from earnest.demo.world import World
from earnest.protocol.merkle import content_root, samples_root
from earnest.protocol.recipe import CodecChoice, Outer
from earnest.protocol.run import Role
from earnest.training.diloco.engine import TrainerState, train_round
from earnest.training.diloco.overlap import local_start
from earnest.training.tasks.shakespeare import Shakespeare
from earnest.training.tasks.task import Batch
from tests.client.world import OPTIONS, OVERLAP, make_world, tiny_recipe

T0, T1, V0 = "trainer-0", "trainer-1", "validator-0"
EAGER = tiny_recipe(overlap="eager", outer=Outer(0.4, 0.9))
SPARSE = replace(EAGER, codec=CodecChoice("topk-2bit", k=8, chunk=64, error_feedback=0.5))


class Gated(Shakespeare):
    """The task, whose losses from the `first` on wait for the gate."""

    def __init__(self, first: int) -> None:
        super().__init__(**OPTIONS)
        self.first, self.calls, self.inside, self.gate = first, 0, threading.Event(), threading.Event()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.calls >= self.first:
            self.inside.set()
            assert self.gate.wait(30)
        self.calls += 1
        return super().loss(model, batch)


def gated(world: World, first: int) -> tuple[TrainerNode, Gated]:
    """Trainer 0's node, started anew with a task that waits."""
    world.open(T0)
    node, task = world.node(T0), Gated(first)
    made = TrainerNode(node.parts, task)
    world.nodes[T0] = made
    return made, task


def finish(node: TrainerNode, task: Gated) -> None:
    """Lets the training go on, and steps until it is taken."""
    task.gate.set()
    while node._job is not None:
        node.step(wait=False)


@pytest.fixture(params=[SPARSE, replace(EAGER, overlap="delayed")], ids=["eager", "delayed"])
def played(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    setup: dict[str, Any] = {"attacks": ("none", "none"), "validators": 1, "rounds": 3, "params": OVERLAP}
    with make_world(tmp_path, recipe=request.param, **setup) as world:
        world.play()
        yield world


def test_a_run_with_overlap_plays_to_its_end_and_everybody_holds_the_same_states(played: World) -> None:
    record, schedule = played.nodes[V0].record, played.schedule
    states = [played.params.initial_state] + [
        pair[1] for round in range(1, 4) if (pair := record.settled(round).pair) is not None
    ]
    for round in range(3):
        seen = record.round(round)
        assert seen.manifests.keys() == {0, 1}
        assert not record.settled(round).void
        base = states[schedule.base_round(round) + 1]
        assert {manifest.base_state for manifest in seen.manifests.values()} == {base}
    roots = {node.follower.state_after(2).root for node in played.nodes.values()}  # type: ignore[union-attr]
    assert roots == {played.contracts.settlement.final_state(played.run, at=played.chain.head())}
    _check_update(played, 2)


def _check_update(world: World, round: int) -> None:
    """The second trainer's update of `round` follows from files: its base, its own last update, its memory."""
    node, recipe = world.nodes[T1], world.setup.recipe
    assert isinstance(node, TrainerNode)
    follower = node.follower
    base, samples = follower.base(round), follower.samples(round)
    assert base is not None and samples is not None
    start = local_start(recipe, base.state, follower.update(round - 1, 1))
    assert (start is base.state) is (recipe.overlap == "delayed")
    memory = node._trainer_states.start(round)
    task = world.files[T1].task
    local = train_round(task, recipe, start, samples.assigned[1], round, 3, memory)
    encoded = follower.codec.encode(local.pseudo_gradient, memory.codec)
    assert encoded.update.content == follower.update(round, 1).content


def overlapping(folder: Path, **setup: Any) -> Any:
    return make_world(
        folder,
        **{"attacks": ("none",), "validators": 1, "rounds": 2, "params": OVERLAP, "recipe": EAGER, **setup},
    )


def test_a_round_is_revealed_while_the_next_one_trains(tmp_path: Path) -> None:
    with overlapping(tmp_path) as world:
        world.play(until=world.schedule.opens(1))
        node, task = gated(world, first=0)
        due = node.step(wait=False)
        assert task.inside.wait(30), "round 1 is in training"
        assert node.parts.contracts.runs.revealed(world.run, 0, at=world.chain.head()) == 1
        assert due == node.follower.at.time + 1, "it looks again soon"  # type: ignore[union-attr]
        world.devnet.travel(world.schedule.report_commit(0).start)
        node.step(wait=False)
        assert 1 not in node._work
        finish(node, task)
        assert world.deployment.read_run(world.run).round(1).commits.keys() == {0}
        world.play()
        assert world.nodes[V0].record.round(1).manifests.keys() == {0}


def test_who_would_be_late_commits_to_the_steps_it_has(tmp_path: Path) -> None:
    with overlapping(tmp_path) as world:
        world.devnet.travel(world.schedule.commit(0).end - 200)
        node, task = gated(world, first=0)
        node.step(wait=False)
        assert task.inside.wait(30)
        world.devnet.travel(world.schedule.commit(0).end - 30)
        node.step(wait=False)
        finish(node, task)
        world.play()
        manifest = world.nodes[V0].record.round(0).manifests[0]
        samples = node.follower.samples(0)
        assert samples is not None
        assert (manifest.steps, manifest.tokens) == (1, 4 * 8)
        assert manifest.samples == samples_root(samples.assigned[0][:4])


def test_training_that_outlasts_its_window_is_given_up_and_the_next_round_trained(tmp_path: Path) -> None:
    with overlapping(tmp_path) as world:
        world.devnet.travel(world.schedule.commit(0).start + 10)
        node, task = gated(world, first=0)
        node.step(wait=False)
        assert task.inside.wait(30)
        world.devnet.travel(world.schedule.commit(1).start + 10)
        node.step(wait=False)
        finish(node, task)
        world.play()
        record = world.nodes[V0].record
        assert (record.round(0).commits, record.round(1).manifests.keys()) == ({}, {0})


def test_a_node_that_is_stopped_in_the_middle_goes_on_from_there(tmp_path: Path) -> None:
    with overlapping(tmp_path, rounds=1) as world:
        world.devnet.travel(world.schedule.commit(0).start + 10)
        node, task = gated(world, first=0)
        node.step(wait=False)
        assert task.inside.wait(30), "in the first of two steps"
        stopping = threading.Thread(target=node.close)
        stopping.start()
        assert node._job is not None
        while not node._job.stopped():
            stopping.join(0.01)
        task.gate.set()
        stopping.join(30)
        assert task.calls == 1

        again, resumed = gated(world, first=9)
        again.step()
        assert resumed.calls == 1, "the other step was taken before"
        rooted, samples = again.follower.base(0), again.follower.samples(0)
        assert rooted is not None and samples is not None
        local = train_round(
            Shakespeare(**OPTIONS), EAGER, rooted.state, samples.assigned[0], 0, 1, TrainerState()
        )
        saved = again.parts.journal.salts.find(world.run, 0, Role.TRAINER)
        assert saved is not None and saved.manifest is not None
        assert saved.manifest.update == content_root(
            again.follower.codec.encode(local.pseudo_gradient).payload
        )


def test_where_the_time_went_is_known(tmp_path: Path) -> None:
    with overlapping(tmp_path) as world:
        node = world.nodes[T0]
        assert isinstance(node, TrainerNode)
        world.play()
        sheet = node.timesheet.as_dict()
        assert sheet["training_s"] > 0
        assert TRAINING not in sheet["waiting_for"]
        assert {"the run to start", "the next round", "the run to end"} <= sheet["waiting_for"].keys()


def test_a_void_round_leaves_nothing_that_error_feedback_would_owe(tmp_path: Path) -> None:
    apart = replace(SPARSE, overlap="none")
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=2, recipe=apart) as world:
        world.play(until=world.schedule.report_commit(0).start)
        silent = world.nodes.pop(V0)  # nobody reports: the round is void
        world.play(until=world.schedule.opens(1) + 1)
        node = world.nodes[T0]
        assert isinstance(node, TrainerNode)
        node.observe()
        assert node.record.settled(0).void
        assert not [name for name in node._trainer_states.start(1).codec if name.startswith("residual/")]
        assert node._trainer_states.start(1).inner.keys() == node._trainer_states._read(0, "end").inner.keys()  # type: ignore[union-attr]
        world.nodes[V0] = silent
        world.play()
        assert node.parts.journal.salts.find(world.run, 1, Role.TRAINER) is not None
