"""`earnest task`: checks a Task before a run, and exports its model after one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from earnest.base.strict_json import JsonError, read_json
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
    """Check that a Task is deterministic and keeps the other rules, before anybody stakes on it.

    Two new processes build the model, draw data, measure and train. Their results must be equal in every bit.

    Example: earnest task check earnest.training.tasks.shakespeare:Shakespeare --option layers=1

    Parameters
    ----------
    subject
        A recipe or run file, or a Task as package.module:Class.
    option
        Option of the Task, name=value; repeat it for several. A file has its own options.
    steps
        Number of inner steps to train.
    threads
        Number of CPU threads.
    """
    from earnest.training.tasks.check import check_task

    chosen = _subject(subject, option)
    with progress(flags.environment.stderr, f"checking {chosen.task}"):
        report = check_task(chosen, threads=threads, steps=steps)
    return _answer(report)


@app.command
def export(recipe: Path, state: Path, folder: Path, /, *, flags: Flags = PLAIN) -> Answer:
    """Write a state's model to a folder: in Hugging Face format if the Task supports it, else as safetensors.

    Example: earnest task export recipe.json state.bin model

    Parameters
    ----------
    recipe
        The run's recipe, its run file, or the file `recipe` from `earnest run fetch`.
    state
        State file, from `earnest run fetch` or a validator's public folder, where its name is the state's root.
    folder
        New folder to write to.
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
        raise UsageError(f"{folder} already exists", "name a new folder")
    rules = _recipe(recipe)
    task = load_task(rules.task, rules.task_options)
    layout = Spec.of(read_parameters(task.build_model(rules.seed)))
    try:
        exported = RootedState.read(read_file(state, state_bytes(layout)), layout)
    except StateError as error:
        raise UsageError(
            f"{state}: {error}", "give a state file of a run with this recipe: `earnest run fetch`"
        ) from error
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
            f"{folder} cannot be written: {error}", "free disk space, or name another folder"
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
            raise UsageError(
                "--option cannot be used with a file, which has the Task's options", "change them in the file"
            )
        return TaskUnderTest.of(_recipe(path))
    if ":" not in named:
        raise UsageError(
            f"there is no file {named}", "give a recipe or run file, or a Task as package.module:Class"
        )
    return TaskUnderTest(named, dict(_option(text) for text in option))


def _option(text: str) -> tuple[str, int | float | str | bool]:
    """Parses name=value: a JSON number, true or false as such, any other value as text. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"{text!r} is not an option", "write name=value")
    try:
        parsed = read_json(value)
    except JsonError:
        parsed = value
    return name, parsed if isinstance(parsed, int | float | bool) else value


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
    shown: list[Any] = [table(f"Task {report.task}", ("", "check", "result"), rows), ""]
    if report.parameters:
        sizes = ", ".join(f"{name} {size:,} bytes" for name, size in report.payload_bytes.items())
        shown += [
            f"{report.parameters:,} parameters. Largest size of an update: {sizes}.",
            f"A step takes about {report.step_s:.3g} s here, for {report.step_tokens:,} tokens. "
            f"Next: `earnest plan training --parameters {report.parameters} --step-s {report.step_s:.3g} "
            f"--step-tokens {report.step_tokens}`.",
        ]
    shown.append(
        "All checks passed on this machine: the Task is fit for a run."
        if report.ok
        else f"Not fit for a run: {failed[0].name}: {failed[0].detail}."
    )
    return Answer(document, shown, Exit.OK if report.ok else Exit.REFUSED)
