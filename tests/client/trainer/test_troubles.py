"""A trainer node in trouble: killed at every write, a disk that is full at every write, tasks that raise anything."""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from earnest.base import durable
from earnest.base.errors import ChainError, StorageError
from earnest.client.storage import objects
from earnest.client.storage.database import Database
from earnest.client.trainer import node as trainer_module
from earnest.client.trainer.node import TrainerNode
from earnest.demo.world import TRAINER_BOND, World
from earnest.protocol.manifest import Manifest
from earnest.protocol.recipe import CodecChoice, Inner
from earnest.training.diloco.engine import LocalRound, SingleProcess, TrainerState
from earnest.training.diloco.state import State
from tests.client.trainer.test_attested_rounds import at_work, attested_world, keeper, machine
from tests.client.trainer.test_overlap import gated
from tests.client.world import OVERLAP, make_world, tiny_recipe

T0, V0 = "trainer-0", "validator-0"
SPARSE = tiny_recipe(
    codec=CodecChoice("topk-2bit", k=16, chunk=64, error_feedback=0.5),
    inner=Inner(steps=2, batch=4),
    overlap="eager",
)


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Fuse:
    """Blows at every write of the trainer, once: `before` it, or `after`."""

    folder: Path
    trouble: Callable[[str], BaseException]
    after: bool
    blown: list[str] = field(default_factory=list)
    lit: bool = False
    last: str = ""

    def passes(self, path: Path, what: str, write: Callable[[], Any]) -> Any:
        label = re.sub("0x[0-9a-fA-F]{40}", "0x", what)
        new = self.lit and self.folder in path.parents and label not in self.blown
        if new:
            self.blown.append(label)
        if new and not self.after:
            raise self.trouble(label)
        done = write()
        if new:
            raise self.trouble(label)
        return done


@contextmanager
def fused(fuse: Fuse) -> Iterator[Fuse]:
    """Counts every write of this process in the fuse: renames of files, and statements of SQLite."""
    finish, execute = durable.finish, Database.execute

    def finish_past(file: Any, temporary: Path, path: Path) -> None:
        file.flush()
        evidence = temporary.read_bytes().startswith(b'{"collateral"')  # another one for every challenge
        name = "enclave key" if path.parent.name == "enclave" else "evidence" if evidence else path.name
        fuse.passes(path, f"file {name}", lambda: finish(file, temporary, path))

    def execute_past(database: Database, sql: str, *values: Any) -> Any:
        if found := re.match(r"INSERT \w+ \w+ INTO (entries|commitments|intents) ", sql):
            fuse.last = f"{found[1]} {values[:3] if found[1] == 'commitments' else values[::9]}"
        elif sql == "COMMIT" and fuse.last:
            last, fuse.last = fuse.last, ""
            return fuse.passes(database.path, last, lambda: execute(database, sql, *values))
        return execute(database, sql, *values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durable, "finish", finish_past)
        patch.setattr(objects, "finish", finish_past)
        patch.setattr(Database, "execute", execute_past)
        yield fuse


def attested(folder: Path) -> AbstractContextManager[World]:
    return attested_world(folder, 1, rounds=2, recipe=SPARSE, params=OVERLAP)


def begin(world: World) -> TrainerNode:
    """The trainer's node after a start or a restart; settling is left to the validator."""
    world.served.add(T0, world.open(T0).serve())
    node = at_work(world, T0, keeper(world, T0, machine(0)))
    node._settler.due_calls = lambda head: iter(())
    return node


def play(world: World, again: Callable[[], Any], fuse: Fuse | None = None) -> dict[int, Manifest]:
    """As `run_forever` plays: what waiting mends is tried again soon, who is killed is started again."""
    began = world.transactions(T0)
    for _ in range(300):
        if all(node.finished for node in world.nodes.values()):
            break
        due, blown = [], fuse and len(fuse.blown)
        for node in list(world.nodes.values()):
            try:
                due.append(node.step())
            except Killed:
                again()
            except (ChainError, StorageError, OSError):
                pass
        soon = world.devnet.now() + 1
        world.devnet.travel(soon if fuse and len(fuse.blown) != blown else max(soon, min(due)))
    record = world.nodes[V0].record
    assert world.transactions(T0) - began == 5, "a key, two commitments, two reveals"
    assert world.bond(T0) == TRAINER_BOND
    assert world.account(T0).journal.open_intents() == []
    late = 1 if fuse and fuse.trouble is no_space else 0  # no room for a key before the first round
    assert all(record.round(round).attested.keys() == {0} for round in range(late, 2))
    return {round: record.round(round).manifests[0] for round in range(2)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Manifest]:
    with attested(tmp_path_factory.mktemp("undisturbed")) as world:
        begin(world)
        return play(world, list)


