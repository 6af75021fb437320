"""Commands with malformed files: an exit code, cause and fix, never a traceback or an invalid document."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from earnest.training.diloco.state import to_bytes
from earnest.training.privacy import PrivacyError, noise_for
from earnest.training.tasks import check as check_module
from earnest.training.tasks.check import TaskUnderTest, check_task
from tests.cli.conftest import Result
from tests.cli.test_task import shakespeare

Cli = Callable[..., Result]


def strict(text: str) -> Any:
    """One JSON document, in which no number is infinite."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    "flags",
    [
        ["training", "--step-s", "inf"],
        ["training", "--step-s", "nan"],
        ["training", "--up-mbps", "1e-320"],
        ["training", "--tokens-per-s", "1e-320"],
        ["training", "--gwei", "1e308", "--coin-price", "1e308"],
        ["training", "--windows-s", "inf"],
        ["training", "--trainers", "9" * 40],
        ["privacy", "--noise", "1e308"],
        ["privacy", "--epsilon", "1e-300", "--rounds", "9" * 30],
    ],
    ids=" ".join,
)
def test_numbers_that_nothing_has_make_no_plan(cli: Cli, flags: list[str]) -> None:
    result = cli("plan", *flags, "--json")
    assert result.code == 2
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "flags",
    [
        [
            "training",
            "--step-s",
            "1e15",
            "--up-mbps",
            "1e-12",
            "--parameters",
            "1e15",
            "--trainers",
            "9" * 15,
        ],
        ["training", "--gwei", "1e15", "--coin-price", "1e15", "--bond", "1e15", "--rounds", "9" * 15],
        ["privacy", "--noise", "1e-12"],
        ["privacy", "--noise", "0"],
    ],
    ids=" ".join,
)
def test_the_oddest_plan_is_a_document(cli: Cli, flags: list[str]) -> None:
    result = cli("plan", *flags, "--json")
    assert result.code == 0
    assert strict(result.out)


def test_an_epsilon_without_known_noise_is_an_error() -> None:
    with pytest.raises(PrivacyError, match="finds no noise"):
        noise_for(1e308, 1e-5, 10)


@pytest.mark.parametrize(
    "content", [b"\xff" * 100, b"[" * 60_000, b"{}", b""], ids=["bytes", "deep", "empty", "none"]
)
def test_a_recipe_that_is_none_is_not_checked(cli: Cli, tmp_path: Path, content: bytes) -> None:
    for name in ("recipe.json", "run.toml"):
        (tmp_path / name).write_bytes(content)
        assert cli("task", "check", str(tmp_path / name), "--json").code == 2


@pytest.mark.parametrize("endless", ["/dev/zero", "recipe", "run.toml"])
def test_a_file_without_end_is_not_read_to_its_end(cli: Cli, tmp_path: Path, endless: str) -> None:
    path = Path(endless)
    if not path.is_absolute():
        path = tmp_path / endless
        path.symlink_to("/dev/zero")
    recipe, state = shakespeare()
    (tmp_path / "good.json").write_bytes(recipe.to_json())
    (tmp_path / "state").write_bytes(to_bytes(state))
    given = cli("task", "export", str(path), str(tmp_path / "state"), str(tmp_path / "model"), "--json")
    assert (given.code, "more than" in given.error["cause"]) == (2, True)
    if path.suffix != ".toml":
        given = cli(
            "task", "export", str(tmp_path / "good.json"), str(path), str(tmp_path / "model"), "--json"
        )
        assert (given.code, "more than" in given.error["cause"]) == (2, True)
    assert not (tmp_path / "model").exists()


def test_a_model_that_cannot_be_written_is_an_error(cli: Cli, tmp_path: Path) -> None:
    recipe, state = shakespeare()
    (tmp_path / "good.json").write_bytes(recipe.to_json())
    (tmp_path / "state").write_bytes(to_bytes(state))
    (tmp_path / "file").write_bytes(b"")
    place = str(tmp_path / "file" / "model")
    given = cli("task", "export", str(tmp_path / "good.json"), str(tmp_path / "state"), place, "--json")
    assert (given.code, "cannot be written" in given.error["cause"]) == (5, True)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("import os; os._exit(0)", "ended the process"),
        ("import os; os.write(1, b'[1,2\\n'); os._exit(0)", "ended the process"),
        ("import time; time.sleep(60)", "did not end in 1 s"),
    ],
    ids=["exit", "garbage", "hangs"],
)
def test_a_task_that_ends_the_process_is_unfit_and_the_check_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, told: str
) -> None:
    (tmp_path / "odd_task.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if "sleep" in body:
        monkeypatch.setattr(check_module, "TIMEOUT_S", 1)
    report = check_task(TaskUnderTest("odd_task:Odd", {}))
    assert not report.ok
    assert told in report.results[0].detail


def test_a_task_does_not_see_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "import os; raise SystemExit(f'saw {sorted(n for n in os.environ if n.startswith(\"EARNEST_\"))}')"
    (tmp_path / "nosy_task.py").write_text(told)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("EARNEST_PASSWORD", "a good password")
    monkeypatch.setenv("EARNEST_TOKENS", str(tmp_path))
    assert check_task(TaskUnderTest("nosy_task:Nosy", {})).results[0].detail == "saw ['EARNEST_TOKENS']"
