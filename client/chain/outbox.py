"""The outbox: transactions that are saved before they are sent, and mined at most once.

An intent keeps one nonce for life. Every version of it (a higher fee, or the empty transfer that cancels it) is signed,
written to the journal with its hash, and only then sent. So at most one version can ever be mined, and a node that is
killed at any moment knows which hashes to look for on the chain. It stays open until its block is final.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

import structlog

from earnest.base.errors import (
    BadAnswer,
    ChainError,
    EndpointDown,
    NonceDrift,
    OutOfFunds,
    ReorgDetected,
    Reverted,
)
from earnest.client.chain.answers import Receipt
from earnest.client.chain.contracts import Call
from earnest.client.chain.endpoints import GWEI, Chain, Fees, SendResult
from earnest.client.chain.signer import Signed, Signer

log = structlog.get_logger()

CANCEL_GAS = 21_000


class Status(StrEnum):
    """Status of an intent; every one but `OPEN` is final."""

    OPEN = "open"  # written down; perhaps sent, perhaps mined
    DONE = "done"  # mined, did what it should
    REVERTED = "reverted"  # mined, the contract refused
    CANCELLED = (
        "cancelled"  # no longer needed; its nonce was used up by an empty transfer, or never signed away
    )
    LOST = "lost"  # its nonce was used by a transaction that is not ours


@dataclass(frozen=True)
class Intent:
    """One transaction that must be mined once; its fee may be raised.

    `name` is unique and says why ("1/commit/4" = run 1, round 4). `hashes` are the transaction hashes of all
    versions signed so far, oldest first, on the same `nonce`; a version is written here before it is sent.
    `max_fee` and `tip` (wei per gas) are the newest version's. `deadline` is chain time, seconds.
    """

    name: str
    to: str  # checksummed address
    data: bytes
    value: int  # wei
    gas: int
    nonce: int
    max_fee: int
    tip: int
    hashes: tuple[str, ...]  # 0x-prefixed hex
    status: str  # a Status
    created_block: int
    deadline: int | None = None


class IntentStore(Protocol):
    """Storage of intents; every write is synced to disk when its method returns."""

    def add_intent(self, intent: Intent) -> None:
        """Writes a new intent, replacing a closed one of the same name."""
        ...

    def update_intent(self, intent: Intent) -> None:
        """Overwrites the intent of this name."""
        ...

    def intent(self, name: str) -> Intent | None:
        """Returns the intent of this name, or None."""
        ...

    def open_intents(self) -> list[Intent]:
        """Returns every open intent, lowest nonce first."""
        ...


class MemoryIntents:
    """An IntentStore for one command that ends with its transactions mined. Nodes use the journal."""

    def __init__(self) -> None:
        self._intents: dict[str, Intent] = {}

    def add_intent(self, intent: Intent) -> None:
        self._intents[intent.name] = intent

    def update_intent(self, intent: Intent) -> None:
        self._intents[intent.name] = intent

    def intent(self, name: str) -> Intent | None:
        return self._intents.get(name)

    def open_intents(self) -> list[Intent]:
        return sorted((i for i in self._intents.values() if i.status == Status.OPEN), key=lambda i: i.nonce)


class FeeBid(NamedTuple):
    """The most that a transaction pays, in wei per gas: in total, and as a tip to the block's producer."""

    max_fee: int
    tip: int


@dataclass(frozen=True)
class FeePolicy:
    """Rules for the fee of a transaction, and for raising it."""

    patience_s: float = 45.0
    ceiling: int = 500 * GWEI  # wei per gas; rather than pay more, the node waits

    def gas(self, estimate: int) -> int:
        """Returns a gas limit above the estimate, since the state may change: plus a quarter and one new slot."""
        return estimate * 5 // 4 + 22_100

    def first(self, market: Fees) -> FeeBid:
        """Returns the fee of a new transaction."""
        max_fee = min(market.max_fee, self.ceiling)
        return FeeBid(max_fee, min(market.tip, max_fee))

    def next(self, intent: Intent, market: Fees) -> FeeBid | None:
        """Returns a replacement's fee: 12.5 % over the last, rounded up, or the market's; None above the ceiling."""
        max_fee = max(_more(intent.max_fee), min(market.max_fee, self.ceiling))
        if max_fee > self.ceiling:
            return None
        return FeeBid(max_fee, min(max(_more(intent.tip), market.tip), max_fee))

    def patience(self, left_s: float | None) -> float:
        """Returns the seconds to wait for one version: `patience_s`, or an eighth of the time left but at least 2."""
        return self.patience_s if left_s is None else min(self.patience_s, max(2.0, left_s / 8))


@dataclass(frozen=True)
class Preview:
    """Estimated cost of a call and the sender's balance, in wei; fees per gas."""

    call: Call
    gas: int
    max_fee: int
    tip: int
    balance: int

    @property
    def cost(self) -> int:
        """The largest possible cost in wei, value included."""
        return self.gas * self.max_fee + self.call.value

    @property
    def balance_after(self) -> int:
        """The smallest possible balance afterwards, in wei; negative if the account cannot pay."""
        return self.balance - self.cost


