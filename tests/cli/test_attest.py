"""`earnest attest`: the verdicts on genuine and simulated evidence, its exit codes, policies and simulations."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pytest

from earnest.attestation.evidence_file import EvidenceFile
from earnest.cli import main
from tests.cli.conftest import ADDRESS, RUN_FILE, Place, Result, TestEnvironment

DATA = Path(__file__).parents[1] / "data" / "attestation"
VECTORS = {vector["id"]: vector for vector in json.loads((DATA / "index.json").read_text())["vectors"]}
NOW = "1768089600"
Run = Callable[..., Result]


@dataclass(frozen=True)
class Piped(TestEnvironment):
    """A machine with bytes on its stdin."""

    given: bytes = b""
    stream: list[TextIO] = field(default_factory=list)

    @property
    def stdin(self) -> TextIO:
        if not self.stream:
            self.stream.append(io.TextIOWrapper(io.BytesIO(self.given)))
        return self.stream[0]


def arguments(vector: dict[str, Any], quote: str | None = None) -> list[str]:
    """The command line that verifies a vector."""
    files = ["--collateral", str(DATA / vector["collateral"]), "--root", str(DATA / vector["root"])]
    return ["attest", "verify", quote or str(DATA / vector["quote"]), *files, "--at", str(vector["now"])]


@pytest.fixture
def simulated(tmp_path: Path, cli: Run) -> Path:
    """A simulated machine's files."""
    assert cli("attest", "simulate", str(tmp_path / "simulated"), "--code", "mine").code == 0
    return tmp_path / "simulated"


def checking(folder: Path, *, root: bool = True) -> list[str]:
    files = ["--collateral", str(folder / "collateral.json"), "--at", NOW]
    given = ["--root", str(folder / "root.pem")] if root else []
    return ["attest", "verify", str(folder / "quote.bin"), *files, *given]


# Verify


@pytest.mark.parametrize("name", [name for name, vector in VECTORS.items() if "mutate" not in vector])
def test_a_vector_reaches_its_verdict(name: str, cli: Run) -> None:
    vector = VECTORS[name]
    result = cli(*arguments(vector), "--json")
    accepted = vector["expect"]["verdict"] == "accept"
    assert result.code == (0 if accepted else 1), result
    document = result.document
    assert document["accepted"] is accepted
    if accepted:
        assert document["status"] == vector["expect"]["status"]
        assert document["advisories"] == vector["expect"]["advisories"]
        assert all(check["passed"] for check in document["checks"][:6])
    else:
        assert any(not check["passed"] and check["reason"] for check in document["checks"])


def test_the_text_output_lists_every_check_and_the_missing_ones(cli: Run) -> None:
    result = cli(*arguments(VECTORS["P09"]))
    assert result.code == 0
    for told in (
        "pass  signatures",
        "pass  TCB status",
        "Intel SGX Root CA",
        "not checked: ",
        "is accepted.",
    ):
        assert told in result.out
    result = cli(*arguments(VECTORS["N01"]))
    assert result.code == 1
    assert "FAIL  debug" in result.out
    assert "is refused." in result.out


@pytest.mark.parametrize(
    "written",
    [
        lambda raw: raw,
        lambda raw: raw.hex().encode(),
        lambda raw: b"0x" + raw.hex().encode() + b"\n",
        lambda raw: raw.hex("\n", 32).encode(),
        base64.b64encode,
        base64.encodebytes,
    ],
    ids=["binary", "hex", "0x", "lines of hex", "base64", "lines of base64"],
)
def test_a_quote_is_taken_in_every_form_from_a_file_and_from_stdin(
    written: Callable[[bytes], bytes], tmp_path: Path, cli: Run
) -> None:
    vector = VECTORS["P10"]
    content = written((DATA / vector["quote"]).read_bytes())
    (tmp_path / "quote").write_bytes(content)
    assert cli(*arguments(vector, str(tmp_path / "quote"))).code == 0
    assert cli(*arguments(vector, "-"), "--json", environment=Piped(given=content)).code == 0


