"""Artifacts: equal to what the sources compile to, on any machine, and small enough for a chain."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import earnest.contracts
from earnest.contracts import ARTIFACTS, load_artifact
from earnest.deploy.compile import (
    RUNTIME_LIMIT,
    compile_all,
    compile_contract,
    encode,
    main,
    problems,
    sources,
    write,
)

CONTRACTS = Path(earnest.contracts.__path__[0]).resolve()


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, Any]]:
    """Every contract, compiled once for all tests: it takes seconds."""
    return compile_all(CONTRACTS)


@pytest.fixture
def compile_nothing(compiled, monkeypatch):
    """Has `main` take what is compiled already."""
    monkeypatch.setattr("earnest.deploy.compile.compile_all", lambda contracts: compiled)


@pytest.mark.usefixtures("compile_nothing")
def test_the_checked_in_artifacts_are_what_the_sources_compile_to(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_the_check_fails_for_an_artifact_that_differs_from_its_source(compiled, monkeypatch, capsys):
    changed = {**compiled, "StakeVault": {**compiled["StakeVault"], "bytecode": "0x00"}}
    monkeypatch.setattr("earnest.deploy.compile.compile_all", lambda contracts: changed)
    assert main(["--check"]) == 1
    assert "StakeVault: differs" in capsys.readouterr().err


def test_every_deployable_has_an_artifact():
    assert {source.stem for source in sources(CONTRACTS)} == set(ARTIFACTS)
    assert {"PlayToken", "StakeVault", "Settlement", "TrainingRuns"} <= set(ARTIFACTS)


def test_another_folder_and_another_working_directory_give_the_same_bytes(compiled, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(CONTRACTS, elsewhere, ignore=shutil.ignore_patterns("artifacts", "__pycache__"))
    monkeypatch.chdir(tmp_path)
    assert list(sources(elsewhere)) == list(sources(CONTRACTS))
    assert encode(compile_contract(elsewhere, Path("StakeVault.vy"))) == encode(compiled["StakeVault"])


def test_an_artifact_loads_as_it_was_compiled(compiled):
    artifact = load_artifact("StakeVault")
    assert artifact.bytecode.hex() == compiled["StakeVault"]["bytecode"][2:]
    assert artifact.runtime.hex() == compiled["StakeVault"]["runtime"][2:]
    assert artifact.runtime in artifact.bytecode
    assert artifact.compiler["version"] == "0.4.3"
    assert artifact.compiler["evm"] == "cancun"
    assert set(artifact.layout) >= {"storage_layout", "code_layout"}


def test_an_unknown_artifact_lists_those_that_exist():
    with pytest.raises(LookupError, match="StakeVault"):
        load_artifact("Treasury")


def test_a_changed_missing_or_stale_artifact_is_found(compiled, tmp_path):
    artifacts = {"PlayToken": compiled["PlayToken"]}
    write(artifacts, tmp_path)
    assert problems(artifacts, tmp_path) == []
    path = tmp_path / "PlayToken.json"
    text = path.read_text()
    path.write_text(text.replace('"evm": "cancun"', '"evm": "prague"'))
    assert len(problems(artifacts, tmp_path)) == 1
    path.unlink()
    assert len(problems(artifacts, tmp_path)) == 1
    path.write_text(text)
    (tmp_path / "Gone.json").write_text(text)
    assert problems(artifacts, tmp_path) == ["Gone: no such contract; delete its artifact"]
    write(artifacts, tmp_path)
    assert problems(artifacts, tmp_path) == []


@pytest.mark.parametrize(("spare", "fits"), [(1, True), (0, False)])
def test_a_contract_that_does_not_fit_on_a_chain_is_found_with_its_immutables(
    compiled, tmp_path, spare, fits
):
    artifact = json.loads(encode(compiled["StakeVault"]))
    artifact["runtime"] = "0x" + "00" * (RUNTIME_LIMIT - 64 - spare)  # and two immutables of 32 bytes
    write({"StakeVault": artifact}, tmp_path)
    assert (problems({"StakeVault": artifact}, tmp_path) == []) is fits


def test_another_compiler_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("vyper.__version__", "0.4.4")
    assert main([]) == 1
    assert "install vyper==0.4.3" in capsys.readouterr().err
