"""The chain through several untrusted endpoints, with every read pinned to one block.

A request moves to the next endpoint when one is down, late, on another chain or gives an invalid answer; a failed
endpoint is skipped for a growing number of requests. Contradictions are errors: a block that changed its hash, logs
outside their range, a receipt that its block does not list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from json import JSONDecodeError
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import requests
import structlog
from eth_hash.auto import keccak
from web3 import EthereumTesterProvider, HTTPProvider, Web3
from web3.exceptions import ContractLogicError, Web3Exception
from web3.providers import BaseProvider
from web3.types import RPCEndpoint

from earnest.base.errors import (
    BadAnswer,
    ChainError,
    EndpointDown,
    OutOfFunds,
    ReorgDetected,
    Reverted,
    WrongChain,
)
from earnest.client.chain import answers
from earnest.client.chain.answers import PARSE_ERRORS, Block, Log, Receipt
from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.bounded import BoundedProvider

log = structlog.get_logger()

T = TypeVar("T")
GWEI = 10**9
_PINS_KEPT = 256
_PLAUSIBLE_QUEUE = 64  # transactions of one account that may be pending before we disbelieve the endpoint
_LONGEST_REST = 64  # requests


class Fees(NamedTuple):
    """Current fees in wei per gas: the newest block's base fee, and the tip that the endpoint suggests."""

    base: int
    tip: int

    @property
    def max_fee(self) -> int:
        """The fee limit of a new transaction: it stays valid until the base fee has doubled."""
        return 2 * self.base + self.tip


class SendResult(Enum):
    """An endpoint's answer to a signed transaction."""

    ACCEPTED = "accepted"
    KNOWN = "already known"
    NONCE_USED = "nonce too low"
    NONCE_GAP = "nonce too high"
    UNDERPRICED = "underpriced"


class RpcErrorAnswer(BadAnswer):
    """The endpoint answered with a JSON-RPC error."""

    def __init__(self, name: str, message: str, data: Any) -> None:
        super().__init__(f"{name} refused: {message:.300}", "ask another endpoint, or read its message")
        self.message = message
        self.data = data


