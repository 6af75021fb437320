"""The embedded chain over HTTP: its block times, its queue, its limits, and the same answers as in process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import requests
from web3 import HTTPProvider, Web3
from web3.exceptions import ContractLogicError, Web3RPCError

from earnest.base.errors import Reverted
from earnest.client.chain.contracts import Call
from earnest.client.chain.outbox import MemoryIntents
from earnest.deploy.devnet.chain import GENESIS_TIME, Devnet
from earnest.deploy.devnet.rpc import MAX_BATCH, MAX_REQUEST_BYTES
from earnest.deploy.devnet.server import serve
from tests.deploy.chain import (
    ask,
    calldata,
    chain_of,
    deploy_token,
    fresh_devnet,
    outbox_of,
    over_http,
    refusal,
    signed,
    sponsor,
    stranger,
    trainer,
)

BEAT_S = 0.05
START = GENESIS_TIME + 1_000


class Hand:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.time = float(START)

    def __call__(self) -> float:
        return self.time


@contextmanager
def served(
    devnet: Devnet, clock: Callable[[], float], block_time_s: float = BEAT_S
) -> Iterator[HTTPProvider]:
    with serve(devnet, port=0, block_time_s=block_time_s, clock=clock) as server:
        assert server.url.startswith("http://127.0.0.1:")
        yield over_http(server.url)


def eventually(condition: Callable[[], bool]) -> None:
    """Waits for the chain's next beats, at most ten seconds."""
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("nothing happened for ten seconds")


def head(provider: HTTPProvider) -> tuple[int, int]:
    block = ask(provider, "eth_getBlockByNumber", "latest", False)
    return int(block["number"], 16), int(block["timestamp"], 16)


def test_blocks_come_by_themselves_and_follow_the_clock():
    hand = Hand()
    with served(fresh_devnet(), hand) as provider:
        eventually(lambda: head(provider)[0] >= 2)
        assert head(provider)[1] >= START
        hand.time += 3600
        eventually(lambda: head(provider)[1] >= START + 3600)


def test_a_clock_that_stands_still_still_gives_rising_times():
    with served(fresh_devnet(), Hand()) as provider:
        eventually(lambda: head(provider)[0] >= 5)
        number, latest = head(provider)
        assert latest == START + number - 1


def test_a_chain_ahead_of_the_clock_stays_as_far_ahead():
    devnet = fresh_devnet()
    devnet.travel(START + 5_000)
    hand = Hand()
    with served(devnet, hand) as provider:
        hand.time += 3_600
        eventually(lambda: head(provider)[1] >= START + 8_600)
        assert head(provider)[1] < START + 8_700


def test_increase_time_moves_the_served_clock_for_good():
    hand = Hand()
    with served(fresh_devnet(), hand, block_time_s=60) as provider:
        ask(provider, "evm_mine")
        assert head(provider) == (1, START)
        assert ask(provider, "evm_increaseTime", hex(500)) == hex(500)
        ask(provider, "evm_mine", {"blocks": 2})
        assert head(provider) == (3, START + 501)
        hand.time += 10
        ask(provider, "evm_mine")
        assert head(provider) == (4, START + 510)


def test_after_serving_the_chain_goes_on_in_process():
    devnet = fresh_devnet()
    with served(devnet, Hand(), block_time_s=60) as provider:
        ask(provider, "evm_mine")
    assert devnet.now() == START
    devnet.send(signed(trainer, 0))
    assert devnet.now() == START + 1


def test_serving_by_a_clock_long_past_leaves_no_jump_behind():
    devnet = fresh_devnet()
    with served(devnet, lambda: 0.0, block_time_s=60) as provider:
        ask(provider, "evm_mine")
    devnet.mine()
    assert devnet.now() == GENESIS_TIME + 2


def test_a_transaction_waits_for_the_beat_and_pending_counts_it():
    with served(fresh_devnet(), Hand(), block_time_s=60) as provider:
        hash_ = ask(provider, "eth_sendRawTransaction", "0x" + signed(trainer, 0).hex())
        assert ask(provider, "eth_getTransactionReceipt", hash_) is None
        assert ask(provider, "eth_getTransactionCount", trainer.address, "latest") == "0x0"
        assert ask(provider, "eth_getTransactionCount", trainer.address, "pending") == "0x1"
        ask(provider, "evm_mine")
        assert ask(provider, "eth_getTransactionReceipt", hash_)["status"] == "0x1"


def test_nonces_sent_backwards_are_all_mined_in_order():
    with served(fresh_devnet(), Hand()) as provider:
        hashes = [
            ask(provider, "eth_sendRawTransaction", "0x" + signed(trainer, n).hex()) for n in (4, 3, 2, 1, 0)
        ]
        eventually(lambda: all(ask(provider, "eth_getTransactionReceipt", h) for h in hashes))
        assert ask(provider, "eth_getTransactionCount", trainer.address, "latest") == "0x5"


