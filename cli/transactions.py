"""How a command sends: what it would cost, whether it may, what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from earnest.cli.exits import UsageError
from earnest.cli.output import Answer, plain
from earnest.cli.session import Session, coins

if TYPE_CHECKING:
    from earnest.client.account.account import Account
    from earnest.client.account.commands import EstimatedCall
    from earnest.client.account.transactions import PlannedCall
    from earnest.client.chain.answers import Receipt

Document = dict[str, Any]
LONGEST_ARGUMENT = 100


def send(
    session: Session,
    label: str,
    steps: Sequence[PlannedCall],
    document: Document,
    done: str | Callable[[Document], str],
    found: Callable[[Sequence[Receipt]], Document] = lambda receipts: {},
) -> Answer:
    """Previews the steps, asks where it has to, sends them. Only previews them with --dry-run.

    `label` names the command and its arguments, for the journal. `found` reads results out of the receipts into the
    document, from which `done` says in words what then is the case.
    """
    from earnest.client.account.commands import estimate_calls

    session.finish_earlier()
    plan = estimate_calls(session.deployment, session.account, steps)
    if session.flags.dry_run:
        return would_send(session, plan, document)
    consent(session, plan)
    receipts = transact(session, session.open_account(), label, steps)
    document = {**document, **found(receipts)}
    sent = [
        transaction(session, step.name, step.call.function, receipt)
        for step, receipt in zip(steps, receipts, strict=True)
    ]
    told = done if isinstance(done, str) else done(document)
    whole = {**document, "account": session.account, "transactions": sent}
    return Answer(whole, [*map(transaction_line, sent), told])


def transact(session: Session, account: Account, label: str, steps: Sequence[PlannedCall]) -> list[Receipt]:
    """Sends the steps one after the other, with a notice for each."""
    from earnest.client.account.commands import perform

    return perform(account, label, steps, lambda step: session.notice(f"{step.purpose} ..."))


def consent(session: Session, plan: Sequence[EstimatedCall]) -> None:
    """Asks before money of value moves. Raises UsageError for a no, or where nobody can be asked."""
    if session.network.local or session.flags.yes:
        return
    for line in _plan_lines(plan):
        session.notice(line)
    if not session.environment.interactive:
        raise UsageError(
            f"{session.network.name} is not a local network, and nobody is here to be asked",
            "look at it with --dry-run, then say --yes",
        )
    session.environment.stderr.write(f"Send from {session.account} on {session.network.name}? [y/N] ")
    session.environment.stderr.flush()
    if session.environment.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("not sent", "answer y, or give --yes")


def would_send(session: Session, plan: Sequence[EstimatedCall], document: Document) -> Answer:
    """The answer to --dry-run."""
    balance = session.chain.balance(session.account, session.at)
    cost = sum(one.cost for one in plan)
    whole = {
        **document,
        "dry_run": True,
        "account": session.account,
        "calls": [_call(one) for one in plan],
        "cost_wei": str(cost),
        "balance_wei": str(balance),
        "balance_after_wei": str(balance - cost),
    }
    after = f"balance {coins(balance)}, at least {coins(balance - cost)} after; nothing was sent"
    return Answer(whole, [*_plan_lines(plan), after])


def transaction(session: Session, step: str, function: str, receipt: Receipt) -> Document:
    """A mined transaction, with its page in the network's explorer where there is one."""
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
    """The same for people."""
    where = sent["url"] or sent["hash"]
    return f"{sent['step']}: {where} in block {sent['block']}, {sent['gas']:,} gas"


def _call(one: EstimatedCall) -> Document:
    call = one.step.call
    return {
        "step": one.step.name,
        "purpose": one.step.purpose,
        "to": call.to,
        "function": call.function,
        "args": call.args,
        "gas": one.gas,
        "cost_wei": str(one.cost),
        "simulated": one.simulated,
    }


def _plan_lines(plan: Sequence[EstimatedCall]) -> list[str]:
    lines: list[str] = []
    for one in plan:
        call = one.step.call
        arguments = ", ".join(f"{name}={_short(value)}" for name, value in call.args.items())
        lines.append(f"{one.step.purpose}: {call.function}({arguments}) to {call.to}")
        how = "at most" if one.simulated else "typically, once the step before is mined,"
        lines.append(f"  {how} {one.gas:,} gas, {coins(one.cost)}")
    return lines


def _short(value: Any) -> str:
    text = str(plain(value))
    return text if len(text) <= LONGEST_ARGUMENT else f"{text[: LONGEST_ARGUMENT - 3]}..."