class Endpoint:
    """One provider. `name` is safe to print: a URL's path, query and password are left out."""

    def __init__(self, provider: BaseProvider | str, chain_id: int, timeout_s: float) -> None:
        if isinstance(provider, str):
            provider = BoundedProvider(
                provider, request_kwargs={"timeout": timeout_s}, exception_retry_configuration=None
            )
        self.name = _printable(provider)
        self.resting = 0
        self._failures = 0
        self._chain_id = chain_id
        self._chain_checked = False
        self._refusals = _refusals_of(provider)
        web3 = Web3(provider, middleware=[])
        self._request = provider.request_func(web3, web3.middleware_onion)
        self._pins: dict[int, bytes] = {}

    def ask(self, method: str, params: Sequence[Any], parse: Callable[[Any], T]) -> T:
        """Sends a request and returns the parsed result.

        Raises EndpointDown, BadAnswer (RpcErrorAnswer for a JSON-RPC error) or WrongChain.
        """
        if not self._chain_checked:
            chain_id = self._exchange("eth_chainId", (), answers.quantity)
            if chain_id != self._chain_id:
                raise WrongChain(
                    f"{self.name} serves chain {chain_id}, not {self._chain_id}",
                    "check the endpoint's URL and the network that was chosen",
                )
            self._chain_checked = True
        return self._exchange(method, params, parse)

    def block(self, number: int | str) -> Block | None:
        """Returns the block of this number ("latest" for the newest); None if the endpoint does not have it."""
        tag = number if isinstance(number, str) else hex(number)
        block = self.ask("eth_getBlockByNumber", (tag, False), answers.block)
        if block is not None and isinstance(number, int) and block.ref.number != number:
            raise BadAnswer(f"{self.name} gave block {block.ref.number} for {number}", "use another endpoint")
        return block

    def check_pin(self, at: BlockRef) -> None:
        """Checks, once per block, that this endpoint's block of that number is the pinned one."""
        if self._pins.get(at.number) == at.hash:
            return
        block = self.block(at.number)
        if block is None:
            raise BadAnswer(f"{self.name} lags: it has no block {at.number}", "wait for it, or use another")
        if block.ref.hash != at.hash:
            raise ReorgDetected(
                at.number - 1,
                f"block {at.number} is {block.ref.hash.hex()[:12]} on {self.name}, not {at.hash.hex()[:12]}",
                "read again from a newer block; wait for more confirmations if it happens often",
            )
        self._pins[at.number] = at.hash
        if len(self._pins) > _PINS_KEPT:
            del self._pins[min(self._pins)]

    def failed(self, error: ChainError) -> None:
        """Skips the endpoint for 1, 2, 4, ... requests; then its chain id is checked again."""
        self.resting = min(_LONGEST_REST, 1 << self._failures)
        self._failures = min(self._failures + 1, 6)
        self._chain_checked = False
        self._pins.clear()
        log.warning("endpoint failed", endpoint=self.name, cause=error.cause)

    def worked(self) -> None:
        self.resting = self._failures = 0

    def _exchange(self, method: str, params: Sequence[Any], parse: Callable[[Any], T]) -> T:
        try:
            response = self._request(RPCEndpoint(method), list(params))
        except self._refusals as error:
            raise RpcErrorAnswer(self.name, str(error), getattr(error, "data", None)) from None
        except requests.exceptions.RequestException as error:
            raise EndpointDown(f"{self.name} {_plain(error)}", _fix(error)) from None
        except (JSONDecodeError, UnicodeDecodeError, RecursionError, Web3Exception, *PARSE_ERRORS) as error:
            raise self._garbage(method) from error
        if not isinstance(response, Mapping) or ("result" not in response and "error" not in response):
            raise self._garbage(method)
        refused = response.get("error")
        if refused is not None:
            raise _refusal(self.name, refused)
        try:
            return parse(response.get("result"))
        except PARSE_ERRORS as error:
            raise self._garbage(method) from error

    def _garbage(self, method: str) -> BadAnswer:
        return BadAnswer(
            f"{self.name} gave an invalid answer to {method}",
            "check that the URL is a JSON-RPC endpoint, or use another",
        )


