"""The scanner returns every event once, in order, and none of a fork, whatever range the endpoint allows."""

from __future__ import annotations

from typing import Any

import pytest
from eth_utils.crypto import keccak

from earnest.base.errors import BadAnswer, EndpointDown, ReorgDetected
from earnest.client.chain.endpoints import Chain
from earnest.client.chain.scanner import Event, Scanner
from earnest.client.chain.signer import Signer
from tests.client.chain.conftest import Counter, counter_on, outbox_of
from tests.client.chain.local_node import CHAIN_ID, Garbage, LocalNode, RpcError, World, only


@pytest.fixture
def counter(world: World, node: LocalNode, counter_address: str) -> Counter:
    return counter_on(Chain([node.url], CHAIN_ID), counter_address)


def add(counter: Counter, trainer: Signer, *amounts: int) -> None:
    outbox = outbox_of(counter.chain, trainer)
    for amount in amounts:
        outbox.send(f"add {amount}", counter.add(amount, f"note {amount}"))


def amounts(events: list[Event]) -> list[int]:
    return [event.args["by"] for event in events]


def narrow(widest: int) -> Any:
    """An endpoint that refuses ranges of more than `widest` blocks."""

    def mischief(method: str, params: list[Any], honest: Any) -> Any:
        if method == "eth_getLogs":
            first, last = (int(params[0][key], 16) for key in ("fromBlock", "toBlock"))
            if last - first + 1 > widest:
                raise RpcError("block range is too wide")
        return honest()

    return mischief


def test_events_come_in_order_with_decoded_arguments(counter: Counter, trainer: Signer) -> None:
    add(counter, trainer, 5, 7)
    first, second = Scanner(counter.chain, [counter], 0).poll(counter.chain.head())
    assert (first.name, first.contract) == ("Counted", counter.address)
    assert first.args == {
        "caller": trainer.address,
        "by": 5,
        "note": "note 5",
        "words": (keccak(text="note 5"),),
    }
    assert second.block == first.block + 1 and second.args["by"] == 7


def test_each_event_is_given_once(counter: Counter, trainer: Signer) -> None:
    scanner = Scanner(counter.chain, [counter], 0)
    add(counter, trainer, 1)
    middle = counter.chain.head()
    add(counter, trainer, 2)
    assert amounts(scanner.poll(middle)) == [1]
    assert amounts(scanner.poll(counter.chain.head())) == [2]
    assert scanner.poll(counter.chain.head()) == scanner.poll(middle) == []


def test_the_scan_starts_at_the_given_block(counter: Counter, trainer: Signer) -> None:
    add(counter, trainer, 1, 2)
    head = counter.chain.head()
    assert amounts(Scanner(counter.chain, [counter], head.number).poll(head)) == [2]


@pytest.mark.parametrize("widest", [1, 2, 3, 7])
def test_ranges_adapt_to_the_limit_of_the_endpoint(
    widest: int, world: World, node: LocalNode, counter: Counter, trainer: Signer
) -> None:
    add(counter, trainer, 1, 2)
    world.mine(20)
    add(counter, trainer, 3)
    node.mischief = narrow(widest)
    assert amounts(Scanner(counter.chain, [counter], 0).poll(counter.chain.head())) == [1, 2, 3]


def test_an_endpoint_that_refuses_even_one_block_is_an_error(
    world: World, node: LocalNode, counter: Counter
) -> None:
    world.mine(3)
    node.mischief = narrow(0)
    with pytest.raises(BadAnswer, match="too wide"):
        Scanner(counter.chain, [counter], 0).poll(counter.chain.head())


def test_a_poll_that_fails_half_way_loses_nothing(
    world: World, node: LocalNode, counter: Counter, trainer: Signer
) -> None:
    add(counter, trainer, 1)
    world.mine(10)
    add(counter, trainer, 2)
    head, scanner = counter.chain.head(), Scanner(counter.chain, [counter], 0, widest=4)
    asked = [0]

    def dies_later(method: str, params: list[Any], honest: Any) -> Any:
        asked[0] += method == "eth_getLogs"
        if asked[0] > 2:
            raise Garbage(b"", 503)
        return honest()

    node.mischief = dies_later
    with pytest.raises(EndpointDown):
        scanner.poll(head)
    node.mischief = None
    assert amounts(scanner.poll(head)) == [1, 2]


def test_logs_of_a_fork_are_refused(node: LocalNode, counter: Counter, trainer: Signer) -> None:
    add(counter, trainer, 1)
    scanner, head = Scanner(counter.chain, [counter], 0), counter.chain.head()
    node.mischief = only("eth_getLogs", lambda logs: [{**log, "blockHash": "0x" + "ab" * 32} for log in logs])
    with pytest.raises(ReorgDetected):
        scanner.poll(head)
    node.mischief = None
    assert amounts(scanner.poll(head)) == [1]


