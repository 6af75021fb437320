"""Transactions that wait for a block: ordered by nonce, replaceable at a higher fee, limited in number."""

from __future__ import annotations

from collections.abc import Iterator

from eth.abc import SignedTransactionAPI

MAX_PER_SENDER = 64
MAX_TOTAL = 4096
PRICE_BUMP_PERCENT = 10  # required of a replacement, as in go-ethereum

Address = bytes


class TransactionRejected(Exception):
    """The pool rejects a transaction; the message is sent to the client."""


class Mempool:
    """Pending transactions by sender and nonce. Nonce gaps are allowed; a transaction after a gap waits."""

    def __init__(self) -> None:
        self._by_sender: dict[Address, dict[int, SignedTransactionAPI]] = {}

    def add(self, transaction: SignedTransactionAPI, next_nonce: int) -> None:
        """Takes a transaction; `next_nonce` is its sender's next nonce on the chain.

        A transaction with the nonce of a waiting one replaces it if both its fee and its tip are 10 % higher.
        Raises TransactionRejected: nonce used, already known, underpriced replacement, pool or sender's queue full.
        """
        queue = self._by_sender.get(transaction.sender, {})
        waiting = queue.get(transaction.nonce)
        if transaction.nonce < next_nonce:
            raise TransactionRejected(f"nonce too low: next nonce {next_nonce}, tx nonce {transaction.nonce}")
        if waiting is not None:
            if waiting.hash == transaction.hash:
                raise TransactionRejected("already known")
            if not _outbids(transaction, waiting):
                raise TransactionRejected("replacement transaction underpriced")
        elif len(queue) >= MAX_PER_SENDER or len(self) >= MAX_TOTAL:
            raise TransactionRejected("txpool is full")
        self._by_sender.setdefault(transaction.sender, {})[transaction.nonce] = transaction

    def drop(self, transaction: SignedTransactionAPI) -> None:
        """Removes the waiting transaction with this sender and nonce."""
        queue = self._by_sender.get(transaction.sender, {})
        queue.pop(transaction.nonce, None)
        if not queue:
            self._by_sender.pop(transaction.sender, None)

    def next_nonce(self, sender: Address, next_nonce: int) -> int:
        """Returns the account's next nonce, waiting transactions included up to the first gap ("pending")."""
        queue = self._by_sender.get(sender, {})
        while next_nonce in queue:
            next_nonce += 1
        return next_nonce

    def best(self, nonces: dict[Address, int], base_fee: int) -> SignedTransactionAPI | None:
        """Returns the transaction with the highest tip among those that can run now; None if there is none."""
        ready = [queue[nonces[s]] for s, queue in self._by_sender.items() if nonces.get(s) in queue]
        payable = [transaction for transaction in ready if transaction.max_fee_per_gas >= base_fee]
        return max(payable, key=lambda t: _effective_tip(t, base_fee), default=None)

    def find(self, transaction_hash: bytes) -> SignedTransactionAPI | None:
        """Returns the waiting transaction with this hash; None if there is none."""
        return next((t for t in self if t.hash == transaction_hash), None)

    @property
    def senders(self) -> list[Address]:
        """Senders of waiting transactions, longest waiting first."""
        return list(self._by_sender)

    def __iter__(self) -> Iterator[SignedTransactionAPI]:
        for queue in self._by_sender.values():
            yield from queue.values()

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._by_sender.values())


def _outbids(new: SignedTransactionAPI, old: SignedTransactionAPI) -> bool:
    bump = 100 + PRICE_BUMP_PERCENT
    return (
        new.max_fee_per_gas * 100 >= old.max_fee_per_gas * bump
        and new.max_priority_fee_per_gas * 100 >= old.max_priority_fee_per_gas * bump
    )


def _effective_tip(transaction: SignedTransactionAPI, base_fee: int) -> int:
    return min(transaction.max_priority_fee_per_gas, transaction.max_fee_per_gas - base_fee)
