"""`earnest attest deny`, `raise-floor`, `revoke`: a guardian narrows a policy, anyone ends keys that it denied."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from earnest.cli import main
from tests.cli.conftest import ADDRESS, COIN, RUN_FILE, Place, Result, TestEnvironment

Run = Callable[..., Result]
GUARDIAN, GUARDED, UNGUARDED = "operator", "2", "3"
MACHINES = {"trainer": 1, "latecomer": 2, "newcomer": 3}
NOBODYS = "0x" + "5b" * 32


@pytest.fixture(scope="module", autouse=True)
def runs(place: Place, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two attested runs: one with three trainers and a guardian, one with neither, where the only key ends early."""
    folder = tmp_path_factory.mktemp("attested")
    make(place, folder, GUARDED, ["--guardian", ADDRESS[GUARDIAN], "--ttl-s", "2592000"], MACHINES)
    make(place, folder, UNGUARDED, [], {"trainer": 1})


def make(place: Place, folder: Path, run: str, rules: list[str], machines: dict[str, int]) -> None:
    """Opens a run under a policy with `rules`, in which each trainer registers the key of its own machine."""
    home = folder / run
    must("attest", "simulate", str(home))
    cap = ["--platform-bond-wei", str(250 * COIN), "--evaluation-floor", "17"]
    quote = [
        "--from-quote",
        str(home / "quote.bin"),
        "--root",
        str(home / "root.pem"),
        "--out",
        str(home / "own.json"),
    ]
    must("attest", "policy", *quote, *cap, *rules)
    sooner = RUN_FILE.replace(
        "5_000_000", "1_000_000"
    )  # before the guarded run's keys end, after the other's
    terms = 'verification = "attested"\nattestation_policy = "own.json"\n'
    (home / "run.toml").write_text(terms + sooner)
    must("run", "create", str(home / "run.toml"), *place.acting("sponsor"))
    for role, machine in machines.items():
        must("run", "join", run, "--role", "trainer", *place.acting(role))
        own = ["--attester", "simulated", "--platform", str(machine)]
        must("attest", "register", run, *own, *place.acting(role))


def must(*argv: str) -> None:
    assert main(list(argv), TestEnvironment()) == 0, argv


def shown(cli: Run, place: Place, run: str = GUARDED) -> dict[str, Any]:
    return cli("attest", "show", run, *place.reading(), "--json").document


def key_of(cli: Run, place: Place, role: str) -> dict[str, Any]:
    (key,) = [key for key in shown(cli, place)["keys"] if key["trainer"] == ADDRESS[role]]
    return key


def denying(*what: str, run: str = GUARDED) -> list[str]:
    return ["attest", "deny", run, *what, "--json"]


# Refusals


def test_only_the_guardian_narrows(place: Place, cli: Run) -> None:
    for command in (denying("--platform", NOBODYS), ["attest", "raise-floor", GUARDED, "18", "--json"]):
        result = cli(*command, *place.acting("trainer"))
        assert (result.code, result.error["code"]) == (1, "narrowing")
        assert ADDRESS[GUARDIAN].lower() in result.error["cause"].lower()
        assert ADDRESS["trainer"] in result.error["cause"]


def test_a_policy_without_guardian_is_narrowed_by_nobody(place: Place, cli: Run) -> None:
    for command in (
        denying("--platform", NOBODYS, run=UNGUARDED),
        ["attest", "raise-floor", UNGUARDED, "18", "--json"],
    ):
        result = cli(*command, *place.acting(GUARDIAN))
        assert (result.code, result.error["code"]) == (1, "narrowing")
        assert "no guardian" in result.error["cause"]


def test_a_run_that_takes_no_attestation_has_nothing_to_narrow(place: Place, cli: Run) -> None:
    for command in (
        denying("--platform", NOBODYS, run="1"),
        ["attest", "raise-floor", "1", "18", "--json"],
        ["attest", "revoke", "1", ADDRESS["trainer"], "--json"],
    ):
        result = cli(*command, *place.acting(GUARDIAN))
        assert (result.code, result.error["code"]) == (2, "usage")


