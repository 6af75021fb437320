"""`earnest trainer start` in runs that take attestations, and in those that do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from earnest.attestation.roots import SIMULATED_WARNING
from earnest.cli import main
from tests.cli.conftest import RUN_FILE, Place, Result, TestEnvironment

Cli = Callable[..., Result]
SIMULATED = ["--attester", "simulated", "--code", "mine"]


@pytest.fixture(scope="module")
def attested(place: Place, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run that counts only what a simulated machine with the code `mine` signs; the trainer has a seat."""
    folder = tmp_path_factory.mktemp("attested")
    assert main(["attest", "simulate", str(folder), "--code", "mine"], TestEnvironment()) == 0
    terms = 'verification = "attested"\nattestation_policy = "policy.json"\n'
    (folder / "run.toml").write_text(terms + RUN_FILE)
    assert main(["run", "create", str(folder / "run.toml"), *place.acting("sponsor")], TestEnvironment()) == 0
    assert main(["run", "join", "2", "--role", "trainer", *place.acting("trainer")], TestEnvironment()) == 0
    return "2"


def test_a_simulated_attester_is_said_to_be_one(attested: str, place: Place, cli: Cli) -> None:
    node = cli("trainer", "start", attested, *SIMULATED, *place.acting("trainer"), "--json")
    assert node.code == 0, node.err
    assert SIMULATED_WARNING in node.err
    assert node.document["attestation"] == {"troubles": []}


def test_a_node_without_an_attester_warns_about_the_lost_pay(attested: str, place: Place, cli: Cli) -> None:
    node = cli("trainer", "start", attested, *place.acting("trainer"), "--json")
    assert node.code == 0
    assert "without --attester there is no pay" in node.err
    assert "attestation" not in node.document


def test_an_attester_in_a_run_that_takes_no_attestation_is_a_usage_error(place: Place, cli: Cli) -> None:
    assert cli("run", "join", "1", "--role", "trainer", *place.acting("trainer")).code == 0
    refused = cli("trainer", "start", "1", *SIMULATED, *place.acting("trainer"), "--json")
    assert refused.code == 2
    assert "does not use attestation" in refused.error["cause"]
    assert "without --attester" in refused.error["fix"]


def test_collateral_that_cannot_be_read_is_a_usage_error(
    attested: str, place: Place, cli: Cli, tmp_path: Path
) -> None:
    flags = [*SIMULATED, "--collateral", str(tmp_path / "none.json")]
    refused = cli("trainer", "start", attested, *flags, *place.acting("trainer"), "--json")
    assert refused.code == 2
    assert "none.json" in refused.error["cause"]
