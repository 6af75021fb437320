"""With --json, stdout is one JSON document and nothing else: for every command, whether it succeeds or fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.conftest import ADDRESS, Place, Result
from tests.cli.test_help import COMMANDS

PENALTY = "0x" + "5b" * 32
MINE, READS, NOTHING = "mine", "reads", "nothing"

CASES: dict[str, tuple[str, list[str], int]] = {
    # command: (whose flags, arguments, exit code)
    "demo": (NOTHING, ["--trainers", "1"], 2),
    "devnet": (NOTHING, ["--port", "0", "--accounts", "1"], 0),
    "status": (MINE, [], 0),
    "doctor": (MINE, ["1"], 1),
    "claim": (MINE, [], 0),
    "keys new": (NOTHING, ["short"], 2),
    "keys import": (NOTHING, ["none", "--key-file", "missing"], 2),
    "keys list": (NOTHING, [], 0),
    "token mint": (MINE, ["1", "--dry-run"], 1),
    "plan training": (NOTHING, [], 0),
    "plan privacy": (NOTHING, ["--noise", "0"], 0),
    "task check": (NOTHING, ["no-such-file"], 2),
    "task export": (NOTHING, ["missing.json", "missing", "model"], 2),
    "deploy plan": (MINE, [], 0),
    "deploy run": (MINE, ["--dry-run", "--again"], 0),
    "deploy verify": (READS, [], 0),
    "run create": (NOTHING, ["--example"], 0),
    "run serve": (MINE, ["1", "--serve", "127.0.0.1:0"], 2),
    "run show": (READS, ["1"], 0),
    "run fetch": (READS, ["1"], 0),
    "run end": (MINE, ["1", "--dry-run"], 1),
    "run join": (MINE, ["1", "--role", "trainer", "--dry-run"], 0),
    "run leave": (MINE, ["1"], 1),
    "run sync": (MINE, ["1"], 1),
    "run settle": (MINE, ["1"], 0),
    "seat operator": (MINE, ["1", ADDRESS["operator"]], 1),
    "seat uri": (MINE, ["1", "http://example.org"], 1),
    "seat show": (MINE, ["1"], 1),
    "stake deposit": (MINE, ["5", "--dry-run"], 0),
    "stake withdraw": (MINE, ["all"], 0),
    "stake bond": (MINE, ["1", "5", "--dry-run"], 0),
    "stake exit": (MINE, ["1"], 1),
    "stake show": (MINE, [], 0),
    "trainer start": (MINE, ["1"], 1),
    "validator start": (MINE, ["1"], 1),
    "penalty show": (READS, ["1"], 0),
    "penalty contest": (MINE, [PENALTY], 1),
    "attest verify": (NOTHING, ["missing", "--collateral", "missing", "--at", "1"], 2),
    "attest policy": (NOTHING, ["missing"], 2),
    "attest simulate": (NOTHING, ["simulated"], 0),
    "attest register": (MINE, ["1", "--attester", "simulated"], 2),
    "attest show": (READS, ["1"], 0),
    "attest deny": (MINE, ["1", "--platform", PENALTY], 2),
    "attest raise-floor": (MINE, ["1", "18"], 2),
    "attest revoke": (MINE, ["1", ADDRESS["trainer"]], 2),
}


def test_every_command_has_a_case() -> None:
    assert set(CASES) == {" ".join(command) for command in COMMANDS}


@pytest.mark.parametrize("command", CASES)
def test_stdout_is_one_document(command: str, place: Place, cli: Callable[..., Result]) -> None:
    whose, arguments, code = CASES[command]
    result = cli(*command.split(), *arguments, *_flags(whose, place), "--json")
    assert result.code == code, result
    document = result.document
    assert isinstance(document, dict)
    if "error" in document:
        assert set(document["error"]) - {"reason"} == {"code", "cause", "fix"}
        assert all(document["error"].values())


@pytest.mark.parametrize("command", CASES)
def test_a_wrong_command_line_is_one_document_too(command: str, cli: Callable[..., Result]) -> None:
    result = cli(*command.split(), "--no-such-option", "--json")
    assert result.code == 2
    assert result.error["code"] == "usage"
    assert result.error["fix"] == f"see `earnest {command} --help`"


@pytest.mark.parametrize("command", [c for c, (whose, _, _) in CASES.items() if whose != NOTHING])
def test_an_unreachable_chain_is_one_document_too(
    command: str, place: Place, cli: Callable[..., Result]
) -> None:
    whose, arguments, _ = CASES[command]
    result = cli(*command.split(), *arguments, *_flags(whose, place, "http://127.0.0.1:9"), "--json")
    if command == "doctor":
        assert result.code == 1
        assert not result.document["ok"]
    else:
        assert result.code == 3
        assert result.error["code"] == "endpoint_down"


def _flags(whose: str, place: Place, url: str | None = None) -> list[str]:
    if whose == NOTHING:
        return []
    return place.acting("latecomer", url) if whose == MINE else place.reading(url)