@pytest.mark.parametrize(
    "what",
    [
        [],
        ["--platform", NOBODYS, "--pck", NOBODYS],
        ["--platform", "0x5b"],
        ["--pck", "zz"],
        ["--key", NOBODYS],
    ],
    ids=" ".join,
)
def test_not_naming_exactly_one_entry_is_a_usage_error(what: list[str], place: Place, cli: Run) -> None:
    result = cli(*denying(*what), *place.acting(GUARDIAN))
    assert result.code == 2, result
    assert result.error["fix"]


def test_a_value_of_another_kind_is_not_denied_for_good_by_mistake(place: Place, cli: Run) -> None:
    key = key_of(cli, place, "trainer")
    for given, value, told in (
        ("--platform", key["root_id"], "--root-id"),
        ("--pck", key["platform"], "--platform"),
        ("--platform", key["workload"], "--workload"),
    ):
        result = cli(*denying(given, value), *place.acting(GUARDIAN))
        assert (result.code, result.error["code"]) == (1, "narrowing")
        assert told in result.error["fix"]
    for given in ("--workload", "--root-id"):
        result = cli(*denying(given, NOBODYS), *place.acting(GUARDIAN))
        assert (result.code, result.error["code"]) == (1, "narrowing")
        assert "anyway" in result.error["cause"]


def test_a_key_against_which_there_is_nothing_is_not_ended(place: Place, cli: Run) -> None:
    result = cli("attest", "revoke", GUARDED, ADDRESS["newcomer"], *place.acting("sponsor"), "--json")
    assert (result.code, result.error["code"]) == (1, "narrowing")
    assert "nothing that it depends on is denied" in result.error["cause"]


def test_no_key_and_a_key_that_ends_anyway_are_not_ended(place: Place, cli: Run) -> None:
    result = cli("attest", "revoke", GUARDED, ADDRESS["validator"], *place.acting("sponsor"), "--json")
    assert (result.code, result.error["code"]) == (1, "narrowing")
    assert "registered no key" in result.error["cause"]
    result = cli("attest", "revoke", UNGUARDED, ADDRESS["trainer"], *place.acting("sponsor"), "--json")
    assert (result.code, result.error["code"]) == (1, "narrowing")
    assert "expires before" in result.error["cause"]


# What is done


def test_a_dry_run_shows_the_denial_and_denies_nothing(place: Place, cli: Run) -> None:
    key = key_of(cli, place, "newcomer")
    result = cli(*denying("--key", key["key"]), "--dry-run", *place.acting(GUARDIAN))
    assert result.code == 0, result
    document = result.document
    assert document["calls"][0]["function"] == "deny"
    assert (document["what"], document["for_good"], document["from_round"]) == ("key", True, 1)
    assert document["keys"] == [{"trainer": ADDRESS["newcomer"], "key": key["key"]}]
    for told in ("PERMANENTLY", "every run with this policy", "From round 1 of run 2", key["key"]):
        assert told in result.err
    assert shown(cli, place)["denied"] == []
    result = cli(*denying("--platform", NOBODYS), "--dry-run", *place.acting(GUARDIAN))
    assert "No key of this run depends on it" in result.err
    result = cli(*denying("--root-id", key["root_id"]), "--dry-run", *place.acting(GUARDIAN))
    assert "That is every key" in result.err


