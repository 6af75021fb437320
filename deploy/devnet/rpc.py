"""JSON-RPC over the embedded chain: the methods, and two ways to them (a web3 provider, an HTTP server).

Answers have the shapes of go-ethereum's, errors too: a revert is code 3 with its data, so that any client
decodes the reason. Beyond the standard: `evm_mine`, `evm_increaseTime`, `evm_snapshot`, `evm_revert`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from eth._utils.address import generate_contract_address
from eth.abc import ComputationAPI, LogAPI, ReceiptAPI, SignedTransactionAPI
from eth.constants import ZERO_ADDRESS
from eth.exceptions import Revert
from eth.vm.forks.london.headers import calculate_expected_base_fee_per_gas
from eth_abi.abi import decode
from eth_abi.exceptions import DecodingError
from eth_hash.auto import keccak
from eth_utils.exceptions import ValidationError

from earnest.deploy.devnet.chain import GAS_LIMIT, Devnet, Message, Mined, floor_gas
from earnest.deploy.devnet.mempool import TransactionRejected

MAX_REQUEST_BYTES = 1 << 20
MAX_BATCH = 100
MAX_BRACKETS = 5_000  # py-evm lifts Python's recursion limit, so deeper JSON would overflow the stack
MAX_LOGS = 10_000
TIP = 10**9  # wei per gas, what `eth_maxPriorityFeePerGas` suggests
ERROR_STRING = bytes.fromhex("08c379a0")  # selector of Error(string)

Json = Any


class RpcError(Exception):
    """A JSON-RPC error: code, message, and the revert data if there is any."""

    def __init__(self, code: int, message: str, data: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def as_json(self) -> dict[str, Json]:
        answer: dict[str, Json] = {"code": self.code, "message": self.message}
        return answer if self.data is None else {**answer, "data": self.data}


# Requests


def answer(devnet: Devnet, body: bytes) -> bytes:
    """Returns the response body for a request body: one call, or a batch of at most 100."""
    if body.count(b"[") + body.count(b"{") > MAX_BRACKETS:
        return _encode(_failure(None, RpcError(-32600, "the request is nested too deeply")))
    try:
        request = json.loads(body)
    except ValueError:
        return _encode(_failure(None, RpcError(-32700, "parse error")))
    if not isinstance(request, list):
        return _encode(_answer_one(devnet, request))
    if not 0 < len(request) <= MAX_BATCH:
        return _encode(_failure(None, RpcError(-32600, f"a batch holds 1 to {MAX_BATCH} requests")))
    return _encode([_answer_one(devnet, one) for one in request])


def _answer_one(devnet: Devnet, request: Json) -> dict[str, Json]:
    if not isinstance(request, dict) or not isinstance(request.get("method"), str):
        return _failure(None, RpcError(-32600, "invalid request"))
    try:
        with devnet.lock:
            result = _dispatch(devnet, request["method"], request.get("params", []))
    except RpcError as error:
        return _failure(request.get("id"), error)
    except TransactionRejected as error:
        return _failure(request.get("id"), RpcError(-32000, str(error)))
    return {"jsonrpc": "2.0", "id": request.get("id"), "result": result}


def _dispatch(devnet: Devnet, method: str, params: Json) -> Json:
    handler = METHODS.get(method)
    if handler is None:
        raise RpcError(-32601, f"the method {method} does not exist/is not available")
    if not isinstance(params, list):
        raise RpcError(-32602, "params must be a list")
    try:
        arguments = inspect.signature(handler).bind(devnet, *params)
    except TypeError as error:
        raise RpcError(-32602, f"{method}: {error}") from error
    return handler(*arguments.args)


def _failure(request_id: Json, error: RpcError) -> dict[str, Json]:
    return {"jsonrpc": "2.0", "id": request_id, "error": error.as_json()}


def _encode(response: Json) -> bytes:
    return json.dumps(response, separators=(",", ":")).encode()


# Parameters


def _integer(value: Json) -> int:
    """Parses a quantity: 0x-prefixed hex, or a plain number, which clients send to the evm_ methods."""
    try:
        number = int(value, 16) if isinstance(value, str) and value.startswith("0x") else int(value)
    except (TypeError, ValueError) as error:
        raise RpcError(-32602, f"not a quantity: {value!r}") from error
    if not 0 <= number < 1 << 256:
        raise RpcError(-32602, f"quantity out of range: {value!r}")
    return number


def _bytes(value: Json, length: int | None = None) -> bytes:
    try:
        data = bytes.fromhex(value.removeprefix("0x"))
    except (AttributeError, ValueError) as error:
        raise RpcError(-32602, f"not hex data: {value!r}") from error
    if length is not None and len(data) != length:
        raise RpcError(-32602, f"expected {length} bytes, got {len(data)}")
    return data


def _list(value: Json) -> list[Json]:
    if value is not None and not isinstance(value, list):
        raise RpcError(-32602, f"expected a list, got {value!r:.40}")
    return value or []


def _find_block(devnet: Devnet, block: Json) -> Mined | None:
    """Returns a block by tag, number or EIP-1898 object; `pending` means `latest`."""
    head = devnet.head.header.block_number
    if isinstance(block, dict):
        if "blockHash" in block:
            number = devnet.block_number(_bytes(block["blockHash"], 32))
            return None if number is None else devnet.block(number)
        block = block.get("blockNumber", "latest")
    if block in ("latest", "pending"):
        return devnet.head
    if block in ("safe", "finalized"):
        return devnet.block(max(0, head - devnet.finality))
    return devnet.block(0 if block == "earliest" else _integer(block))


def _require_block(devnet: Devnet, block: Json) -> Mined:
    found = _find_block(devnet, block)
    if found is None:
        raise RpcError(-32000, "header not found")
    return found


def _call(transaction: Json) -> Message:
    if not isinstance(transaction, dict):
        raise RpcError(-32602, "expected a transaction object")
    fields = {key: value for key, value in transaction.items() if value is not None}
    return Message(
        sender=_bytes(fields["from"], 20) if "from" in fields else ZERO_ADDRESS,
        to=_bytes(fields["to"], 20) if fields.get("to", "0x") != "0x" else b"",
        value=_integer(fields.get("value", 0)),
        data=_bytes(fields.get("input", fields.get("data", "0x"))),
        gas=min(_integer(fields.get("gas", GAS_LIMIT)), GAS_LIMIT),
    )


# Results


def _data(value: bytes) -> str:
    return "0x" + value.hex()


def _block_json(devnet: Devnet, mined: Mined | None, full: bool) -> Json:
    if mined is None:
        return None
    header = mined.header
    transactions = (
        [_transaction_json(t, mined, i) for i, t in enumerate(mined.transactions)]
        if full
        else [_data(t.hash) for t in mined.transactions]
    )
    return {
        "number": hex(header.block_number),
        "hash": _data(header.hash),
        "parentHash": _data(header.parent_hash),
        "nonce": _data(header.nonce),
        "sha3Uncles": _data(header.uncles_hash),
        "logsBloom": _data(header.bloom.to_bytes(256, "big")),
        "transactionsRoot": _data(header.transaction_root),
        "stateRoot": _data(header.state_root),
        "receiptsRoot": _data(header.receipt_root),
        "miner": _data(header.coinbase),
        "difficulty": hex(header.difficulty),
        "totalDifficulty": "0x0",
        "mixHash": _data(header.mix_hash),
        "extraData": _data(header.extra_data),
        "size": hex(sum(len(t.encode()) for t in mined.transactions) + 600),
        "gasLimit": hex(header.gas_limit),
        "gasUsed": hex(header.gas_used),
        "timestamp": hex(header.timestamp),
        "baseFeePerGas": hex(_base_fee(mined)),
        "transactions": transactions,
        "uncles": [],
        "withdrawals": [],
    }


def _transaction_json(transaction: SignedTransactionAPI, mined: Mined | None, index: int | None) -> Json:
    kind = _kind(transaction)
    answer = {
        "type": hex(kind),
        "hash": _data(transaction.hash),
        "nonce": hex(transaction.nonce),
        "blockHash": None if mined is None else _data(mined.header.hash),
        "blockNumber": None if mined is None else hex(mined.header.block_number),
        "transactionIndex": None if index is None else hex(index),
        "from": _data(transaction.sender),
        "to": _data(transaction.to) if transaction.to else None,
        "value": hex(transaction.value),
        "gas": hex(transaction.gas),
        "gasPrice": hex(_gas_price(transaction, mined)),
        "input": _data(transaction.data),
        "chainId": hex(transaction.chain_id or 0),
        "v": hex(transaction.y_parity if kind else transaction.v),  # pyright: ignore
        "r": hex(transaction.r),
        "s": hex(transaction.s),
    }
    if kind >= 2:
        answer["maxFeePerGas"] = hex(transaction.max_fee_per_gas)
        answer["maxPriorityFeePerGas"] = hex(transaction.max_priority_fee_per_gas)
    return {**answer, "accessList": [], "yParity": answer["v"]} if kind else answer


def _receipt_json(mined: Mined, index: int, first_log: int) -> Json:
    transaction, receipt = mined.transactions[index], mined.receipts[index]
    used_before = mined.receipts[index - 1].gas_used if index else 0
    created = generate_contract_address(transaction.sender, transaction.nonce)
    return {
        "type": hex(_kind(transaction)),
        "status": hex(int.from_bytes(receipt.state_root, "big")),
        "transactionHash": _data(transaction.hash),
        "transactionIndex": hex(index),
        "blockHash": _data(mined.header.hash),
        "blockNumber": hex(mined.header.block_number),
        "from": _data(transaction.sender),
        "to": _data(transaction.to) if transaction.to else None,
        "contractAddress": None if transaction.to else _data(created),
        "cumulativeGasUsed": hex(receipt.gas_used),
        "gasUsed": hex(receipt.gas_used - used_before),
        "effectiveGasPrice": hex(_gas_price(transaction, mined)),
        "logsBloom": _data(receipt.bloom.to_bytes(256, "big")),
        "logs": [_log_json(log, mined, index, first_log + i) for i, log in enumerate(receipt.logs)],
    }


def _log_json(log: LogAPI, mined: Mined, transaction: int, index: int) -> Json:
    return {
        "address": _data(log.address),
        "topics": [_data(topic.to_bytes(32, "big")) for topic in log.topics],
        "data": _data(log.data),
        "blockHash": _data(mined.header.hash),
        "blockNumber": hex(mined.header.block_number),
        "transactionHash": _data(mined.transactions[transaction].hash),
        "transactionIndex": hex(transaction),
        "logIndex": hex(index),
        "removed": False,
    }


def _kind(transaction: SignedTransactionAPI) -> int:
    return transaction.type_id or 0  # py-evm has None for a legacy transaction


def _base_fee(mined: Mined) -> int:
    return getattr(mined.header, "base_fee_per_gas", 0) or 0


def _gas_price(transaction: SignedTransactionAPI, mined: Mined | None) -> int:
    if mined is None:
        return transaction.max_fee_per_gas
    return min(transaction.max_fee_per_gas, transaction.max_priority_fee_per_gas + _base_fee(mined))


# Methods


def _accounts_empty(_: Devnet) -> Json:
    return []


def _get_balance(devnet: Devnet, address: Json, block: Json = "latest") -> Json:
    return hex(devnet.state(_require_block(devnet, block).header).get_balance(_bytes(address, 20)))  # pyright: ignore


def _get_code(devnet: Devnet, address: Json, block: Json = "latest") -> Json:
    return _data(devnet.state(_require_block(devnet, block).header).get_code(_bytes(address, 20)))  # pyright: ignore


def _get_storage(devnet: Devnet, address: Json, slot: Json, block: Json = "latest") -> Json:
    state = devnet.state(_require_block(devnet, block).header)
    return _data(state.get_storage(_bytes(address, 20), _integer(slot)).to_bytes(32, "big"))  # pyright: ignore


def _get_nonce(devnet: Devnet, address: Json, block: Json = "latest") -> Json:
    account = _bytes(address, 20)
    if block == "pending":
        return hex(devnet.pending_nonce(account))
    return hex(devnet.state(_require_block(devnet, block).header).get_nonce(account))  # pyright: ignore


def _get_block_by_number(devnet: Devnet, block: Json, full: Json = False) -> Json:
    return _block_json(devnet, _find_block(devnet, block), bool(full))


def _get_block_by_hash(devnet: Devnet, block_hash: Json, full: Json = False) -> Json:
    return _block_json(devnet, _find_block(devnet, {"blockHash": block_hash}), bool(full))


def _get_transaction(devnet: Devnet, transaction_hash: Json) -> Json:
    key = _bytes(transaction_hash, 32)
    if (position := devnet.position(key)) is not None:
        mined = _require_block(devnet, hex(position[0]))
        return _transaction_json(mined.transactions[position[1]], mined, position[1])
    waiting = devnet.mempool.find(key)
    return None if waiting is None else _transaction_json(waiting, None, None)


def _get_receipt(devnet: Devnet, transaction_hash: Json) -> Json:
    position = devnet.position(_bytes(transaction_hash, 32))
    if position is None:
        return None
    mined = _require_block(devnet, hex(position[0]))
    first_log = sum(len(receipt.logs) for receipt in mined.receipts[: position[1]])
    return _receipt_json(mined, position[1], first_log)


def _get_logs(devnet: Devnet, wanted: Json) -> Json:
    if not isinstance(wanted, dict):
        raise RpcError(-32602, "expected a filter object")
    addresses = _one_or_many(wanted.get("address"), 20)
    topics = [_one_or_many(topic, 32) for topic in _list(wanted.get("topics"))]
    found = [
        _log_json(log, mined, transaction, index)
        for mined in _filter_range(devnet, wanted)
        for transaction, index, log in _logs(mined.receipts)
        if (addresses is None or log.address in addresses) and _topics_match(log, topics)
    ]
    if len(found) > MAX_LOGS:
        raise RpcError(-32005, f"query returned more than {MAX_LOGS} results")
    return found


def _filter_range(devnet: Devnet, wanted: dict[str, Json]) -> Iterator[Mined]:
    if "blockHash" in wanted:
        yield _require_block(devnet, {"blockHash": wanted["blockHash"]})
        return
    first = _require_block(devnet, wanted.get("fromBlock", "latest")).header.block_number
    last = _find_block(devnet, wanted.get("toBlock", "latest")) or devnet.head
    for number in range(first, last.header.block_number + 1):
        yield _require_block(devnet, hex(number))


def _logs(receipts: Sequence[ReceiptAPI]) -> Iterator[tuple[int, int, LogAPI]]:
    index = 0
    for transaction, receipt in enumerate(receipts):
        for log in receipt.logs:
            yield transaction, index, log
            index += 1


def _one_or_many(value: Json, length: int) -> set[bytes] | None:
    """A filter's field: None for "any", one value, or a list of which one must match."""
    if value is None or value == []:
        return None
    return {_bytes(one, length) for one in (value if isinstance(value, list) else [value])}


