"""The one way from a command's steps to its answer: estimate, dry run or consent, send, report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
Sent = tuple["PlannedCall", "Receipt"]
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
    session.finish_earlier()
    if answer := approve(session, steps, document):
        return answer
    sent = transact(session, session.open_account(), label, steps)
    document = {**document, **results([receipt for _, receipt in sent])}
    return report(session, document, sent, [done if isinstance(done, str) else done(document)])


def approve(
    session: Session, steps: Sequence[PlannedCall], document: Document, *, first_may_fail: bool = False
) -> Answer | None:
    """Estimates the steps; returns the answer with --dry-run, else None after consent. Raises UsageError without it."""
    from earnest.client.account.sending import estimate_calls

    plan = estimate_calls(session.deployment, session.account, steps, first_may_fail=first_may_fail)
    if session.flags.dry_run:
        return _would_send(session, plan, document)
    consent(session, _plan_lines(plan))
    return None


def transact(session: Session, account: Account, label: str, steps: Sequence[PlannedCall]) -> list[Sent]:
    """Sends the steps in order, with a notice of each and of its hash. Raises HalfwayError as `perform` does."""
    from earnest.client.account.sending import perform

    sending = perform(account, label, steps, lambda step: session.notice(f"{step.purpose} ..."))
    return [mined(session, step, receipt) for step, receipt in sending]


def mined(session: Session, step: PlannedCall, receipt: Receipt) -> Sent:
    """Prints the hash of a mined step, and returns both."""
    where = _url(session, receipt) or receipt.hash
    session.notice(f"  {where} in block {receipt.block_number}, {receipt.gas_used:,} gas")
    return step, receipt


def report(session: Session, document: Document, sent: Iterable[Sent], lines: Sequence[str]) -> Answer:
    """Returns the answer of a command that sent transactions; each has its page in the explorer as `url`, or None."""
    transactions = [
        {
            "step": step.name,
            "function": step.call.function,
            "hash": receipt.hash,
            "block": receipt.block_number,
            "gas": receipt.gas_used,
            "cost_wei": str(receipt.cost),
            "url": _url(session, receipt),
        }
        for step, receipt in sent
    ]
    return Answer({**document, "account": session.account, "transactions": transactions}, lines)


def _url(session: Session, receipt: Receipt) -> str | None:
    explorer = session.network.explorer
    return None if explorer is None else f"{explorer}/tx/{receipt.hash}"


def event_arguments(contract: Contract, receipts: Sequence[Receipt], event: str) -> dict[str, Any]:
    """Returns the arguments of a contract's event in the last receipt. Raises StopIteration if it is not there."""
    decoded = (contract.abi.decode_log(log) for log in receipts[-1].logs if log.address == contract.address)
    return next(found[1] for found in decoded if found is not None and found[0] == event)


def consent(session: Session, lines: Sequence[str]) -> None:
    """Shows the lines and asks before sending; not on local networks and not with --yes.

    Raises UsageError unless the answer is yes.
    """
    if session.network.local or session.flags.yes:
        return
    for line in lines:
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


def _would_send(session: Session, plan: Sequence[EstimatedCall], document: Document) -> Answer:
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
        how = "at most" if estimate.simulated else "typically (it cannot be simulated yet)"
        lines.append(f"  {how} {estimate.gas:,} gas, {coins(estimate.cost)}")
    if len(plan) > 1:
        gas, cost = sum(estimate.gas for estimate in plan), sum(estimate.cost for estimate in plan)
        lines.append(f"Together about {gas:,} gas, {coins(cost)}")
    return lines


def _short(value: Any) -> str:
    text = str(plain(value))
    return text if len(text) <= LONGEST_ARGUMENT else f"{text[: LONGEST_ARGUMENT - 3]}..."