def test_after_a_reorganisation_the_events_of_the_fork_are_gone(
    world: World, counter: Counter, trainer: Signer
) -> None:
    add(counter, trainer, 1)
    scanner = Scanner(counter.chain, [counter], 0)
    known = scanner.poll(counter.chain.head())
    fork = world.tester.take_snapshot()
    add(counter, trainer, 2)
    known += scanner.poll(counter.chain.head())
    world.tester.revert_to_snapshot(fork)
    world.tester.time_travel(world.tester.get_block_by_number("latest")["timestamp"] + 100)
    add(counter, trainer, 3)
    add(counter, trainer, 4)
    with pytest.raises(ReorgDetected) as raised:
        scanner.poll(counter.chain.head())
    known = [event for event in known if event.block <= raised.value.number]
    assert amounts(known) == [1]
    assert amounts(known + scanner.poll(counter.chain.head())) == [1, 3, 4]


def test_a_reorganisation_of_empty_blocks_is_noticed_too(
    world: World, counter: Counter, trainer: Signer
) -> None:
    add(counter, trainer, 1)
    scanner = Scanner(counter.chain, [counter], 0)
    scanner.poll(counter.chain.head())
    fork = world.tester.take_snapshot()
    world.mine(2)
    scanner.poll(counter.chain.head())
    world.tester.revert_to_snapshot(fork)
    world.tester.time_travel(world.tester.get_block_by_number("latest")["timestamp"] + 100)
    add(counter, trainer, 2)
    world.mine(3)
    with pytest.raises(ReorgDetected):
        scanner.poll(counter.chain.head())
    assert amounts(scanner.poll(counter.chain.head())) == [2]


def test_another_block_at_the_same_height_is_noticed(world: World, counter: Counter, trainer: Signer) -> None:
    fork = world.tester.take_snapshot()
    add(counter, trainer, 1)
    scanner, old = Scanner(counter.chain, [counter], 0), counter.chain.head()
    scanner.poll(old)
    refork(world, fork)
    add(counter, trainer, 2)
    with pytest.raises(ReorgDetected):
        scanner.poll(counter.chain.block(old.number))
    assert amounts(scanner.poll(counter.chain.head())) == [2]


def test_a_reorganisation_while_logs_are_read_is_noticed(
    world: World, node: LocalNode, counter: Counter, trainer: Signer
) -> None:
    fork = world.tester.take_snapshot()
    world.mine(2)
    scanner, head = Scanner(counter.chain, [counter], 0), counter.chain.head()

    def moves(method: str, params: list[Any], honest: Any) -> Any:
        answer = honest()
        if method == "eth_getLogs":
            node.mischief = None
            refork(world, fork)
            world.mine(2)
        return answer

    node.mischief = moves
    with pytest.raises(ReorgDetected):
        scanner.poll(head)
    assert scanner.poll(counter.chain.head()) == []


def test_events_read_but_not_yet_given_are_forgotten_with_their_fork(
    world: World, node: LocalNode, counter: Counter, trainer: Signer
) -> None:
    fork = world.tester.take_snapshot()
    add(counter, trainer, 1)
    world.mine(3)
    scanner, first = Scanner(counter.chain, [counter], 0, widest=1), counter.chain.head().number - 2

    def dies_late(method: str, params: list[Any], honest: Any) -> Any:
        if method == "eth_getLogs" and int(params[0]["fromBlock"], 16) >= first:
            raise Garbage(b"", 503)
        return honest()

    node.mischief = dies_late
    with pytest.raises(EndpointDown):
        scanner.poll(counter.chain.head())
    node.mischief = None
    refork(world, fork)
    add(counter, trainer, 2)
    world.mine(3)
    with pytest.raises(ReorgDetected):
        scanner.poll(counter.chain.head())
    assert amounts(scanner.poll(counter.chain.head())) == [2]


def test_ranges_grow_again_when_the_endpoint_recovers(
    world: World, node: LocalNode, counter: Counter
) -> None:
    world.mine(4)
    scanner = Scanner(counter.chain, [counter], 0)
    node.mischief = narrow(1)
    scanner.poll(counter.chain.head())
    world.mine(60)
    node.mischief = None
    node.asked.clear()
    scanner.poll(counter.chain.head())
    assert node.asked["eth_getLogs"] <= 6


def refork(world: World, snapshot: Any) -> None:
    """Back to the snapshot; what is mined from here on has other hashes."""
    world.tester.revert_to_snapshot(snapshot)
    world.tester.time_travel(world.tester.get_block_by_number("latest")["timestamp"] + 100)