class Chain:
    """One chain through all its endpoints.

    A block is final once it is `confirmations` blocks below the head. `quorum` endpoints (at most all) must give
    the same answer to every pinned read. With `clock` and `max_lag_s`, an older head is refused.
    """

    def __init__(
        self,
        providers: Sequence[BaseProvider | str],
        chain_id: int,
        confirmations: int = 0,
        *,
        quorum: int = 1,
        timeout_s: float = 10.0,
        clock: Callable[[], float] | None = None,
        max_lag_s: float | None = None,
    ) -> None:
        if not providers:
            raise ValueError("a chain needs at least one endpoint")
        self.chain_id = chain_id
        self.confirmations = confirmations
        self._endpoints = [Endpoint(provider, chain_id, timeout_s) for provider in providers]
        self._quorum = min(quorum, len(self._endpoints))
        self._clock = clock
        self._max_lag_s = max_lag_s
        self._highest = 0

    # Blocks

    def head(self) -> BlockRef:
        """Returns the newest block that any endpoint knows. Raises BadAnswer if all of them lag."""
        return self._newest().ref

    def final(self) -> BlockRef:
        """Returns the newest final block: `confirmations` blocks below the head."""
        head = self.head()
        return self.block(max(0, head.number - self.confirmations)) if self.confirmations else head

    def block(self, number: int) -> BlockRef:
        """Returns the block of this number. Raises BadAnswer if no endpoint has it."""

        def read(endpoint: Endpoint) -> BlockRef:
            block = endpoint.block(number)
            if block is None:
                raise BadAnswer(
                    f"{endpoint.name} has no block {number}", "wait for it, or use another endpoint"
                )
            return block.ref

        return self._first(read)

    # Reads at one block

    def call(self, to: str, data: bytes, at: BlockRef, sender: str | None = None) -> bytes:
        """Calls a contract's view at block `at` and returns its result. Raises Reverted with the contract's reason."""
        request = {"data": _hex(data)} | ({"to": to} if to else {}) | ({"from": sender} if sender else {})
        return self._pinned(at, "eth_call", (request, hex(at.number)), answers.data)

    def balance(self, address: str, at: BlockRef) -> int:
        """Returns the account's balance in wei at block `at`."""
        return self._pinned(at, "eth_getBalance", (address, hex(at.number)), answers.quantity)

    def code(self, address: str, at: BlockRef) -> bytes:
        """Returns the account's code at block `at`; empty if there is no contract."""
        return self._pinned(at, "eth_getCode", (address, hex(at.number)), answers.data)

    def logs(self, addresses: Sequence[str], first: int, last: BlockRef | int) -> tuple[Log, ...]:
        """Returns every event of the addresses in blocks first to last, both included, in chain order.

        If `last` is a BlockRef, the endpoint must have exactly that block. Raises BadAnswer if it refuses the
        range (request a smaller one) or returns logs that were not requested.
        """
        number = last if isinstance(last, int) else last.number
        query: dict[str, Any] = {"fromBlock": hex(first), "toBlock": hex(number), "address": list(addresses)}

        def read(endpoint: Endpoint) -> tuple[Log, ...]:
            if isinstance(last, BlockRef):
                endpoint.check_pin(last)
            logs = endpoint.ask("eth_getLogs", (query,), answers.logs)
            for entry in logs:
                if not first <= entry.block_number <= number or entry.address not in addresses:
                    raise BadAnswer(
                        f"{endpoint.name} gave logs that were not asked for", "use another endpoint"
                    )
            return logs

        return self._first(read, self._quorum)

    # Transactions

    def nonce(self, address: str, at: BlockRef | str = "latest") -> int:
        """Returns the number of transactions the account has sent up to `at`; for a tag, the most of any endpoint."""
        if isinstance(at, BlockRef):
            return self._pinned(at, "eth_getTransactionCount", (address, hex(at.number)), answers.quantity)
        counts = self._all(lambda e: e.ask("eth_getTransactionCount", (address, at), answers.quantity))
        return max(counts)

    def next_nonce(self, address: str) -> int:
        """Returns the account's next nonce, counting pending transactions."""
        latest = self.nonce(address, "latest")
        pending = self.nonce(address, "pending")
        if pending - latest > _PLAUSIBLE_QUEUE:
            raise BadAnswer(
                f"an endpoint claims {pending - latest} pending transactions of {address}",
                "use another endpoint, or wait until they are mined",
            )
        return max(latest, pending)

    def fees(self) -> Fees:
        """Returns the base fee of the newest block and a suggested tip (1 gwei if the endpoint suggests none)."""
        newest = self._newest()
        if newest.base_fee is None:
            raise BadAnswer("the chain has no base fee", "use a chain with EIP-1559 fees")
        try:
            tip = self._first(lambda e: e.ask("eth_maxPriorityFeePerGas", (), answers.quantity))
        except RpcErrorAnswer:
            tip = GWEI
        return Fees(newest.base_fee, tip)

    def estimate(self, sender: str, to: str, data: bytes, value: int = 0) -> int:
        """Returns the gas that the transaction would use now; empty `to`: a creation. Raises Reverted or OutOfFunds."""
        request = {"from": sender, "data": _hex(data), "value": hex(value)} | ({"to": to} if to else {})
        return self._first(lambda e: e.ask("eth_estimateGas", (request,), answers.quantity))

    def send_raw(self, raw: bytes) -> SendResult:
        """Sends a signed transaction to the first endpoint that accepts it. Raises OutOfFunds, or as reads do.

        EndpointDown may hide a success: read its receipt, or send the same bytes again.
        """
        expected = "0x" + keccak(raw).hex()

        def deliver(endpoint: Endpoint) -> SendResult:
            try:
                answered = endpoint.ask("eth_sendRawTransaction", (_hex(raw),), answers.hash_text)
            except RpcErrorAnswer as refusal:
                return _delivery(refusal)
            if answered != expected:
                raise BadAnswer(f"{endpoint.name} gave another transaction's hash", "use another endpoint")
            return SendResult.ACCEPTED

        return self._first(deliver)

    def receipt(self, transaction: str) -> Receipt | None:
        """Returns a transaction's receipt, None while no endpoint has it mined.

        A receipt counts only if every endpoint that has its block lists the transaction in it and no other
        receipt differs; otherwise BadAnswer. An endpoint without the receipt is overruled.
        """

        def read(endpoint: Endpoint) -> Receipt | None:
            receipt = endpoint.ask("eth_getTransactionReceipt", (transaction,), answers.receipt)
            if receipt is not None and receipt.hash != transaction:
                raise BadAnswer(f"{endpoint.name} gave another transaction's receipt", "use another endpoint")
            return receipt

        receipts = {receipt for receipt in self._all(read) if receipt is not None}
        if not receipts:
            return None
        receipt = receipts.pop()
        if receipts:
            raise _disagreement(f"on the receipt of {transaction}")
        for block in self._all(lambda e: e.block(receipt.block_number)):
            if block is None:
                continue
            if block.ref.hash != receipt.block_hash or transaction not in block.transactions:
                raise BadAnswer(
                    f"the receipt of {transaction} names a block that does not hold it",
                    "ask again; drop the endpoint if it persists",
                )
        return receipt

    def check(self) -> dict[str, ChainError | None]:
        """Returns each endpoint's error by its name; None for a healthy one. For `earnest doctor`."""
        errors: dict[str, ChainError | None] = {}
        for endpoint in self._endpoints:
            try:
                endpoint.block("latest")
                errors[endpoint.name] = None
            except ChainError as error:
                errors[endpoint.name] = error
        return errors

    # Choosing endpoints

    def _newest(self) -> Block:
        blocks = [block for block in self._all(lambda e: e.block("latest")) if block is not None]
        if not blocks:
            raise BadAnswer("no endpoint has any block", "wait until they have synchronised")
        newest = max(blocks, key=lambda block: block.ref.number)
        behind = self._highest - newest.ref.number
        if behind > max(64, self.confirmations):
            raise BadAnswer(f"every endpoint is {behind} blocks behind what was seen before", "use another")
        if self._clock is not None and self._max_lag_s is not None:
            age = self._clock() - newest.ref.time
            if age > self._max_lag_s:
                raise BadAnswer(f"the newest block is {age:.0f} s old", "wait, or use an endpoint in step")
        self._highest = max(self._highest, newest.ref.number)
        return newest

    def _pinned(self, at: BlockRef, method: str, params: Sequence[Any], parse: Callable[[Any], T]) -> T:
        def read(endpoint: Endpoint) -> T:
            endpoint.check_pin(at)
            return endpoint.ask(method, params, parse)

        return self._first(read, self._quorum)

    def _first(self, read: Callable[[Endpoint], T], quorum: int = 1) -> T:
        """Returns the first answer, or the one that `quorum` endpoints agree on."""
        results: list[T] = []
        failures: list[ChainError] = []
        for answer in self._attempts(read, self._in_turn(), failures):
            results.append(answer)
            if answer != results[0]:
                raise _disagreement("on a pinned reading")
            if len(results) == quorum:
                return answer
        raise _worst(failures)

    def _all(self, read: Callable[[Endpoint], T]) -> list[T]:
        """Returns every available answer; raises if there is none."""
        failures: list[ChainError] = []
        awake = [endpoint for endpoint in self._in_turn() if not endpoint.resting] or self._in_turn()
        results = list(self._attempts(read, awake, failures))
        if not results:
            raise _worst(failures)
        return results

    def _in_turn(self) -> list[Endpoint]:
        for endpoint in self._endpoints:
            endpoint.resting = max(0, endpoint.resting - 1)
        return sorted(self._endpoints, key=lambda endpoint: endpoint.resting > 0)

    def _attempts(
        self, read: Callable[[Endpoint], T], endpoints: Sequence[Endpoint], failures: list[ChainError]
    ) -> Iterator[T]:
        for endpoint in endpoints:
            try:
                answer = read(endpoint)
            except RpcErrorAnswer as refusal:
                _raise_if_final(refusal)
                failures.append(refusal)
            except (EndpointDown, BadAnswer, WrongChain, ReorgDetected) as error:
                failures.append(error)
                endpoint.failed(error)
            else:
                endpoint.worked()
                yield answer


