"""Output of a command: one document on stdout, as JSON or as text. Notices and progress go to stderr."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from earnest.base.amounts import format_amount
from earnest.base.logs import CONTROL

PIPE_WIDTH = 240
"""Columns when the output is not a terminal: wide enough that no address is wrapped."""

EXACT_IN_JSON = 1 << 53


@dataclass(frozen=True)
class Answer:
    """A command's result: the JSON document, the same as text, and the exit code."""

    document: Mapping[str, Any]
    shown: Sequence[RenderableType] = field(default_factory=tuple)
    exit: int = 0


def console(stream: TextIO) -> Console:
    """Returns a console for the stream; it prints plain text if the stream is not a terminal."""
    return Console(
        file=stream, highlight=False, markup=False, emoji=False, width=None if stream.isatty() else PIPE_WIDTH
    )


def show(answer: Answer, stream: TextIO, *, as_json: bool) -> None:
    """Prints the answer and flushes, so that a reader has it while the command still runs."""
    if as_json:
        stream.write(json.dumps(plain(answer.document), indent=2) + "\n")
    else:
        out = console(stream)
        for part in answer.shown:
            out.print(safe(part) if isinstance(part, str) else part, soft_wrap=isinstance(part, str))
    stream.flush()


def safe(text: str) -> str:
    """Escapes control characters, with which untrusted text could manipulate the terminal."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Returns a table with numbers right-aligned and control characters escaped."""
    made = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, header_style="bold")
    for position, heading in enumerate(headings):
        numeric = all(isinstance(row[position], int | float) for row in rows)
        made.add_column(heading, justify="right" if rows and numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(safe("-" if cell is None else str(cell))) for cell in row))
    return made


def block(title: str, fields: Sequence[tuple[str, Any]]) -> list[str]:
    """Returns a record as lines `name  value`, for long values that people copy and a table would wrap."""
    width = max(len(name) for name, _ in fields)
    return [title, *(f"  {name:<{width}}  {'-' if value is None else value}" for name, value in fields)]


def amounts(name: str, wei: int, decimals: int) -> dict[str, str]:
    """Returns an amount for a document: in tokens, and in wei as text, since JSON numbers are too small."""
    return {name: format_amount(wei, decimals), f"{name}_wei": str(wei)}


def when(seconds: int) -> str:
    """Formats a block time (unix seconds) as UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def countdown(seconds: int) -> str:
    """Formats a duration as text, in its two largest units; `now` if it is zero or negative."""
    if seconds <= 0:
        return "now"
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join([f"{count} {unit}" for count, unit in parts if count][:2])


@contextmanager
def progress(stream: TextIO, what: str) -> Iterator[None]:
    """Shows a spinner while a long operation runs; a plain line if the stream is not a terminal."""
    if not stream.isatty():
        stream.write(f"{what} ...\n")
        stream.flush()
        yield
        return
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console(stream), transient=True) as shown:
        shown.add_task(what, total=None)
        yield


def plain(value: Any) -> Any:
    """Converts a value for JSON: bytes to 0x-hex, enumerations to names, integers of 2^53 and more to text."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, IntEnum):
        return value.name.lower()
    return str(value) if isinstance(value, int) and abs(value) >= EXACT_IN_JSON else value
