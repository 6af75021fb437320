"""Strict parsers of JSON-RPC answers. An answer that breaks the specification raises one of `PARSE_ERRORS`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eth_abi.abi import decode
from eth_abi.exceptions import DecodingError
from eth_utils.address import is_address, to_checksum_address

from earnest.client.chain.blockref import BlockRef

PARSE_ERRORS = (ValueError, KeyError, TypeError, AttributeError)
"""Exceptions that the parsers here raise on an invalid answer."""

_ERROR_SELECTOR = bytes.fromhex("08c379a0")  # Error(string)
_PANIC_SELECTOR = bytes.fromhex("4e487b71")  # Panic(uint256)
_PANICS = {
    0x01: "assertion failed",
    0x11: "arithmetic overflow",
    0x12: "division by zero",
    0x21: "value out of an enum's range",
    0x22: "broken storage encoding",
    0x31: "pop from an empty array",
    0x32: "index out of bounds",
    0x41: "out of memory",
    0x51: "call of an uninitialised function",
}


@dataclass(frozen=True)
class Block:
    """A block: its reference, its base fee (wei per gas; None before EIP-1559), and the hashes of its transactions."""

    ref: BlockRef
    base_fee: int | None
    transactions: frozenset[str]


@dataclass(frozen=True)
class Log:
    """One event as the chain stores it."""

    address: str
    topics: tuple[bytes, ...]
    data: bytes
    block_number: int
    block_hash: bytes
    index: int
    transaction: str


@dataclass(frozen=True)
class Receipt:
    """The receipt of a mined transaction. `gas_price` in wei per gas; `contract` is set for a deployment."""

    hash: str
    block_number: int
    block_hash: bytes
    succeeded: bool
    gas_used: int
    gas_price: int
    to: str | None
    contract: str | None
    logs: tuple[Log, ...]

    @property
    def cost(self) -> int:
        """Wei paid for gas."""
        return self.gas_used * self.gas_price


def quantity(value: Any) -> int:
    """Parses a number: hex from JSON-RPC, or an integer from the embedded chain."""
    if isinstance(value, str) and re.fullmatch(r"0x[0-9a-fA-F]+", value):
        return int(value, 16)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f"not a quantity: {value!r:.40}")


def data(value: Any, size: int | None = None) -> bytes:
    """Parses 0x-prefixed hex; exactly `size` bytes if given."""
    if not isinstance(value, str) or not value.startswith("0x"):
        raise ValueError(f"not hex data: {value!r:.40}")
    raw = bytes.fromhex(value[2:])
    if size is not None and len(raw) != size:
        raise ValueError(f"{len(raw)} bytes instead of {size}")
    return raw


def hash_text(value: Any) -> str:
    """Parses a transaction hash; returns it as lower-case hex with 0x."""
    return "0x" + data(value, 32).hex()


def address(value: Any) -> str:
    """Parses an address; returns it checksummed."""
    if not is_address(value):
        raise ValueError(f"not an address: {value!r:.50}")
    return to_checksum_address(value)


def block(value: Any) -> Block | None:
    """Parses an eth_getBlockByNumber result with transaction hashes; None if the endpoint has no such block."""
    if value is None:
        return None
    base_fee = value.get("baseFeePerGas")
    return Block(
        BlockRef(
            number=quantity(value["number"]),
            hash=data(value["hash"], 32),
            time=quantity(value["timestamp"]),
            parent=data(value["parentHash"], 32),
            randomness=data(value["mixHash"], 32) if "mixHash" in value else b"",
        ),
        None if base_fee is None else quantity(base_fee),
        frozenset(hash_text(transaction) for transaction in value["transactions"]),
    )


def log(value: Any) -> Log:
    """Parses one entry of an eth_getLogs result or of a receipt."""
    return Log(
        address=address(value["address"]),
        topics=tuple(data(topic, 32) for topic in value["topics"]),
        data=data(value["data"]),
        block_number=quantity(value["blockNumber"]),
        block_hash=data(value["blockHash"], 32),
        index=quantity(value["logIndex"]),
        transaction=hash_text(value["transactionHash"]),
    )


def logs(value: Any) -> tuple[Log, ...]:
    """Parses an eth_getLogs result; returns chain order, without logs that a reorganisation removed."""
    entries = [log(entry) for entry in _list(value) if not entry.get("removed", False)]
    return tuple(sorted(entries, key=lambda entry: (entry.block_number, entry.index)))


def receipt(value: Any) -> Receipt | None:
    """Parses an eth_getTransactionReceipt result; returns None while the transaction is not mined."""
    if value is None or value["blockHash"] is None:
        return None
    return Receipt(
        hash=hash_text(value["transactionHash"]),
        block_number=quantity(value["blockNumber"]),
        block_hash=data(value["blockHash"], 32),
        succeeded=_status(value["status"]),
        gas_used=quantity(value["gasUsed"]),
        gas_price=quantity(value.get("effectiveGasPrice", 0)),
        to=address(value["to"]) if value["to"] else None,
        contract=address(value["contractAddress"]) if value["contractAddress"] else None,
        logs=logs(value["logs"]),
    )


def revert_reason(message: str, payload: Any) -> str | None:
    """Returns a contract's revert reason from a JSON-RPC error's message and data; None if it is not a revert."""
    raw = _revert_data(payload)
    if raw is not None and raw[:4] == _ERROR_SELECTOR:
        try:
            return decode(["string"], raw[4:])[0]
        except DecodingError:
            return "reason is not valid ABI"
    if raw is not None and raw[:4] == _PANIC_SELECTOR and len(raw) == 36:
        code = int.from_bytes(raw[4:], "big")
        return _PANICS.get(code, f"panic 0x{code:02x}")
    if "revert" not in message.lower() and "invalid opcode" not in message.lower():
        return None
    reason = re.sub(r"^.*?reverted:?\s*", "", message, flags=re.IGNORECASE | re.DOTALL).strip()
    return reason if reason and not re.fullmatch(r"b''|0x|None", reason) else "no reason given"


def _revert_data(payload: Any) -> bytes | None:
    if isinstance(payload, Mapping):
        payload = payload.get("data")
    try:
        return data(payload)
    except ValueError:
        return None


def _status(value: Any) -> bool:
    status = quantity(value)
    if status not in (0, 1):
        raise ValueError(f"status {status}")
    return status == 1


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"not a list: {value!r:.40}")
    return value