def test_a_denied_platform_ends_its_key_and_anyone_revokes_it(place: Place, cli: Run) -> None:
    key = key_of(cli, place, "trainer")
    denied = cli(*denying("--platform", key["platform"]), *place.acting(GUARDIAN))
    assert denied.code == 0, denied
    assert denied.document["from_round"] == 1

    again = cli(*denying("--platform", key["platform"]), *place.acting(GUARDIAN))
    assert (again.code, again.error["code"]) == (1, "narrowing")
    assert "denied already" in again.error["cause"]
    machine = ["--attester", "simulated", "--platform", str(MACHINES["trainer"])]
    anew = cli("attest", "register", GUARDED, *machine, *place.acting("trainer"), "--json")
    assert (anew.code, anew.error["reason"]) == (1, "attestation: platform denied")

    against = {"what": "platform", "entry": key["platform"], "from_round": 1}
    document = shown(cli, place)
    assert document["denied"] == [against]
    marked = {k["trainer"]: (k["live"], k["denied"]) for k in document["keys"]}
    assert marked[ADDRESS["trainer"]] == (True, [against])  # until round 1 opens
    assert marked[ADDRESS["newcomer"]] == (True, [])

    ended = cli("attest", "revoke", GUARDED, ADDRESS["trainer"], *place.acting("sponsor"), "--json")
    assert ended.code == 0, ended
    assert (ended.document["what"], ended.document["entry"]) == ("platform", key["platform"])
    assert f"platform {key['platform']} is denied" in ended.err
    after = key_of(cli, place, "trainer")
    assert after["revoked"] == after["ends"] == ended.document["ends"] == denied.document["from_time"]
    assert after["revoked_for"] == key["platform"]
    result = cli("attest", "show", GUARDED, *place.reading())
    told = " ".join(result.out.split())
    assert f"its platform {key['platform']} is denied from round 1; revoked" in told

    twice = cli("attest", "revoke", GUARDED, ADDRESS["trainer"], *place.acting("sponsor"), "--json")
    assert (twice.code, twice.error["code"]) == (1, "narrowing")
    assert "revoked already" in twice.error["cause"]


def test_a_key_is_revoked_after_its_trainers_bond_outgrew_the_counted_one(place: Place, cli: Run) -> None:
    must("stake", "bond", GUARDED, "50", *place.acting("latecomer"))
    result = cli("attest", "revoke", GUARDED, ADDRESS["latecomer"], *place.acting("sponsor"), "--json")
    assert result.code == 0, result
    assert (result.document["what"], result.document["entry"]) == ("bond", None)
    assert "grew to 150 " in result.document["because"]
    assert key_of(cli, place, "latecomer")["revoked_for"] == "0x" + bytes(32).hex()
    assert "bond grew" in cli("attest", "show", GUARDED, *place.reading()).out


def test_the_floor_is_shown_and_only_rises(place: Place, cli: Run) -> None:
    assert (shown(cli, place)["floor"], shown(cli, place)["floors_to_come"]) == (17, [])
    same = cli("attest", "raise-floor", GUARDED, "17", *place.acting(GUARDIAN), "--json")
    assert (same.code, same.error["code"]) == (1, "narrowing")
    assert "17 already" in same.error["cause"]
    tried = cli("attest", "raise-floor", GUARDED, "18", "--dry-run", *place.acting(GUARDIAN), "--json")
    assert tried.document["calls"][0]["function"] == "raise_floor"
    assert "permanently" in tried.err and "From round 1 of run 2" in tried.err
    raised = cli("attest", "raise-floor", GUARDED, "18", *place.acting(GUARDIAN), "--json")
    assert (raised.code, raised.document["from_round"]) == (0, 1)
    assert cli("attest", "raise-floor", GUARDED, "18", *place.acting(GUARDIAN)).code == 1
    document = shown(cli, place)
    assert (document["floor"], document["floors_to_come"]) == (17, [{"floor": 18, "from_round": 1}])
    assert "number: 17; from round 1: 18" in cli("attest", "show", GUARDED, *place.reading()).out
    assert shown(cli, place, UNGUARDED)["floor"] == 17
    assert shown(cli, place, "1")["floor"] is None


def test_a_denied_key_stops_counting_without_a_revocation(place: Place, cli: Run) -> None:
    key = key_of(cli, place, "newcomer")
    assert cli(*denying("--pck", key["pck"]), *place.acting(GUARDIAN)).code == 0
    assert key_of(cli, place, "newcomer")["live"]
    terms = cli("run", "show", GUARDED, *place.reading(), "--json").document["terms"]
    place.devnet.travel(terms["start"] + terms["period_s"])
    after = key_of(cli, place, "newcomer")
    assert (after["live"], after["until"], after["revoked"]) == (False, "denied", None)
    assert json.dumps(shown(cli, place)["floor"]) == "18"
