"""A follower derives the same states as everybody: late, after a restart, without payloads, through forks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from earnest.base.errors import Unavailable
from earnest.client.run.bundle import RunFiles
from earnest.client.run.follower import Follower
from earnest.client.run.record import RunRecord
from earnest.client.storage.journal import Journal
from earnest.client.storage.objects import ObjectStore
from earnest.demo.world import World
from earnest.protocol.run import Role
from earnest.protocol.seed import fallback_seed
from earnest.training.codecs import make_codec
from earnest.training.diloco.state import from_bytes, state_bytes, state_root
from earnest.validator.node import ValidatorNode
from tests.client.world import OVERLAP, make_world

ROUNDS = 3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A run that is over; its nodes still serve what they have."""
    with make_world(
        tmp_path_factory.mktemp("follower"), attacks=("none", "none"), validators=2, rounds=ROUNDS
    ) as played:
        played.play()
        yield played


class Joiner:
    """Somebody who comes late, with an empty folder."""

    def __init__(self, world: World, folder: Path) -> None:
        files: RunFiles = world.files["validator-0"]
        self.store = ObjectStore(folder / "public")
        self.journal = Journal(folder / "journal.sqlite", "0x" + "11" * 20)
        self.follower = Follower(
            record=RunRecord(world.run),
            recipe=files.bundle.recipe,
            codec=make_codec(files.bundle.recipe.codec, files.initial.state.spec),
            initial=files.initial,
            scanner=world.deployment.scanner(),
            store=self.store,
            journal=self.journal,
            locate=world.served.locate,
        )
        self.follower.advance(world.chain.head())

    def roots(self) -> list[bytes]:
        states = [self.follower.state_after(round) for round in range(-1, ROUNDS)]
        return [rooted.root for rooted in states if rooted is not None]


def true_roots(world: World) -> list[bytes]:
    """The states before each round, and the last one, as the reports name them."""
    record = world.nodes["validator-0"].record
    pairs = [record.settled(round).pair for round in range(ROUNDS + 1)]
    return [pair[1] for pair in pairs if pair is not None]


def served(world: World, name: str) -> Path:
    return world.folder / name / "public"


@pytest.fixture
def hidden(world: World, tmp_path: Path) -> Iterator[None]:
    """Every payload is gone from every server, for the length of a test."""
    record = world.nodes["validator-0"].record
    names = {m.update.hex() for r in range(ROUNDS) for m in record.round(r).manifests.values()}
    moved = []
    for folder in (served(world, name) for name in world.seated):
        for path in [path for path in folder.iterdir() if path.name in names]:
            aside = tmp_path / f"{len(moved)}"
            path.rename(aside)
            moved.append((aside, path))
    yield
    for aside, path in moved:
        aside.rename(path)


def test_a_late_joiner_replays_the_payloads_to_the_same_roots(world: World, tmp_path: Path) -> None:
    joiner = Joiner(world, tmp_path)
    assert joiner.roots() == true_roots(world)
    assert len(set(joiner.roots())) == ROUNDS + 1
    for root in joiner.roots()[1:]:
        assert state_root(from_bytes(joiner.store.get(root, 1 << 24), joiner.follower.codec.spec)) == root


def test_without_payloads_it_takes_the_states_that_the_reports_agree_on(
    world: World, tmp_path: Path, hidden: None
) -> None:
    joiner = Joiner(world, tmp_path)
    assert joiner.roots() == true_roots(world)


def test_missing_payloads_and_states_are_named(world: World, tmp_path: Path, hidden: None) -> None:
    folders = [served(world, name) for name in world.seated]
    for folder in folders:
        folder.rename(folder.with_name("away"))
    try:
        with pytest.raises(Unavailable, match="is not available"):
            Joiner(world, tmp_path).roots()
    finally:
        for folder in folders:
            folder.with_name("away").rename(folder)


def test_forged_objects_from_a_server_are_refused(world: World, tmp_path: Path, hidden: None) -> None:
    record = world.nodes["validator-0"].record
    lie = b"\x00" * state_bytes(world.nodes["validator-0"].follower.codec.spec)
    planted, kept = [], []
    for manifest in record.round(0).manifests.values():
        planted.append(served(world, "trainer-0") / manifest.update.hex())
    for path in planted:
        path.write_bytes(lie)
    state = served(world, "validator-0") / true_roots(world)[1].hex()
    kept.append((state, state.read_bytes()))
    state.write_bytes(lie)
    try:
        assert Joiner(world, tmp_path).roots() == true_roots(world)
    finally:
        for path in planted:
            path.unlink()
        for path, content in kept:
            path.write_bytes(content)


