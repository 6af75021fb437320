"""`earnest run`: open a run, take part in it, settle it, end it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from earnest.base.errors import Reverted
from earnest.cli.app import make_group
from earnest.cli.commands.run_create import example_file, open_run, serve_objects
from earnest.cli.commands.run_fetch import fetch_model
from earnest.cli.commands.run_show import run_answer
from earnest.cli.exits import UsageError
from earnest.cli.flags import ChainFlags, RunNumber, SeatNumber, SendFlags, ServeFlags
from earnest.cli.output import Answer, progress
from earnest.cli.output import show as show_answer
from earnest.cli.session import Session
from earnest.cli.transactions import consent, send, transact, transaction, transaction_line, would_send
from earnest.client.account.commands import due_calls, estimate_calls, settle_due
from earnest.client.account.transactions import (
    PlannedCall,
    end_calls,
    held_seat,
    join_calls,
    leave_calls,
    refund_calls,
    refund_due,
    sync_calls,
)
from earnest.client.chain.contracts import SeatId
from earnest.client.run.run_file import RunFile
from earnest.client.storage.objects import ObjectStore
from earnest.protocol.run import Level, Role

if TYPE_CHECKING:
    from earnest.client.chain.answers import Receipt

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
    """Open a run: builds the initial state, makes the run's files public, and pays the whole budget into escrow.

    With --serve the files are served after that, until stopped; `earnest run serve` does it later.

    Example: earnest run create run.toml --serve 0.0.0.0:9000 --public-url http://my.host:9000

    Parameters
    ----------
    file
        The run file; `earnest run create --example > run.toml` prints one with comments.
    example
        Print an example run file and do nothing else.
    start_in
        Seconds from now to round 0, in place of the file's.
    rounds
        Rounds, in place of the file's.
    """
    if example:
        return example_file()
    if file is None:
        raise UsageError("no run file given", "write one: `earnest run create --example > run.toml`")
    with Session(flags) as session:
        given = {"start_in_s": start_in, "rounds": rounds}
        answer = open_run(session, RunFile.read(file).changed(given))
        if session.settings.serve is None or flags.dry_run:
            return answer
        show_answer(answer, session.environment.stdout, as_json=flags.json)
    serve_objects(session)  # the session is closed: other commands may use the key meanwhile
    return None


@app.command
def serve(run: RunNumber, /, *, flags: ServeFlags = SERVE) -> None:
    """Serve your account's public objects over HTTP, until stopped. Needs no password.

    The files of a run that you opened; or, when your node is done, the run's final state.

    Example: earnest run serve 1 --serve 0.0.0.0:9000

    Parameters
    ----------
    run
        The run's number.
    """
    with Session(flags) as session:
        if session.settings.serve is None:
            raise UsageError("no address to serve on", "give --serve HOST:PORT")
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
        show_answer(served, session.environment.stdout, as_json=flags.json)
        serve_objects(session)


@app.command
def show(run: RunNumber, /, *, flags: ChainFlags = CHAIN) -> Answer:
    """Show a run: its terms, what is open now and for how long, its seats, and every round so far.

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

    From this machine's own folders, the run's validators, its sponsor or its trainers, whoever has it.

    Example: earnest run fetch 1 --out result

    Parameters
    ----------
    run
        The run's number.
    out
        A new folder for `state` and `recipe`, which `earnest task export` takes (default: run-NUMBER).
    """
    with Session(flags) as session:
        return fetch_model(session, run, Path(f"run-{run}") if out is None else out)


@app.command
def end(run: RunNumber, /, *, flags: SendFlags = SEND) -> Answer:
    """End your run: this round and the next are still played, the rounds after that are refunded.

    Example: earnest run end 1

    Parameters
    ----------
    run
        The run's number.
    """
    with Session(flags) as session:
        done = f"Run {run} ends after the next round. The rest comes back with `earnest run settle {run}`."
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
    """Take a seat: deposits and bonds what is missing, then joins. Counts from the next round on.

    Your node registers its address when it starts; --public-url or --serve does it already now.

    Example: earnest run join 1 --role trainer --bond 150

    Parameters
    ----------
    run
        The run's number.
    role
        What the seat does.
    bond
        Tokens to have bonded (default: the run's least).
    operator
        Address of the key that the node will use (default: your own).
    take
        Seat to take over when none is free: one silent for 8 rounds, or the smallest bond for 1.25 times it.
    """
    with Session(flags) as session:
        chosen = Role[role.upper()]
        record = session.deployment.read_run(run)
        params = record.params
        least = params.trainer_min_bond if chosen is Role.TRAINER else params.validator_min_bond
        wei = least if bond is None else session.wei(bond)
        steps = join_calls(
            session.contracts,
            run,
            chosen,
            session.account,
            bond=wei,
            operator=session.address(operator),
            uri=session.public_url or "",
            admission=_admission(session, record.uri, run, chosen),
            take=take,
            at=session.at,
        )
        document = {"action": "join", "run": run, "role": role, **session.amounts("bond", wei)}
        owner = None if session.address(operator) == session.account else session.account
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
            lambda receipts: _taken(session, receipts),
        )


def start_command(role: RoleName, run: int, owner: str | None, verification: int) -> str:
    """What a node for a new seat is started with."""
    by_operator = "" if owner is None else f" --owner {owner}"
    attests = role == "trainer" and verification == Level.ATTESTED
    return f"earnest {role} start {run}{by_operator}" + (" --attester KIND" if attests else "")


def _admission(session: Session, uri: str, run: int, role: Role) -> tuple[tuple[str, Role], ...]:
    """The run's admission list; not needed by a trainer where trainers are open to all."""
    params = session.contracts.runs.run_params(run, at=session.at)
    if role is Role.TRAINER and params.open_trainers:
        return ()
    from earnest.client.run.bundle import load_bundle

    with progress(session.environment.stderr, "fetching the run's admission list"):
        return load_bundle(uri, params, ObjectStore(session.public_folder)).admission


def _taken(session: Session, receipts: Sequence[Receipt]) -> dict[str, Any]:
    runs = session.contracts.runs
    events = [runs.abi.decode_log(log) for log in receipts[-1].logs if log.address == runs.address]
    args = next(event[1] for event in events if event is not None and event[0] == "SeatTaken")
    return {"seat": args["seat"], "from_round": args["from_round"]}


@app.command
def leave(run: RunNumber, /, *, flags: SendFlags = SEND) -> Answer:
    """Give your seat up: starts the bond's exit and tells the run. Counts from the next round on.

    Once the exit delay is over, `earnest stake exit` takes the bond back.

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
        done = f"The exit has started. When its delay is over: `earnest stake exit {run}`"
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
    """Have the run read a seat's bond from the vault, your own seat's unless another is named.

    Example: earnest run sync 1 --role trainer --seat 0

    Parameters
    ----------
    run
        The run's number.
    role
        The seat's role, together with --seat.
    seat
        The seat's index.
    """
    if (role is None) != (seat is None):
        raise UsageError("a seat is named by --role and --seat together", "give both or neither")
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
            "The bond counts from the next round on.",
        )


@app.command
def settle(run: RunNumber, /, *, flags: SendFlags = SEND) -> Answer:
    """Settle whatever is due: rounds, pay, charges, penalties, and the sponsor's refund. Anyone may, for the gas.

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
        document: dict[str, Any] = {"action": "settle", "run": run}
        if not due and not refund:
            return Answer(
                {**document, "account": session.account, "transactions": [], "refused": []},
                ["Nothing is due."],
            )
        steps = [PlannedCall(due_call.intent, due_call.intent, due_call.call) for due_call in due]
        steps += refund_calls(session.contracts, run) if refund else []
        if flags.dry_run:
            return would_send(session, estimate_calls(session.deployment, session.account, steps), document)
        asked = not session.network.local and not flags.yes
        consent(session, estimate_calls(session.deployment, session.account, steps) if asked else [])
        return _settle(session, run, document)


def _settle(session: Session, run: int, document: dict[str, Any]) -> Answer:
    account = session.open_account()
    settled, refused = [], []
    for due_call, outcome in settle_due(
        account, run, lambda due_call: session.notice(f"{due_call.intent} ...")
    ):
        if isinstance(outcome, Reverted):
            refused.append({"step": due_call.intent, "reason": outcome.reason})
        else:
            settled.append(transaction(session, due_call.intent, due_call.call.function, outcome))
    if refund_due(session.contracts, run, session.account, session.chain.head()):
        steps = refund_calls(session.contracts, run)
        receipts = transact(session, account, f"run/{run}/refund", steps)
        settled.append(transaction(session, "refund", steps[0].call.function, receipts[0]))
    lines = [*map(transaction_line, settled)]
    lines += [f"{r['step']}: refused, {r['reason']}" for r in refused]
    whole = {**document, "account": session.account, "transactions": settled, "refused": refused}
    return Answer(whole, lines or ["Nothing was left to settle."])
