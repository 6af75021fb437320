"""`earnest seat`: shows a seat and changes its operator and URL."""

from __future__ import annotations

from earnest.cli.app import make_group
from earnest.cli.flags import AccountFlags, RunNumber, SendFlags
from earnest.cli.output import Answer
from earnest.cli.session import Session
from earnest.cli.transactions import send
from earnest.client.account.transactions import held_seat, operator_calls, uri_calls

app = make_group("seat")
SEND, ACCOUNT = SendFlags(), AccountFlags()


@app.command
def operator(run: RunNumber, address: str, /, *, flags: SendFlags = SEND) -> Answer:
    """Let another key commit, reveal and report for your seat from the next round on. Bond and pay stay yours.

    Example: earnest seat operator 1 0x000000000000000000000000000000000000dEaD

    Parameters
    ----------
    run
        The run's number.
    address
        The operator's address.
    """
    with Session(flags) as session:
        chosen = session.address(address)
        steps = operator_calls(session.contracts, run, session.account, chosen, session.at)
        document = {"action": "operator", "run": run, "operator": chosen}
        done = f"{chosen} is the operator of your seat from the next round on."
        return send(session, f"seat/{run}/operator/{chosen}", steps, document, done)


@app.command
def uri(run: RunNumber, url: str, /, *, owner: str | None = None, flags: SendFlags = SEND) -> Answer:
    """Register the URL of your seat's objects. A node does this by itself when it starts.

    Example: earnest seat uri 1 https://objects.example.org

    Parameters
    ----------
    run
        The run's number.
    url
        Base URL of the objects.
    owner
        The seat's owner, when your key is its operator (default: your own).
    """
    with Session(flags) as session:
        seat = held_seat(session.contracts, run, session.address(owner), session.at)
        steps = uri_calls(session.contracts, run, seat, url)
        document = {"action": "uri", "run": run, "role": seat.role, "seat": seat.seat, "uri": url}
        return send(session, f"seat/{run}/uri/{url}", steps, document, f"The seat's objects are at {url}.")


@app.command
def show(run: RunNumber, /, *, owner: str | None = None, flags: AccountFlags = ACCOUNT) -> Answer:
    """Show a seat's owner, operator, stake and URL in the next round.

    Example: earnest seat show 1

    Parameters
    ----------
    run
        The run's number.
    owner
        The seat's owner (default: your own).
    """
    with Session(flags) as session:
        account = session.address(owner)
        runs, at = session.contracts.runs, session.at
        held = held_seat(session.contracts, run, account, at)
        following = runs.run_params(run, at=at).schedule().next_round(at.time)
        seat = runs.seat_at(run, held.role, held.seat, following, at=at)
        document = {
            "run": run,
            "role": held.role,
            "seat": held.seat,
            "account": account,
            "operator": seat.operator,
            "from_round": seat.from_round,
            **session.amounts("stake", seat.stake),
            "barred_until_round": seat.barred_until,
        }
        line = (
            f"{held.role.name.capitalize()} seat {held.seat} of run {run}: operator {seat.operator}, "
            f"stake {session.tokens(seat.stake)}, since round {seat.from_round}"
        )
        return Answer(document, [line])
