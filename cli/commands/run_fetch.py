"""`earnest run fetch`: downloads the newest recorded state of a run from any node that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from earnest.base.errors import StorageError, Unavailable
from earnest.cli.exits import UsageError
from earnest.cli.output import Answer, progress
from earnest.cli.session import Session
from earnest.protocol.run import Role

if TYPE_CHECKING:
    from earnest.client.run.bundle import Bundle
    from earnest.client.run.record import RunRecord

RUN_FILES, STATE = "recipe", "state"


def fetch_model(session: Session, run: int, folder: Path) -> Answer:
    """Writes the run's recipe and its newest state into `folder`, both verified against the record.

    Raises UsageError if the folder exists, Unavailable if nobody serves the files.
    """
    from earnest.client.storage.fetch import fetch
    from earnest.training.diloco.state import Spec, read_parameters, state_bytes
    from earnest.training.tasks.task import load_task

    if folder.exists():
        raise UsageError(f"{folder} already exists", "name a new folder with --out")
    record = session.deployment.read_run(run)
    root, final = newest_root(session, record)
    sources = [*_own_stores(session), *dict.fromkeys(_served(record))]
    with progress(session.environment.stderr, "fetching the run's recipe and state"):
        bundle = _bundle(record, sources)
        task = load_task(bundle.recipe.task, bundle.recipe.task_options)
        limit = state_bytes(Spec.of(read_parameters(task.build_model(bundle.recipe.seed))))
        try:
            state = fetch(root, sources, limit)
        except Unavailable as error:
            raise _nobody("state", root, run, error) from error
    _write(folder, {RUN_FILES: bundle.to_bytes(), STATE: state})
    following = f"earnest task export {folder / RUN_FILES} {folder / STATE} {folder / 'model'}"
    what = "final state" if final else "newest state; the run is not over, or its last round is not settled"
    document = {
        "run": run,
        "state": root,
        "final": final,
        "recipe_path": str(folder / RUN_FILES),
        "state_path": str(folder / STATE),
        "next": following,
    }
    shown = [f"state 0x{root.hex()} ({what})", f"In {folder}: {RUN_FILES}, {STATE}", f"Next: `{following}`"]
    return Answer(document, shown)


def newest_root(session: Session, record: RunRecord) -> tuple[bytes, bool]:
    """Returns the final state's root and True; before the end, the newest that a majority reported and False."""
    at = session.chain.final()
    final = session.contracts.settlement.final_state(record.run, at=at)
    if final is not None:
        return final, True
    schedule = record.params.schedule()
    for round in range(record.planned_rounds, -1, -1):
        if schedule.report_reveal(round).end <= at.time and (pair := record.settled(round).pair) is not None:
            return pair[1], False
    return record.params.initial_state, False


def _own_stores(session: Session) -> list[str]:
    """Lists the public folders of all accounts on this machine; an operator's is inside its owner's."""
    folder = session.deployment_folder
    return [str(path) for depth in ("*/public", "*/*/public") for path in sorted(folder.glob(depth))]


def _served(record: RunRecord) -> Iterator[str]:
    """Yields the base URLs of validators, which keep every state, then of the sponsor and the trainers."""
    for role in (Role.VALIDATOR, Role.TRAINER):
        yield from (seat.uri for _, seat in sorted(record.seats[role].items()) if seat.uri)
        if role is Role.VALIDATOR:
            yield record.uri.rstrip("/").rpartition("/")[0]


def _bundle(record: RunRecord, sources: list[str]) -> Bundle:
    """Fetches the run's files from any of the sources and checks them against its terms."""
    from earnest.client.run.bundle import MAX_BUNDLE_BYTES, Bundle, bundle_root
    from earnest.client.storage.fetch import fetch

    root = bundle_root(record.uri)
    try:
        bundle = Bundle.from_bytes(fetch(root, sources, MAX_BUNDLE_BYTES))
    except Unavailable as error:
        raise _nobody("recipe", root, record.run, error) from error
    bundle.check(record.params)
    return bundle


def _nobody(what: str, root: bytes, run: int, error: Unavailable) -> Unavailable:
    return Unavailable(
        f"nobody serves the {what} 0x{root.hex()} of run {run}: {error.cause}",
        f"ask a validator of the run to serve it, from its data folder: `earnest run serve {run} --serve HOST:PORT`",
        error.reasons,
    )


def _write(folder: Path, files: dict[str, bytes]) -> None:
    try:
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        cause = f"{folder} cannot be written: {error.strerror}"
        raise StorageError(cause, "free disk space, or name another folder with --out") from error
