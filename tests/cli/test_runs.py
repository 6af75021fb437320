"""A run from the command line: opened, joined, shown, left, ended, and what is refused on the way."""

from __future__ import annotations

import socket
import tomllib
from collections.abc import Callable
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from earnest.cli.commands.run import start_command
from earnest.cli.commands.run_show import which_round
from earnest.cli.exits import Exit
from earnest.client.run.run_file import RunFile
from earnest.client.storage.objects import ObjectStore
from earnest.deploy.devnet.chain import account
from earnest.protocol.penalties import PenaltyTerms
from earnest.protocol.recipe import Recipe
from earnest.protocol.run import Level, Role
from tests.cli.conftest import ADDRESS, COIN, Place, Result

Cli = Callable[..., Result]


@pytest.fixture
def changed(place: Place, tmp_path: Path) -> Callable[[str, str], str]:
    """Writes the run file with one text put in place of another; gives its path."""

    def change(old: str, new: str) -> str:
        text = place.run_file.read_text()
        assert old in text
        path = tmp_path / "changed.toml"
        path.write_text(text.replace(old, new))
        return str(path)

    return change


def seats(place: Place, cli: Cli, run: int, role: str) -> list[dict[str, Any]]:
    return cli("run", "show", str(run), *place.reading(), "--json").document["seats"][role]


# Opening


def test_the_example_is_a_run_file(cli: Cli, tmp_path: Path) -> None:
    printed = cli("run", "create", "--example")
    assert printed.code == 0
    assert tomllib.loads(printed.out)["recipe"]["task"].endswith(":Shakespeare")
    assert cli("run", "create", "--example", "--json").document["example"].strip() == printed.out.strip()


def test_the_example_s_terms_are_the_protocol_s_defaults() -> None:
    """The example shows the defaults, so that a sponsor can leave them out. Only the Task's own terms differ."""
    example = tomllib.loads((files("earnest.cli") / "run_example.toml").read_text())
    assert example["penalties"].items() <= asdict(PenaltyTerms()).items()
    recipe, defaults = example["recipe"], asdict(Recipe(task="any:Task", pool_size=2048))
    assert recipe["scoring"].pop("clip_norm") == 20.0  # depends on the model
    for table in ("inner", "codec", "outer", "scoring"):
        assert recipe[table].items() <= defaults[table].items(), table
    plain = {name: value for name, value in recipe.items() if not isinstance(value, dict) and name != "task"}
    assert plain.items() <= defaults.items()


def test_the_small_run_of_the_documents_is_a_run_of_the_devnet_s_accounts(place: Place, cli: Cli) -> None:
    path = Path(__file__).parents[2] / "docs" / "small-run.toml"
    residents = [account(b"devnet", index).address for index in (1, 4)]
    assert RunFile.read(path).admitted() == tuple((resident, Role.VALIDATOR) for resident in residents)
    flags = [*place.acting("sponsor"), "--dry-run", "--json"]
    result = cli("run", "create", str(path), *flags)
    assert result.code == 0, result
    windows, rounds = RunFile.read(path).windows, RunFile.read(path).rounds
    period = windows.commit_s + windows.reveal_s + windows.report_commit_s + windows.report_reveal_s
    assert (rounds + 1) * period + windows.settle_s + windows.contest_s <= 12 * 60, "about ten minutes"


def test_creating_costs_the_budget_and_makes_the_files_public(place: Place, cli: Cli) -> None:
    flags = place.acting("sponsor")
    result = cli("run", "create", str(place.run_file), "--rounds", "2", *flags, "--json")
    made = result.document
    assert made["budget"] == "104"
    assert made["transactions"][-1]["step"] == "create"
    assert "a seat of weight 1 is paid 1/4 of the pool" in result.err
    shown = cli("run", "show", str(made["run"]), *place.reading(), "--json").document
    assert (shown["rounds"], shown["escrow"], shown["sponsor"]) == (2, "104", ADDRESS["sponsor"])
    assert shown["initial_state"] == made["initial_state"]
    public = Path(made["uri"]).parent
    assert (public / shown["initial_state"].removeprefix("0x")).is_file()
    assert ObjectStore(public).has(bytes.fromhex(made["uri"].rpartition("/")[2]))


