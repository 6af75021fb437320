"""`earnest penalty`: shows penalties and contests one."""

from __future__ import annotations

from typing import Any

from earnest.base.amounts import brief
from earnest.cli.app import make_group
from earnest.cli.exits import UsageError
from earnest.cli.flags import ChainFlags, RunNumber, SendFlags
from earnest.cli.output import Answer, countdown, table
from earnest.cli.session import Session
from earnest.cli.transactions import send
from earnest.client.account.transactions import contest_calls
from earnest.protocol.verdicts import Verdict

app = make_group("penalty")
SEND, CHAIN = SendFlags(), ChainFlags()


@app.command
def show(run: RunNumber, /, *, account: str | None = None, flags: ChainFlags = CHAIN) -> Answer:
    """Show the penalties of a run: account, verdict, share of validators that uphold it, time left to contest.

    Example: earnest penalty show 1

    Parameters
    ----------
    run
        The run's number.
    account
        Show only the penalties of this address.
    """
    with Session(flags) as session:
        record = session.deployment.read_run(run)
        wanted = None if account is None else session.address(account)
        penalties = [_penalty(session, penalty) for penalty in record.penalties]
        penalties = [penalty for penalty in penalties if wanted in (None, penalty["account"])]
        rows = [
            (
                penalty["penalty"],
                penalty["round"],
                penalty["verdict"],
                penalty["status"],
                brief(penalty["amount"]),
                penalty["upheld"],
                penalty["contest"],
            )
            for penalty in penalties
        ]
        headings = (
            "penalty",
            "round",
            "verdict",
            "status",
            f"amount ({session.symbol})",
            "upheld",
            "contest",
        )
        return Answer(
            {"run": run, "penalties": penalties},
            [table(f"Penalties of run {run}", headings, rows) if rows else f"No penalties in run {run}."],
        )


@app.command
def contest(penalty: str, /, *, flags: SendFlags = SEND) -> Answer:
    """Contest a penalty on your bond: validators may change their votes. A small further part of the bond is locked.

    If the penalty stands, that part is burned too.

    Example: earnest penalty contest 0x5bd9c2f04c1a4d3f8f8d7f0d7c7f3c0b6f0a3a2c1d0e9f8a7b6c5d4e3f2a1b0c

    Parameters
    ----------
    penalty
        The penalty's id, from `earnest penalty show RUN`.
    """
    digits = penalty.removeprefix("0x")
    try:
        key = bytes.fromhex(digits)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise UsageError(
            f"{penalty!r} is not a penalty's id", "copy the 64 hex digits from `earnest penalty show RUN`"
        )
    with Session(flags) as session:
        steps = contest_calls(session.contracts, key, session.account, session.at)
        document = {"action": "contest", "penalty": "0x" + key.hex()}
        return send(
            session,
            f"penalty/{key.hex()}/contest",
            steps,
            document,
            "Contested; the validators vote again. See the outcome with `earnest penalty show RUN`.",
        )


def _penalty(session: Session, key: bytes) -> dict[str, Any]:
    penalty = session.contracts.settlement.penalty(key, at=session.at)
    left = max(0, penalty.contest_until - session.at.time)
    share = penalty.upheld / penalty.active_stake if penalty.active_stake else 0.0
    return {
        "penalty": "0x" + key.hex(),
        "run": penalty.run,
        "round": penalty.round,
        "seat": penalty.seat,
        "account": penalty.account,
        "verdict": Verdict(penalty.verdict).name.lower(),
        "status": penalty.status.name.lower(),
        **session.amounts("amount", penalty.amount),
        **session.amounts("contest_amount", penalty.contest_amount),
        "upheld": f"{share:.0%} of the active stake",
        **session.amounts("upheld_stake", penalty.upheld),
        **session.amounts("active_stake", penalty.active_stake),
        "contest_until": penalty.contest_until,
        "contest_seconds_left": left,
        "contest": f"{countdown(left)} left" if left else "over",
    }
