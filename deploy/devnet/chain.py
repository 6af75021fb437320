"""The embedded chain: eth-tester on py-evm (Prague, and Osaka's P-256 precompile) in the process, for demo and tests.

It is an eth-tester chain (`devnet.tester`) with its own backend. A demo's seeds come from the chain, so its blocks
must be reproducible: eth-tester's backend draws `prevrandao` from the operating system, reads the wall clock, refuses
nonce gaps and omits revert data. Here a block is determined by its parent, its time and its transactions.

    devnet = Devnet(accounts={"0x…": 10**24})
    DevnetProvider(devnet)                           # in process: a transaction is mined when it arrives
    with serve(devnet, clock=time.time) as server:
        server.url                            # the same chain over HTTP on loopback, a block a second
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

from eth.abc import BlockHeaderAPI, ComputationAPI, ReceiptAPI, SignedTransactionAPI, StateAPI
from eth.chains.base import MiningChain
from eth.constants import ZERO_ADDRESS
from eth.db.atomic import AtomicDB
from eth.db.backends.memory import MemoryDB
from eth.exceptions import PyEVMError
from eth.vm.forks.prague import PragueVM
from eth.vm.forks.prague.computation import PragueComputation
from eth.vm.forks.prague.state import PragueState
from eth.vm.spoof import SpoofTransaction
from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_hash.auto import keccak
from eth_keys.exceptions import BadSignature
from eth_tester import EthereumTester
from eth_tester.backends.pyevm import PyEVMBackend
from eth_typing import Address, Hash32
from eth_utils.address import to_canonical_address
from eth_utils.exceptions import ValidationError
from rlp.exceptions import RLPException

from earnest.deploy.devnet import p256
from earnest.deploy.devnet.mempool import Mempool, TransactionRejected

CHAIN_ID = 1337
GENESIS_TIME = 1_700_000_000  # unix seconds
GAS_LIMIT = 60_000_000  # of a block; one transaction may use all of it
MAX_TIME = 1 << 40  # unix seconds
MAX_MINE = 10_000  # blocks in one call
UNDECODABLE = (ValidationError, RLPException, BadSignature, PyEVMError, ValueError, TypeError, IndexError)


@dataclass(frozen=True)
class Mined:
    """A mined block: header, transactions and their receipts, in order."""

    header: BlockHeaderAPI
    transactions: tuple[SignedTransactionAPI, ...] = ()
    receipts: tuple[ReceiptAPI, ...] = ()


@dataclass(frozen=True)
class Message:
    """Input of `eth_call` and `eth_estimateGas`: a transaction without signature, nonce and fee."""

    sender: bytes = ZERO_ADDRESS
    to: bytes = b""  # empty creates a contract
    value: int = 0  # wei
    data: bytes = b""
    gas: int = GAS_LIMIT


def account(seed: bytes, index: int) -> LocalAccount:
    """Returns the account number `index` of a seed; its key is keccak256(seed || uint32 index)."""
    return Account.from_key(keccak(seed + index.to_bytes(4, "big")))


def floor_gas(data: bytes) -> int:
    """Returns the minimum gas of a transaction with this data (EIP-7623); py-evm charges it but does not check it."""
    return 21_000 + 10 * (4 * len(data) - 3 * data.count(0))


class Devnet:
    """One chain with one clock: a block's time is max(parent + 1, clock).

    In process, the clock stands still until `travel` or `evm_increaseTime` sets it, and every transaction
    that can run is mined at once. Served, it follows the clock passed in, and blocks come at fixed intervals.

    accounts: address -> wei at genesis. genesis_time: unix seconds. finality: blocks behind the head that the
    tags `safe` and `finalized` name. Every method may be called from any thread.
    """

    def __init__(
        self,
        accounts: Mapping[str, int],
        *,
        chain_id: int = CHAIN_ID,
        genesis_time: int = GENESIS_TIME,
        finality: int = 0,
        automine: bool = True,
    ) -> None:
        self.chain_id = chain_id
        self.finality = finality
        self.automine = automine
        self.mempool = Mempool()
        self.lock = threading.RLock()
        self._clock: Callable[[], float] = lambda: genesis_time
        self._offset = 0  # seconds that the chain's clock is ahead of `_clock`
        self._database = MemoryDB()
        self._chain = _genesis_chain(AtomicDB(self._database), accounts, chain_id, genesis_time)
        self.tester = EthereumTester(_Backend(self, self._chain))
        """The same chain as eth-tester shows it, for web3's EthereumTesterProvider; it writes through this object."""
        self._blocks = [Mined(self._chain.get_canonical_block_header_by_number(0))]  # pyright: ignore
        self._block_numbers = {self._blocks[0].header.hash: 0}
        self._positions: dict[bytes, tuple[int, int]] = {}  # transaction hash -> block, index

    def copy(self) -> Devnet:
        """Returns an independent chain with the same blocks and clock. Waiting transactions are not copied."""
        with self.lock:
            twin = copy(self)
            twin.mempool, twin.lock = Mempool(), threading.RLock()
            twin._database = MemoryDB(dict(self._database.kv_store))
            twin._chain = type(self._chain)(AtomicDB(twin._database))
            twin.tester = EthereumTester(_Backend(twin, twin._chain))
            twin._blocks = list(self._blocks)
            twin._block_numbers, twin._positions = dict(self._block_numbers), dict(self._positions)
        return twin

    # Time

    def now(self) -> int:
        """Time of the newest block, unix seconds."""
        return self.head.header.timestamp

    def travel(self, to: int) -> None:
        """Sets the clock to `to` (unix seconds) and mines a block; does nothing if the chain is past it.

        Raises ValueError after the year 36,812 (2**40 s).
        """
        with self.lock:
            if to > self.now():
                self._set_clock(to)
                self._mine_block()

    def increase_time(self, seconds: int) -> int:
        """Advances the clock without mining. Returns the seconds by which it is ahead of its clock.

        Raises ValueError as `travel` does.
        """
        with self.lock:
            self._set_clock(max(self.now(), int(self._clock()) + self._offset) + seconds)
            return self._offset

    def mine(self, count: int = 1) -> None:
        """Mines `count` blocks; the first takes the waiting transactions. Raises ValueError outside 0..10,000."""
        if not 0 <= count <= MAX_MINE:
            raise ValueError(f"cannot mine {count} blocks at once, at most {MAX_MINE}")
        with self.lock:
            for _ in range(count):
                self._mine_block()

    @contextmanager
    def follow(self, clock: Callable[[], float]) -> Iterator[None]:
        """Inside the block, `clock` (unix seconds) sets the time, and transactions wait for the next block.

        A chain that is ahead of the clock stays as far ahead.
        """
        with self.lock:
            still, automine = self._clock, self.automine
            self._offset = max(0, self.now() - int(clock()))
            self._clock, self.automine = clock, False
        try:
            yield
        finally:
            with self.lock:
                self._clock, self.automine = still, automine
                self._offset = self.now() - int(still())

    # Blocks

    @property
    def head(self) -> Mined:
        return self._blocks[-1]

    def block(self, number: int) -> Mined | None:
        """Returns the block with this number, None if there is none yet."""
        return self._blocks[number] if 0 <= number < len(self._blocks) else None

    def block_number(self, block_hash: bytes) -> int | None:
        """Returns the number of the block with this hash, None if it is not on the chain."""
        return self._block_numbers.get(Hash32(block_hash))

    def position(self, transaction_hash: bytes) -> tuple[int, int] | None:
        """Returns (block number, index) of a mined transaction, None for any other."""
        return self._positions.get(transaction_hash)

    def snapshot(self) -> int:
        """Returns a handle for `revert`."""
        return self.head.header.block_number

    def revert(self, snapshot: int) -> None:
        """Removes every block after a snapshot, as a reorganisation does. Waiting transactions stay."""
        with self.lock:
            for gone in self._blocks[snapshot + 1 :]:
                del self._block_numbers[gone.header.hash]
                for transaction in gone.transactions:
                    del self._positions[transaction.hash]
            del self._blocks[snapshot + 1 :]

    # Transactions

    def send(self, raw: bytes) -> bytes:
        """Takes a signed transaction and returns its hash. In process it is mined now, unless its nonce leaves a gap.

        Raises TransactionRejected with the messages of a public node: it cannot be decoded, wrong chain, nonce too low,
        cannot pay, gas too low or above the block's, underpriced replacement.
        """
        with self.lock:
            transaction_hash = self.accept(raw)
            if self.automine:
                self._mine_block()
            return transaction_hash

    def accept(self, raw: bytes) -> bytes:
        """Does the same as `send`, but the transaction waits for the next block."""
        with self.lock:
            transaction = self._decode(raw)
            state = self.state(self.head.header)
            self._check(transaction, state)
            self.mempool.add(transaction, state.get_nonce(transaction.sender))
            return transaction.hash

    def pending_nonce(self, sender: bytes) -> int:
        """Returns the next nonce of an account, including waiting transactions."""
        with self.lock:
            return self.mempool.next_nonce(sender, self.state(self.head.header).get_nonce(Address(sender)))

    def state(self, header: BlockHeaderAPI) -> StateAPI:
        """Returns the state after a block. Writing to it does not change the chain."""
        return self._chain.get_vm(header).state

    def call(self, call: Message, header: BlockHeaderAPI) -> ComputationAPI:
        """Runs a call on the state after a block and in its context, without a fee and without changing the chain.

        Raises ValidationError if it cannot start (value above the balance, gas below the intrinsic cost).
        """
        vm = self._chain.get_vm(header.copy(base_fee_per_gas=0))
        unsigned = vm.get_transaction_builder().new_unsigned_dynamic_fee_transaction(  # pyright: ignore
            chain_id=self.chain_id,
            nonce=vm.state.get_nonce(Address(call.sender)),
            max_priority_fee_per_gas=0,
            max_fee_per_gas=0,
            gas=call.gas,
            to=call.to,
            value=call.value,
            data=call.data,
            access_list=(),
        )
        return vm.state.apply_transaction(SpoofTransaction(unsigned, from_=call.sender))  # pyright: ignore

    def _decode(self, raw: bytes) -> SignedTransactionAPI:
        try:
            transaction = self._chain.get_vm(self.head.header).get_transaction_builder().decode(raw)
            transaction.validate()
            transaction.sender  # noqa: B018  (recovers it, which fails for a bad signature)
        except UNDECODABLE as error:
            raise TransactionRejected(f"invalid transaction: {error}") from error
        if transaction.chain_id != self.chain_id:
            raise TransactionRejected(
                f"invalid chain id for signer: have {transaction.chain_id} want {self.chain_id}"
            )
        return transaction

    def _check(self, transaction: SignedTransactionAPI, state: StateAPI) -> None:
        cost = transaction.value + transaction.gas * transaction.max_fee_per_gas
        balance = state.get_balance(transaction.sender)
        if transaction.gas > GAS_LIMIT:
            raise TransactionRejected("exceeds block gas limit")
        minimum = max(transaction.intrinsic_gas, floor_gas(transaction.data))
        if transaction.gas < minimum:
            raise TransactionRejected(f"intrinsic gas too low: have {transaction.gas} want {minimum}")
        if transaction.max_priority_fee_per_gas > transaction.max_fee_per_gas:
            raise TransactionRejected("max priority fee per gas higher than max fee per gas")
        if cost > balance:
            raise TransactionRejected(
                f"insufficient funds for gas * price + value: have {balance} want {cost}"
            )

    # Mining

    def _set_clock(self, to: int) -> None:
        if to > MAX_TIME:
            raise ValueError(f"time {to} is too far ahead, at most {MAX_TIME}")
        self._offset = to - int(self._clock())

    def _mine_block(self) -> None:
        parent = self.head.header
        fields = {"coinbase": ZERO_ADDRESS, "mix_hash": keccak(b"prevrandao" + parent.hash)}
        time = max(parent.timestamp + 1, int(self._clock()) + self._offset)
        self._chain.header = PragueVM.create_header_from_parent(  # pyright: ignore
            parent, timestamp=time, gas_limit=parent.gas_limit, **fields
        )
        transactions, receipts = self._run_waiting()
        block = self._chain.mine_block(**fields)
        for index, transaction in enumerate(transactions):
            self._positions[transaction.hash] = (block.number, index)
        self._block_numbers[block.hash] = block.number
        self._blocks.append(Mined(block.header, tuple(transactions), tuple(receipts)))

    def _run_waiting(self) -> tuple[list[SignedTransactionAPI], list[ReceiptAPI]]:
        """Applies the transactions that fit into the block, best tip first; drops those that can no longer run."""
        state = self.state(self.head.header)
        nonces = {sender: state.get_nonce(Address(sender)) for sender in self.mempool.senders}
        transactions: list[SignedTransactionAPI] = []
        receipts: list[ReceiptAPI] = []
        while best := self.mempool.best(nonces, self._chain.header.base_fee_per_gas):  # pyright: ignore
            if best.gas > self._chain.header.gas_limit - self._chain.header.gas_used:
                del nonces[best.sender]  # waits for the next block
                continue
            self.mempool.drop(best)
            try:
                _, receipt, _ = self._chain.apply_transaction(best)
            except ValidationError:  # its sender no longer has the balance
                continue
            nonces[best.sender] += 1
            transactions.append(best)
            receipts.append(receipt)
        return transactions, receipts