def no_space(what: str) -> BaseException:
    if what.startswith("file"):
        return OSError(errno.ENOSPC, "No space left on device")
    return StorageError("journal cannot be used: database or disk is full", "make room")


@pytest.mark.parametrize(
    ("trouble", "after"),
    [(Killed, False), (Killed, True), (no_space, False)],
    ids=["before", "after", "full"],
)
def test_trouble_at_every_write_changes_no_update_and_sends_nothing_twice(
    tmp_path: Path, trouble: Callable[[str], BaseException], after: bool, undisturbed: dict[int, Manifest]
) -> None:
    with attested(tmp_path) as world, fused(Fuse(tmp_path / T0, trouble, after)) as fuse:
        begin(world)
        fuse.lit = True
        manifests = play(world, lambda: begin(world), fuse)
        kinds = {label.split()[0] for label in fuse.blown}
    assert len(fuse.blown) > 20
    assert {"file"} < kinds
    assert any("enclave" in label for label in fuse.blown)
    assert [manifests[round].update for round in range(2)] == [
        undisturbed[round].update for round in range(2)
    ]
    assert [manifests[round].samples for round in range(2)] == [
        undisturbed[round].samples for round in range(2)
    ]


# What a training may raise


@dataclass
class Raising:
    """A LocalTrainer that raises one thing after the other in round 1, and works in the others."""

    world: World
    errors: list[BaseException]

    def train(self, state: State, ids: Sequence[int], round: int, memory: TrainerState) -> LocalRound:
        if round == 1 and self.errors:
            raise self.errors.pop(0)
        files = self.world.files[T0]
        return SingleProcess(files.task, files.bundle.recipe, 3).train(state, ids, round, memory)


def test_whatever_a_training_raises_the_other_rounds_are_played(tmp_path: Path) -> None:
    errors = [MemoryError(), SystemExit(1), ValueError("update holds a number that is not finite")]
    with make_world(
        tmp_path, attacks=("none",), validators=1, rounds=3, params=OVERLAP, recipe=SPARSE
    ) as world:
        raising = Raising(world, errors)
        world.node(T0, trainer=raising)
        world.play()
        record = world.nodes[V0].record
        assert [list(record.round(round).manifests) for round in range(3)] == [[0], [], [0]]
        assert errors == []
        assert world.bond(T0) == TRAINER_BOND


def test_a_node_ends_without_a_training_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "CLOSE_S", 0.05)
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1) as world:
        world.devnet.travel(world.schedule.commit(0).start + 10)
        node, task = gated(world, first=0)
        node.step(wait=False)
        assert task.inside.wait(30)
        ending = threading.Thread(target=node.close, daemon=True)
        ending.start()
        ending.join(20)
        assert not ending.is_alive()
        assert node._job is not None and not node._job.done
        task.gate.set()
        node._job.wait()


def test_a_slow_machine_does_not_register_a_key_while_a_reveal_would_have_to_wait(tmp_path: Path) -> None:
    """A quote, its collateral and a transaction take minutes: long enough to miss a short window."""
    with attested(tmp_path) as world:
        node = begin(world)
        window, reveal = world.schedule.commit(0), world.schedule.reveal(0)
        world.devnet.travel(window.start + 1)
        assert node._has_time(node.observe())
        node.step()
        head = node.observe()
        assert 0 in node.record.round(0).commits
        for time, has_time in (
            (window.start + 100, True),
            (window.end - 10, False),
            (reveal.start, False),
            (reveal.end - 1, False),
        ):
            assert node._has_time(replace(head, time=time)) is has_time, time - window.end
        world.devnet.travel(reveal.start + 1)
        node.step()
        assert node._has_time(node.observe()), "all is revealed"


def test_half_written_files_of_killed_nodes_do_not_fill_the_disk(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1) as world:
        kept = world.account(T0).private.put(b"an update")
        world.close(T0)
        folders = [world.folder / T0 / name for name in ("public", "private", "enclave")]
        for folder in folders:
            folder.mkdir(exist_ok=True)
            (folder / ".unfinished-x7").write_bytes(b"half of a model, or of a key")
        world.open(T0)
        assert [list(folder.glob(".*")) for folder in folders] == [[], [], []]
        assert world.account(T0).private.has(kept)
