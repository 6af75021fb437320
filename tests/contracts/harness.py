"""A small EVM for contract tests: pyrevm, the project's compiler, decoded answers, readable reverts.

    evm = Evm()
    token = evm.deploy("Token", ...)              # any contracts/**/Token.vy; constructor arguments follow
    token.mint(trainer, 5, sender=trainer)        # a transaction; a revert raises Reverted(reason)
    token.balanceOf(trainer)                      # a call to a view; structs come back as named tuples
    evm.logs, evm.gas_used                        # of the last transaction
    with evm.anchor(): ...                        # everything inside is undone

Gas here ignores that separate transactions start with cold storage: `benchmarks/gas.py` measures gas.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyrevm
from eth_abi.abi import decode, encode
from eth_hash.auto import keccak
from rlp import encode as rlp_encode
from vyper.compiler import compile_from_file_input
from vyper.compiler.input_bundle import FilesystemInputBundle

CONTRACTS = Path(__file__).resolve().parents[2] / "contracts"
CHAIN_ID = 1337
GENESIS_TIME = 1_700_000_000
BLOCK_TIME_S = 2
GAS_LIMIT = 10**9


class Reverted(Exception):
    """A transaction or call reverted. `reason` is "" where the contract gave none."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason or "(no reason)")
        self.reason = reason


@contextmanager
def reverts(reason: str) -> Iterator[None]:
    """What is inside must revert with exactly this reason."""
    try:
        yield
    except Reverted as refusal:
        assert refusal.reason == reason, f"reverted with {refusal.reason!r}, not {reason!r}"
        return
    raise AssertionError(f"did not revert with {reason!r}")


class Log(NamedTuple):
    """One decoded event of a deployed contract."""

    contract: str
    name: str
    args: dict[str, Any]


@dataclass(frozen=True)
class Compiled:
    """What a test needs of one compiled contract."""

    abi: list[dict[str, Any]]
    bytecode: bytes
    runtime: bytes


def compiled(name: str) -> Compiled:
    """Compile contracts/**/<name>.vy, once per content of contracts/: kept in memory and in the temporary folder."""
    return _compiled(name, _source_hash())


@cache
def _compiled(name: str, source: str) -> Compiled:
    kept = Path(tempfile.gettempdir()) / "earnest-compiled" / f"{name}-{source}.json"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        fresh = kept.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(_compile(name)))
        fresh.replace(kept)
    out = json.loads(kept.read_text())
    code, runtime = (bytes.fromhex(out[key].removeprefix("0x")) for key in ("bytecode", "bytecode_runtime"))
    return Compiled(out["abi"], code, runtime)


def _compile(name: str) -> dict[str, Any]:
    paths = sorted(CONTRACTS.rglob(f"{name}.vy"))
    if len(paths) != 1:
        raise FileNotFoundError(f"expected one {name}.vy under {CONTRACTS}, found {len(paths)}")
    bundle = FilesystemInputBundle([CONTRACTS])
    formats = ["abi", "bytecode", "bytecode_runtime"]
    return compile_from_file_input(bundle.load_file(paths[0]), input_bundle=bundle, output_formats=formats)