def test_the_same_file_again_opens_another_run(place: Place, cli: Cli) -> None:
    runs = [
        cli("run", "create", str(place.run_file), *place.acting("sponsor"), "--json").document["run"]
        for _ in range(2)
    ]
    assert runs[1] == runs[0] + 1


def test_a_dry_run_publishes_nothing(place: Place, changed: Callable[[str, str], str], cli: Cli) -> None:
    public = place.folder / "data"
    before = sorted(public.rglob("public/*"))
    result = cli(
        "run", "create", changed("steps = 2", "steps = 3"), *place.acting("sponsor"), "--dry-run", "--json"
    )
    assert result.code == 0
    assert [call["step"] for call in result.document["calls"]][-1] == "create"
    assert sorted(public.rglob("public/*")) == before


def test_flags_set_the_public_url_and_serve_the_files(place: Place, cli: Cli) -> None:
    url = ["--serve", "127.0.0.1:0", "--public-url", "https://files.example.org/"]
    made = cli("run", "create", str(place.run_file), *url, *place.acting("sponsor"), "--json")
    assert made.document["uri"].startswith("https://files.example.org/")
    assert "serving" in made.err
    served = cli("run", "serve", str(made.document["run"]), *url, *place.acting("sponsor"), "--json")
    assert served.code == 0
    strangers = cli("run", "serve", str(made.document["run"]), *url, *place.acting("latecomer"), "--json")
    assert strangers.code == 2
    assert "does not hold the files" in strangers.error["cause"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("rounds = 4", "rounds = 0", "runs: rounds out of range"),
        ("rounds = 4", "turns = 4", "turns"),
        ("trainers = 4", "trainers = 257", "runs: trainer limit out of range"),
        ("start_in_s = 5_000_000", "start_in_s = 3300", "joining needs at least 3305"),
        ("settle_s = 900", "settle_s = 3301", "runs: settle window too long"),
        (
            "exit_delay_s = 172800",
            "exit_delay_s = 60",
            "exit_delay_s is 60, these windows need at least 91500",
        ),
        ('trainer = "100"', "trainer = 0", "runs: zero minimum bond"),
        ('trainer = "40"', 'trainer = "4O"', "'4O' is not an amount"),
        ('trainer = "40"', "trainer = 0.1", "pool"),
        (f'"{ADDRESS["validator"]}"', "", "admits no validator"),
        (f'"{ADDRESS["validator"]}"', f'"{ADDRESS["validator"]}", "{ADDRESS["validator"].lower()}"', "twice"),
        (f'"{ADDRESS["validator"]}"', '"0x1234"', "is not an address"),
        ("steps = 2", "steps = 0", "steps and batch are at least 1"),
        ("steps = 2", "stops = 2", "unknown key 'stops'"),
        ("steps = 2", "steps = 40_000", "is too small"),
        (":Shakespeare", ":Marlowe", "is not a Task"),
        ("width = 8", "width = 9", "must divide"),
        (
            "settle_s = 900",
            "settle_s = 900\noverlap = true",
            'rounds overlap, but the recipe says overlap = "none"',
        ),
        (
            "[recipe.task_options]",
            'overlap = "eager"\n[recipe.task_options]',
            "the rounds do not overlap, but the recipe",
        ),
        ("[recipe.task_options]", 'data = "private"\n[recipe.task_options]', "anyone may join this run"),
    ],
)
def test_terms_that_no_run_can_have_are_refused_before_anything_is_paid(
    old: str, new: str, told: str, place: Place, changed: Callable[[str, str], str], cli: Cli
) -> None:
    result = cli("run", "create", changed(old, new), *place.acting("sponsor"), "--json")
    assert result.code == Exit.USAGE
    assert told in result.error["cause"]