def test_after_a_restart_it_goes_on_from_its_own_last_state(
    world: World, tmp_path: Path, hidden: None
) -> None:
    first = Joiner(world, tmp_path)
    roots = first.roots()
    first.journal.close()
    again = Joiner(world, tmp_path)
    for record in again.follower.record.seats[Role.VALIDATOR].values():
        record.uris.set(0, "http://127.0.0.1:9")  # nobody is there
    assert again.follower.state_after(ROUNDS - 1).root == roots[-1]  # type: ignore[union-attr]
    again.journal.close()


def test_a_damaged_state_of_its_own_is_not_gone_on_from(world: World, tmp_path: Path) -> None:
    first = Joiner(world, tmp_path)
    roots = first.roots()
    first.journal.close()
    (tmp_path / "public" / roots[-1].hex()).write_bytes(b"damaged")
    again = Joiner(world, tmp_path)
    assert again.roots() == true_roots(world)


def test_nothing_is_known_of_a_round_before_its_time(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=2) as world:
        follower = world.nodes["trainer-0"].follower
        assert follower.samples(0) is None
        world.devnet.travel(world.schedule.opens(0) - 1)
        follower.advance(world.chain.head())
        assert follower.samples(0) is None and not follower.closed(0)
        world.devnet.travel(world.schedule.opens(0))
        follower.advance(world.chain.head())
        assert follower.samples(0) is not None
        assert follower.state_after(0) is None
        assert follower.samples(1) is None


def test_a_round_without_a_seed_assigns_the_next_by_the_fallback(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=2) as world:
        world.nodes.pop("validator-0")
        world.play(until=world.schedule.opens(1) + 1)
        follower = world.nodes["trainer-0"].follower
        follower.advance(world.chain.head())
        pool = follower.recipe.sample_pool()
        pool.assign(fallback_seed(world.run, 0), [0])
        expected = pool.assign(fallback_seed(world.run, 1), [0])
        assert follower.samples(1) == expected
        assert follower.state_after(0) == follower.state_after(-1)


def test_a_fork_is_followed_and_values_from_lost_blocks_are_dropped(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none", "none"), validators=1, rounds=2) as world:
        world.play(until=world.schedule.report_commit(0).start)
        fork, node = world.devnet.snapshot(), world.nodes["validator-0"]
        assert isinstance(node, ValidatorNode)
        due = world.turn()
        while not node._reports:
            world.devnet.travel(due)
            due = world.turn()
        lost = node.record.round(0).seed
        assert lost is not None and node._reports.keys() == {0}
        world.devnet.revert(fork)
        seed = world.contracts.runs.seed(world.run, 0)
        world.send("stranger", seed)
        world.devnet.mine(40)  # the new branch grows longer than the old
        world.send("stranger", seed)
        node.observe()
        assert node.follower.forks == 1
        assert node.record.round(0).seed not in (None, lost)
        assert node._reports == {}, "it was judged by a seed that was never drawn"
        head = node.observe()
        assert node.follower.forks == 1
        node.prepare(head)
        fresh = Joiner(world, tmp_path / "joiner").follower
        assert node.follower.samples(0) == fresh.samples(0)
        world.devnet.travel(world.schedule.opens(1))
        for follower in (node.follower, fresh):
            follower.advance(world.chain.head())
        assert node.follower.samples(1) == fresh.samples(1) is not None


def test_overlapping_rounds_train_while_the_round_before_is_scored(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none", "none"), validators=2, rounds=4, params=OVERLAP) as world:
        world.play()
        record, schedule = world.nodes["validator-0"].record, world.schedule
        assert not [event for event in record.events if event.name == "AskedBack"], "nobody was silent"
        states = [world.params.initial_state] + [
            pair[1] for r in range(1, 5) if (pair := record.settled(r).pair) is not None
        ]
        for round in range(4):
            seen = record.round(round)
            assert seen.manifests.keys() == seen.report_words.keys() == {0, 1}
            assert not record.settled(round).void
            base = states[schedule.base_round(round) + 1]
            assert {manifest.base_state for manifest in seen.manifests.values()} == {base}
        assert schedule.base_round(3) == 1
        assert all(world.idle(name) > 0 for name in world.seated)
        roots = {node.follower.state_after(3).root for node in world.nodes.values()}  # type: ignore[union-attr]
        assert roots == {world.contracts.settlement.final_state(world.run, at=world.chain.head())}
