"""The attested demo: three cheats are refused, each with its reason; honest trainers earn; nobody loses bond."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from earnest.attestation.roots import SIMULATED_ROOT_ID, SIMULATED_WARNING
from earnest.demo.view import keys_table, round_table, summary, summary_table
from tests.cli.conftest import Result
from tests.demo.short import shorten

Cli = Callable[..., Result]
HONEST, SWAPPED, OLD, OTHER = ("trainer-0", "trainer-1"), "trainer-2", "trainer-3", "trainer-4"
UNATTESTED = "not attested: the reveal was not attested"
REASONS = {
    SWAPPED: ["attestation: workload not allowed", UNATTESTED],
    OLD: ["attestation: not bound to this key", UNATTESTED],
    OTHER: ["runs: wrong enclave signature", UNATTESTED],
}


def test_the_attested_demo_refuses_every_cheat_and_says_why(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch)
    size = ["--rounds", "2", "--trainers", "5", "--validators", "1"]
    result = cli("demo", "--verification", "attested", *size, "--output", str(tmp_path), "--json")
    assert result.code == 0, result.err
    assert SIMULATED_WARNING in result.err
    document = result.document
    assert_refused(document)
    assert_paid(document)
    assert Path(document["picture"]).read_bytes().startswith(b"\x89PNG")
    shown = show(document)
    for reason in {reason for reasons in REASONS.values() for reason in reasons}:
        assert reason in shown
    assert SIMULATED_WARNING in shown
    assert f"0x{SIMULATED_ROOT_ID.hex()}" in shown


def assert_refused(document: dict[str, Any]) -> None:
    attestation = document["attestation"]
    assert attestation["root_id"] == SIMULATED_ROOT_ID.hex()
    assert attestation["warning"] == SIMULATED_WARNING
    keys = {one["name"]: one for one in attestation["keys"]}
    assert {name for name, one in keys.items() if one["key"]} == {*HONEST, OTHER}
    assert {keys[name]["workload"] for name in (*HONEST, OTHER)} == set(attestation["workloads"])
    assert len({keys[name]["platform"] for name in (*HONEST, OTHER)}) == 3
    for played in document["rounds"]:
        assert played["reasons"] == {name: REASONS.get(name, []) for name in keys}
        assert played["attested"] == {name: name in HONEST for name in keys}
        assert {name for name, told in played["verdicts"].items() if told == "not_counted"} == set(REASONS)


def assert_paid(document: dict[str, Any]) -> None:
    people = {one["name"]: one for one in document["participants"]}
    assert {name for name, one in people.items() if not one["honest"]} == set(REASONS)
    assert all(int(people[name]["earned_wei"]) > 0 for name in HONEST)
    assert all(one["bond_end_wei"] == one["bond_start_wei"] for one in people.values())
    assert [int(people[name]["earned_wei"]) for name in REASONS] == [0, 0, 0]
    assert document["burned_wei"] == "0"
    assert document["final_loss"] < document["initial_loss"]
    assert set(document["state_roots"].values()) == {document["final_state_root"]}


def show(document: dict[str, Any]) -> str:
    """Everything that is printed without --json."""
    console = Console(file=io.StringIO(), width=200)
    console.print(keys_table(document["attestation"]))
    for played in document["rounds"]:
        console.print(round_table(played, played["dense_bytes"]))
    console.print(summary_table(document))
    console.print(summary(document))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    "wrong", [["--attack", "noise"], ["--trainers", "4"]], ids=["another attack", "too few to cheat"]
)
def test_impossible_options_of_an_attested_demo_are_a_usage_error(wrong: list[str], cli: Cli) -> None:
    assert cli("demo", "--verification", "attested", *wrong, "--json").code == 2
