"""The embedded chain: its clock, its waiting transactions, its answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web3 import EthereumTesterProvider, Web3
from web3.exceptions import ContractLogicError

from earnest.deploy.devnet.chain import GAS_LIMIT, GENESIS_TIME, Devnet, account
from earnest.deploy.devnet.mempool import MAX_PER_SENDER, TransactionRejected
from earnest.deploy.devnet.server import DevnetProvider
from tests.deploy.chain import (
    ETHER,
    ask,
    calldata,
    deploy_token,
    fresh_devnet,
    refusal,
    signed,
    sponsor,
    stranger,
    trainer,
)


def mined_nonces(devnet: Devnet) -> list[list[int]]:
    """Per block after the first, the nonces of its transactions."""
    blocks = [devnet.block(n) for n in range(1, devnet.head.header.block_number + 1)]
    return [[t.nonce for t in block.transactions] for block in blocks if block]


# Time


def test_time_stands_still_until_something_is_called():
    devnet = fresh_devnet()
    assert devnet.now() == GENESIS_TIME
    devnet.mine(3)
    assert devnet.now() == GENESIS_TIME + 3


def test_travel_mines_a_block_at_that_second_and_the_next_follows_it():
    devnet = fresh_devnet()
    devnet.travel(GENESIS_TIME + 500)
    assert devnet.now() == GENESIS_TIME + 500
    devnet.send(signed(trainer, 0))
    assert devnet.now() == GENESIS_TIME + 501


def test_travelling_to_the_past_does_nothing():
    devnet = fresh_devnet()
    devnet.travel(GENESIS_TIME + 500)
    devnet.travel(GENESIS_TIME + 500)
    devnet.travel(GENESIS_TIME)
    assert (devnet.now(), devnet.head.header.block_number) == (GENESIS_TIME + 500, 1)


def test_increase_time_counts_from_the_head_and_waits_for_a_block():
    devnet = fresh_devnet()
    devnet.mine(10)
    assert ask(DevnetProvider(devnet), "evm_increaseTime", 100) == hex(110)
    assert devnet.now() == GENESIS_TIME + 10
    ask(DevnetProvider(devnet), "evm_mine")
    assert devnet.now() == GENESIS_TIME + 110


def test_evm_mine_takes_a_timestamp_or_a_number_of_blocks():
    devnet = fresh_devnet()
    ask(DevnetProvider(devnet), "evm_mine", GENESIS_TIME + 50)
    assert (devnet.now(), devnet.head.header.block_number) == (GENESIS_TIME + 50, 1)
    ask(DevnetProvider(devnet), "evm_mine", {"blocks": 4})
    assert devnet.head.header.block_number == 5
    assert refusal(DevnetProvider(devnet), "evm_mine", {"blocks": 10**9})["code"] == -32602


def test_the_clock_cannot_be_set_beyond_what_a_block_can_hold():
    devnet = fresh_devnet()
    for method in ("evm_mine", "evm_increaseTime"):
        assert refusal(DevnetProvider(devnet), method, hex(2**64))["code"] == -32602
    devnet.mine()
    assert devnet.now() == GENESIS_TIME + 1


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("travel"), st.integers(0, 2000)),
            st.tuples(st.just("mine"), st.integers(0, 3)),
            st.tuples(st.just("increase"), st.integers(0, 50)),
        ),
        max_size=12,
    )
)
def test_block_times_always_rise(steps: list[tuple[str, int]]):
    devnet = fresh_devnet()
    for what, amount in steps:
        before = devnet.now()
        if what == "travel":
            devnet.travel(GENESIS_TIME + amount)
            assert devnet.now() == max(before, GENESIS_TIME + amount)
        elif what == "mine":
            devnet.mine(amount)
        else:
            devnet.increase_time(amount)
    times = [devnet.block(n).header.timestamp for n in range(devnet.head.header.block_number + 1)]  # pyright: ignore
    assert times == sorted(set(times))


# One chain from one seed


def test_the_same_calls_give_the_same_chain_to_the_last_hash():
    def history() -> bytes:
        devnet = fresh_devnet()
        deploy_token(devnet)
        devnet.travel(GENESIS_TIME + 100)
        devnet.send(signed(trainer, 0))
        return devnet.head.header.hash

    assert history() == history()


def test_accounts_follow_from_the_seed():
    assert account(b"a", 0).address == account(b"a", 0).address
    assert len({account(seed, i).address for seed in (b"a", b"b") for i in range(3)}) == 6


def test_a_contract_sees_the_hash_of_256_blocks_and_no_more():
    devnet = fresh_devnet()
    devnet.mine(300)
    program = "5f35405f5260205ff3"  # return blockhash(calldata word)
    code = bytes.fromhex("68" + program + "5f526009" + "6017" + "f3")
    hash_ = devnet.send(signed(sponsor, 0, to="", value=0, data=code, gas=100_000))
    receipt = ask(DevnetProvider(devnet), "eth_getTransactionReceipt", "0x" + hash_.hex())
    head = devnet.head.header.block_number
    assert ask(DevnetProvider(devnet), "eth_getCode", receipt["contractAddress"], "latest") == "0x" + program

    def seen(number: int) -> str:
        call = {"to": receipt["contractAddress"], "data": "0x" + number.to_bytes(32, "big").hex()}
        return ask(DevnetProvider(devnet), "eth_call", call, "latest")

    for number in (head - 1, head - 255, head - 256):
        assert seen(number) == ask(DevnetProvider(devnet), "eth_getBlockByNumber", hex(number), False)["hash"]
    assert int(seen(head - 257), 16) == int(seen(head), 16) == 0


def test_a_reverted_chain_forgets_blocks_and_their_transactions_and_goes_another_way():
    devnet = fresh_devnet()
    devnet.mine(2)
    snapshot = ask(DevnetProvider(devnet), "evm_snapshot")
    gone = devnet.send(signed(trainer, 0))
    old = devnet.head.header.hash
    assert ask(DevnetProvider(devnet), "evm_revert", snapshot) is True
    assert ask(DevnetProvider(devnet), "eth_getTransactionReceipt", "0x" + gone.hex()) is None
    assert ask(DevnetProvider(devnet), "eth_getBlockByHash", "0x" + old.hex(), False) is None
    devnet.send(signed(trainer, 0, value=2))
    assert devnet.head.header.block_number == 3
    assert devnet.head.header.hash != old
    assert ask(DevnetProvider(devnet), "eth_getBalance", stranger.address, "latest") == hex(2)


# Waiting transactions


def test_in_process_a_transaction_is_mined_at_once():
    devnet = fresh_devnet()
    hash_ = devnet.send(signed(trainer, 0))
    assert (
        ask(DevnetProvider(devnet), "eth_getTransactionReceipt", "0x" + hash_.hex())["blockNumber"] == "0x1"
    )


def test_a_nonce_gap_waits_and_is_mined_once_it_is_filled():
    devnet = fresh_devnet()
    devnet.send(signed(trainer, 2))
    devnet.send(signed(trainer, 1))
    assert mined_nonces(devnet) == [[], []]
    assert devnet.pending_nonce(bytes.fromhex(trainer.address[2:])) == 0
    devnet.send(signed(trainer, 0))
    assert mined_nonces(devnet) == [[], [], [0, 1, 2]]


def test_pending_counts_waiting_transactions_without_a_nonce_gap():
    devnet = fresh_devnet(automine=False)
    for nonce in (0, 1, 3):
        devnet.send(signed(trainer, nonce))
    counts = [
        ask(DevnetProvider(devnet), "eth_getTransactionCount", trainer.address, tag)
        for tag in ("latest", "pending")
    ]
    assert counts == ["0x0", "0x2"]


def test_a_waiting_transaction_is_found_but_has_no_block_and_no_receipt():
    devnet = fresh_devnet(automine=False)
    hash_ = "0x" + devnet.send(signed(trainer, 0)).hex()
    waiting = ask(DevnetProvider(devnet), "eth_getTransactionByHash", hash_)
    assert (waiting["hash"], waiting["blockNumber"]) == (hash_, None)
    assert ask(DevnetProvider(devnet), "eth_getTransactionReceipt", hash_) is None


def test_a_replacement_needs_ten_percent_more_and_then_wins():
    devnet = fresh_devnet(automine=False)
    first = devnet.send(signed(trainer, 0, value=1))
    fees = {"maxFeePerGas": 2 * 10**9 * 109 // 100, "maxPriorityFeePerGas": 10**9 * 109 // 100}
    with pytest.raises(TransactionRejected, match="replacement transaction underpriced"):
        devnet.send(signed(trainer, 0, value=7, **fees))
    fees = {"maxFeePerGas": 2 * 10**9 * 110 // 100, "maxPriorityFeePerGas": 10**9 * 110 // 100}
    second = devnet.send(signed(trainer, 0, value=7, **fees))
    devnet.mine()
    assert ask(DevnetProvider(devnet), "eth_getTransactionByHash", "0x" + first.hex()) is None
    assert ask(DevnetProvider(devnet), "eth_getTransactionReceipt", "0x" + second.hex())["status"] == "0x1"
    assert ask(DevnetProvider(devnet), "eth_getBalance", stranger.address, "latest") == hex(7)


def test_a_replacement_must_raise_the_tip_too():
    devnet = fresh_devnet(automine=False)
    devnet.send(signed(trainer, 0))
    with pytest.raises(TransactionRejected, match="underpriced"):
        devnet.send(signed(trainer, 0, maxFeePerGas=4 * 10**9))


def test_a_transaction_below_the_base_fee_waits_until_the_fee_falls():
    devnet = fresh_devnet()
    devnet.send(signed(trainer, 0, maxFeePerGas=10**8, maxPriorityFeePerGas=0))
    assert mined_nonces(devnet) == [[]]
    devnet.mine(30)
    assert [0] in mined_nonces(devnet)


def test_the_better_tip_goes_first():
    devnet = fresh_devnet(automine=False)
    devnet.send(signed(sponsor, 0, maxPriorityFeePerGas=1))
    devnet.send(signed(trainer, 0, maxPriorityFeePerGas=2))
    devnet.mine()
    assert [Web3.to_checksum_address(t.sender) for t in devnet.head.transactions] == [
        trainer.address,
        sponsor.address,
    ]


def test_a_transaction_that_does_not_fit_into_a_block_goes_into_the_next():
    devnet = fresh_devnet(automine=False)
    devnet.send(signed(trainer, 0))
    devnet.send(signed(trainer, 1, gas=GAS_LIMIT))
    devnet.send(signed(sponsor, 0, maxPriorityFeePerGas=1))
    devnet.mine(2)
    assert mined_nonces(devnet) == [[0, 0], [1]]


def test_one_transaction_may_use_thirty_million_gas():
    devnet = fresh_devnet()
    invalid = b"\xfe"  # takes all the gas there is
    hash_ = devnet.send(signed(trainer, 0, to="", value=0, data=invalid, gas=30_000_000))
    receipt = ask(DevnetProvider(devnet), "eth_getTransactionReceipt", "0x" + hash_.hex())
    assert (receipt["status"], receipt["gasUsed"]) == ("0x0", hex(30_000_000))


def test_a_transaction_that_can_no_longer_pay_is_dropped():
    devnet = fresh_devnet(automine=False)
    devnet.send(signed(trainer, 0, value=999 * ETHER))
    devnet.send(signed(trainer, 1, value=999 * ETHER))
    devnet.mine(2)
    assert mined_nonces(devnet) == [[0], []]
    assert len(devnet.mempool) == 0


@pytest.mark.parametrize(
    ("words", "sender", "nonce", "fields"),
    [
        ("insufficient funds for gas", stranger, 0, {}),
        ("intrinsic gas too low", trainer, 0, {"gas": 20_999}),
        ("exceeds block gas limit", trainer, 0, {"gas": GAS_LIMIT + 1}),
        ("invalid chain id for signer: have 1 want 1337", trainer, 0, {"chainId": 1}),
        ("max priority fee per gas higher", trainer, 0, {"maxPriorityFeePerGas": 3 * 10**9}),
    ],
)
def test_a_bad_transaction_is_refused_with_a_reason(words, sender, nonce, fields):
    devnet = fresh_devnet()
    error = refusal(
        DevnetProvider(devnet), "eth_sendRawTransaction", "0x" + signed(sender, nonce, **fields).hex()
    )
    assert error["code"] == -32000
    assert words in error["message"]
    assert devnet.head.header.block_number == 0


def test_a_used_nonce_and_a_known_transaction_give_different_errors():
    devnet = fresh_devnet()
    devnet.send(signed(trainer, 0))
    with pytest.raises(TransactionRejected, match="nonce too low: next nonce 1, tx nonce 0"):
        devnet.send(signed(trainer, 0, value=2))
    devnet.send(signed(trainer, 5))
    with pytest.raises(TransactionRejected, match="already known"):
        devnet.send(signed(trainer, 5))


def test_one_sender_cannot_fill_the_pool():
    devnet = fresh_devnet(automine=False)
    for nonce in range(MAX_PER_SENDER):
        devnet.send(signed(trainer, nonce))
    with pytest.raises(TransactionRejected, match="txpool is full"):
        devnet.send(signed(trainer, MAX_PER_SENDER))
    devnet.send(signed(sponsor, 0))


def test_a_legacy_transaction_is_mined_at_its_gas_price():
    devnet = fresh_devnet()
    hash_ = "0x" + devnet.send(signed(trainer, 0, gasPrice=3 * 10**9)).hex()
    receipt = ask(DevnetProvider(devnet), "eth_getTransactionReceipt", hash_)
    assert (receipt["type"], receipt["effectiveGasPrice"]) == ("0x0", hex(3 * 10**9))
    assert Web3(DevnetProvider(devnet)).eth.get_transaction(hash_)["gasPrice"] == 3 * 10**9  # pyright: ignore


@given(st.binary(max_size=200))
def test_noise_instead_of_a_transaction_is_refused(noise: bytes):
    with pytest.raises(TransactionRejected):
        NOISE.send(noise)


@given(st.integers(0, 110), st.integers(0, 255))
def test_a_transaction_with_a_wrong_byte_is_refused_or_is_somebody_elses(position: int, byte: int):
    raw = bytearray(signed(trainer, 7))
    position %= len(raw)
    if raw[position] == byte:
        return
    raw[position] = byte
    with pytest.raises(TransactionRejected):
        NOISE.send(bytes(raw))


NOISE = fresh_devnet(automine=False)


# Answers


def test_a_revert_gives_its_reason_to_call_estimate_and_web3():
    devnet = fresh_devnet()
    token = deploy_token(devnet)
    call = {
        "to": token,
        "from": stranger.address,
        "data": calldata("mint(address,uint256)", stranger.address, 1),
    }
    for method in ("eth_call", "eth_estimateGas"):
        error = refusal(DevnetProvider(devnet), method, call, "latest")
        assert error["code"] == 3
        assert error["message"] == "execution reverted: token: not the minter"
        assert error["data"].startswith("0x08c379a0")
    with pytest.raises(ContractLogicError, match="token: not the minter"):
        Web3(DevnetProvider(devnet)).eth.call(call)  # pyright: ignore


def test_a_failing_call_without_a_revert_is_another_error():
    devnet = fresh_devnet()
    error = refusal(DevnetProvider(devnet), "eth_call", {"data": "0xfe"}, "latest")
    assert (error["code"], error.get("data")) == (-32000, None)
    assert "InvalidInstruction" in error["message"]


def test_a_mined_revert_has_status_zero_and_keeps_the_nonce_used():
    devnet = fresh_devnet()
    token = deploy_token(devnet)
    data = calldata("mint(address,uint256)", trainer.address, 1)
    hash_ = devnet.send(signed(trainer, 0, to=token, value=0, data=data, gas=100_000))
    assert ask(DevnetProvider(devnet), "eth_getTransactionReceipt", "0x" + hash_.hex())["status"] == "0x0"
    assert ask(DevnetProvider(devnet), "eth_getTransactionCount", trainer.address, "latest") == "0x1"


def test_an_estimate_is_enough_and_not_much_more_than_enough():
    devnet = fresh_devnet()
    token = deploy_token(devnet)
    data = calldata("mint(address,uint256)", trainer.address, 5)
    call = {"to": token, "from": sponsor.address, "data": data}
    gas = int(ask(DevnetProvider(devnet), "eth_estimateGas", call), 16)
    hash_ = devnet.send(signed(sponsor, 1, to=token, value=0, data=data, gas=gas))
    receipt = ask(DevnetProvider(devnet), "eth_getTransactionReceipt", "0x" + hash_.hex())
    assert receipt["status"] == "0x1"
    assert gas < int(receipt["gasUsed"], 16) * 1.1 + 3000


def test_an_estimate_covers_the_floor_that_calldata_costs():
    devnet = fresh_devnet()
    call = {"to": stranger.address, "from": trainer.address, "data": "0x" + "11" * 20_000}
    gas = int(ask(DevnetProvider(devnet), "eth_estimateGas", call), 16)
    assert gas == 21_000 + 40 * 20_000
    with pytest.raises(TransactionRejected, match="intrinsic gas too low"):
        devnet.send(signed(trainer, 0, data=call["data"], gas=gas - 1))
    devnet.send(signed(trainer, 0, data=call["data"], gas=gas))
    assert mined_nonces(devnet) == [[0]]


def test_calls_read_the_block_they_name_and_change_nothing():
    devnet = fresh_devnet()
    token = deploy_token(devnet)
    supply = {"to": token, "data": calldata("totalSupply()")}
    before = devnet.head.header
    mint = calldata("mint(address,uint256)", trainer.address, 5)
    ask(DevnetProvider(devnet), "eth_call", {"to": token, "from": sponsor.address, "data": mint}, "latest")
    devnet.send(signed(sponsor, 1, to=token, value=0, data=mint, gas=200_000))
    by_hash = {"blockHash": "0x" + before.hash.hex()}
    values = [
        ask(DevnetProvider(devnet), "eth_call", supply, at)
        for at in (hex(before.block_number), by_hash, "latest")
    ]
    assert [int(value, 16) for value in values] == [0, 0, 5]


def test_logs_are_found_by_address_topic_and_range():
    devnet = fresh_devnet()
    token = deploy_token(devnet)
    for nonce, (receiver, amount) in enumerate([(trainer, 5), (stranger, 6), (trainer, 7)], start=1):
        data = calldata("mint(address,uint256)", receiver.address, amount)
        devnet.send(signed(sponsor, nonce, to=token, value=0, data=data, gas=200_000))
    padded = ["0x" + a.address[2:].lower().rjust(64, "0") for a in (trainer, stranger)]

    def amounts(**wanted) -> list[int]:
        found = ask(
            DevnetProvider(devnet), "eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest", **wanted}
        )
        return [int(log["data"], 16) for log in found]

    assert amounts() == amounts(address=token) == amounts(address=[token, stranger.address]) == [5, 6, 7]
    assert amounts(address=stranger.address) == []
    assert amounts(topics=[None, None, padded[0]]) == [5, 7]
    assert amounts(topics=[None, None, padded]) == [5, 6, 7]
    assert amounts(topics=[None] * 4) == []
    assert amounts(fromBlock="0x3", toBlock="0x3") == [6]
    hash_ = ask(DevnetProvider(devnet), "eth_getBlockByNumber", "0x4", False)["hash"]
    assert [
        int(log["data"], 16) for log in ask(DevnetProvider(devnet), "eth_getLogs", {"blockHash": hash_})
    ] == [7]


def test_receipts_and_logs_number_their_logs_through_the_block():
    devnet = fresh_devnet()
    token = deploy_token(devnet)
    devnet.automine = False
    data = calldata("mint(address,uint256)", trainer.address, 5)
    hashes = [
        devnet.send(signed(sponsor, n, to=token, value=0, data=data, gas=200_000)).hex() for n in (1, 2)
    ]
    devnet.mine()
    receipts = [ask(DevnetProvider(devnet), "eth_getTransactionReceipt", "0x" + h) for h in hashes]
    assert [r["logs"][0]["logIndex"] for r in receipts] == ["0x0", "0x1"]
    assert [r["logs"] for r in receipts] == [[log] for log in ask(DevnetProvider(devnet), "eth_getLogs", {})]
    used = [int(r["gasUsed"], 16) for r in receipts]
    assert int(receipts[1]["cumulativeGasUsed"], 16) == sum(used) == devnet.head.header.gas_used


def test_tags_name_blocks_behind_the_head():
    devnet = fresh_devnet(finality=2)
    devnet.mine(5)
    numbers = {
        tag: int(ask(DevnetProvider(devnet), "eth_getBlockByNumber", tag, False)["number"], 16)
        for tag in ("earliest", "latest", "safe", "finalized")
    }
    assert numbers == {"earliest": 0, "latest": 5, "safe": 3, "finalized": 3}
    assert ask(DevnetProvider(devnet), "eth_getBlockByNumber", "0x6", False) is None
    assert (
        refusal(DevnetProvider(devnet), "eth_getBalance", trainer.address, "0x6")["message"]
        == "header not found"
    )


def test_web3_reads_a_full_block_and_the_fee_history():
    devnet = fresh_devnet()
    hash_ = devnet.send(signed(trainer, 0))
    chain = Web3(DevnetProvider(devnet)).eth
    block = chain.get_block(1, full_transactions=True)
    assert block["transactions"][0]["hash"] == hash_  # pyright: ignore
    assert block["parentHash"] == chain.get_block(0)["hash"]  # pyright: ignore
    history = chain.fee_history(5, "latest", [50])
    assert (history["oldestBlock"], len(history["baseFeePerGas"])) == (0, 3)
    assert history["reward"] == [[0], [10**9]]
    assert chain.gas_price == history["baseFeePerGas"][-1] + chain.max_priority_fee
    assert (chain.chain_id, chain.syncing, chain.accounts) == (1337, False, [])


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("eth_noSuchMethod", [], -32601),
        ("eth_getBalance", [], -32602),
        ("eth_getBalance", ["0x12", "latest"], -32602),
        ("eth_getBalance", [7, "latest"], -32602),
        ("eth_getBalance", [trainer.address, "sometimes"], -32602),
        ("eth_getBalance", [trainer.address, "latest", 1, 2], -32602),
        ("eth_call", ["0x"], -32602),
        ("eth_call", [{"value": "0x" + "f" * 65}], -32602),
        ("eth_getLogs", [[]], -32602),
        ("eth_getTransactionReceipt", ["0x00"], -32602),
        ("eth_sendRawTransaction", ["zz"], -32602),
        ("eth_sendRawTransaction", ["0x"], -32000),
    ],
)
def test_a_malformed_request_gets_an_error_object(method, params, code):
    assert refusal(DevnetProvider(fresh_devnet()), method, *params)["code"] == code


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["0x1", "latest", "0x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "to",
                    "data",
                    "topics",
                    "blocks",
                    "fromBlock",
                    "address",
                    "gas",
                    "blockHash",
                    "blockNumber",
                    "timestamp",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=5,
)


@given(st.data())
def test_whatever_a_client_sends_the_chain_answers(data: st.DataObject):
    from earnest.deploy.devnet.rpc import METHODS

    method = data.draw(st.sampled_from(sorted(set(METHODS) - {"evm_mine", "evm_increaseTime"})))
    params = data.draw(st.lists(json_values, max_size=4))
    response = DevnetProvider(NOISE).make_request(method, params)  # pyright: ignore
    assert ("result" in response) != ("error" in response)


# eth-tester


def test_eth_tester_shows_and_moves_the_same_chain():
    devnet = fresh_devnet()
    web3 = Web3(EthereumTesterProvider(devnet.tester))
    raw = signed(sponsor, 0)
    receipt = web3.eth.wait_for_transaction_receipt(web3.eth.send_raw_transaction(raw))
    assert (receipt["status"], receipt["blockNumber"]) == (1, devnet.head.header.block_number)
    devnet.tester.mine_blocks(3)
    devnet.tester.time_travel(devnet.now() + 100)
    newest = web3.eth.get_block("latest")
    assert bytes(newest["hash"]) == devnet.head.header.hash
    assert newest["timestamp"] == devnet.now() == GENESIS_TIME + 104


def test_eth_tester_snapshots_are_the_devnets():
    devnet = fresh_devnet()
    devnet.mine(2)
    snapshot = devnet.tester.take_snapshot()
    devnet.mine(5)
    devnet.tester.revert_to_snapshot(snapshot)
    assert devnet.head.header.block_number == 2


def test_a_copy_and_its_original_go_on_independently():
    devnet = fresh_devnet()
    devnet.send(signed(trainer, 0))
    twin = devnet.copy()
    assert twin.head == devnet.head
    twin.send(signed(trainer, 1))
    twin.travel(GENESIS_TIME + 50)
    devnet.send(signed(trainer, 1))
    assert twin.block(2) == devnet.head, "the same transaction makes the same block"
    assert (devnet.now(), twin.now()) == (GENESIS_TIME + 2, GENESIS_TIME + 50)
    devnet.revert(1)
    assert twin.block_number(twin.head.header.hash) == 3
    assert devnet.position(twin.block(2).transactions[0].hash) is None  # type: ignore[union-attr]
