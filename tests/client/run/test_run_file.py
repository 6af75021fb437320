"""The run file's attestation: the policy file that it names, and the level that goes with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from earnest.attestation.formats.quote import parse_quote
from earnest.attestation.policy_file import PolicyFile, PolicyFileError
from earnest.attestation.prover.simulated import SimulatedAttester
from earnest.client.run.run_file import RunFile, RunFileError, remarks, window_problems
from earnest.protocol.run import Level
from tests.client.world import tiny_recipe

POLICY = PolicyFile.from_quotes([parse_quote(SimulatedAttester().quote(bytes(64)).quote)])
FILE = """
rounds = 1
start_in_s = 5000
trainers = 4
validators = 2
{attestation}
[pool]
trainer = 4
validator = 1
[bond]
trainer = 1
validator = 1
[windows]
commit_s = 1800
reveal_s = 300
report_commit_s = 900
report_reveal_s = 300
settle_s = 900
contest_s = 900
exit_delay_s = 172800
[admission]
open_trainers = true
validators = ["0x000000000000000000000000000000000000dEaD"]
[recipe]
"""


def read(folder: Path, attestation: str) -> RunFile:
    path = folder / "terms" / "run.toml"
    path.parent.mkdir()
    path.write_text(FILE.format(attestation=attestation))
    return RunFile.read(path)


@pytest.mark.parametrize(("name", "level"), [("attested", Level.ATTESTED), ("optional", Level.OPTIONAL)])
def test_the_policy_is_read_from_where_the_run_file_is(name: str, level: Level, tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text(POLICY.to_text())
    file = read(tmp_path, f'verification = "{name}"\nattestation_policy = "../policy.json"')
    policy = file.read_policy()
    assert policy == POLICY
    params = file.params(tiny_recipe(), bytes(32), 1_000, 18, policy)
    assert (params.verification, params.attestation_policy) == (level, POLICY.hash)
    assert any("SIMULATED - NOT A TEE" in remark for remark in remarks(params, tiny_recipe(), policy))


def test_a_run_without_attestation_has_no_policy(tmp_path: Path) -> None:
    file = read(tmp_path, "")
    params = file.params(tiny_recipe(), bytes(32), 1_000, 18, file.read_policy())
    assert (params.verification, params.attestation_policy) == (Level.INCENTIVE, bytes(32))


@pytest.mark.parametrize(
    "attestation",
    ['verification = "attested"', 'attestation_policy = "policy.json"'],
    ids=["level alone", "policy alone"],
)
def test_level_and_policy_belong_together(attestation: str, tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="attestation_policy"):
        read(tmp_path, attestation).read_policy()


def test_another_level_or_a_missing_policy_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="'audited'; choose one of 'incentive', 'attested', 'optional'"):
        read(tmp_path, 'verification = "audited"')
    (tmp_path / "terms" / "run.toml").unlink()
    (tmp_path / "terms").rmdir()
    file = read(tmp_path, 'verification = "attested"\nattestation_policy = "none.json"')
    with pytest.raises(PolicyFileError, match="No such file"):
        file.read_policy()


def test_windows_without_room_for_blocks_or_finality_are_named(tmp_path: Path) -> None:
    params = read(tmp_path, "").params(tiny_recipe(), bytes(32), 1_000, 18)
    params = replace(params, reveal_s=300, report_commit_s=300, report_reveal_s=300, settle_s=299)
    named = [problem.split()[0] for problem in window_problems(params, 12.0, 150.0)]
    assert named == ["settle_s"]
    assert window_problems(replace(params, settle_s=300), 12.0, 150.0) == []
    short = replace(params, settle_s=300, contest_s=60, commit_s=60)
    assert [p.split()[0] for p in window_problems(short, 12.1, 150.0)] == ["commit_s", "contest_s"]


def test_fewer_than_three_validators_and_an_open_stake_cap_are_remarked(tmp_path: Path) -> None:
    params = read(tmp_path, "").params(tiny_recipe(), bytes(32), 1_000, 18)
    params = replace(params, validator_limit=3, validator_max_stake=params.validator_min_bond)
    fine = remarks(params, tiny_recipe())
    assert len(remarks(replace(params, validator_limit=2), tiny_recipe())) == len(fine) + 1
    open_cap = replace(params, validator_max_stake=params.validator_min_bond + 1)
    assert len(remarks(open_cap, tiny_recipe())) == len(fine) + 1
