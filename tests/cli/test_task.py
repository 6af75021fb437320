"""`earnest task`: the check's verdict as exit code and document, and a state's model as a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from earnest.client.run.bundle import Bundle
from earnest.protocol.recipe import Inner, Recipe, Scoring
from earnest.training.adapters.memmap import TokenFile
from earnest.training.diloco.initial import initial_state
from earnest.training.diloco.state import State, state_root, to_bytes
from earnest.training.tasks import check as check_module
from earnest.training.tasks.check import CheckReport, CheckResult, TaskUnderTest
from earnest.training.tasks.own import recipe_for
from earnest.training.tasks.task import load_task
from tests.cli.conftest import RUN_FILE, Result

Cli = Callable[..., Result]
SHAKESPEARE = "earnest.training.tasks.shakespeare:Shakespeare"
SMALL: dict[str, Any] = {"layers": 1, "width": 8, "heads": 2, "context": 8}


def shakespeare() -> tuple[Recipe, State]:
    task = load_task(SHAKESPEARE, SMALL)
    inner, scoring = Inner(steps=2, batch=4), Scoring(held_out=8, own=8)
    recipe = recipe_for(task, SHAKESPEARE, task_options=SMALL, inner=inner, scoring=scoring)
    return recipe, initial_state(task, recipe)


def test_a_recipe_s_task_is_checked_for_real(tmp_path: Path, cli: Cli) -> None:
    recipe, _ = shakespeare()
    (tmp_path / "recipe.json").write_bytes(recipe.to_json())
    document = cli("task", "check", "recipe.json", "--steps", "2", "--json").document
    assert document["ok"] and all(one["ok"] for one in document["checks"])
    assert len(document["checks"]) == 15
    assert {"same weights", "same batches", "same losses", "same update"} <= {
        c["name"] for c in document["checks"]
    }
    assert document["payload_bytes"]["dense-bf16"] <= recipe.max_payload_bytes
    assert document["step_s"] > 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TaskUnderTest]:
    """What the check was asked about; it fails one question."""
    subjects: list[TaskUnderTest] = []

    def check(subject: TaskUnderTest, *, threads: int, steps: int) -> CheckReport:
        subjects.append(subject)
        results = CheckResult("runs", True, "went through"), CheckResult("same update", False, "other bits")
        return CheckReport(subject.task, results, 100, 0.5, 64, {"dense-bf16": 200})

    monkeypatch.setattr(check_module, "check_task", check)
    return subjects


def test_a_failed_check_is_a_refusal(asked: list[TaskUnderTest], cli: Cli) -> None:
    result = cli("task", "check", "mine:Task", "--json")
    assert result.code == 1
    assert result.document["checks"][1] == {"name": "same update", "ok": False, "seen": "other bits"}
    text = cli("task", "check", "mine:Task").out
    assert "FAILS" in text
    assert "Not fit for a run: same update: other bits." in text
    assert "earnest plan training --parameters 100 --step-s 0.5 --step-tokens 64" in text


def test_options_and_files_reach_the_check(asked: list[TaskUnderTest], tmp_path: Path, cli: Cli) -> None:
    options = [
        "--option",
        "layers=1",
        "--option",
        "rate=0.5",
        "--option",
        "name=a=b",
        "--option",
        "deep=true",
    ]
    cli("task", "check", "mine:Task", *options, "--json")
    (tmp_path / "run.toml").write_text(RUN_FILE)
    cli("task", "check", "run.toml", "--json")
    assert asked[0] == TaskUnderTest("mine:Task", {"layers": 1, "rate": 0.5, "name": "a=b", "deep": True})
    assert asked[1].recipe is not None
    assert asked[1].recipe.task_options["width"] == 8
    both = cli("task", "check", "run.toml", "--option", "layers=1", "--json")
    assert both.code == 2


@pytest.mark.parametrize(
    "arguments", [["mine:Task", "--option", "layers"], ["nothing.json"], ["broken.json"]]
)
def test_what_names_no_task(arguments: list[str], tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "broken.json").write_text("{")
    assert cli("task", "check", *arguments, "--json").code == 2


# Export


def test_a_state_becomes_a_safetensors_file(tmp_path: Path, cli: Cli) -> None:
    recipe, state = shakespeare()
    (tmp_path / "recipe.json").write_bytes(recipe.to_json())
    (tmp_path / "state").write_bytes(to_bytes(state))
    document = cli("task", "export", "recipe.json", "state", "model", "--json").document
    assert document["files"] == ["model.safetensors"]
    assert document["state"] == "0x" + state_root(state).hex()
    written = load_file(tmp_path / "model/model.safetensors")
    assert all(torch.equal(written[name], value) for name, value in state.parameters.items())
    again = cli("task", "export", "recipe.json", "state", "model", "--json")
    assert again.code == 2
    assert "already exists" in again.error["cause"]
    (tmp_path / "opened").write_bytes(Bundle(recipe, (), state_root(state)).to_bytes())
    assert cli("task", "export", "opened", "state", "same").code == 0, "the run's files name the recipe too"
    assert (tmp_path / "same/model.safetensors").read_bytes() == (
        tmp_path / "model/model.safetensors"
    ).read_bytes()
    (tmp_path / "state").write_bytes(to_bytes(state)[:-4])
    broken = cli("task", "export", "recipe.json", "state", "other", "--json")
    assert broken.code == 2
    assert not (tmp_path / "other").exists()


def test_a_hugging_face_task_becomes_its_folder(tmp_path: Path, cli: Cli) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "tokens.bin").write_bytes((np.arange(2000) % 31).astype("<u2").tobytes())
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = {"model_type": "llama", "vocab_size": 32, "max_position_embeddings": 16, **sizes}
    name = "earnest.training.adapters.huggingface:CausalLm"
    options = {"config": json.dumps(config), "tokens": "tokens.bin", "context": 16}
    options["root"] = TokenFile("tokens.bin", "uint16", 32).root()
    task = load_task(name, options)
    recipe = recipe_for(task, name, task_options=options, inner=Inner(steps=2, batch=2))
    (tmp_path / "recipe.json").write_bytes(recipe.to_json())
    (tmp_path / "state").write_bytes(to_bytes(initial_state(task, recipe)))
    document = cli("task", "export", "recipe.json", "state", "model", "--json").document
    assert document["files"] == ["config.json", "generation_config.json", "model.safetensors"]