def test_windows_shorter_than_twice_the_finality_are_refused(place: Place, cli: Cli) -> None:
    flags = [*place.acting("sponsor"), "--confirmations", "151", "--dry-run", "--json"]
    result = cli("run", "create", str(place.run_file), *flags)
    assert result.code == Exit.USAGE
    assert "reveal_s is 300, this network's blocks and finality need at least 302" in result.error["cause"]
    assert "report_reveal_s is 300" in result.error["cause"]
    assert "report_commit_s is" not in result.error["cause"]


def test_a_missing_run_file_says_how_to_get_one(cli: Cli) -> None:
    assert cli("run", "create", "--json").code == Exit.USAGE
    result = cli("run", "create", "none.toml", "--json")
    assert result.code == Exit.USAGE
    assert "none.toml cannot be read" in result.error["cause"]


# Taking part


def test_trainer_and_validator_join_change_their_seat_and_leave(place: Place, cli: Cli) -> None:
    made = cli("run", "create", str(place.run_file), *place.acting("sponsor"), "--json").document["run"]
    run = str(made)
    url = ["--public-url", "http://trainer.example.org"]
    joined = cli(
        "run", "join", run, "--role", "trainer", "--bond", "150", *url, *place.acting("trainer"), "--json"
    )
    assert (joined.document["seat"], joined.document["from_round"]) == (0, 0)
    assert cli("run", "join", run, "--role", "validator", *place.acting("validator")).code == 0
    (seat,) = seats(place, cli, made, "trainers")
    assert (seat["account"], seat["stake"], seat["uri"]) == (ADDRESS["trainer"], "150", url[1])

    again = cli("run", "join", run, "--role", "trainer", *place.acting("trainer"), "--json")
    assert f"has trainer seat 0 of run {run} already" in again.error["cause"]

    assert cli("seat", "operator", run, ADDRESS["operator"].lower(), *place.acting("trainer")).code == 0
    assert cli("seat", "uri", run, "http://new.example.org", *place.acting("trainer")).code == 0
    assert cli("stake", "bond", run, "0.25", *place.acting("trainer")).code == 0
    shown = cli("seat", "show", run, *place.acting("trainer"), "--json").document
    assert (shown["role"], shown["operator"], shown["stake"]) == ("trainer", ADDRESS["operator"], "150.25")
    (seat,) = seats(place, cli, made, "trainers")
    assert seat["uri"] == "http://new.example.org"

    assert cli("run", "leave", run, *place.acting("trainer")).code == 0
    bonds = cli("stake", "show", *place.acting("trainer"), "--json").document["bonds"]
    (bond,) = [bond for bond in bonds if bond["run"] == made]
    assert 0 < bond["exit_seconds_left"] <= 172_800
    assert "day" not in bond["exit"] and "1 d 23 h" in bond["exit"]
    early = cli("stake", "exit", run, *place.acting("trainer"), "--json")
    assert early.code == 1
    assert early.error["code"] == "not_due"
    place.devnet.travel(place.devnet.now() + 172_800)
    bonds = cli("stake", "show", *place.acting("trainer"), "--json").document["bonds"]
    assert next(bond for bond in bonds if bond["run"] == made)["exit"] == "ready: `earnest stake exit`"
    assert cli("stake", "exit", run, *place.acting("trainer")).code == 0
    after = cli("stake", "show", *place.acting("trainer"), "--json").document
    assert made not in [bond["run"] for bond in after["bonds"]]
    assert int(after["idle_wei"]) >= 15025 * COIN // 100


@pytest.mark.parametrize(
    ("role", "command"),
    [
        ("sponsor", ["run", "create", "FILE", "--rounds", "3"]),
        ("newcomer", ["run", "join", "1", "--role", "trainer"]),
        ("newcomer", ["run", "leave", "1"]),
    ],
)
def test_a_dry_run_estimates_at_least_the_gas_used_later(
    role: str, command: list[str], place: Place, cli: Cli
) -> None:
    words = [str(place.run_file) if word == "FILE" else word for word in command]
    foreseen = cli(*words, *place.acting(role), "--dry-run", "--json").document["calls"]
    used = cli(*words, *place.acting(role), "--json").document["transactions"]
    assert [call["step"] for call in foreseen] == [step["step"] for step in used]
    assert foreseen[0]["simulated"]
    for call, step in zip(foreseen, used, strict=True):
        assert step["gas"] < call["gas"] < 3 * step["gas"] + 30_000, step["step"]


