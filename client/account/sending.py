"""Sends the transactions of a command: each once, however often an interrupted command is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from earnest.base.errors import EarnestError, Reverted
from earnest.client.account.account import Account, DeployedContracts
from earnest.client.account.transactions import PlannedCall
from earnest.client.chain.answers import Receipt
from earnest.client.chain.contracts import Call
from earnest.client.chain.outbox import FeePolicy, Intent, Status, preview
from earnest.client.node.settler import DueCall, Settler
from earnest.client.run.record import RunRecord

MOST_PASSES = 8
"""Passes over the due calls. One call makes others due: settling a round makes its pay due, then its penalties."""

UNKNOWN_GAS = 500_000
TYPICAL_GAS: Mapping[str, int] = {
    "approve": 47_000,
    "deposit": 81_000,
    "allow": 47_000,
    "bond": 51_000,
    "start_exit": 50_000,
    "create_run": 335_000,
    "join": 130_000,
    "sync": 60_000,
    "lock": 250_000,
}
"""Gas of calls that follow others in a command, measured on the embedded chain."""


class UnfinishedError(EarnestError):
    """A transaction was sent but is not mined yet."""


class ChangedPlanError(EarnestError):
    """An interrupted command is repeated with other calls, and some of its transactions are mined."""


class HalfwayError(EarnestError):
    """A step failed after others were mined; `failure` is its error, `transactions` has step, hash and block each."""

    def __init__(
        self, failure: EarnestError, step: PlannedCall, mined: Mapping[str, Receipt], *, continues: bool
    ) -> None:
        listed = ", ".join(f"{name} ({receipt.hash})" for name, receipt in mined.items())
        again = "continues after them" if continues else "starts from the beginning: first see what has moved"
        super().__init__(
            f"{step.purpose}: {failure.cause}; mined before it and not undone: {listed}",
            f"{failure.fix}; the same command again {again}",
        )
        self.failure = failure
        self.transactions = [
            {"step": name, "hash": receipt.hash, "block": receipt.block_number}
            for name, receipt in mined.items()
        ]


@dataclass(frozen=True)
class EstimatedCall:
    """Largest possible cost of a planned call: gas with the outbox's reserve, and fee in wei per gas.

    `simulated`: the chain ran the call. If it cannot yet, because an earlier call is missing, typical gas is used.
    """

    step: PlannedCall
    gas: int
    max_fee: int
    simulated: bool

    @property
    def cost(self) -> int:
        """The largest possible cost in wei, value included."""
        return self.gas * self.max_fee + self.step.call.value


def estimate_calls(
    deployment: DeployedContracts, sender: str, steps: Sequence[PlannedCall], *, first_may_fail: bool = False
) -> list[EstimatedCall]:
    """Estimates each call at current fees. Raises Reverted if the chain refuses the first, unless it may fail."""
    policy, market = FeePolicy(), deployment.chain.fees()
    estimates: list[EstimatedCall] = []
    for position, step in enumerate(steps):
        try:
            cost = preview(deployment.chain, sender, step.call, policy)
            estimates.append(EstimatedCall(step, cost.gas, cost.max_fee, simulated=True))
        except Reverted:
            if position == 0 and not first_may_fail:
                raise
            gas = policy.gas(TYPICAL_GAS.get(step.call.function, UNKNOWN_GAS))
            estimates.append(EstimatedCall(step, gas, policy.first(market).max_fee, simulated=False))
    return estimates


def finish_earlier(account: Account) -> list[tuple[str, Receipt]]:
    """Waits for the open transactions of an interrupted command; returns the mined ones. Raises UnfinishedError."""
    return _finish(account, account.journal.open_intents())


def _finish(account: Account, intents: Iterable[Intent]) -> list[tuple[str, Receipt]]:
    finished = []
    for intent in intents:
        call = Call(intent.to, intent.data, intent.name, {}, intent.value)
        try:
            receipt = account.outbox.send(intent.name, call)
        except Reverted:
            continue
        if receipt is None:
            raise _unfinished(intent.name)
        finished.append((intent.name, receipt))
    return finished


def perform(
    account: Account,
    label: str,
    steps: Sequence[PlannedCall],
    progress: Callable[[PlannedCall], None] = lambda step: None,
) -> Iterator[tuple[PlannedCall, Receipt]]:
    """Sends the calls in order, and yields each with its receipt; `progress` is called with each before it is sent.

    `label` names the command and what it acts on. After an interruption or a failure the same label and calls continue
    behind the mined ones. After a success they start again, and also if a continued command is refused once more.
    Raises ChangedPlanError if another plan was interrupted, HalfwayError if a step fails after others, and else
    UnfinishedError and the errors of `Outbox.send`.
    """
    attempt = _Attempt(account, label)
    earlier = {step.name: intent for step in steps if (intent := attempt.intent(step)) is not None}
    attempt.refuse_other_calls(steps)
    receipts: dict[str, Receipt] = {}
    for step in steps:
        progress(step)
        try:
            receipt = account.outbox.send(attempt.name(step), step.call)
            if receipt is None:
                raise _unfinished(step.purpose)
        except EarnestError as failure:
            no_progress = receipts.keys() <= earlier.keys() and (not receipts or step.name not in earlier)
            gives_up = isinstance(failure, Reverted) and no_progress
            if gives_up:
                attempt.end()
            if not receipts:
                raise
            raise HalfwayError(failure, step, receipts, continues=not gives_up) from failure
        receipts[step.name] = receipt
        yield step, receipt
    attempt.end()


class _Attempt:
    """One attempt at a command. The journal keeps its number, so that the command continues it until it is over."""

    def __init__(self, account: Account, label: str) -> None:
        self._account, self._key = account, f"command/{label}"
        self._number = int(account.journal.get(self._key) or b"0")
        self._prefix = f"{label}/{self._number}"

    def end(self) -> None:
        self._account.journal.put(self._key, str(self._number + 1).encode())

    def name(self, step: PlannedCall) -> str:
        return f"{self._prefix}/{step.name}"

    def intent(self, step: PlannedCall) -> Intent | None:
        """Returns the step's intent if it was sent, and is mined or still may be."""
        intent = self._account.journal.intent(self.name(step))
        return intent if intent is not None and intent.status in (Status.OPEN, Status.DONE) else None

    def refuse_other_calls(self, steps: Sequence[PlannedCall]) -> None:
        """Ends the attempt and raises ChangedPlanError if it sent another call than one of these, and that is mined."""
        intents = [(self.intent(step), step.call) for step in steps]
        changed = [
            intent
            for intent, call in intents
            if intent is not None
            and (intent.to, intent.data, intent.value) != (call.to, call.data, call.value)
        ]
        if mined := _finish(self._account, changed):
            self.end()
            listed = ", ".join(f"{name} ({receipt.hash})" for name, receipt in mined)
            raise ChangedPlanError(
                f"nothing was sent: this command was interrupted before with other arguments; mined then: {listed}",
                "see what has moved (`earnest status`, `earnest stake show`); the same command again starts anew",
            )