def _raise_if_final(refusal: RpcErrorAnswer) -> None:
    """Raises Reverted or OutOfFunds for a refusal that every other endpoint would repeat."""
    reason = answers.revert_reason(refusal.message, refusal.data)
    if reason is not None:
        raise Reverted(
            reason, f"the contract refused: {reason}", "see docs/reverts.md for this reason"
        ) from None
    if _matches(
        refusal.message, "insufficient funds", "insufficientfunds", "not have enough balance", "cannot afford"
    ):
        raise OutOfFunds(
            f"the account cannot pay for gas and value: {refusal.message:.200}",
            "send it some of the chain's coin",
        ) from None


def _delivery(refusal: RpcErrorAnswer) -> SendResult:
    """Classifies a refused transaction by the messages of geth, anvil, Nethermind, Besu, Erigon and eth-tester."""
    message = refusal.message
    if _matches(
        message, "already known", "alreadyknown", "already imported", "known transaction", "already_exists"
    ):
        return SendResult.KNOWN
    if _matches(message, "nonce too low", "oldnonce", "nonce is too low"):
        return SendResult.NONCE_USED
    if _matches(message, "nonce too high", "nonce gap", "noncegap"):
        return SendResult.NONCE_GAP
    if _matches(
        message, "underpriced", "replacementnotallowed", "feetoolow", "block base fee", "block's base fee"
    ):
        return SendResult.UNDERPRICED
    if "Invalid transaction nonce: Expected " in message:  # eth-tester
        expected, got = (int(word) for word in message.replace(",", " ").split() if word.isdigit())
        return SendResult.NONCE_USED if got < expected else SendResult.NONCE_GAP
    raise refusal