def test_a_pending_transaction_is_replaced_by_a_higher_fee():
    with served(fresh_devnet(), Hand(), block_time_s=60) as provider:
        ask(provider, "eth_sendRawTransaction", "0x" + signed(trainer, 0, value=1).hex())
        cheap = signed(trainer, 0, value=2, maxFeePerGas=2 * 10**9 + 1)
        assert "underpriced" in refusal(provider, "eth_sendRawTransaction", "0x" + cheap.hex())["message"]
        dear = signed(trainer, 0, value=3, maxFeePerGas=9 * 10**9 // 4, maxPriorityFeePerGas=9 * 10**9 // 8)
        ask(provider, "eth_sendRawTransaction", "0x" + dear.hex())
        ask(provider, "evm_mine")
        assert ask(provider, "eth_getBalance", stranger.address, "latest") == "0x3"


def test_a_revert_reason_reaches_web3_and_our_own_client():
    devnet = fresh_devnet()
    token = deploy_token(devnet)
    data = calldata("mint(address,uint256)", trainer.address, 1)
    with served(devnet, Hand()) as provider:
        with pytest.raises(ContractLogicError, match="token: not the minter"):
            Web3(provider).eth.call({"to": token, "from": trainer.address, "data": data})  # pyright: ignore
        chain = chain_of(devnet, provider)
        call = Call(token, bytes.fromhex(data[2:]), "mint", {})
        with pytest.raises(Reverted) as caught:
            outbox_of(chain, MemoryIntents(), trainer).send("mint", call)
        assert caught.value.reason == "token: not the minter"


def test_web3_signs_sends_and_waits_as_on_any_chain():
    with served(fresh_devnet(), Hand()) as provider:
        chain = Web3(provider).eth
        fees = chain.fee_history(1, "latest", [50])
        raw = signed(sponsor, 0, maxFeePerGas=2 * fees["baseFeePerGas"][-1] + chain.max_priority_fee)
        receipt = chain.wait_for_transaction_receipt(chain.send_raw_transaction(raw), timeout=10)
        assert receipt["status"] == 1
        with pytest.raises(Web3RPCError, match="nonce too low"):
            chain.send_raw_transaction(signed(sponsor, 0, value=9))


def test_a_batch_is_answered_in_order_each_with_its_own_error():
    with served(fresh_devnet(), Hand(), block_time_s=60) as provider:
        batch = [
            {"jsonrpc": "2.0", "id": 7, "method": "eth_chainId", "params": []},
            {"jsonrpc": "2.0", "id": 8, "method": "nonsense"},
            5,
        ]
        answers = requests.post(str(provider.endpoint_uri), json=batch, timeout=5).json()
        assert [a.get("id") for a in answers] == [7, 8, None]
        assert answers[0]["result"] == "0x539"
        assert [a["error"]["code"] for a in answers[1:]] == [-32601, -32600]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"[" * 4_999, -32700),
        (b"[" * 100_000, -32600),
        (b"\xff\xfe", -32700),
        (b"[]", -32600),
        (b"[1]" + b" " * 9, None),
        (b'"text"', -32600),
        (b'{"method": 1}', -32600),
        (b'{"method": "eth_chainId", "params": {}}', -32602),
        (json.dumps([{}] * (MAX_BATCH + 1)).encode(), -32600),
    ],
)
def test_a_body_that_is_no_request_gets_an_error_and_the_server_lives(body, code):
    with served(fresh_devnet(), Hand(), block_time_s=60) as provider:
        answer = requests.post(str(provider.endpoint_uri), data=body, timeout=5).json()
        if code is not None:
            assert answer["error"]["code"] == code
        assert ask(provider, "eth_chainId") == "0x539"


def test_an_oversized_request_is_cut_off():
    with served(fresh_devnet(), Hand(), block_time_s=60) as provider:
        body = b" " * (MAX_REQUEST_BYTES + 1)
        assert requests.post(str(provider.endpoint_uri), data=body, timeout=5).status_code == 413
        assert ask(provider, "eth_chainId") == "0x539"


def test_a_port_in_use_is_an_error_and_leaves_the_chain_as_it_was():
    devnet = fresh_devnet()
    with served(fresh_devnet(), Hand(), block_time_s=60) as provider:
        port = int(str(provider.endpoint_uri).rsplit(":", 1)[1])
        with pytest.raises(OSError), serve(devnet, port=port, clock=Hand()):
            pass
    devnet.send(signed(trainer, 0))
    assert devnet.now() == GENESIS_TIME + 1