def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(CONTRACTS.rglob("*.vy*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def account(role: str) -> str:
    """A fixed address for a role such as "trainer 3"."""
    return "0x" + keccak(role.encode())[-20:].hex()


def create_address(deployer: str, nonce: int) -> str:
    """Address of the contract that `deployer` creates with `nonce`."""
    return "0x" + keccak(rlp_encode([bytes.fromhex(deployer[2:]), nonce]))[-20:].hex()


class Evm:
    """A chain in memory: moves only by calls. One transaction a block is not enforced; `mine` is explicit."""

    def __init__(self) -> None:
        self.time = GENESIS_TIME
        self.number = 1_000
        self.logs: list[Log] = []
        self.gas_used = 0
        self.contracts: dict[str, Contract] = {}
        cfg = pyrevm.CfgEnv(chain_id=CHAIN_ID)
        env = pyrevm.Env(cfg=cfg, block=self._block())
        self.revm = pyrevm.EVM(env=env, gas_limit=GAS_LIMIT, spec_id="CANCUN")

    # Time and blocks.

    def _block(self) -> pyrevm.BlockEnv:
        return pyrevm.BlockEnv(
            number=self.number, timestamp=self.time, gas_limit=GAS_LIMIT, prevrandao=self.randomness()
        )

    def randomness(self) -> bytes:
        """Returns the block's `prevrandao`: follows from its number."""
        return keccak(b"randomness" + self.number.to_bytes(8, "big"))

    def travel(self, to: int) -> None:
        """Mine one block whose time is `to` (seconds). Going back is allowed: only tests do."""
        self.time, self.number = to, self.number + 1
        self.revm.set_block_env(self._block())

    def mine(self, blocks: int = 1, seconds: int = BLOCK_TIME_S) -> None:
        """Mine blocks, each with its own hash, `seconds` apart."""
        self.number, self.time = self.number + blocks, self.time + blocks * seconds
        self.revm.set_block_env(self._block())

    def block_hash(self, number: int) -> bytes:
        """Hash of block `number`, 32 bytes."""
        return self.revm.block_hash(number)

    # Snapshots.

    def snapshot(self) -> Callable[[], None]:
        """A function that takes the chain back to now. It works once; inner snapshots die with it."""
        checkpoint, time, number = self.revm.snapshot(), self.time, self.number

        def restore() -> None:
            self.revm.revert(checkpoint)
            self.time, self.number = time, number
            self.revm.set_block_env(self._block())

        return restore

    @contextmanager
    def anchor(self) -> Iterator[None]:
        """Undo everything done inside."""
        restore = self.snapshot()
        try:
            yield
        finally:
            restore()

    # Accounts and contracts.

    def give(self, address: str, wei: int) -> None:
        """Set an account's balance of the chain's coin."""
        self.revm.set_balance(address, wei)

    def nonce(self, address: str) -> int:
        """Transactions sent by (or contracts created from) an address."""
        return self.revm.basic(address).nonce

    def deploy(self, name: str, *args: Any, sender: str | None = None) -> Contract:
        """Deploy contracts/**/<name>.vy with constructor arguments."""
        code = compiled(name)
        constructor = next((e for e in code.abi if e["type"] == "constructor"), {"inputs": []})
        data = code.bytecode + encode_arguments(constructor["inputs"], args)
        deployer = sender or account("deployer")
        try:
            address = self.revm.deploy(deployer, data)
        except RuntimeError as error:
            raise Reverted(_reason(str(error))) from None
        result = self.revm.result
        assert result is not None
        self.gas_used = result.gas_used
        return self.at(name, address)

    def at(self, name: str, address: str) -> Contract:
        """Wrap a contract that exists."""
        contract = Contract(self, name, address, compiled(name).abi)
        self.contracts[address.lower()] = contract
        return contract

    def call(self, to: str, data: bytes, sender: str, *, static: bool = False) -> bytes:
        """Send raw calldata. Raises Reverted."""
        if not static:
            self.revm.reset_transient_storage()
        try:
            answer = self.revm.message_call(sender, to, calldata=data, is_static=static)
        except RuntimeError as error:
            self.logs = []
            raise Reverted(_reason(str(error))) from None
        result = self.revm.result
        assert result is not None
        if not static:
            self.gas_used = result.gas_used
            self.logs = [self._decoded(log) for log in result.logs]
        return answer

    def _decoded(self, log: pyrevm.Log) -> Log:
        topics, data = log.data
        contract = self.contracts.get(log.address.lower())
        event = contract.events.get(bytes(topics[0])) if contract else None
        if contract is None or event is None:
            return Log(log.address, "?", {"topics": topics, "data": data})
        indexed = [e for e in event["inputs"] if e["indexed"]]
        plain = [e for e in event["inputs"] if not e["indexed"]]
        values = {e["name"]: decode([_type(e)], t)[0] for e, t in zip(indexed, topics[1:], strict=True)}
        values |= zip([e["name"] for e in plain], decode_answers(plain, data), strict=True)
        return Log(contract.name, event["name"], {e["name"]: values[e["name"]] for e in event["inputs"]})

    def events(self, name: str) -> list[dict[str, Any]]:
        """Arguments of the last transaction's events of that name."""
        return [log.args for log in self.logs if log.name == name]


class Contract:
    """A deployed contract; its functions are attributes: `vault.bond(manager, 1, 5, sender=trainer)`."""

    def __init__(self, evm: Evm, name: str, address: str, abi: list[dict[str, Any]]) -> None:
        self.evm, self.name, self.address = evm, name, address
        self.functions = {e["name"]: e for e in abi if e["type"] == "function"}
        self.events = {keccak(_signature(e)): e for e in abi if e["type"] == "event"}
        self.selectors = {n: keccak(_signature(e))[:4] for n, e in self.functions.items()}

    def calldata(self, name: str, *args: Any) -> bytes:
        """What calling a function sends: for tests that send the same thing many times."""
        return self.selectors[name] + encode_arguments(self.functions[name]["inputs"], args)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        entry = self.functions.get(name)
        if entry is None:
            raise AttributeError(f"{self.name} has no function {name}")
        view = entry["stateMutability"] in ("view", "pure")

        def function(*args: Any, sender: str | None = None) -> Any:
            data = self.calldata(name, *args)
            answer = self.evm.call(self.address, data, sender or account("stranger"), static=view)
            values = decode_answers(entry["outputs"], answer)
            return values[0] if len(values) == 1 else tuple(values) or None

        return function


# ABI: tuples with names both ways.


def encode_arguments(inputs: Sequence[dict[str, Any]], args: Sequence[Any]) -> bytes:
    """ABI-encode; structs may be given as tuples, mappings or objects with `as_tuple`."""
    if len(inputs) != len(args):
        raise TypeError(f"{len(args)} arguments for {[entry['name'] for entry in inputs]}")
    plain = [_plain(entry, value) for entry, value in zip(inputs, args, strict=True)]
    return encode([_type(entry) for entry in inputs], plain)


def decode_answers(outputs: Sequence[dict[str, Any]], data: bytes) -> list[Any]:
    """ABI-decode; structs come back as named tuples."""
    values = decode([_type(entry) for entry in outputs], data) if outputs else ()
    return [_named(entry, value) for entry, value in zip(outputs, values, strict=True)]


def _type(entry: dict[str, Any]) -> str:
    if not entry["type"].startswith("tuple"):
        return entry["type"]
    return f"({','.join(_type(part) for part in entry['components'])}){entry['type'][5:]}"


def _signature(entry: dict[str, Any]) -> bytes:
    return f"{entry['name']}({','.join(_type(part) for part in entry['inputs'])})".encode()


def _plain(entry: dict[str, Any], value: Any) -> Any:
    if not entry["type"].startswith("tuple"):
        return value
    if entry["type"] != "tuple":
        inner = {**entry, "type": entry["type"][: entry["type"].rindex("[")]}
        return [_plain(inner, item) for item in value]
    if hasattr(value, "as_tuple"):
        value = value.as_tuple()
    if isinstance(value, dict):
        value = [value[part["name"]] for part in entry["components"]]
    return tuple(_plain(part, item) for part, item in zip(entry["components"], value, strict=True))


def _named(entry: dict[str, Any], value: Any) -> Any:
    if not entry["type"].startswith("tuple"):
        return value
    if entry["type"] != "tuple":
        inner = {**entry, "type": entry["type"][: entry["type"].rindex("[")]}
        return [_named(inner, item) for item in value]
    struct = _struct(tuple(part["name"] for part in entry["components"]))
    return struct(*(_named(part, item) for part, item in zip(entry["components"], value, strict=True)))


@cache
def _struct(names: tuple[str, ...]) -> Any:
    return namedtuple("Struct", names)


def _reason(error: str) -> str:
    """Reason in pyrevm's "Revert { .., output: 0x.. }": "" for a bare revert, the whole text for a halt."""
    if not error.startswith("Revert"):
        return error
    output = bytes.fromhex(error.split("output: 0x")[1].split(" ", maxsplit=1)[0])
    return decode(["string"], output[4:])[0] if output[:4] == keccak(b"Error(string)")[:4] else ""


# The protocol's contracts, deployed and wired.


@dataclass(frozen=True)
class System:
    """Token, vault, terms, settlement and runs on one chain."""

    evm: Evm
    token: Contract
    vault: Contract
    settlement: Contract
    runs: Contract
    terms: Contract
    registry: str


def system(evm: Evm | None = None, registry: str | None = None, hostile: bool = False) -> System:
    """Deploy all, as `deploy` does: addresses of later contracts follow from the deployer's nonce.

    `registry`: an account that plays the registry. `hostile`: the token is a HostileToken.
    """
    evm = evm or Evm()
    deployer, sink = account("deployer"), account("sink")
    money = evm.deploy("HostileToken") if hostile else evm.deploy("PlayToken", "Test", "TEST")
    vault = evm.deploy("StakeVault", money.address, sink)
    runs_address, next_address = (create_address(deployer, evm.nonce(deployer) + i) for i in (2, 3))
    registry = registry or next_address
    terms = evm.deploy("RunTerms", runs_address)
    settlement = evm.deploy("Settlement", vault.address, runs_address)
    runs = evm.deploy("TrainingRuns", settlement.address, vault.address, terms.address, registry)
    assert runs.address.lower() == runs_address
    return System(evm, money, vault, settlement, runs, terms, registry)
