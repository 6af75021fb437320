"""Sending the transactions of a command: each is sent once, however often an interrupted command is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from earnest.base.errors import EarnestError, Reverted
from earnest.client.account.account import Account, DeployedContracts
from earnest.client.account.transactions import PlannedCall
from earnest.client.chain.answers import Receipt
from earnest.client.chain.contracts import Call
from earnest.client.chain.outbox import FeePolicy, preview
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
    deployment: DeployedContracts, sender: str, steps: Sequence[PlannedCall]
) -> list[EstimatedCall]:
    """Estimates each call at current fees. Raises Reverted if the chain refuses the first of them."""
    policy, market = FeePolicy(), deployment.chain.fees()
    estimates: list[EstimatedCall] = []
    for position, step in enumerate(steps):
        try:
            cost = preview(deployment.chain, sender, step.call, policy)
            estimates.append(EstimatedCall(step, cost.gas, cost.max_fee, simulated=True))
        except Reverted:
            if position == 0:
                raise
            gas = policy.gas(TYPICAL_GAS.get(step.call.function, UNKNOWN_GAS))
            estimates.append(EstimatedCall(step, gas, policy.first(market).max_fee, simulated=False))
    return estimates


def finish_earlier(account: Account) -> list[str]:
    """Waits for the open transactions of an interrupted command; returns their names. Raises UnfinishedError."""
    finished = []
    for intent in account.journal.open_intents():
        call = Call(intent.to, intent.data, intent.name, {}, intent.value)
        try:
            if account.outbox.send(intent.name, call) is None:
                raise _unfinished(intent.name)
        except Reverted:
            continue
        finished.append(intent.name)
    return finished


def perform(
    account: Account,
    label: str,
    steps: Sequence[PlannedCall],
    progress: Callable[[PlannedCall], None] = lambda step: None,
) -> list[Receipt]:
    """Sends the calls in order and waits for each; `progress` is called with each before it is sent.

    `label` names the command with its arguments: after a crash the same label continues, after a success or a revert it
    starts again. Raises UnfinishedError and the errors of `Outbox.send`.
    """
    key = f"command/{label}"
    count = int(account.journal.get(key) or b"0")
    receipts = []
    for step in steps:
        progress(step)
        try:
            receipt = account.outbox.send(f"{label}/{count}/{step.name}", step.call)
        except Reverted:
            account.journal.put(key, str(count + 1).encode())
            raise
        if receipt is None:
            raise _unfinished(step.purpose)
        receipts.append(receipt)
    account.journal.put(key, str(count + 1).encode())
    return receipts


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
