"""An embedded chain, the same chain served by nodes that may misbehave, and a contract to call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import vyper
from eth_utils.crypto import keccak

from earnest.client.chain.abi import Abi
from earnest.client.chain.contracts import Call, Contract
from earnest.client.chain.endpoints import Chain
from earnest.client.chain.outbox import MemoryIntents, Outbox
from earnest.client.chain.signer import Signer
from tests.client.chain.local_node import CHAIN_ID, LocalNode, World

COUNTER = """
event Counted:
    caller: indexed(address)
    by: uint256
    note: String[64]
    words: DynArray[bytes32, 4]

struct Pair:
    left: uint256
    right: address

count: public(uint256)

@external
def add(by: uint256, note: String[64]):
    assert by != 13, "counter: unlucky number"
    self.count += by
    log Counted(caller=msg.sender, by=by, note=note, words=[keccak256(note)])

@external
def fill(bill: uint256):
    assert self.count == bill, "counter: too late"
    self.count = 1000

@external
@view
def divide(by: uint256) -> uint256:
    return self.count // by

@external
@view
def swap(pair: Pair, more: DynArray[Pair, 3]) -> (Pair, DynArray[Pair, 3]):
    return Pair(left=pair.left + 1, right=pair.right), more
"""


@cache
def counter_code() -> dict[str, Any]:
    return vyper.compile_code(COUNTER, output_formats=["abi", "bytecode"])


class Counter(Contract):
    """The contract the tests call."""

    def add(self, by: int = 1, note: str = "") -> Call:
        return self._call("add", by, note)

    def fill(self, bill: int) -> Call:
        return self._call("fill", bill)

    def count(self) -> int:
        return self._read("count", at=self.chain.head())

    def read(self, function: str, *arguments: Any) -> Any:
        return self._read(function, *arguments, at=self.chain.head())


def key_of(role: str) -> bytes:
    return keccak(text=role)


class Clock:
    """Time that moves only when somebody sleeps; what else happens then is up to the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def trainer(world: World) -> Signer:
    signer = Signer(key_of("trainer"))
    world.fund(signer.address, 10**20)
    return signer


@pytest.fixture
def serve() -> Iterator[Callable[[World], LocalNode]]:
    nodes: list[LocalNode] = []

    def start(world: World) -> LocalNode:
        nodes.append(LocalNode(world))
        return nodes[-1]

    yield start
    for node in nodes:
        node.close()


@pytest.fixture
def node(world: World, serve: Callable[[World], LocalNode]) -> LocalNode:
    return serve(world)


@pytest.fixture(params=["embedded", "served"])
def chain(request: pytest.FixtureRequest, world: World, node: LocalNode) -> Chain:
    """The same tests in process and over HTTP: one path."""
    return Chain([world.provider if request.param == "embedded" else node.url], CHAIN_ID)


@pytest.fixture
def counter_address(world: World) -> str:
    rich = world.tester.get_accounts()[0]
    sent = world.tester.send_transaction(
        {"from": rich, "data": counter_code()["bytecode"], "gas": 2_000_000, "to": ""}
    )
    return world.tester.get_transaction_receipt(sent)["contract_address"]


def counter_on(chain: Chain, address: str) -> Counter:
    return Counter(chain, address, Abi(counter_code()["abi"]))


def outbox_of(
    chain: Chain, signer: Signer, store: Any = None, clock: Clock | None = None, **options: Any
) -> Outbox:
    clock = clock or Clock()
    return Outbox(chain, signer, store or MemoryIntents(), clock=clock, sleep=clock.sleep, **options)