def test_intels_root_is_the_default_and_refuses_a_simulated_quote(simulated: Path, cli: Run) -> None:
    result = cli(*checking(simulated, root=False), "--json")
    assert result.code == 1
    assert result.document["root"] == "Intel SGX Root CA"
    result = cli(*checking(simulated), "--json")
    assert result.code == 0
    assert result.document["root"] == "SIMULATED - NOT A TEE"


@pytest.mark.parametrize(
    "spoilt",
    [
        ("quote.bin", b""),
        ("quote.bin", b"hello"),
        ("quote.bin", b"\x00" * 3000),
        ("quote.bin", b"00" * 1500),
        ("collateral.json", b"{}"),
        ("collateral.json", b"[" * 60_000),
        ("root.pem", b"no certificate"),
        ("policy.json", b"{}}"),
        ("policy.json", b'{"policy": {}, "document": {}}'),
        ("policy.json", b'{"statuses": ["Revoked"]}'),
        ("event_log.json", None),
        ("collateral.json", None),
    ],
)
def test_unusable_input_ends_with_2(spoilt: tuple[str, bytes | None], simulated: Path, cli: Run) -> None:
    name, content = spoilt
    (simulated / name).unlink() if content is None else (simulated / name).write_bytes(content)
    more = ["--policy", str(simulated / "policy.json"), "--event-log", str(simulated / "event_log.json")]
    result = cli(*checking(simulated), *more, "--json")
    assert result.code == 2, result
    document = result.document
    assert "error" in document or not document["accepted"]


def test_a_file_that_is_no_quote_is_said_to_be_none(simulated: Path, cli: Run) -> None:
    (simulated / "quote.bin").write_bytes(b"hello")
    told = cli(*checking(simulated))
    assert (told.code, "quote's file is no quote" in told.out) == (2, True)
    assert "collateral's file" not in told.out


def test_a_long_stdin_is_not_read_to_its_end(simulated: Path, cli: Run) -> None:
    command = ["attest", "verify", "-", *checking(simulated)[3:], "--json"]
    assert cli(*command, environment=Piped(given=b"\x00" * 10_000_000)).code == 2


def test_a_policy_that_refuses_ends_with_1(simulated: Path, cli: Run) -> None:
    other = simulated.parent / "other"
    assert cli("attest", "simulate", str(other), "--code", "changed").code == 0
    policy = ["--policy", str(simulated / "policy.json")]
    assert cli(*checking(simulated), *policy).code == 0
    result = cli(*checking(other), *policy, "--json")
    assert result.code == 1
    assert (result.document["accepted"], result.document["policy_accepted"]) == (True, False)
    failed = [check for check in result.document["checks"] if not check["passed"]]
    assert [check["name"] for check in failed] == ["run's policy"]
    assert "workload" in failed[0]["reason"]


def test_a_policy_that_pins_another_root_refuses(simulated: Path, cli: Run) -> None:
    own = simulated.parent / "own"
    assert cli("attest", "simulate", str(own), "--code", "mine", "--seed", "another vendor").code == 0
    result = cli(*checking(simulated), "--policy", str(own / "policy.json"), "--json")
    assert result.code == 1
    failed = [check["name"] for check in result.document["checks"] if not check["passed"]]
    assert failed == ["run's root", "run's policy"]


def test_the_status_is_the_policys_business(tmp_path: Path, cli: Run) -> None:
    old = tmp_path / "old"
    assert cli("attest", "simulate", str(old), "--status", "OutOfDate").code == 0
    assert cli(*checking(old)).code == 0
    assert cli(*checking(old), "--policy", str(old / "policy.json")).code == 1
    document = tmp_path / "document.json"
    document.write_text('{"statuses": ["UpToDate", "OutOfDate"], "grace_s": 31536000}')
    at = ["--at", "1580000000"]  # within the grace of the TCB level's date
    assert (
        cli(*[a for a in checking(old) if a not in ("--at", NOW)], *at, "--policy", str(document)).code == 0
    )


def test_an_event_log_must_replay(simulated: Path, cli: Run) -> None:
    log = simulated / "event_log.json"
    assert cli(*checking(simulated), "--event-log", str(log), "--json").code == 0
    events = json.loads(log.read_text())
    events[3]["digest"] = "00" * 48
    log.write_text(json.dumps(events))
    result = cli(*checking(simulated), "--event-log", str(log), "--json")
    assert not result.document["policy_accepted"]


