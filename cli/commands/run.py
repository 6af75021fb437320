"""`earnest run`: opens, shows, joins, leaves, settles, ends and fetches runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from earnest.base.errors import Reverted
from earnest.cli.app import make_group
from earnest.cli.commands.run_create import example_file, object_server, open_run, serve_objects
from earnest.cli.commands.run_fetch import fetch_model
from earnest.cli.commands.run_show import run_answer
from earnest.cli.exits import UsageError
from earnest.cli.flags import ChainFlags, RunNumber, SeatNumber, SendFlags, ServeFlags
from earnest.cli.output import Answer, progress
from earnest.cli.output import show as show_answer
from earnest.cli.session import Session
from earnest.cli.transactions import Sent, approve, event_arguments, mined, report, send, transact
from earnest.client.account.sending import due_calls, settle_due
from earnest.client.account.transactions import (
    NotDueError,
    PlannedCall,
    SeatRequest,
    end_calls,
    held_seat,
    join_calls,
    leave_calls,
    refund_calls,
    refund_due,
    sync_calls,
)
from earnest.client.chain.contracts import SeatId
from earnest.client.run.run_file import RunFile, window_problems
from earnest.client.storage.objects import ObjectStore
from earnest.protocol.run import Level, Role

if TYPE_CHECKING:
    from earnest.client.chain.answers import Receipt
    from earnest.client.node.settler import DueCall

app = make_group("run")
CHAIN, SEND, SERVE = ChainFlags(), SendFlags(), ServeFlags()
RoleName = Literal["trainer", "validator"]


@app.command
def create(
    file: Path | None = None,
    /,
    *,
    example: bool = False,
    start_in: int | None = None,
    rounds: int | None = None,
    flags: ServeFlags = SERVE,
) -> Answer | None:
    """Open a run: build the initial state, publish the run's files, and pay the whole budget into escrow.

    With --serve the command then serves the files until it is stopped; `earnest run serve` serves them later.

    Example: earnest run create run.toml --serve 0.0.0.0:9000 --public-url http://my.host:9000

    Parameters
    ----------
    file
        The run file; `earnest run create --example > run.toml` prints one with comments.
    example
        Print an example run file and do nothing else.
    start_in
        Seconds until round 0 starts (default: as in the file).
    rounds
        Number of rounds (default: as in the file).
    """
    if example:
        return example_file()
    if file is None:
        raise UsageError("no run file was given", "write one: `earnest run create --example > run.toml`")
    changes = {"start_in_s": start_in, "rounds": rounds}
    with ExitStack() as serving:
        with Session(flags) as session:
            run_file = RunFile.read(file).changed(changes)
            if session.settings.serve is None:
                return open_run(session, run_file)
            server = serving.enter_context(object_server(session))  # binds before anything is paid
            answer = open_run(session, run_file)
            if flags.dry_run:
                return answer
            show_answer(answer, session.environment.stdout, as_json=flags.json)
        serve_objects(session, server)  # the session is closed, so other commands can use the key
    return None


@app.command
def serve(run: RunNumber, /, *, flags: ServeFlags = SERVE) -> None:
    """Serve your account's public objects over HTTP until stopped. Needs no password.

    These are the files of a run that you opened or, after your node has ended, the run's final state.

    Example: earnest run serve 1 --serve 0.0.0.0:9000

    Parameters
    ----------
    run
        The run's number.
    """
    with Session(flags) as session:
        if session.settings.serve is None:
            raise UsageError("no address to serve on was given", "give --serve HOST:PORT")
        record = session.deployment.read_run(run)
        name = record.uri.rpartition("/")[2]
        if not (session.public_folder / name).is_file():
            raise UsageError(
                f"{session.public_folder} does not hold the files of run {run}",
                "use the --keystore and --data-dir that opened the run",
            )
        served = Answer(
            {"run": run, "serve": session.settings.serve, "uri": record.uri},
            [f"Run {run} names {record.uri}"],
        )
        with object_server(session) as server:
            show_answer(served, session.environment.stdout, as_json=flags.json)
            serve_objects(session, server)


@app.command
def show(run: RunNumber, /, *, flags: ChainFlags = CHAIN) -> Answer:
    """Show a run: its terms, the open windows and their time left, its seats, and every round so far.

    Example: earnest run show 1

    Parameters
    ----------
    run
        The run's number.
    """
    with Session(flags) as session:
        return run_answer(session, session.deployment.read_run(run))


@app.command
def fetch(run: RunNumber, /, *, out: Path | None = None, flags: ChainFlags = CHAIN) -> Answer:
    """Fetch a run's model: its final state, or the newest one so far, verified against the record.

    Sources are this machine's own folders, then the run's validators, its sponsor and its trainers.

    Example: earnest run fetch 1 --out result

    Parameters
    ----------
    run
        The run's number.
    out
        New folder for the files `state` and `recipe`, the input of `earnest task export` (default: run-NUMBER).
    """
    with Session(flags) as session:
        return fetch_model(session, run, Path(f"run-{run}") if out is None else out)


@app.command
def end(run: RunNumber, /, *, flags: SendFlags = SEND) -> Answer:
    """End your run: the current round and the next still take place, and all later rounds are refunded.

    Example: earnest run end 1

    Parameters
    ----------
    run
        The run's number.
    """
    with Session(flags) as session:
        done = f"Run {run} ends after the next round. To get the refund: `earnest run settle {run}`."
        steps = end_calls(session.contracts, run)
        return send(session, f"run/{run}/end", steps, {"action": "end", "run": run}, done)


@app.command
def join(
    run: RunNumber,
    /,
    *,
    role: RoleName,
    bond: str | None = None,
    operator: str | None = None,
    take: SeatNumber | None = None,
    flags: ServeFlags = SERVE,
) -> Answer:
    """Take a seat from the next round on. This also deposits and bonds the tokens that are missing.

    Your node registers its URL when it starts; with --public-url or --serve it is registered now.

    Example: earnest run join 1 --role trainer --bond 150

    Parameters
    ----------
    run
        The run's number.
    role
        Role of the seat.
    bond
        Tokens that the bond should have (default: the run's minimum).
    operator
        Address of the key that your node will use (default: your own).
    take
        Seat to take over if none is free: one whose bond is leaving, one inactive for 8 rounds, or the smallest bond,
        for 1.25 times that bond.
    """
    with Session(flags) as session:
        chosen = Role[role.upper()]
        record = session.deployment.read_run(run)
        params = record.params
        minimum = params.trainer_min_bond if chosen is Role.TRAINER else params.validator_min_bond
        wei = minimum if bond is None else session.wei(bond)
        if short := window_problems(params, session.network.block_time_s, session.finality_s):
            raise NotDueError(
                f"run {run} has windows in which this network's nodes cannot act: {'; '.join(short)}",
                "join a run whose windows suit the network",
            )
        key = session.address(operator)
        wanted = SeatRequest(run, chosen, session.account, wei, key, session.public_url or "", take)
        admission = _admission(session, record.uri, run, chosen)
        steps = join_calls(session.contracts, wanted, admission, session.at)
        document = {"action": "join", "run": run, "role": role, **session.amounts("bond", wei)}
        owner = None if key == session.account else session.account
        start = start_command(role, run, owner, params.verification)
        return send(
            session,
            f"run/{run}/join/{role}",
            steps,
            document,
            lambda joined: (
                f"{role.capitalize()} seat {joined['seat']} of run {run} is yours from round "
                f"{joined['from_round']} on. Next: `{start}`"
            ),
            lambda receipts: _seat_taken(session, receipts),
        )


def start_command(role: RoleName, run: int, owner: str | None, verification: int) -> str:
    """Returns the command that starts the node of a new seat."""
    by_operator = "" if owner is None else f" --owner {owner}"
    attests = role == "trainer" and verification == Level.ATTESTED
    return f"earnest {role} start {run}{by_operator}" + (" --attester KIND" if attests else "")


def _admission(session: Session, uri: str, run: int, role: Role) -> tuple[tuple[str, Role], ...]:
    """Returns the run's admission list; empty for a trainer if the run is open to all trainers."""
    params = session.contracts.runs.run_params(run, at=session.at)
    if role is Role.TRAINER and params.open_trainers:
        return ()
    from earnest.client.run.bundle import load_bundle

    with progress(session.environment.stderr, "fetching the run's admission list"):
        return load_bundle(uri, params, ObjectStore(session.public_folder)).admission


def _seat_taken(session: Session, receipts: Sequence[Receipt]) -> dict[str, Any]:
    args = event_arguments(session.contracts.runs, receipts, "SeatTaken")
    return {"seat": args["seat"], "from_round": args["from_round"]}


@app.command
def leave(run: RunNumber, /, *, flags: SendFlags = SEND) -> Answer:
    """Give up your seat from the next round on, and start the exit of its bond.

    Once the exit delay is over, `earnest stake exit` frees the bond.

    Example: earnest run leave 1

    Parameters
    ----------
    run
        The run's number.
    """
    with Session(flags) as session:
        held = held_seat(session.contracts, run, session.account, session.at)
        steps = leave_calls(session.contracts, run, held.role, held.seat, session.account, session.at)
        document = {"action": "leave", "run": run, "role": held.role, "seat": held.seat}
        done = f"The exit has started. When its delay is over, free the bond: `earnest stake exit {run}`"
        return send(session, f"run/{run}/leave", steps, document, done)


@app.command
def sync(
    run: RunNumber,
    /,
    *,
    role: RoleName | None = None,
    seat: SeatNumber | None = None,
    flags: SendFlags = SEND,
) -> Answer:
    """Update a seat's stake in the run from its bond in the vault. Without --role and --seat, your own seat's.

    Example: earnest run sync 1 --role trainer --seat 0

    Parameters
    ----------
    run
        The run's number.
    role
        Role of the seat; needs --seat.
    seat
        Index of the seat; needs --role.
    """
    if (role is None) != (seat is None):
        raise UsageError("only one of --role and --seat was given", "give both, or neither for your own seat")
    with Session(flags) as session:
        if role is None or seat is None:
            held = held_seat(session.contracts, run, session.account, session.at)
        else:
            held = SeatId(Role[role.upper()], seat)
        document = {"action": "sync", "run": run, "role": held.role, "seat": held.seat}
        label = f"run/{run}/sync/{int(held.role)}/{held.seat}"
        return send(
            session,
            label,
            sync_calls(session.contracts, run, held),
            document,
            "The new stake counts from the next round on.",
        )


@app.command
def settle(run: RunNumber, /, *, flags: SendFlags = SEND) -> Answer:
    """Settle what is due: rounds, pay, charges, penalties, and the sponsor's refund. Anyone may do it and pays the gas.

    Example: earnest run settle 1

    Parameters
    ----------
    run
        The run's number.
    """
    with Session(flags) as session:
        session.finish_earlier()
        due = list(due_calls(session.deployment, session.deployment.read_run(run)))
        refund = refund_due(session.contracts, run, session.account, session.chain.head())
        document: dict[str, Any] = {"action": "settle", "run": run, "refused": []}
        if not due and not refund:
            nothing = "Nothing is due now. `earnest run show` lists when the next window opens."
            return report(session, document, [], [nothing])
        steps = [_due_step(due_call) for due_call in due] + (
            refund_calls(session.contracts, run) if refund else []
        )
        # others may be faster: then a call is refused, and that is no error
        return approve(session, steps, document, first_may_fail=True) or _settle(session, run, document)


def _due_step(due_call: DueCall) -> PlannedCall:
    return PlannedCall(due_call.intent, due_call.intent, due_call.call)


def _settle(session: Session, run: int, document: dict[str, Any]) -> Answer:
    account = session.open_account()
    settled: list[Sent] = []
    refused: list[dict[str, str]] = []
    for due_call, outcome in settle_due(
        account, run, lambda due_call: session.notice(f"{due_call.intent} ...")
    ):
        if isinstance(outcome, Reverted):
            refused.append({"step": due_call.intent, "reason": outcome.reason})
        else:
            settled.append(mined(session, _due_step(due_call), outcome))
    if refund_due(session.contracts, run, session.account, session.chain.head()):
        settled += transact(session, account, f"run/{run}/refund", refund_calls(session.contracts, run))
    lines = [f"{r['step']}: refused, {r['reason']}" for r in refused]
    lines += [f"Settled in {len(settled)} transactions."] if settled else []
    lines = lines or ["Nothing was left to settle: others were faster."]
    return report(session, {**document, "refused": refused}, settled, lines)
