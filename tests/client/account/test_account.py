"""A node that is killed at any moment continues after a restart: nothing is committed or sent twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from web3.providers import BaseProvider
from web3.types import RPCEndpoint, RPCResponse

from earnest.base.errors import EarnestError, JournalLocked
from earnest.client.account.account import Account
from earnest.demo.world import World, role_of
from earnest.deploy.devnet.server import DevnetProvider
from earnest.protocol.run import Role
from tests.client.world import make_world


class Killed(BaseException):
    """The process died here; nothing of ours catches it."""


class Fuse:
    """Dies at the n-th request to the chain or write to the journal, before it or after it."""

    def __init__(self, ticks: int) -> None:
        self.left = ticks

    def tick(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


class Fused(BaseProvider):
    """A provider that may die before a request leaves, or with the answer on its way."""

    def __init__(self, provider: BaseProvider, fuse: Fuse) -> None:
        super().__init__()
        self._provider, self._fuse = provider, fuse

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        self._fuse.tick()
        answer = self._provider.make_request(method, params)
        self._fuse.tick()
        return answer


def fuse_journal(account: Account, fuse: Fuse) -> None:
    """Has every write of the journal tick before it begins and after it is synced."""
    transaction = account.journal._database.transaction

    @contextmanager
    def fused() -> Iterator[None]:
        fuse.tick()
        with transaction():
            yield
        fuse.tick()

    account.journal._database.transaction = fused


def step_under_fire(world: World, name: str, first: int, stride: int) -> int:
    """One step of the node, killed again and again at ever later instructions until it comes through.

    Returns when something is next due to it.
    """
    ticks = first
    while True:
        fuse = Fuse(ticks)
        try:
            account = world.open(name)
            node = world.node(name)
            fuse_journal(account, fuse)
            node.parts.chain._endpoints[0]._request = Fused(DevnetProvider(world.devnet), fuse).make_request
            return node.step()
        except Killed:
            ticks += stride
        finally:
            unfuse(world)


def unfuse(world: World) -> None:
    world.chain._endpoints[0]._request = DevnetProvider(world.devnet).make_request


@pytest.mark.parametrize("victim", ["trainer-0", "validator-0"])
def test_a_node_killed_at_any_instruction_continues_and_sends_nothing_twice(
    victim: str, tmp_path: Path
) -> None:
    with make_world(tmp_path, attacks=("none", "none"), validators=2, rounds=1, idle=(victim,)) as world:
        world.devnet.travel(world.schedule.start - 10)
        others = list(world.nodes)
        turn = 0
        while world.devnet.now() < world.schedule.settle(0).start + 20:
            due = world.turn(others)
            due = min(due, step_under_fire(world, victim, first=turn % 2, stride=2))
            turn += 1
            world.devnet.travel(due)
        record = world.deployment.read_run(world.run)
        mine = [event for event in record.events if event.args.get("seat") == 0]
        role = role_of(victim)
        expected = (
            ["Committed", "Revealed"] if role is Role.TRAINER else ["ReportCommitted", "ReportRevealed"]
        )
        for name in expected:
            assert sum(event.name == name for event in mine) == 1, name
        account = world.open(victim)
        intents = account.journal._database.execute("SELECT hashes FROM intents")
        assert world.transactions(victim) == len(intents), "every nonce belongs to one intent"
        assert all(len(hashes.split()) == 1 for (hashes,) in intents)
        saved = account.journal.salts.find(world.run, 0, role)
        assert saved is not None
        if role is Role.TRAINER:
            assert record.round(0).manifests[0] == saved.manifest
        else:
            assert record.round(0).report_words[0] == saved.words


def test_a_committed_update_is_revealed_even_if_training_would_now_give_another(
    tmp_path: Path,
) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1) as world:
        world.play(until=world.schedule.commit(0).start + 1)
        world.turn()
        saved = world.account("trainer-0").journal.salts.find(world.run, 0, Role.TRAINER)
        assert saved is not None
        world.open("trainer-0").serve()
        world.node("trainer-0", forge=lambda work: b"something else")
        world.play(until=world.schedule.reveal(0).end)
        world.turn()
        assert world.nodes["trainer-0"].record.round(0).manifests[0] == saved.manifest


def test_one_folder_takes_one_process(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1) as world:
        account = world.account("trainer-0")
        with pytest.raises(JournalLocked):
            Account(
                world.deployment,
                account.signer,
                account.owner,
                account.folder,
                clock=world.devnet.now,
                sleep=lambda seconds: None,
            )


def test_a_run_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1) as world:
        with pytest.raises(EarnestError, match="there is no run 7"):
            world.account("trainer-0").follow(7, bytes)
        with pytest.raises(EarnestError, match="there is no run 7"):
            world.deployment.read_run(7)