def test_an_account_that_is_not_admitted_is_refused_before_paying(place: Place, cli: Cli) -> None:
    result = cli("run", "join", "1", "--role", "validator", *place.acting("latecomer"), "--json")
    assert result.code == 1
    assert result.error["code"] == "not_admitted"
    assert cli("stake", "show", *place.acting("latecomer"), "--json").document["bonds"] == []


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--bond", "99"], "the bond of a trainer is at least 100"),
        (["--operator", "0x" + "0" * 40], "zero address"),
        (["--take", "0"], "has free trainer seats"),
    ],
)
def test_a_seat_that_cannot_be_taken_is_refused_before_the_bond_is_up(
    flags: list[str], told: str, place: Place, cli: Cli
) -> None:
    command = ["run", "join", "1", "--role", "trainer", *flags, *place.acting("latecomer"), "--json"]
    for dry_run in (["--dry-run"], []):
        assert told in cli(*command, *dry_run).error["cause"]
    assert cli("stake", "show", *place.acting("latecomer"), "--json").document["bonds"] == []


def test_a_full_run_and_a_run_that_is_over_take_no_bond(
    place: Place, changed: Callable[[str, str], str], cli: Cli
) -> None:
    file = changed("trainers = 4", "trainers = 1")
    soon = ["--start-in", "4000", "--rounds", "1"]
    full = str(cli("run", "create", file, *soon, *place.acting("sponsor"), "--json").document["run"])
    assert cli("run", "join", full, "--role", "trainer", *place.acting("trainer")).code == 0
    command = ["run", "join", full, "--role", "trainer", *place.acting("sponsor"), "--json"]
    assert f"all 1 trainer seats of run {full} are taken" in cli(*command, "--dry-run").error["cause"]
    assert "are taken" in cli(*command).error["cause"]
    place.devnet.travel(place.devnet.now() + 20_000)
    assert cli(*command).error["reason"] == "runs: too late to join"
    bonds = cli("stake", "show", *place.acting("sponsor"), "--json").document["bonds"]
    assert int(full) not in [bond["run"] for bond in bonds]


def test_an_address_in_use_is_refused_before_the_budget_is_paid(place: Place, cli: Cli) -> None:
    count = len(cli("status", *place.acting("sponsor"), "--json").document["runs"])
    with socket.create_server(("127.0.0.1", 0)) as busy:
        url = ["--serve", f"127.0.0.1:{busy.getsockname()[1]}", *place.acting("sponsor"), "--json"]
        for dry_run in (["--dry-run"], []):
            refused = cli("run", "create", str(place.run_file), *url, *dry_run)
            assert "cannot serve objects" in refused.error["cause"]
    assert len(cli("status", *place.acting("sponsor"), "--json").document["runs"]) == count


def test_a_node_without_a_seat_says_how_to_get_one(place: Place, cli: Cli) -> None:
    result = cli("trainer", "start", "1", *place.acting("latecomer"), "--json")
    assert result.code == 1
    assert result.error["code"] == "no_seat"
    assert "earnest run join 1 --role trainer" in result.error["fix"]
    flags = ["--micro-batch", "-1", *place.acting("latecomer"), "--json"]
    assert "--micro-batch not negative" in cli("trainer", "start", "1", *flags).error["cause"]


def test_a_trainer_reports_its_time_and_a_missing_device(place: Place, cli: Cli) -> None:
    run = str(cli("run", "create", str(place.run_file), *place.acting("sponsor"), "--json").document["run"])
    assert cli("run", "join", run, "--role", "trainer", *place.acting("trainer")).code == 0
    node = cli("trainer", "start", run, *place.acting("trainer"), "--json").document
    assert (node["time"]["training_s"], node["time"]["idle_share"]) == (0, 0)
    lacking = cli("trainer", "start", run, "--device", "cuda:99", *place.acting("trainer"), "--json")
    assert "device 'cuda:99' is not available" in lacking.error["cause"]


