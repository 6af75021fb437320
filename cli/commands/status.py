"""`earnest status`: the deployment, its runs, and an account's seats and tokens."""

from __future__ import annotations

from typing import Any

from earnest.base.amounts import brief
from earnest.cli.flags import AccountFlags
from earnest.cli.output import Answer, countdown, table
from earnest.cli.session import Session

ACCOUNT = AccountFlags()


def status(*, account: str | None = None, flags: AccountFlags = ACCOUNT) -> Answer:
    """Show the deployment, the open windows of every run, and an account's tokens, seats and bonds.

    Example: earnest status

    Parameters
    ----------
    account
        Address to show (default: your key's, if you have one).
    """
    from earnest.base.errors import KeystoreError

    with Session(flags) as session:
        contracts, at = session.contracts, session.at
        try:
            who = session.address(account)
        except KeystoreError:
            who = None
        runs = [_run(session, run, who) for run in range(1, contracts.runs.run_count(at=at) + 1)]
        addresses = {
            "runs": contracts.runs.address,
            "settlement": contracts.settlement.address,
            "vault": contracts.vault.address,
            "token": contracts.token.address,
        }
        document: dict[str, Any] = {
            "network": session.network.name,
            "chain_id": session.chain.chain_id,
            "block": at.number,
            "time": at.time,
            "contracts": addresses,
            "account": who,
            "runs": runs,
        }
        shown: list[Any] = [
            f"{session.network.name} (chain {session.chain.chain_id}), block {at.number}",
            *(f"  {name} {address}" for name, address in addresses.items()),
        ]
        if who is not None:
            balance = contracts.token.balance_of(who, at=at)
            idle = contracts.vault.idle(who, at=at)
            document |= {**session.amounts("held", balance), **session.amounts("idle", idle)}
            shown.append(
                f"{who}: {session.tokens(balance)} in the account, {session.tokens(idle)} idle in the vault"
            )
        rows = [
            (r["run"], r["state"], f"{r['round']} of {r['rounds']}", r["now"], r["seat"], brief(r["bond"]))
            for r in runs
        ]
        shown.append(
            table("Runs", ("run", "state", "round", "open windows", "seat", f"bond ({session.symbol})"), rows)
            if rows
            else "No runs yet. Open one: `earnest run create --example`"
        )
        return Answer(document, shown)


def _run(session: Session, run: int, account: str | None) -> dict[str, Any]:
    """Returns a summary of a run, read from the contracts without scanning events."""
    from earnest.client.run.phases import open_phases, run_state

    contracts, at = session.contracts, session.at
    params, rounds = contracts.runs.run_params(run, at=at), contracts.runs.run_rounds(run, at=at)
    schedule = params.schedule()
    state = run_state(schedule, rounds, at.time)
    phases = open_phases(schedule, rounds, at.time)
    now = ", ".join(f"{p.name} of {p.round}: {countdown(p.left(at.time))} left" for p in phases)
    if state == "waiting":
        now = f"starts in {countdown(schedule.start - at.time)}"
    seat = None if account is None else contracts.runs.seat_of(run, account, at=at)
    manager = contracts.settlement.address
    bond = 0 if account is None else contracts.vault.bond_of(manager, run, account, at=at)
    return {
        "run": run,
        "state": state,
        "round": min(schedule.round_at(at.time), rounds),
        "rounds": rounds,
        "now": now or "-",
        "role": None if seat is None else seat.role,
        "seat": None if seat is None else f"{seat.role.name.lower()} {seat.seat}",
        **session.amounts("bond", bond),
    }
