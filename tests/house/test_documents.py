"""The documents name only what exists: links, files, `make` targets, commands and their options."""

import re
import shlex
from pathlib import Path

import pytest

from earnest.cli.app import app
from tests.house.rooms import ROOT, modules, tracked

PAGES = sorted(path for path in tracked() if path.endswith(".md"))
TOPS = {path.split("/")[0] for path in tracked() if "/" in path}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXAMPLES = {"tests/contracts/test_a.py", "tests/c/test_a.py", "client/earnest/client/errors.py"}
"""Paths that a page uses as a pattern, or as something that was not built."""

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"^(?:PYTHONPATH=\S+ )?(?:\.venv/bin/)?(earnest [a-z].*)$")


def text(page: str) -> str:
    return (ROOT / page).read_text()


def spans(page: str) -> list[str]:
    """Text in backticks, line breaks folded; fenced blocks are left out."""
    return [" ".join(span.split()) for span in SPAN.findall(FENCE.sub("", text(page)))]


def lines(page: str) -> list[str]:
    """Lines of fenced shell blocks, without comments; continued lines joined."""
    blocks = [block for language, block in FENCE.findall(text(page)) if language in ("", "sh", "console")]
    joined = "\n".join(blocks).replace("\\\n", " ")
    return [line.split("#")[0].strip() for line in joined.splitlines()]


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def unknown_part(command: str) -> str | None:
    """The first word or option of an `earnest` command that does not exist; None if all do."""
    words = shlex.split(re.split(r"[|>]", command)[0].replace("...", ""), comments=True)[1:]
    chain, apps, rest = app.parse_commands(words)
    if any(name.isalpha() for name in apps[-1]):  # a group
        return " ".join([*chain, rest[0]]) if rest and re.fullmatch(r"[a-z-]+", rest[0]) else None
    options = {name for argument in apps[-1].assemble_argument_collection() for name in argument.names}
    named = {word.split("=")[0] for word in rest if word.startswith("--")}
    return min(named - options - {"--help", "--version"}, default=None)


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_resolve(page: str) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", text(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    named = {span for span in spans(page) if re.fullmatch(r"\.?[\w-]+/[\w./-]*", span)}
    ours = {path for path in named - EXAMPLES if path.split("/")[0] in TOPS}
    assert not [path for path in sorted(ours) if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_symbol_is_in_the_file_that_is_named_for_it(page: str) -> None:
    named = re.findall(r"`(\w+)` in `([\w./-]+\.\w+)`", " ".join(text(page).split()))
    ours = [(name, path) for name, path in named if path not in EXAMPLES]
    assert not [(name, path) for name, path in ours if name not in text(path)]


@pytest.mark.parametrize("page", PAGES)
def test_named_make_targets_exist(page: str) -> None:
    named = {
        match[1] for line in [*spans(page), *lines(page)] if (match := re.match(r"make ([a-z-]+)", line))
    }
    assert not named - TARGETS


@pytest.mark.parametrize("page", PAGES)
def test_named_commands_and_options_exist(page: str) -> None:
    commands = [match[1] for line in [*spans(page), *lines(page)] if (match := COMMAND.match(line))]
    unknown = {command: part for command in commands if (part := unknown_part(command))}
    assert not unknown


@pytest.mark.parametrize("page", ["docs/trainer.md", "docs/validator.md"])
def test_log_lines_in_the_table_of_troubles_exist(page: str) -> None:
    rows = re.findall(r"^\| `([^`]+)`", text(page).split("## What can go wrong")[1], re.MULTILINE)
    nodes = "".join(text(path) for path in modules() if path.startswith(("client/", "validator/")))
    assert rows
    assert not [row for row in rows if f'"{row.split(" ... ")[0]}"' not in nodes]


def test_make_help_prints_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    described = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert described == TARGETS