def test_a_node_is_started_registered_and_stopped(place: Place, cli: Cli) -> None:
    made = cli("run", "create", str(place.run_file), *place.acting("sponsor"), "--json").document["run"]
    run = str(made)
    assert cli("run", "join", run, "--role", "validator", *place.acting("validator")).code == 0
    wrong = cli("trainer", "start", run, *place.acting("validator"), "--json")
    assert wrong.code == Exit.USAGE
    assert f"earnest validator start {run}" in wrong.error["fix"]
    url = ["--serve", "127.0.0.1:0", "--public-url", "http://validator.example.org"]
    node = cli("validator", "start", run, *url, *place.acting("validator"), "--json")
    assert node.code == 0
    assert not node.document["finished"]
    (seat,) = seats(place, cli, made, "validators")
    assert seat["uri"] == "http://validator.example.org"
    assert "say where" not in cli("validator", "start", run, *url, *place.acting("validator")).err
    owner = ["--owner", ADDRESS["validator"]]
    stranger = cli("validator", "start", run, *owner, *place.acting("stranger"), "--json")
    assert stranger.code == Exit.USAGE
    assert f"{ADDRESS['validator']} is" in stranger.error["cause"]
    dry = cli("validator", "start", run, *place.acting("validator"), "--dry-run", "--json")
    assert dry.code == Exit.USAGE


def test_ending_refunds_the_rounds_not_played(place: Place, cli: Cli) -> None:
    made = cli("run", "create", str(place.run_file), *place.acting("sponsor"), "--json").document["run"]
    refused = cli("run", "end", str(made), *place.acting("trainer"), "--json")
    assert refused.error["reason"] == "runs: not the sponsor"
    assert cli("run", "settle", str(made), *place.acting("trainer"), "--json").document["transactions"] == []
    assert cli("run", "end", str(made), *place.acting("sponsor")).code == 0
    preview = cli("run", "settle", str(made), *place.acting("trainer"), "--dry-run", "--json").document
    assert [call["step"] for call in preview["calls"]] == ["refund"]
    settled = cli("run", "settle", str(made), *place.acting("trainer"), "--json").document
    assert [step["step"] for step in settled["transactions"]] == ["refund"]
    shown = cli("run", "show", str(made), *place.reading(), "--json").document
    assert (shown["rounds"], shown["escrow"]) == (1, "52")


def test_the_next_command_fits_the_seat() -> None:
    assert start_command("trainer", 1, None, Level.INCENTIVE) == "earnest trainer start 1"
    assert (
        start_command("trainer", 1, "0xA", Level.ATTESTED)
        == "earnest trainer start 1 --owner 0xA --attester KIND"
    )
    assert start_command("validator", 1, None, Level.ATTESTED) == "earnest validator start 1"


# Looking


def test_the_time_left_is_shown(place: Place, cli: Cli) -> None:
    document = cli("run", "show", "1", *place.reading(), "--json").document
    assert document["state"] == "waiting"
    assert (document["next"]["phase"], document["next"]["round"]) == ("commit", 0)
    assert document["next"]["seconds_left"] == document["next"]["opens"] - document["time"] > 0
    told = cli("run", "show", "1", *place.reading()).out
    assert "next: commit of round 0 in" in told
    assert which_round(1, 2) == "round 1"
    assert "final state" in which_round(2, 2)
    assert "1 % unrevealed, 1 % malformed, 5 % copied, 10 % harmful, 50 % unfaithful" in " ".join(
        told.split()
    )
    assert document["terms"]["penalties_bps"]["harmful"] == 1_000
    status = cli("status", *place.acting("trainer"), "--json").document
    assert status["account"] == ADDRESS["trainer"]
    assert status["runs"][0]["state"] == "waiting"
    assert "starts in" in status["runs"][0]["now"]


def test_a_run_that_is_not_there(place: Place, cli: Cli) -> None:
    for command in (["run", "show"], ["run", "settle"], ["penalty", "show"]):
        flags = place.acting("trainer") if command[1] == "settle" else place.reading()
        result = cli(*command, "999", *flags, "--json")
        assert result.code == 1
        assert "no run 999" in result.error["cause"]