# Reports of other vendors


def recorded(folder: Path, name: str, *more: str) -> str:
    """A file of its own with the content of recorded files."""
    content = b"".join((DATA / part).read_bytes() for part in (name, *more))
    if name.startswith("aws"):  # length, shifted by two, before the document
        content = content[4 : 4 + (int.from_bytes(content[2:4], "little") >> 2)]
    path = folder / name.replace("/", "-")
    path.write_bytes(content)
    return str(path)


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@pytest.mark.parametrize(
    ("name", "collateral", "at", "format", "code"),
    [
        (
            "amd/report_milan.bin",
            ("amd/report_milan_vcek.pem", "roots/amd_ask_ark_milan.pem"),
            1_785_000_000,
            "snp",
            0,
        ),
        ("aws/nitro_attestation.bin", (), 1_766_668_537, "nitro", 0),
        ("aws/nitro_attestation_debug.bin", (), 1_766_650_846, "nitro", 1),
        ("nvidia/hopper_evidence.json", (), 1_785_000_000, "gpu", 0),
        ("nvidia/nras_detached_eat_hopper.json", (), 1_749_602_000, "nras", 1),
    ],
)
def test_a_report_of_another_vendor_is_verified_and_said_to_fit_no_policy(
    name: str, collateral: tuple[str, ...], at: int, format: str, code: int, tmp_path: Path, cli: Run
) -> None:
    command = ["attest", "verify", recorded(tmp_path, name), "--at", str(at)]
    if format == "nras":  # the service's keys were not recorded: its signatures cannot be checked
        (tmp_path / "keys").write_bytes(b'{"keys": []}')
        command += ["--collateral", str(tmp_path / "keys")]
    elif collateral:
        command += ["--collateral", recorded(tmp_path, *collateral)]

    result = cli(*command, "--json")

    assert result.code == code, result
    assert (result.document["format"], result.document["policy_accepted"]) == (format, False)
    assert result.document["accepted"] is (code == 0)
    assert "No policy accepts it" in cli(*command).out


@pytest.mark.parametrize(
    ("name", "more", "cause"),
    [
        ("amd/report_milan.bin", (), "cannot be verified alone"),
        ("aws/nitro_attestation.bin", ("--collateral", "{file}"), "needs no collateral"),
        ("aws/nitro_attestation.bin", ("--policy", "{file}"), "no policy judges"),
        ("nvidia/hopper_evidence.json", ("--event-log", "{file}"), "no policy judges"),
        ("amd/report_milan.bin", ("--collateral", "{file}", "--root", "{file}"), "fixed roots"),
        ("quotes/tdx4-90c06f-dstack.bin", (), "cannot be verified alone"),
    ],
)
def test_a_flag_that_the_format_has_no_use_for_is_refused(
    name: str, more: tuple[str, ...], cause: str, tmp_path: Path, cli: Run
) -> None:
    file = recorded(tmp_path, name)
    result = cli("attest", "verify", file, "--at", "1", *(flag.format(file=file) for flag in more), "--json")

    assert (result.code, result.error["code"]) == (2, "usage")
    assert cause in result.error["cause"]


# Policy


def test_a_policy_takes_every_status_that_may_count_and_never_revoked(simulated: Path, cli: Run) -> None:
    command = ["attest", "policy", "--from-quote", str(simulated / "quote.bin")]
    command += ["--root", str(simulated / "root.pem"), "--status"]
    assert cli(*command, "TDRelaunchAdvised").code == 0
    assert cli(*command, "Revoked").code == 2


