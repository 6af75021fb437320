"""Bad endpoints: each gives a clear error, and does no harm if another endpoint is honest."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from earnest.base.errors import BadAnswer, ChainError, EndpointDown, ReorgDetected, Reverted, WrongChain
from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.endpoints import Chain
from earnest.client.chain.signer import Signer
from tests.client.chain.conftest import Clock, counter_on, outbox_of
from tests.client.chain.local_node import CHAIN_ID, LocalNode, Mischief, World, asleep, garbage, only, refuse

Serve = Callable[[World], LocalNode]


def unused_url() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}/v3/secret-token"


MISBEHAVIOURS: dict[str, tuple[Mischief, type[ChainError], str]] = {
    "timeout": (asleep(1.0), EndpointDown, "in time"),
    "overloaded": (garbage(b"busy", 503), EndpointDown, "HTTP 503"),
    "forbidden": (garbage(b"who are you", 403), EndpointDown, "HTTP 403"),
    "not json": (garbage(b"<html>welcome</html>"), BadAnswer, "invalid answer"),
    "not utf-8": (garbage(b"\xff\xfe\x00"), BadAnswer, "invalid answer"),
    "empty": (garbage(b""), BadAnswer, "invalid answer"),
    "a list": (garbage(b"[]"), BadAnswer, "invalid answer"),
    "no result": (garbage(b"{}"), BadAnswer, "invalid answer"),
    "wrong chain": (only("eth_chainId", lambda _: 1), WrongChain, "chain 1"),
    "chain id is text": (only("eth_chainId", lambda _: "mainnet"), BadAnswer, "invalid answer"),
    "block is text": (only("eth_getBlockByNumber", lambda _: "latest"), BadAnswer, "invalid answer"),
    "short hash": (
        only("eth_getBlockByNumber", lambda b: {**b, "hash": "0x12"}),
        BadAnswer,
        "invalid answer",
    ),
    "no block": (only("eth_getBlockByNumber", lambda _: None), BadAnswer, "no endpoint has any block"),
    "refused": (refuse("eth_getBlockByNumber", "quota exceeded"), BadAnswer, "quota exceeded"),
}


@pytest.mark.parametrize("name", MISBEHAVIOURS)
def test_a_misbehaving_endpoint_is_a_clear_error_alone_and_survived_with_another(
    name: str, world: World, serve: Serve
) -> None:
    mischief, error, words = MISBEHAVIOURS[name]
    bad, good = serve(world), serve(world)
    bad.mischief = mischief
    with pytest.raises(error, match=words) as raised:
        Chain([bad.url], CHAIN_ID, timeout_s=0.3).head()
    assert raised.value.cause and raised.value.fix
    assert Chain([bad.url, good.url], CHAIN_ID, timeout_s=0.3).head().number == 0


def test_an_endpoint_that_is_down_is_a_clear_error_alone_and_survived_with_another(
    world: World, node: LocalNode
) -> None:
    with pytest.raises(EndpointDown, match="cannot be reached"):
        Chain([unused_url()], CHAIN_ID).head()
    assert Chain([unused_url(), node.url], CHAIN_ID).head().number == 0


def test_no_error_and_no_log_shows_the_secret_part_of_a_url(node: LocalNode) -> None:
    for mischief, _, _ in MISBEHAVIOURS.values():
        node.mischief = mischief
        with capture_logs() as logs, pytest.raises(ChainError) as raised:
            Chain([node.url, unused_url()], CHAIN_ID, timeout_s=0.2).head()
        for secret in ("hunter2", "secret-token", "secret-key"):
            assert secret not in f"{raised.value} {raised.value!r} {logs}"


def test_a_failed_endpoint_sits_out_and_comes_back(world: World, serve: Serve) -> None:
    bad, good = serve(world), serve(world)
    bad.mischief = garbage(b"busy", 503)
    chain = Chain([bad.url, good.url], CHAIN_ID)
    for _ in range(40):
        chain.head()
    assert bad.asked["eth_chainId"] < 8
    bad.mischief = None
    for _ in range(70):
        chain.head()
    assert bad.asked["eth_getBlockByNumber"] > 0


def test_an_endpoint_that_comes_back_as_another_chain_is_refused(world: World, node: LocalNode) -> None:
    chain = Chain([node.url], CHAIN_ID)
    chain.head()
    node.mischief = garbage(b"", 503)
    with pytest.raises(EndpointDown):
        chain.head()
    node.mischief = only("eth_chainId", lambda _: 5)
    with pytest.raises(WrongChain):
        chain.head()


def test_check_returns_the_error_of_each_endpoint(node: LocalNode) -> None:
    down = unused_url()
    found = Chain([node.url, down], CHAIN_ID).check()
    assert [type(error) for error in found.values()] == [type(None), EndpointDown]


# Lagging heads


def test_the_head_is_the_newest_that_any_endpoint_knows(world: World, serve: Serve) -> None:
    lagging, good = serve(world), serve(world)
    genesis = world.answer("eth_getBlockByNumber", ["0x0", False])
    lagging.mischief = only("eth_getBlockByNumber", lambda _: genesis)
    world.mine(5)
    assert Chain([lagging.url, good.url], CHAIN_ID).head().number == 5


def test_a_pinned_read_passes_over_an_endpoint_that_lags(world: World, serve: Serve, trainer: Signer) -> None:
    lagging, good = serve(world), serve(world)
    chain = Chain([lagging.url, good.url], CHAIN_ID)
    head = chain.head()
    lagging.mischief = lambda method, params, honest: (
        None if method == "eth_getBlockByNumber" and params[0] == hex(head.number) else honest()
    )
    assert chain.balance(trainer.address, head) == 10**20
    with pytest.raises(BadAnswer, match="lags"):
        Chain([lagging.url], CHAIN_ID).balance(trainer.address, head)


def test_a_head_that_falls_far_back_is_refused(world: World, node: LocalNode) -> None:
    chain = Chain([node.url], CHAIN_ID)
    world.mine(100)
    chain.head()
    old = world.answer("eth_getBlockByNumber", ["0x1", False])
    node.mischief = only("eth_getBlockByNumber", lambda _: old)
    with pytest.raises(BadAnswer, match="99 blocks behind"):
        chain.head()


def test_a_head_that_is_too_old_is_refused(world: World) -> None:
    clock = Clock()
    chain = Chain([world.provider], CHAIN_ID, clock=clock, max_lag_s=60)
    clock.now = chain.block(0).time + 60
    assert chain.head().number == 0
    clock.now += 1
    with pytest.raises(BadAnswer, match="61 s old"):
        chain.head()


def test_final_is_confirmations_under_the_head(world: World) -> None:
    chain = Chain([world.provider], CHAIN_ID, confirmations=3)
    assert chain.final().number == 0
    world.mine(5)
    assert chain.final() == chain.block(2)


# Pinned reads


def test_a_read_pinned_to_a_block_of_another_fork_is_refused(chain: Chain, trainer: Signer) -> None:
    head = chain.head()
    fork = BlockRef(head.number, bytes(32), head.time)
    with pytest.raises(ReorgDetected) as raised:
        chain.balance(trainer.address, fork)
    assert raised.value.number == head.number - 1


def test_the_pin_is_checked_once_per_block(world: World, node: LocalNode, trainer: Signer) -> None:
    chain = Chain([node.url], CHAIN_ID)
    head = chain.head()
    asked = node.asked["eth_getBlockByNumber"]
    for _ in range(5):
        chain.balance(trainer.address, head)
    assert node.asked["eth_getBlockByNumber"] == asked + 1


def test_reads_speak_of_their_block_not_of_the_newest(world: World, chain: Chain, trainer: Signer) -> None:
    before = chain.head()
    world.fund(trainer.address, 5)
    assert chain.balance(trainer.address, before) == 10**20
    assert chain.balance(trainer.address, chain.head()) == 10**20 + 5


def test_another_block_than_the_one_asked_for_is_refused(node: LocalNode) -> None:
    node.mischief = only("eth_getBlockByNumber", lambda block: {**block, "number": 7})
    with pytest.raises(BadAnswer, match="gave block 7 for 0"):
        Chain([node.url], CHAIN_ID).block(0)


def test_an_endpoint_that_answers_a_delivery_with_another_hash_is_refused(
    node: LocalNode, trainer: Signer, counter_address: str
) -> None:
    chain = Chain([node.url], CHAIN_ID)
    node.mischief = only("eth_sendRawTransaction", lambda _: "0x" + "ab" * 32)
    transaction = {"type": 2, "chainId": CHAIN_ID, "nonce": 0, "gas": 21_000, "maxFeePerGas": 10**10}
    transaction |= {"maxPriorityFeePerGas": 1, "to": counter_address, "data": b"", "value": 0}
    with pytest.raises(BadAnswer, match="another transaction's hash"):
        chain.send_raw(trainer.sign(transaction).raw)


def test_a_quorum_finds_the_endpoint_that_lies_about_money(
    world: World, serve: Serve, trainer: Signer
) -> None:
    liar, good = serve(world), serve(world)
    liar.mischief = only("eth_getBalance", lambda wei: wei + 1)
    head = Chain([good.url], CHAIN_ID).head()
    with pytest.raises(BadAnswer, match="disagree"):
        Chain([liar.url, good.url], CHAIN_ID, quorum=2).balance(trainer.address, head)
    liar.mischief = None
    assert Chain([liar.url, good.url], CHAIN_ID, quorum=2).balance(trainer.address, head) == 10**20


def test_a_quorum_that_cannot_be_had_is_an_error(world: World, node: LocalNode, trainer: Signer) -> None:
    head = Chain([node.url], CHAIN_ID).head()
    with pytest.raises(EndpointDown):
        Chain([node.url, unused_url()], CHAIN_ID, quorum=2).balance(trainer.address, head)


def test_logs_that_were_not_asked_for_are_refused(
    world: World, node: LocalNode, trainer: Signer, counter_address: str
) -> None:
    chain = Chain([node.url], CHAIN_ID)
    outbox_of(chain, trainer).send("add", counter_on(chain, counter_address).add())
    head = chain.head()
    assert len(chain.logs([counter_address], 0, head)) == 1
    for forged in ({"address": trainer.address}, {"blockNumber": 77}):
        node.mischief = only("eth_getLogs", lambda logs, forged=forged: [{**logs[0], **forged}])
        with pytest.raises(BadAnswer, match="not asked for"):
            chain.logs([counter_address], 0, head)


# Receipts


@pytest.fixture
def mined(world: World, node: LocalNode, trainer: Signer, counter_address: str) -> str:
    chain = Chain([node.url], CHAIN_ID)
    receipt = outbox_of(chain, trainer).send("add", counter_on(chain, counter_address).add())
    assert receipt is not None
    return receipt.hash


LIES = {
    "a block hash that is not on the chain": lambda r: {**r, "blockHash": "0x" + "ab" * 32},
    "a block that does not hold it": lambda r: {**r, "blockNumber": 1},
    "another transaction": lambda r: {**r, "transactionHash": "0x" + "cd" * 32},
    "a status that does not exist": lambda r: {**r, "status": 7},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_receipt_is_refused(lie: str, node: LocalNode, mined: str) -> None:
    node.mischief = only("eth_getTransactionReceipt", LIES[lie])
    with pytest.raises(BadAnswer):
        Chain([node.url], CHAIN_ID).receipt(mined)


def test_a_receipt_of_a_transaction_that_was_never_mined_is_refused(
    world: World, serve: Serve, node: LocalNode, mined: str
) -> None:
    liar, invented = serve(world), "0x" + "ef" * 32
    true = world.answer("eth_getTransactionReceipt", [mined])
    liar.mischief = only("eth_getTransactionReceipt", lambda _: {**true, "transactionHash": invented})
    with pytest.raises(BadAnswer, match="does not hold it"):
        Chain([liar.url, node.url], CHAIN_ID).receipt(invented)


def test_a_receipt_that_one_endpoint_hides_is_found_at_another(
    world: World, serve: Serve, node: LocalNode, mined: str
) -> None:
    hiding = serve(world)
    hiding.mischief = only("eth_getTransactionReceipt", lambda _: None)
    receipt = Chain([hiding.url, node.url], CHAIN_ID).receipt(mined)
    assert receipt is not None and receipt.succeeded
    assert Chain([hiding.url], CHAIN_ID).receipt(mined) is None


def test_receipts_that_differ_are_refused(world: World, serve: Serve, node: LocalNode, mined: str) -> None:
    liar = serve(world)
    liar.mischief = only("eth_getTransactionReceipt", lambda r: {**r, "status": 0})
    with pytest.raises(BadAnswer, match="disagree"):
        Chain([liar.url, node.url], CHAIN_ID).receipt(mined)


# Reverts


def test_a_revert_is_raised_with_the_contracts_reason(
    chain: Chain, trainer: Signer, counter_address: str
) -> None:
    counter = counter_on(chain, counter_address)
    with pytest.raises(Reverted, match="counter: unlucky number") as raised:
        chain.estimate(trainer.address, counter.address, counter.add(13).data)
    assert raised.value.reason == "counter: unlucky number"


def test_a_refusal_without_words_says_so(chain: Chain, counter_address: str) -> None:
    with pytest.raises(Reverted) as raised:
        counter_on(chain, counter_address).read("divide", 0)
    assert raised.value.reason == "no reason given"


ERROR = "0x08c379a0" + (32).to_bytes(32).hex() + (9).to_bytes(32).hex() + b"runs: bad".ljust(32, b"\0").hex()
WORDS = {
    "error data": ("execution reverted", ERROR, "runs: bad"),
    "nested data": ("VM execution error.", {"data": ERROR}, "runs: bad"),
    "message only": ("execution reverted: runs: bad", None, "runs: bad"),
    "panic": ("execution reverted", "0x4e487b71" + (0x11).to_bytes(32).hex(), "arithmetic overflow"),
    "unknown panic": ("execution reverted", "0x4e487b71" + (0x99).to_bytes(32).hex(), "panic 0x99"),
    "empty data": ("execution reverted", "0x", "no reason given"),
    "broken data": ("execution reverted", "0x08c379a0ff", "reason is not valid ABI"),
}


@pytest.mark.parametrize("name", WORDS)
def test_every_way_to_say_why_is_understood(name: str, node: LocalNode, counter_address: str) -> None:
    message, data, reason = WORDS[name]
    node.mischief = refuse("eth_call", message, data)
    with pytest.raises(Reverted) as raised:
        counter_on(Chain([node.url], CHAIN_ID), counter_address).count()
    assert raised.value.reason == reason
