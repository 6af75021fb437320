"""The harness' chain on an anvil with Osaka's rules, where the P-256 precompile is native. Senders are impersonated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import requests

from tests.contracts.harness import (
    Contract,
    Evm,
    Reverted,
    account,
    compiled,
    create_address,
    encode_arguments,
)
from tests.contracts.harness import _reason as reason_of

OPTIONS = ("--auto-impersonate", "--gas-price", "0", "--block-base-fee-per-gas", "0")
"""Anvil's, for `tests.anvil.anvil`."""

GAS = 16_000_000  # of a transaction: Osaka allows 2**24


class OsakaEvm(Evm):
    """A block for each transaction. `url` is anvil's."""

    chain_id = 31337

    def __init__(self, url: str) -> None:
        self.url, self.contracts, self.logs, self.gas_used = url, {}, [], 0

    def rpc(self, method: str, *params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = requests.post(self.url, json=body, timeout=60).json()
        if "error" in answer:
            _refuse(answer["error"])
        return answer["result"]

    @property
    def time(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return int(self.rpc("eth_getBlockByNumber", "latest", False)["timestamp"], 16)

    @property
    def number(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return int(self.rpc("eth_blockNumber"), 16)

    def travel(self, to: int) -> None:
        self.rpc("evm_setNextBlockTimestamp", to)
        self.rpc("evm_mine")

    def mine(self, blocks: int = 1, seconds: int = 1) -> None:
        self.rpc("anvil_mine", hex(blocks), hex(seconds))

    def nonce(self, address: str) -> int:
        return int(self.rpc("eth_getTransactionCount", address, "latest"), 16)

    def block_hash(self, number: int) -> bytes:
        return bytes.fromhex(self.rpc("eth_getBlockByNumber", hex(number), False)["hash"][2:])

    def snapshot(self) -> Callable[[], None]:
        taken = self.rpc("evm_snapshot")
        return lambda: self.rpc("evm_revert", taken)

    def deploy(self, name: str, *args: Any, sender: str | None = None) -> Contract:
        deployer, code = sender or account("deployer"), compiled(name)
        inputs = next((e["inputs"] for e in code.abi if e["type"] == "constructor"), [])
        address = create_address(deployer, self.nonce(deployer))
        self._send(deployer, code.bytecode + encode_arguments(inputs, args), None)
        return self.at(name, address)

    def call(self, to: str, data: bytes, sender: str, *, static: bool = False) -> bytes:
        if not static:
            self._send(sender, data, to)
            return bytes(32)  # a transaction answers nothing
        question = {"from": sender, "to": to, "data": "0x" + data.hex()}
        return bytes.fromhex(self.rpc("eth_call", question, "latest")[2:])

    def _send(self, sender: str, data: bytes, to: str | None) -> None:
        transaction = {"from": sender, "data": "0x" + data.hex(), "gas": hex(GAS), "gasPrice": "0x0"}
        transaction |= {"to": to} if to else {}
        sent = self.rpc("eth_sendTransaction", transaction)
        while (receipt := self.rpc("eth_getTransactionReceipt", sent)) is None:
            time.sleep(0.005)
        if receipt["status"] != "0x1":
            self.logs = []
            self.rpc(
                "eth_call", transaction, hex(int(receipt["blockNumber"], 16) - 1)
            )  # raises with the reason
            raise Reverted("transaction failed")
        self.gas_used = int(receipt["gasUsed"], 16)
        self.logs = [self._decoded(_log(entry)) for entry in receipt["logs"]]


@dataclass(frozen=True)
class _Log:
    """What the harness reads of a log."""

    address: str
    data: tuple[list[bytes], bytes]


def _log(entry: dict[str, Any]) -> Any:
    topics = [bytes.fromhex(topic[2:]) for topic in entry["topics"]]
    return _Log(entry["address"], (topics, bytes.fromhex(entry["data"][2:])))


def _refuse(error: dict[str, Any]) -> NoReturn:
    data = str(error.get("data") or "0x")
    raise Reverted(reason_of(f"Revert output: {data} "))
