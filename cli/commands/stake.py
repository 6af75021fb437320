"""`earnest stake`: an account's tokens in the vault."""

from __future__ import annotations

from typing import Any

from earnest.base.amounts import brief
from earnest.cli.app import make_group
from earnest.cli.flags import AccountFlags, RunNumber, SendFlags
from earnest.cli.output import Answer, countdown, table, when
from earnest.cli.session import Session
from earnest.cli.transactions import send
from earnest.client.account.transactions import bond_calls, deposit_calls, exit_calls, withdraw_calls

app = make_group("stake")
SEND, ACCOUNT = SendFlags(), AccountFlags()


@app.command
def deposit(amount: str, /, *, flags: SendFlags = SEND) -> Answer:
    """Deposit tokens into the vault, where they are idle until bonded.

    If the vault is not yet approved to transfer the tokens, this approves it first.

    Example: earnest stake deposit 1000

    Parameters
    ----------
    amount
        Tokens, for example 12.5.
    """
    with Session(flags) as session:
        wei = session.wei(amount)
        steps = deposit_calls(session.contracts, session.account, wei, session.at)
        document = {"action": "deposit", **session.amounts("amount", wei)}
        return send(session, f"stake/deposit/{wei}", steps, document, f"Deposited {session.tokens(wei)}.")


@app.command
def withdraw(amount: str, /, *, flags: SendFlags = SEND) -> Answer:
    """Withdraw idle tokens from the vault.

    Example: earnest stake withdraw 12.5

    Parameters
    ----------
    amount
        Tokens, for example 12.5, or `all`.
    """
    with Session(flags) as session:
        return take_out(session, None if amount == "all" else session.wei(amount), "withdraw")


def take_out(session: Session, wei: int | None, action: str) -> Answer:
    """Withdraws `wei`, or the whole idle balance for None."""
    if wei is None and session.contracts.vault.idle(session.account, at=session.at) == 0:
        nothing = {
            "action": action,
            **session.amounts("amount", 0),
            "account": session.account,
            "transactions": [],
        }
        return Answer(
            nothing,
            ["Nothing to withdraw: the idle balance is zero. To free a bond: `earnest stake exit RUN`."],
        )
    steps = withdraw_calls(session.contracts, session.account, wei, session.at)
    amount = steps[0].call.args["amount"]
    document = {"action": action, **session.amounts("amount", amount)}
    return send(session, f"stake/{action}/{amount}", steps, document, f"Withdrew {session.tokens(amount)}.")


@app.command
def bond(run: RunNumber, amount: str, /, *, flags: SendFlags = SEND) -> Answer:
    """Add tokens to your bond in a run, from the idle balance first, then from your account.

    For a seat, they count from the next round on. `earnest run join` bonds the minimum by itself.

    Example: earnest stake bond 1 250

    Parameters
    ----------
    run
        The run's number.
    amount
        Tokens to add, for example 250.
    """
    with Session(flags) as session:
        wei = session.wei(amount)
        steps = bond_calls(session.contracts, run, session.account, wei, session.at)
        document = {"action": "bond", "run": run, **session.amounts("amount", wei)}
        done = f"Added {session.tokens(wei)} to the bond in run {run}."
        return send(session, f"stake/bond/{run}/{wei}", steps, document, done)


@app.command(name="exit")
def exit_(run: RunNumber, /, *, flags: SendFlags = SEND) -> Answer:
    """Start the exit of your bond; once the exit delay is over, the same command frees the bond.

    Until then penalties can still burn it. The seat earns nothing from the next round on.

    Example: earnest stake exit 1

    Parameters
    ----------
    run
        The run's number.
    """
    with Session(flags) as session:
        steps = exit_calls(session.contracts, run, session.account, session.at)
        finishes = steps[-1].name == "finish-exit"
        done = (
            "The bond is free: it is idle balance now. Withdraw it with `earnest claim`."
            if finishes
            else "The exit has started. When its delay is over, run the same command again."
        )
        document = {"action": "finish-exit" if finishes else "start-exit", "run": run}
        return send(
            session,
            f"stake/exit/{run}/{steps[-1].name if finishes else steps[0].name}",
            steps,
            document,
            done,
        )


@app.command
def show(*, flags: AccountFlags = ACCOUNT, account: str | None = None) -> Answer:
    """Show an account's tokens: in the account, idle in the vault, and bonded in each run.

    Example: earnest stake show

    Parameters
    ----------
    account
        Address to show (default: your key's).
    """
    with Session(flags) as session:
        owner = session.address(account)
        contracts, at = session.contracts, session.at
        runs = range(1, contracts.runs.run_count(at=at) + 1)
        bonds = [bond for run in runs if (bond := _bond(session, run, owner)) is not None]
        balance = contracts.token.balance_of(owner, at=at)
        idle = contracts.vault.idle(owner, at=at)
        document = {
            "account": owner,
            **session.amounts("held", balance),
            **session.amounts("idle", idle),
            "bonds": bonds,
        }
        rows = [(b["run"], brief(b["bond"]), brief(b["locked"]), b["exit"]) for b in bonds]
        return Answer(
            document,
            [
                f"{owner}: {session.tokens(balance)} in the account, {session.tokens(idle)} idle in the vault",
                table(
                    "Bonds", ("run", f"bond ({session.symbol})", f"locked ({session.symbol})", "exit"), rows
                )
                if bonds
                else "No bonds.",
            ],
        )


def _bond(session: Session, run: int, account: str) -> dict[str, Any] | None:
    contracts, at = session.contracts, session.at
    manager = contracts.settlement.address
    bond = contracts.vault.bond_of(manager, run, account, at=at)
    ready = contracts.vault.exit_time(manager, run, account, at=at)
    if bond == 0 and ready is None:
        return None
    left = None if ready is None else max(0, ready - at.time)
    text = "not started" if ready is None or left is None else f"ends {when(ready)} ({countdown(left)} left)"
    locked = contracts.settlement.locked(run, account, at=at)
    return {
        "run": run,
        **session.amounts("bond", bond),
        **session.amounts("locked", locked),
        "exit_time": ready,
        "exit_seconds_left": left,
        "exit": text if left != 0 else "ready: `earnest stake exit`",
    }