def test_a_policy_is_made_from_quotes_checked_and_never_overwritten(simulated: Path, cli: Run) -> None:
    out = simulated / "new.json"
    command = ["attest", "policy", "--from-quote", str(simulated / "quote.bin"), "--out", str(out)]
    result = cli(*command, "--json")
    assert result.code == 2
    assert "SIMULATED" in result.error["cause"]
    rules = ["--status", "UpToDate", "--status", "SWHardeningNeeded", "--guardian", ADDRESS["sponsor"]]
    made = cli(*command, "--root", str(simulated / "root.pem"), *rules, "--ttl-s", "3600", "--json")
    assert made.code == 0, made
    shown = cli("attest", "policy", str(out), "--json")
    assert shown.document["hash"] == made.document["hash"]
    assert shown.document["document"]["statuses"] == ["UpToDate", "SWHardeningNeeded"]
    assert shown.document["policy"]["ttl_s"] == 3600
    assert shown.document["policy"]["guardian"] == ADDRESS["sponsor"].lower()
    assert cli(*command, "--root", str(simulated / "root.pem")).code == 2
    assert "policy hash: 0x" in cli("attest", "policy", str(out)).out


def test_a_genuine_quote_gives_a_policy_under_intels_root(cli: Run) -> None:
    quote = str(DATA / VECTORS["P09"]["quote"])
    result = cli("attest", "policy", "--from-quote", quote, "--json")
    assert result.code == 0
    assert result.document["root"] == "Intel SGX Root CA"
    assert len(result.document["policy"]["pck_cas"]) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["missing.json"],
        ["--from-quote", "missing.bin"],
        ["--event", "no-payload"],
        ["--event", "name=xyz"],
        ["--deny-advisory", "all"],
        ["--guardian", "0x12"],
        ["--ttl-s", "0"],
    ],
    ids=" ".join,
)
def test_a_wrong_policy_is_a_usage_error(wrong: list[str], cli: Run) -> None:
    quote = (
        ["--from-quote", str(DATA / VECTORS["P09"]["quote"])] if wrong[:1] and wrong[0][:3] != "mis" else []
    )
    result = cli("attest", "policy", *quote, *wrong, "--json")
    assert result.code == 2, result
    assert result.error["fix"]


# Simulate


@pytest.mark.parametrize("kind", ["tdx4", "tdx5", "sgx3"])
def test_simulated_files_are_said_to_be_and_pass_their_own_check(kind: str, tmp_path: Path, cli: Run) -> None:
    folder, data = tmp_path / "simulated", "ab" * 64
    result = cli("attest", "simulate", str(folder), "--format", kind, "--report-data", data)
    assert result.out.startswith("SIMULATED")
    assert "NOT A TEE" in result.out
    checked = cli(*checking(folder), "--policy", str(folder / "policy.json"), "--json")
    assert (checked.code, checked.document["report_data"]) == (0, "0x" + data)


def test_the_same_command_writes_the_same_bytes(simulated: Path, tmp_path: Path, cli: Run) -> None:
    again = tmp_path / "again"
    cli("attest", "simulate", str(again), "--code", "mine")
    assert {p.name: p.read_bytes() for p in again.iterdir()} == {
        p.name: p.read_bytes() for p in simulated.iterdir()
    }


def test_another_seed_is_a_root_that_nobody_knows(tmp_path: Path, cli: Run) -> None:
    result = cli("attest", "simulate", str(tmp_path / "own"), "--seed", "mine")
    assert "unknown root, not Intel's" in result.out


@pytest.mark.parametrize("data", ["zz", "00", "00" * 65])
def test_odd_report_data_is_a_usage_error(data: str, tmp_path: Path, cli: Run) -> None:
    assert cli("attest", "simulate", str(tmp_path / "no"), "--report-data", data).code == 2
    assert not (tmp_path / "no").exists()


# Register and show