def due_calls(deployment: DeployedContracts, record: RunRecord) -> Iterator[DueCall]:
    """Returns the permissionless settlement calls that are due now."""
    contracts = deployment.contracts
    return Settler(record, contracts.runs, contracts.settlement).due_calls(deployment.chain.head())


def settle_due(
    account: Account, run: int, progress: Callable[[DueCall], None] = lambda due_call: None
) -> Iterator[tuple[DueCall, Receipt | Reverted]]:
    """Sends the due settlement calls until none is left. Yields a receipt each, or the revert if others were faster."""
    deployment, tried = account.deployment, set[str]()
    for _ in range(MOST_PASSES):
        due = [
            due_call
            for due_call in due_calls(deployment, deployment.read_run(run))
            if due_call.intent not in tried
        ]
        if not due:
            return
        for due_call in due:
            tried.add(due_call.intent)
            progress(due_call)
            try:
                receipt = account.outbox.send(
                    f"{run}/{due_call.intent}",
                    due_call.call,
                    still_needed=lambda due_call=due_call: due_call.still_needed(deployment.chain.head()),
                    deadline=due_call.deadline,
                )
            except Reverted as refusal:
                yield due_call, refusal
                continue
            if receipt is not None:
                yield due_call, receipt


def _unfinished(purpose: str) -> UnfinishedError:
    return UnfinishedError(
        f"{purpose}: sent, but not mined yet", "run the same command again, it continues where it stopped"
    )
