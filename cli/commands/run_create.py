"""`earnest run create`: builds the initial state, publishes the run's files and pays the budget."""

from __future__ import annotations

from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING

from earnest.cli.exits import UsageError
from earnest.cli.output import Answer, progress
from earnest.cli.session import Session
from earnest.cli.transactions import event_arguments, send
from earnest.client.account.transactions import fund_calls
from earnest.client.run.run_file import RunFile, check_params, paid_share, remarks
from earnest.client.storage.objects import ObjectStore
from earnest.client.storage.serve import ObjectServer
from earnest.protocol.merkle import content_root

if TYPE_CHECKING:
    from earnest.protocol.run import RunParams

UNKNOWN_ROOT = b"\xff" * 32
"""Placeholder for the initial state while the other terms are checked, before the state is built."""


def example_file() -> Answer:
    """Returns a run file with comments, for the bundled task."""
    text = (files("earnest.cli") / "run_example.toml").read_text()
    return Answer({"example": text}, [text.rstrip()])


def open_run(session: Session, run_file: RunFile) -> Answer:
    """Builds the initial state, publishes the run's files and opens the run."""
    from earnest.client.run.bundle import Bundle, publish
    from earnest.training.diloco.initial import initial_state
    from earnest.training.diloco.state import to_bytes
    from earnest.training.tasks.task import load_task

    admission, policy = run_file.admitted(), run_file.read_policy()
    with progress(session.environment.stderr, "reading task and recipe"):
        recipe = run_file.make_recipe()
    _check(
        session, run_file.params(recipe, UNKNOWN_ROOT, session.chain.head().time, session.decimals, policy)
    )
    with progress(session.environment.stderr, "building the initial state"):
        initial = to_bytes(initial_state(load_task(recipe.task, recipe.task_options), recipe))
    now = session.chain.head().time
    params = run_file.params(recipe, content_root(initial), now, session.decimals, policy)
    _check(session, params)
    store = ObjectStore("memory:///" if session.flags.dry_run else session.public_folder)
    root = publish(store, Bundle(recipe, admission, params.initial_state, policy), initial)
    uri = f"{_files_url(session)}/{root.hex()}"
    for remark in remarks(params, recipe, policy):
        session.notice(remark)
    session.notice(f"The budget is {session.tokens(params.budget)}.")
    steps = fund_calls(session.contracts, session.account, params, uri, session.at)
    document = {
        "uri": uri,
        "recipe_hash": recipe.hash(),
        "initial_state": params.initial_state,
        "verification": run_file.verification,
        "attestation_policy": None if policy is None else policy.hash,
        "start": params.start,
        "rounds": params.rounds,
        "params": asdict(params),
        **session.amounts("budget", params.budget),
        **session.amounts(
            "expected_trainer_pay", int(params.trainer_pool * params.rounds * paid_share(params))
        ),
    }
    return send(
        session,
        f"run/create/{root.hex()}",
        steps,
        document,
        lambda opened: (
            f"Run {opened['run']} is open. Its files: {uri}. Next: `earnest run show {opened['run']}`"
        ),
        lambda receipts: {"run": event_arguments(session.contracts.terms, receipts, "RunCreated")["run"]},
    )


def _check(session: Session, params: RunParams) -> None:
    check_params(params, session.chain.head().time, session.network.block_time_s, session.finality_s)


def _files_url(session: Session) -> str:
    """Returns the base URL of the run's files; on a local network without --public-url, this machine's folder.

    Raises UsageError on other networks without --public-url and --serve.
    """
    if session.public_url is not None:
        return session.public_url
    if not session.network.local:
        raise UsageError(
            "nobody could fetch the run's files",
            "give the URL at which they will be served: --public-url URL, or --serve HOST:PORT",
        )
    session.notice("without --public-url, only this machine can read the run's files")
    return str(session.public_folder.resolve())


def object_server(session: Session) -> ObjectServer:
    """Returns the server of the account's public objects on --serve; it binds the address when it is entered."""
    address = session.settings.serve_address
    assert address is not None
    return ObjectServer(session.public_folder, *address)


def serve_objects(session: Session, server: ObjectServer) -> None:
    """Lets the server run until SIGTERM or Ctrl-C."""
    with session.environment.stopping() as stop:
        session.notice(f"serving {session.public_folder} on {server.url} until stopped (Ctrl-C)")
        stop.wait()
