"""Sends the transactions of a command: estimates the cost, asks for consent, sends, and shows the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from earnest.cli.exits import UsageError
from earnest.cli.output import Answer, plain
from earnest.cli.session import Session, coins

if TYPE_CHECKING:
    from earnest.client.account.account import Account
    from earnest.client.account.sending import EstimatedCall
    from earnest.client.account.transactions import PlannedCall
    from earnest.client.chain.answers import Receipt
    from earnest.client.chain.contracts import Contract

Document = dict[str, Any]
LONGEST_ARGUMENT = 100


def send(
    session: Session,
    label: str,
    steps: Sequence[PlannedCall],
    document: Document,
    done: str | Callable[[Document], str],
    results: Callable[[Sequence[Receipt]], Document] = lambda receipts: {},
) -> Answer:
    """Estimates the steps, asks for consent and sends them. With --dry-run it only estimates them.

    `label` names the command and its arguments for the journal. `results` reads values from the receipts into the
    document; `done` is the last line for people, or makes it from the document.
    """
    from earnest.client.account.sending import estimate_calls

    session.finish_earlier()
    plan = estimate_calls(session.deployment, session.account, steps)
    if session.flags.dry_run:
        return would_send(session, plan, document)
    consent(session, plan)
    receipts = transact(session, session.open_account(), label, steps)
    document = {**document, **results(receipts)}
    sent = [
        transaction(session, step.name, step.call.function, receipt)
        for step, receipt in zip(steps, receipts, strict=True)
    ]
    last_line = done if isinstance(done, str) else done(document)
    document = {**document, "account": session.account, "transactions": sent}
    return Answer(document, [*map(transaction_line, sent), last_line])


def transact(session: Session, account: Account, label: str, steps: Sequence[PlannedCall]) -> list[Receipt]:
    """Sends the steps in order, with a notice for each, and returns their receipts."""
    from earnest.client.account.sending import perform

    return perform(account, label, steps, lambda step: session.notice(f"{step.purpose} ..."))


def event_arguments(contract: Contract, receipts: Sequence[Receipt], event: str) -> dict[str, Any]:
    """Returns the arguments of a contract's event in the last receipt. Raises StopIteration if it is not there."""
    decoded = (contract.abi.decode_log(log) for log in receipts[-1].logs if log.address == contract.address)
    return next(found[1] for found in decoded if found is not None and found[0] == event)


def consent(session: Session, plan: Sequence[EstimatedCall]) -> None:
    """Asks before sending; not on local networks and not with --yes. Raises UsageError unless the answer is yes."""
    if session.network.local or session.flags.yes:
        return
    for line in _plan_lines(plan):
        session.notice(line)
    if not session.environment.interactive:
        raise UsageError(
            f"{session.network.name} is not a local network, and there is no terminal to ask for consent",
            "look at the transactions with --dry-run, then give --yes",
        )
    session.environment.stderr.write(f"Send from {session.account} on {session.network.name}? [y/N] ")
    session.environment.stderr.flush()
    if session.environment.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError(
            "nothing was sent: the answer was not yes", "run the command again and answer y, or give --yes"
        )


def would_send(session: Session, plan: Sequence[EstimatedCall], document: Document) -> Answer:
    """Returns the answer of a command with --dry-run: calls, gas and cost."""
    balance = session.chain.balance(session.account, session.at)
    cost = sum(call.cost for call in plan)
    document = {
        **document,
        "dry_run": True,
        "account": session.account,
        "calls": [_call(call) for call in plan],
        "cost_wei": str(cost),
        "balance_wei": str(balance),
        "balance_after_wei": str(balance - cost),
    }
    after = f"Nothing was sent. Balance: {coins(balance)}; at least {coins(balance - cost)} after sending."
    return Answer(document, [*_plan_lines(plan), after])


def transaction(session: Session, step: str, function: str, receipt: Receipt) -> Document:
    """Returns the document of a mined transaction; `url` is its page in the network's explorer, or None."""
    explorer = session.network.explorer
    return {
        "step": step,
        "function": function,
        "hash": receipt.hash,
        "block": receipt.block_number,
        "gas": receipt.gas_used,
        "cost_wei": str(receipt.cost),
        "url": None if explorer is None else f"{explorer}/tx/{receipt.hash}",
    }


def transaction_line(sent: Document) -> str:
    """Formats a transaction's document as a line."""
    where = sent["url"] or sent["hash"]
    return f"{sent['step']}: {where} in block {sent['block']}, {sent['gas']:,} gas"


def _call(estimate: EstimatedCall) -> Document:
    call = estimate.step.call
    return {
        "step": estimate.step.name,
        "purpose": estimate.step.purpose,
        "to": call.to,
        "function": call.function,
        "args": call.args,
        "gas": estimate.gas,
        "cost_wei": str(estimate.cost),
        "simulated": estimate.simulated,
    }


def _plan_lines(plan: Sequence[EstimatedCall]) -> list[str]:
    lines: list[str] = []
    for estimate in plan:
        call = estimate.step.call
        arguments = ", ".join(f"{name}={_short(value)}" for name, value in call.args.items())
        lines.append(f"{estimate.step.purpose}: {call.function}({arguments}) to {call.to}")
        how = "at most" if estimate.simulated else "typically (the step before must be mined first)"
        lines.append(f"  {how} {estimate.gas:,} gas, {coins(estimate.cost)}")
    return lines


def _short(value: Any) -> str:
    text = str(plain(value))
    return text if len(text) <= LONGEST_ARGUMENT else f"{text[: LONGEST_ARGUMENT - 3]}..."
