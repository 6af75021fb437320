"""Fetching the model of a run: the newest state root on the record, from whoever has the object."""

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
    """Writes the run's recipe and its newest state into `folder`, each verified against the record.

    Raises UsageError for a folder that is there already, Unavailable where nobody serves them.
    """
    from earnest.client.storage.fetch import fetch
    from earnest.training.diloco.state import Spec, read_parameters, state_bytes
    from earnest.training.tasks.task import load_task

    if folder.exists():
        raise UsageError(f"{folder} is already there", "name a new folder with --out")
    record = session.deployment.read_run(run)
    root, final = newest_root(session, record)
    sources = [*_own_stores(session), *dict.fromkeys(_served(record))]
    with progress(session.environment.stderr, "fetching the run's recipe and state"):
        bundle = _bundle(record, sources)
        task = load_task(bundle.recipe.task, bundle.recipe.task_options)
        limit = state_bytes(Spec.of(read_parameters(task.build_model(bundle.recipe.seed))))
        try:
            state = fetch(root, None, sources, limit)
        except Unavailable as error:
            raise _nobody("state", root, run, error) from error
    _write(folder, {RUN_FILES: bundle.to_bytes(), STATE: state})
    following = f"earnest task export {folder / RUN_FILES} {folder / STATE} {folder / 'model'}"
    what = "final state" if final else "newest state; the run is not over or its last round not settled"
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
    """The root of the run's final state and True; before there is one, of the newest that a majority reported."""
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
    """The public folders of every account that works here; an operator's lies in its owner's."""
    place = session.deployment_folder
    return [str(path) for depth in ("*/public", "*/*/public") for path in sorted(place.glob(depth))]


def _served(record: RunRecord) -> Iterator[str]:
    """Base URLs: validators', which keep every state; the sponsor's; trainers'."""
    for role in (Role.VALIDATOR, Role.TRAINER):
        yield from (seat.uri for _, seat in sorted(record.seats[role].items()) if seat.uri)
        if role is Role.VALIDATOR:
            yield record.uri.rstrip("/").rpartition("/")[0]


def _bundle(record: RunRecord, sources: list[str]) -> Bundle:
    """The run's files from any of the sources, checked against its terms."""
    from earnest.client.run.bundle import MAX_BUNDLE_BYTES, Bundle, bundle_root
    from earnest.client.storage.fetch import fetch

    root = bundle_root(record.uri)
    try:
        found = Bundle.from_bytes(fetch(root, None, sources, MAX_BUNDLE_BYTES))
    except Unavailable as error:
        raise _nobody("recipe", root, record.run, error) from error
    found.check(record.params)
    return found


def _nobody(what: str, root: bytes, run: int, error: Unavailable) -> Unavailable:
    return Unavailable(
        f"nobody serves the {what} 0x{root.hex()} of run {run}: {error.cause}",
        f"ask one of its validators to serve it: `earnest run serve {run} --serve HOST:PORT` with its data folder",
        error.reasons,
    )


def _write(folder: Path, files: dict[str, bytes]) -> None:
    try:
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        cause = f"{folder} cannot be written: {error.strerror}"
        raise StorageError(cause, "make room, or name another folder") from error