@pytest.fixture(scope="module")
def attested(place: Place, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The number of a run that takes only what a simulated machine with the code `mine` signs."""
    folder = tmp_path_factory.mktemp("attested")
    assert main(["attest", "simulate", str(folder), "--code", "mine"], TestEnvironment()) == 0
    terms = 'verification = "attested"\nattestation_policy = "policy.json"\n'
    (folder / "run.toml").write_text(terms + RUN_FILE)
    assert main(["run", "create", str(folder / "run.toml"), *place.acting("sponsor")], TestEnvironment()) == 0
    for role in ("trainer", "latecomer", "newcomer"):
        assert main(["run", "join", "2", "--role", "trainer", *place.acting(role)], TestEnvironment()) == 0
    return 2


def registering(run: int, *more: str) -> list[str]:
    return ["attest", "register", str(run), "--attester", "simulated", *more, "--json"]


def test_run_show_says_whose_machines_an_attested_run_takes(attested: int, place: Place, cli: Run) -> None:
    shown = cli("run", "show", str(attested), *place.reading(), "--json").document
    assert shown["attestation"]["verification"] == "attested"
    assert shown["attestation"]["root"] == "SIMULATED - NOT A TEE"
    assert shown["attestation"]["policy"] == shown["attestation"]["policy"].lower()
    assert "root: SIMULATED - NOT A TEE" in cli("run", "show", str(attested), *place.reading()).out
    plain = cli("run", "show", "1", *place.reading(), "--json").document
    assert (plain["attestation"], plain["terms"]["verification"]) == (None, "incentive")


def test_a_dry_run_registers_nothing_and_keeps_no_key(attested: int, place: Place, cli: Run) -> None:
    machine = ["--code", "mine", "--platform", "1"]
    result = cli(*registering(attested, *machine, "--dry-run"), *place.acting("newcomer"))
    assert result.code == 0, result
    assert result.document["calls"][0]["function"] == "register"
    assert result.document["root"] == "SIMULATED - NOT A TEE"
    assert not list(place.folder.rglob("enclave"))
    shown = cli("attest", "show", str(attested), *place.reading(), "--json").document
    assert ADDRESS["newcomer"] not in {key["trainer"] for key in shown["keys"]}


def test_a_registered_key_is_shown_with_its_root_and_its_evidence_is_served(
    attested: int, place: Place, cli: Run
) -> None:
    result = cli(*registering(attested, "--code", "mine"), *place.acting("trainer"))
    assert result.code == 0, result
    assert "SIMULATED" in result.err and "NOT A TEE" in result.err
    shown = cli("attest", "show", str(attested), *place.reading(), "--json").document
    (key,) = [key for key in shown["keys"] if key["trainer"] == ADDRESS["trainer"]]
    assert (key["key"], key["expiry"], key["live"]) == (
        result.document["key"],
        result.document["expiry"],
        True,
    )
    assert key["root"] == "SIMULATED - NOT A TEE"
    (evidence,) = place.folder.rglob(f"public/{key['evidence_root'][2:]}")
    assert EvidenceFile.read(evidence.read_bytes()).root().hex() == evidence.name
    table = cli("attest", "show", str(attested), "--account", ADDRESS["trainer"], *place.reading()).out
    for value in (key["key"], key["trainer"], key["workload"], key["evidence_root"][2:]):
        assert any(line.split()[-1] == value for line in table.splitlines()), "on a line that can be copied"
    assert f"root {key['root_id']}: SIMULATED - NOT A TEE" in table


def test_a_fresh_key_is_only_replaced_when_that_is_asked_for(attested: int, place: Place, cli: Run) -> None:
    machine = ["--code", "mine", "--platform", "2"]
    first = cli(*registering(attested, *machine), *place.acting("latecomer")).document
    same = cli(*registering(attested, *machine), *place.acting("latecomer"))
    assert (same.code, same.document["key"], same.document["transactions"]) == (0, first["key"], [])
    second = cli(*registering(attested, *machine, "--again"), *place.acting("latecomer")).document
    assert first["key"] != second["key"]
    shown = cli(
        "attest", "show", str(attested), "--account", ADDRESS["latecomer"], *place.reading(), "--json"
    ).document
    assert [(key["key"], key["live"]) for key in shown["keys"]] == [
        (first["key"], False),
        (second["key"], True),
    ]


def test_a_registration_that_the_run_would_refuse_costs_nothing(
    attested: int, place: Place, cli: Run
) -> None:
    other = cli(*registering(attested, "--code", "changed"), *place.acting("newcomer"))
    assert (other.code, other.error["code"]) == (1, "registration")
    assert "does not list" in other.error["cause"]
    none = cli(*registering(1), *place.acting("newcomer"))
    assert (none.code, none.error["code"]) == (2, "usage")
    for kind in ("tdx-guest", "dstack"):
        result = cli(
            "attest", "register", str(attested), "--attester", kind, *place.acting("newcomer"), "--json"
        )
        assert (result.code, result.error["code"]) == (1, "no_tee")