def _matches(message: str, *phrases: str) -> bool:
    lowered = message.lower()
    return any(phrase in lowered for phrase in phrases)


def _refusal(name: str, error: Any) -> RpcErrorAnswer:
    if isinstance(error, Mapping):
        return RpcErrorAnswer(name, str(error.get("message", "no message")), error.get("data"))
    return RpcErrorAnswer(name, str(error), None)


def _disagreement(what: str) -> BadAnswer:
    return BadAnswer(f"the endpoints disagree {what}", "find out which one is wrong or behind, and remove it")


def _worst(failures: Sequence[ChainError]) -> ChainError:
    """Returns one error for the failures of several endpoints: of their common class, or BadAnswer."""
    if len(failures) == 1 or isinstance(failures[0], ReorgDetected):
        return failures[0]
    kinds = {type(failure) for failure in failures}
    kind = kinds.pop() if len(kinds) == 1 and not kinds & {RpcErrorAnswer, ReorgDetected} else BadAnswer
    return kind("; ".join(failure.cause for failure in failures), failures[-1].fix)


def _refusals_of(provider: BaseProvider) -> tuple[type[Exception], ...]:
    """Returns the exceptions that the embedded chain raises where a served one answers with an error."""
    if not isinstance(provider, EthereumTesterProvider):
        return ()
    from eth_tester import exceptions
    from eth_utils.exceptions import ValidationError

    return (
        exceptions.TransactionFailed,
        exceptions.ValidationError,
        exceptions.BlockNotFound,
        ValidationError,
        ContractLogicError,
    )


def _printable(provider: BaseProvider) -> str:
    if not isinstance(provider, HTTPProvider):
        return type(provider).__name__
    parts = urlsplit(str(provider.endpoint_uri))
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


def _plain(error: requests.exceptions.RequestException) -> str:
    """Returns the failure as text, without the URL, which may hold a token."""
    if isinstance(error, requests.exceptions.Timeout):
        return "did not answer in time"
    if isinstance(error, requests.exceptions.HTTPError) and error.response is not None:
        return f"answered HTTP {error.response.status_code}"
    if isinstance(error, requests.exceptions.ConnectionError):
        return "cannot be reached"
    return f"failed ({type(error).__name__})"


def _fix(error: requests.exceptions.RequestException) -> str:
    response = error.response
    if response is not None and response.status_code in (401, 403):
        return "check the key in the endpoint's URL"
    return "check that it is running and the URL is right, or add another endpoint"


def _hex(data: bytes) -> str:
    return "0x" + data.hex()
