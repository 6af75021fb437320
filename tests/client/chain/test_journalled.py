"""The outbox over the journal that nodes really use: a restart is a new object on the same file."""

from __future__ import annotations

from pathlib import Path

from earnest.client.chain.endpoints import Chain
from earnest.client.chain.outbox import Status
from earnest.client.chain.signer import Signer
from earnest.client.storage.journal import Journal
from tests.client.chain.conftest import Clock, Counter, counter_on, outbox_of
from tests.client.chain.local_node import CHAIN_ID, LocalNode, World


def on(node: LocalNode, address: str) -> Counter:
    return counter_on(Chain([node.url], CHAIN_ID), address)


def test_a_transaction_survives_a_restart(
    tmp_path: Path, world: World, node: LocalNode, trainer: Signer, counter_address: str
) -> None:
    world.automine = False
    path, counter = tmp_path / "node.sqlite", on(node, counter_address)
    with Journal(path, trainer.address) as journal:
        assert outbox_of(counter.chain, trainer, journal, wait_s=0).send("add", counter.add(5)) is None
        assert [intent.nonce for intent in journal.open_intents()] == [0]
    world.mine()
    with Journal(path, trainer.address) as journal:
        outbox = outbox_of(counter.chain, trainer, journal)
        assert len(outbox.resume()) == 1
        assert outbox.send("add", counter.add(5)) is not None
        intent = journal.intent("add")
        assert intent is not None and intent.status == Status.DONE and intent.data == counter.add(5).data
    assert counter.count() == 5


def test_a_replaced_transaction_is_followed_across_a_restart(
    tmp_path: Path, world: World, node: LocalNode, trainer: Signer, counter_address: str
) -> None:
    """The node dies after its third version left; the first one is mined. It must find that one."""
    world.automine = False
    path, counter, clock = tmp_path / "node.sqlite", on(node, counter_address), Clock()
    with Journal(path, trainer.address) as journal:
        first: dict[tuple[str, int], bytes] = {}

        def remember() -> None:
            first.update({} if first else world.pool)

        clock.meanwhile = remember
        outbox_of(counter.chain, trainer, journal, clock, wait_s=100).send("add", counter.add(5))
        assert len(journal.open_intents()[0].hashes) == 3
    world.pool = dict(first)
    world.mine()
    with Journal(path, trainer.address) as journal:
        receipt = outbox_of(counter.chain, trainer, journal).send("add", counter.add(5))
        intent = journal.intent("add")
        assert receipt is not None and intent is not None and receipt.hash == intent.hashes[0]
    assert (counter.count(), world.tester.get_nonce(trainer.address)) == (5, 1)