def preview(chain: Chain, sender: str, call: Call, policy: FeePolicy | None = None) -> Preview:
    """Estimates gas, cost and balance of a call sent now; needs no key. Raises Reverted with the contract's reason."""
    policy = policy or FeePolicy()
    gas = policy.gas(chain.estimate(sender, call.to, call.data, call.value))
    offer = policy.first(chain.fees())
    return Preview(call, gas, offer.max_fee, offer.tip, chain.balance(sender, chain.head()))


class Outbox:
    """Sends one account's transactions, each intent at most once.

    `clock` (seconds, any origin) and `sleep` pace the waiting; deadlines are compared with block time.
    """

    def __init__(
        self,
        chain: Chain,
        signer: Signer,
        store: IntentStore,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        policy: FeePolicy | None = None,
        poll_s: float = 1.0,
        wait_s: float = 120.0,
    ) -> None:
        self._chain = chain
        self._signer = signer
        self._store = store
        self._clock = clock
        self._sleep = sleep
        self._policy = policy or FeePolicy()
        self._poll_s = poll_s
        self._wait_s = wait_s
        self._sent_at: dict[str, float] = {}
        self._next_nonce = 0

    @property
    def address(self) -> str:
        """The account that sends."""
        return self._signer.address

    def dry_run(self, call: Call) -> Preview:
        """Estimates a call without sending it."""
        return preview(self._chain, self.address, call, self._policy)

    def send(
        self,
        name: str,
        call: Call,
        still_needed: Callable[[], bool] = lambda: True,
        deadline: int | None = None,
    ) -> Receipt | None:
        """Gets the call mined once, and waits for it.

        Returns None if it was not needed (any more), or is not mined after `wait_s`; then it stays open, and `resume`
        or the same `send` continues. A call under a name used before is sent again only if the earlier one reverted,
        was cancelled or lost its nonce. Raises Reverted (before sending, where that can be known), OutOfFunds,
        NonceDrift, or EndpointDown or BadAnswer if the chain stays unreachable.
        """
        intent = self._store.intent(name)
        if intent is not None and intent.status == Status.DONE:
            return self._mined(intent)
        if intent is None or intent.status != Status.OPEN:
            if self._expired(deadline) or not still_needed():
                return None
            self._write_down(name, call, deadline)
        return self._wait(name, still_needed)

    def resume(self) -> list[Receipt]:
        """Checks every open intent once: closes it, sends it again, raises its fee or cancels it. Does not wait.

        Call it after a start and in every cycle. Returns the receipts of those that are mined.
        """
        looked = [self._advance(intent, lambda: True) for intent in self._store.open_intents()]
        return [receipt for receipt in looked if receipt is not None]

    # One intent's way

    def _write_down(self, name: str, call: Call, deadline: int | None) -> None:
        plan = self.dry_run(call)
        if plan.balance_after < 0:
            raise OutOfFunds(
                f"{self.address} has {plan.balance} wei; {call.function} may cost {plan.cost} wei",
                "send it some of the chain's coin",
            )
        waiting = self._store.open_intents()
        nonce = max(
            self._chain.next_nonce(self.address), self._next_nonce, *(intent.nonce + 1 for intent in waiting)
        )
        intent = Intent(
            name=name,
            to=call.to,
            data=call.data,
            value=call.value,
            gas=plan.gas,
            nonce=nonce,
            max_fee=plan.max_fee,
            tip=plan.tip,
            hashes=(),
            status=Status.OPEN,
            created_block=self._chain.head().number,
            deadline=deadline,
        )
        self._store.add_intent(self._with_version(intent))
        self._next_nonce = nonce + 1

    def _wait(self, name: str, still_needed: Callable[[], bool]) -> Receipt | None:
        give_up = self._clock() + self._wait_s
        while True:
            trouble: ChainError | None = None
            intent = self._reread(name)
            try:
                self._advance_earlier(intent)
                receipt = self._advance(intent, still_needed)
                if receipt is not None:
                    return self._outcome(intent, receipt)
            except (EndpointDown, BadAnswer, ReorgDetected) as error:
                log.warning("chain does not answer", intent=name, cause=error.cause)
                trouble = error
            if self._clock() >= give_up:
                if trouble is not None:
                    raise trouble
                return None
            self._sleep(self._poll_s)

    def _advance_earlier(self, intent: Intent) -> None:
        """Advances the intents with lower nonces, which must be mined first."""
        for earlier in self._store.open_intents():
            if earlier.nonce < intent.nonce:
                self._advance(earlier, lambda: True)

    def _advance(self, intent: Intent, still_needed: Callable[[], bool]) -> Receipt | None:
        """Takes one step; returns the receipt once any version is mined."""
        receipt = self._mined(intent)
        if receipt is not None:
            self._close_when_final(intent, receipt)
            return receipt
        if self._chain.nonce(self.address) > intent.nonce:
            self._refuse_drift(intent)
            return None
        unsent, overdue = intent.name not in self._sent_at, self._overdue(intent)
        unwanted = self._expired(intent.deadline) or ((unsent or overdue) and not still_needed())
        if unwanted and not self._is_cancel(intent):
            self._cancel(intent)
        elif overdue:
            self._pay_more(intent)
        elif unsent:
            self._deliver(intent)
        return None

    def _mined(self, intent: Intent) -> Receipt | None:
        receipts = (self._chain.receipt(version) for version in reversed(intent.hashes))
        return next((receipt for receipt in receipts if receipt is not None), None)

    def _close_when_final(self, intent: Intent, receipt: Receipt) -> None:
        if receipt.block_number > self._chain.final().number:
            return
        if receipt.to == self.address:
            status = Status.CANCELLED
        else:
            status = Status.DONE if receipt.succeeded else Status.REVERTED
        self._close(intent, status)

    def _refuse_drift(self, intent: Intent) -> None:
        """Raises NonceDrift if the nonce was used by another program, not by a version whose receipt is pending."""
        final = self._chain.nonce(self.address, self._chain.final())
        if final <= intent.nonce or self._mined(intent) is not None:
            return
        self._close(intent, Status.LOST)
        raise NonceDrift(
            f"nonce {intent.nonce} of {self.address}, kept for {intent.name}, was used by something else",
            "stop every other program that sends with this key, then start again",
        )

    def _outcome(self, intent: Intent, receipt: Receipt) -> Receipt | None:
        if receipt.to == self.address:
            return None
        if not receipt.succeeded:
            reason = self._reason(intent, receipt)
            raise Reverted(reason, f"{intent.name} was mined, but refused: {reason}", "see docs/reverts.md")
        return receipt

    def _reason(self, intent: Intent, receipt: Receipt) -> str:
        """Returns the revert reason of a mined transaction, from the same call on the states before and after it."""
        if receipt.gas_used >= intent.gas:
            return "out of gas"
        try:
            for number in (receipt.block_number - 1, receipt.block_number):
                self._chain.call(intent.to, intent.data, self._chain.block(number), sender=self.address)
        except Reverted as error:
            return error.reason
        except (BadAnswer, EndpointDown):
            return "the endpoint no longer has the state to tell"
        return "something in its own block was in the way"

    # Versions

    def _with_version(self, intent: Intent) -> Intent:
        return replace(intent, hashes=(*intent.hashes, self._sign(intent).hash))

    def _sign(self, intent: Intent) -> Signed:
        return self._signer.sign(
            {
                "type": 2,
                "chainId": self._chain.chain_id,
                "nonce": intent.nonce,
                "gas": intent.gas,
                "maxFeePerGas": intent.max_fee,
                "maxPriorityFeePerGas": intent.tip,
                "to": intent.to,
                "data": intent.data,
                "value": intent.value,
            }
        )

    def _deliver(self, intent: Intent, attempts: int = 4) -> None:
        try:
            delivery = self._chain.send_raw(self._sign(intent).raw)
        except OutOfFunds as error:
            if len(intent.hashes) == 1:
                raise
            log.warning("cannot pay more", intent=intent.name, cause=error.cause)
            delivery = SendResult.KNOWN
        if delivery is SendResult.NONCE_GAP:
            return
        self._sent_at[intent.name] = self._clock()
        if delivery is SendResult.UNDERPRICED and attempts:
            self._pay_more(intent, attempts - 1)

    def _pay_more(self, intent: Intent, attempts: int = 4) -> None:
        offer = self._policy.next(intent, self._chain.fees())
        if offer is None:
            log.warning("fee ceiling reached", intent=intent.name, max_fee=intent.max_fee)
            self._deliver(intent, 0)
        else:
            self._replace(replace(intent, max_fee=offer.max_fee, tip=offer.tip), attempts)

    def _cancel(self, intent: Intent) -> None:
        """Replaces the intent by an empty transfer; an older version may still be mined first."""
        offer = self._policy.next(intent, self._chain.fees())
        if offer is not None:
            empty = replace(intent, to=self.address, data=b"", value=0, gas=CANCEL_GAS)
            self._replace(replace(empty, max_fee=offer.max_fee, tip=offer.tip), attempts=4)

    def _replace(self, newer: Intent, attempts: int) -> None:
        newer = self._with_version(newer)
        self._store.update_intent(newer)
        self._deliver(newer, attempts)

    # Queries

    def _is_cancel(self, intent: Intent) -> bool:
        return intent.to == self.address

    def _expired(self, deadline: int | None) -> bool:
        return deadline is not None and self._chain.head().time >= deadline

    def _overdue(self, intent: Intent) -> bool:
        sent = self._sent_at.get(intent.name)
        if sent is None:
            return False
        left = None if intent.deadline is None else intent.deadline - self._chain.head().time
        return self._clock() - sent >= self._policy.patience(left)

    def _reread(self, name: str) -> Intent:
        intent = self._store.intent(name)
        assert intent is not None, "an intent that was written down is never removed"
        return intent

    def _close(self, intent: Intent, status: Status) -> None:
        self._store.update_intent(replace(intent, status=status))
        self._sent_at.pop(intent.name, None)


def _more(fee: int) -> int:
    return -(-fee * 9 // 8)
