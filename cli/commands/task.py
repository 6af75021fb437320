"""`earnest task`: is a Task fit for a run, and what a run made of its model."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from earnest.cli.app import make_group
from earnest.cli.exits import Exit, UsageError
from earnest.cli.files import read_file
from earnest.cli.flags import Flags
from earnest.cli.output import Answer, progress, table

if TYPE_CHECKING:
    from earnest.protocol.recipe import Recipe
    from earnest.training.tasks.check import CheckReport, TaskUnderTest

app = make_group("task")
PLAIN = Flags()
Count = Annotated[int, Parameter(validator=Number(gte=1, lte=1000))]


@app.command
def check(
    subject: str,
    /,
    *,
    option: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    steps: Count = 3,
    threads: Count = 1,
    flags: Flags = PLAIN,
) -> Answer:
    """Prove that a Task is deterministic, and keeps the other rules, before anybody stakes on it.

    Two fresh processes build, draw, measure and train; what comes out must be the same to the last bit.

    Example: earnest task check earnest.training.tasks.shakespeare:Shakespeare --option layers=1

    Parameters
    ----------
    subject
        A recipe or run file, or a Task as package.module:Class.
    option
        An option of the Task, name=value; repeat it for more. Not with a file, which has its own.
    steps
        Inner steps to train.
    threads
        CPU threads.
    """
    from earnest.training.tasks.check import check_task

    chosen = _subject(subject, option)
    with progress(flags.environment.stderr, f"checking {chosen.task}"):
        report = check_task(chosen, threads=threads, steps=steps)
    return _answer(report)


@app.command
def export(recipe: Path, state: Path, folder: Path, /, *, flags: Flags = PLAIN) -> Answer:
    """Write the model of a state as a folder: in Hugging Face's format where the Task has one, else as safetensors.

    Example: earnest task export recipe.json state.bin model

    Parameters
    ----------
    recipe
        The run's recipe, its run file, or the object that it is opened with (`files` in `run show`).
    state
        A state file: in a validator's public folder, under the state's root (`final state` in `run show`).
    folder
        A new folder.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from earnest.base.errors import StorageError
    from earnest.training.diloco.state import (
        RootedState,
        Spec,
        StateError,
        read_parameters,
        state_bytes,
    )
    from earnest.training.tasks.task import load_task

    if folder.exists():
        raise UsageError(f"{folder} is already there", "name a new folder")
    rules = _recipe(recipe)
    task = load_task(rules.task, rules.task_options)
    layout = Spec.of(read_parameters(task.build_model(rules.seed)))
    try:
        exported = RootedState.read(read_file(state, state_bytes(layout)), layout)
    except StateError as error:
        raise UsageError(f"{state}: {error}", "take a state file of a run with this recipe") from error
    write = getattr(task, "export", None)
    try:
        folder.mkdir(parents=True)
        if callable(write):
            write(exported.state.parameters, folder)
        else:
            save_file(exported.state.parameters, folder / "model.safetensors")
        files = sorted(path.name for path in folder.iterdir())
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"{folder} cannot be written: {error}", "make room, or name another folder"
        ) from error
    document = {
        "folder": str(folder),
        "files": files,
        "state": exported.root,
        "parameters": layout.size,
    }
    return Answer(document, [f"{layout.size:,} parameters in {folder}: {', '.join(files)}"])


def _subject(named: str, option: tuple[str, ...]) -> TaskUnderTest:
    from earnest.training.tasks.check import TaskUnderTest

    path = Path(named)
    if path.is_file():
        if option:
            raise UsageError("the file has the Task's options already", "change them there")
        return TaskUnderTest.of(_recipe(path))
    if ":" not in named:
        raise UsageError(f"no file {named}", "give a recipe, or a Task as package.module:Class")
    return TaskUnderTest(named, dict(_option(text) for text in option))


def _option(text: str) -> tuple[str, int | float | str | bool]:
    """name=value; the value as JSON where it is a number, true or false, else as text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"{text!r} is no option", "write name=value")
    try:
        read = json.loads(value)
    except ValueError:
        read = value
    return name, read if isinstance(read, int | float | bool) else value


def _recipe(path: Path) -> Recipe:
    from earnest.client.run.bundle import Bundle, BundleError
    from earnest.client.run.run_file import RunFile
    from earnest.protocol.recipe import MAX_FILE_BYTES, Recipe, RecipeError

    if path.suffix == ".toml":
        return RunFile.read(path).make_recipe()
    content = read_file(path, MAX_FILE_BYTES)
    try:
        return Recipe.from_json(content)
    except RecipeError as error:
        with suppress(BundleError):
            return Bundle.from_bytes(content).recipe
        raise UsageError(f"{path}: {error}", "correct the recipe") from error


def _answer(report: CheckReport) -> Answer:
    failed = [result for result in report.results if not result.ok]
    document: dict[str, Any] = {
        "task": report.task,
        "ok": report.ok,
        "checks": [{"name": r.name, "ok": r.ok, "seen": r.detail} for r in report.results],
        "parameters": report.parameters,
        "step_s": report.step_s,
        "step_tokens": report.step_tokens,
        "payload_bytes": dict(report.payload_bytes),
    }
    rows = [("ok" if r.ok else "FAILS", r.name, r.detail) for r in report.results]
    shown: list[Any] = [table(f"Task {report.task}", ("", "check", "seen"), rows), ""]
    if report.parameters:
        sizes = ", ".join(f"{name} {size:,} bytes" for name, size in report.payload_bytes.items())
        shown += [
            f"{report.parameters:,} parameters. An update, at most: {sizes}.",
            f"A step here: about {report.step_s:.3g} s for {report.step_tokens:,} tokens; "
            f"goes on with `earnest plan training --parameters {report.parameters} --step-s {report.step_s:.3g} "
            f"--step-tokens {report.step_tokens}`.",
        ]
    shown.append(
        "Fit for a run, on this machine."
        if report.ok
        else f"Not fit for a run: {failed[0].name}: {failed[0].detail}."
    )
    return Answer(document, shown, Exit.OK if report.ok else Exit.REFUSED)