def test_doctor_passes_or_names_the_failed_check(place: Place, cli: Cli) -> None:
    result = cli("doctor", "1", *place.acting("latecomer"), "--json")
    checks = {check["name"]: check for check in result.document["checks"]}
    assert [name for name, check in checks.items() if not check["ok"]] == ["seat"]
    assert "earnest run join 1" in checks["seat"]["fix"]
    assert {
        "endpoint",
        "deployment",
        "clock",
        "balance",
        "key file rights",
        "disk",
        "journal",
        "recipe",
    } < set(checks)
    key = place.key("latecomer")
    key.chmod(0o644)
    try:
        checks = cli("doctor", "--offline", *place.acting("latecomer"), "--json").document["checks"]
    finally:
        key.chmod(0o600)
    assert [check["name"] for check in checks if not check["ok"]] == ["key file rights"]
    taken = ["--serve", place.url.removeprefix("http://")]
    checks = cli("doctor", "--offline", *taken, *place.acting("latecomer"), "--json").document["checks"]
    assert "port" in [check["name"] for check in checks if not check["ok"]]


def test_doctor_without_a_key_says_so_once_and_checks_the_run(place: Place, cli: Cli) -> None:
    keyless = [*place.reading(), "--keystore", "nowhere.json"]
    checks = {check["name"]: check for check in cli("doctor", "1", *keyless, "--json").document["checks"]}
    assert [name for name, check in checks.items() if not check["ok"]] == ["key file"]
    assert checks["recipe"]["ok"]


def test_files_that_are_not_the_runs_are_refused(
    place: Place, changed: Callable[[str, str], str], cli: Cli
) -> None:
    """A sponsor that serves another recipe under the run's URI is found out, by its root already."""
    path = changed("steps = 2", "steps = 2\nlr = 1e-4")
    made = cli("run", "create", path, *place.acting("sponsor"), "--json").document
    bundle = Path(made["uri"])
    bundle.write_bytes(bundle.read_bytes().replace(b"0.0001", b"0.0002"))
    result = cli("run", "join", str(made["run"]), "--role", "validator", *place.acting("validator"), "--json")
    assert result.code == Exit.STORAGE
    assert result.error["code"] == "unavailable"


def test_the_newest_state_is_fetched_from_whoever_has_it_and_can_be_exported(
    place: Place, cli: Cli, tmp_path: Path
) -> None:
    made = cli("run", "create", str(place.run_file), *place.acting("sponsor"), "--json").document
    fetched = cli("run", "fetch", str(made["run"]), "--out", "got", *place.reading(), "--json").document
    assert (fetched["state"], fetched["final"]) == (made["initial_state"], False)
    command = fetched["next"].split()
    assert command[:3] == ["earnest", "task", "export"]
    exported = cli(*command[1:], "--json")
    assert (exported.code, exported.document["state"]) == (0, made["initial_state"])
    assert cli("run", "fetch", str(made["run"]), "--out", "got", *place.reading()).code == 2

    copies = list(place.folder.rglob(f"public/{made['initial_state'].removeprefix('0x')}"))
    hidden = [copy.rename(tmp_path / f"hidden-{i}") for i, copy in enumerate(copies)]
    gone = cli("run", "fetch", str(made["run"]), "--out", "other", *place.reading(), "--json")
    for kept, copy in zip(hidden, copies, strict=True):
        kept.rename(copy)
    assert gone.code == 5
    assert "nobody serves the state" in gone.error["cause"] and "run serve" in gone.error["fix"]


def test_terms_that_no_run_can_have_are_refused_before_the_initial_state_is_built(
    place: Place, cli: Cli, tmp_path: Path
) -> None:
    short = tmp_path / "short.toml"
    short.write_text(place.run_file.read_text().replace("exit_delay_s = 172800", "exit_delay_s = 1"))
    result = cli("run", "create", str(short), *place.acting("sponsor"), "--json")
    assert result.code != 0 and "exit_delay_s" in result.error["cause"]
    assert "building the initial state" not in result.err
