"""Help: every command is listed, explained, and has an example that parses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator

import pytest
from cyclopts import App

from earnest.cli.app import app
from earnest.cli.exits import MEANINGS, Exit
from tests.cli.conftest import Result

EXPECTED = """demo devnet status doctor claim keys new keys import keys list token mint plan training plan privacy
task check task export deploy plan deploy run
deploy verify run create run serve run show run fetch run end run join run leave run sync run settle seat operator
seat uri seat show stake deposit stake withdraw stake bond stake exit stake show trainer start validator start
penalty show penalty contest attest verify attest policy attest simulate attest register attest show
attest deny attest raise-floor attest revoke"""


def leaves(node: App, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that does something, as its words."""
    names = [name for name in node if not name.startswith("-")]
    if not names:
        yield path
    for name in names:
        yield from leaves(node[name], (*path, name))


COMMANDS = sorted(leaves(app))


def test_every_command_of_the_list_is_there() -> None:
    words = EXPECTED.split()
    groups = {
        "keys",
        "token",
        "deploy",
        "run",
        "seat",
        "stake",
        "trainer",
        "validator",
        "penalty",
        "attest",
        "plan",
        "task",
    }
    expected, position = set(), 0
    while position < len(words):
        size = 2 if words[position] in groups else 1
        expected.add(tuple(words[position : position + size]))
        position += size
    assert set(COMMANDS) == expected


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_that_parses(command: tuple[str, ...], cli: Callable[..., Result]) -> None:
    result = cli(*command, "--help")
    assert result.code == 0
    text = " ".join(result.out.split("╭")[0].split())
    examples = re.findall(r"Example: (earnest .*)", text)
    assert len(examples) == 1
    words = shlex.split(examples[0])[1:]
    assert tuple(words[: len(command)]) == command
    app.parse_args(words, exit_on_error=False, print_error=False)


def test_the_top_explains_settings_exit_codes_and_every_group(cli: Callable[..., Result]) -> None:
    result = cli("--help")
    text = " ".join(result.out.split())
    for code, meaning in MEANINGS.items():
        assert f"{code.value} {meaning}" in text
    assert "flags override EARNEST_* variables, which override earnest.toml" in text
    for name in {command[0] for command in COMMANDS}:
        assert re.search(rf"│ {name} +[A-Z]", result.out), name
    assert cli().out == result.out


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Exit)


def test_version(cli: Callable[..., Result]) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", cli("--version").out.strip())