def _topics_match(log: LogAPI, wanted: list[set[bytes] | None]) -> bool:
    if len(wanted) > len(log.topics):
        return False
    pairs = zip(log.topics, wanted, strict=False)
    return all(choice is None or topic.to_bytes(32, "big") in choice for topic, choice in pairs)


def _eth_call(devnet: Devnet, transaction: Json, block: Json = "latest") -> Json:
    return _data(_run(devnet, _call(transaction), _require_block(devnet, block)).output)


def _estimate_gas(devnet: Devnet, transaction: Json, block: Json = "latest") -> Json:
    """Estimates gas: runs with ample gas, adds the reserve of inner calls (EIP-150), then searches for the least."""
    call, mined = _call(transaction), _require_block(devnet, block)
    spent = call.gas - _run(devnet, call, mined).get_gas_remaining()
    low, high = spent - 1, call.gas
    guess = min(spent + spent // 63 + 2300, high)
    while low + 1 < high:
        try:
            _run(devnet, replace(call, gas=guess), mined)
        except RpcError:
            low = guess
        else:
            high = guess
            break
        guess = (low + high) // 2
    return hex(max(high, floor_gas(call.data)))


def _run(devnet: Devnet, call: Message, mined: Mined) -> ComputationAPI:
    """Runs a call; raises RpcError if it fails: code 3 with its data for a revert, -32000 otherwise."""
    try:
        computation = devnet.call(call, mined.header)
    except ValidationError as error:
        raise RpcError(-32000, str(error)) from error
    if not computation.is_error:
        return computation
    if isinstance(computation.error, Revert):
        raise RpcError(3, _revert_message(computation.output), _data(computation.output))
    raise RpcError(-32000, f"{type(computation.error).__name__}: {computation.error}")


def _revert_message(output: bytes) -> str:
    if not output.startswith(ERROR_STRING):
        return "execution reverted"
    try:
        return f"execution reverted: {decode(['string'], output[4:])[0]}"
    except DecodingError:
        return "execution reverted"


def _send_raw(devnet: Devnet, raw: Json) -> Json:
    return _data(devnet.send(_bytes(raw)))


def _fee_history(devnet: Devnet, count: Json, newest: Json, percentiles: Json = None) -> Json:
    if not all(isinstance(p, int | float) and 0 <= p <= 100 for p in _list(percentiles)):
        raise RpcError(-32602, "reward percentiles lie between 0 and 100")
    last = _require_block(devnet, newest)
    first = max(0, last.header.block_number + 1 - min(_integer(count), 1024))
    blocks = [_require_block(devnet, hex(n)) for n in range(first, last.header.block_number + 1)]
    answer = {
        "oldestBlock": hex(first),
        "baseFeePerGas": [hex(_base_fee(b)) for b in blocks] + [hex(_next_base_fee(last))],
        "gasUsedRatio": [b.header.gas_used / b.header.gas_limit for b in blocks],
    }
    return {**answer, "reward": [_tips(b, percentiles) for b in blocks]} if percentiles else answer


def _tips(mined: Mined, percentiles: list[float]) -> list[str]:
    """Returns the tips at these percentiles of a block's transactions, in wei per gas; zeros for an empty block."""
    tips = sorted(_gas_price(t, mined) - _base_fee(mined) for t in mined.transactions) or [0]
    return [hex(tips[min(int(len(tips) * p / 100), len(tips) - 1)]) for p in percentiles]


def _next_base_fee(mined: Mined) -> int:
    return calculate_expected_base_fee_per_gas(mined.header)


def _evm_mine(devnet: Devnet, options: Json = None) -> Json:
    """Mines one block, or `{"blocks": n}`; given a timestamp, at that time."""
    blocks = options.get("blocks", 1) if isinstance(options, dict) else 1
    timestamp = options.get("timestamp") if isinstance(options, dict) else options
    before = devnet.head
    try:
        if timestamp is not None:
            devnet.travel(_integer(timestamp))
        devnet.mine(max(0, _integer(blocks) - (devnet.head is not before)))
    except ValueError as error:
        raise RpcError(-32602, str(error)) from error
    return "0x0"


def _evm_increase_time(devnet: Devnet, seconds: Json) -> Json:
    try:
        return hex(devnet.increase_time(_integer(seconds)))
    except ValueError as error:
        raise RpcError(-32602, str(error)) from error


def _evm_revert(devnet: Devnet, snapshot: Json) -> Json:
    number = _integer(snapshot)
    known = devnet.block(number) is not None
    if known:
        devnet.revert(number)
    return known


METHODS: dict[str, Callable[..., Json]] = {
    "web3_clientVersion": lambda devnet: "earnest-devnet/py-evm",
    "web3_sha3": lambda devnet, data: _data(keccak(_bytes(data))),
    "net_version": lambda devnet: str(devnet.chain_id),
    "net_listening": lambda devnet: True,
    "eth_chainId": lambda devnet: hex(devnet.chain_id),
    "eth_syncing": lambda devnet: False,
    "eth_accounts": _accounts_empty,
    "eth_blockNumber": lambda devnet: hex(devnet.head.header.block_number),
    "eth_gasPrice": lambda devnet: hex(_next_base_fee(devnet.head) + TIP),
    "eth_maxPriorityFeePerGas": lambda devnet: hex(TIP),
    "eth_feeHistory": _fee_history,
    "eth_getBalance": _get_balance,
    "eth_getCode": _get_code,
    "eth_getStorageAt": _get_storage,
    "eth_getTransactionCount": _get_nonce,
    "eth_getBlockByNumber": _get_block_by_number,
    "eth_getBlockByHash": _get_block_by_hash,
    "eth_getTransactionByHash": _get_transaction,
    "eth_getTransactionReceipt": _get_receipt,
    "eth_getLogs": _get_logs,
    "eth_call": _eth_call,
    "eth_estimateGas": _estimate_gas,
    "eth_sendRawTransaction": _send_raw,
    "evm_mine": _evm_mine,
    "evm_increaseTime": _evm_increase_time,
    "evm_snapshot": lambda devnet: hex(devnet.snapshot()),
    "evm_revert": _evm_revert,
}