PRECOMPILES = {**PragueComputation.get_precompiles(), Address(p256.ADDRESS): p256.p256_verify}


class _Computation(PragueComputation):
    _precompiles = PRECOMPILES


class _State(PragueState):
    computation_class = _Computation


class _VM(PragueVM):
    _state_class = _State


class _Chain(MiningChain):
    """A chain whose pending block does not read the wall clock."""

    def create_header_from_parent(
        self, parent_header: BlockHeaderAPI, **header_params: Any
    ) -> BlockHeaderAPI:
        fields = {
            "timestamp": parent_header.timestamp + 1,
            "gas_limit": parent_header.gas_limit,
            **header_params,
        }
        return super().create_header_from_parent(parent_header, **fields)


class _Backend(PyEVMBackend):
    """eth-tester's py-evm backend over the devnet's chain: reading is eth-tester's own, writing is the devnet's."""

    def __init__(self, devnet: Devnet, chain: MiningChain) -> None:
        self._devnet = devnet
        self._genesis = chain
        super().__init__()

    def reset_to_genesis(self, *_: object, **__: object) -> None:
        self.account_keys, self.chain = (), self._genesis

    def mine_blocks(self, num_blocks: int = 1, coinbase: bytes = ZERO_ADDRESS) -> tuple[bytes, ...]:
        first = self._devnet.head.header.block_number + 1
        self._devnet.mine(num_blocks)
        blocks = [self._devnet.block(first + i) for i in range(num_blocks)]
        return tuple(block.header.hash for block in blocks if block is not None)

    def time_travel(self, to_timestamp: int) -> int:
        self._devnet.travel(to_timestamp)
        return to_timestamp

    def send_raw_transaction(self, raw_transaction: bytes) -> bytes:
        return self._devnet.accept(raw_transaction)

    def take_snapshot(self) -> Hash32:
        return Hash32(self._devnet.head.header.hash)

    def revert_to_snapshot(self, snapshot: Hash32) -> None:
        number = self._devnet.block_number(snapshot)
        assert number is not None, "eth-tester gives back what it took"
        self._devnet.revert(number)


def _genesis_chain(database: AtomicDB, accounts: Mapping[str, int], chain_id: int, time: int) -> MiningChain:
    chain_class = _Chain.configure("DevnetChain", vm_configuration=((0, _VM),), chain_id=chain_id)
    parameters = {
        "coinbase": ZERO_ADDRESS,
        "difficulty": 0,
        "extra_data": b"",
        "gas_limit": GAS_LIMIT,
        "mix_hash": b"\0" * 32,
        "nonce": b"\0" * 8,
        "timestamp": time,
    }
    balances = {
        to_canonical_address(address): {"balance": wei, "nonce": 0, "code": b"", "storage": {}}
        for address, wei in accounts.items()
    }
    return chain_class.from_genesis(database, parameters, balances)  # pyright: ignore
