"""The demo from the command line, and a cheat that contests its penalty from there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from earnest.demo.options import DemoOptions
from earnest.demo.play import set_up
from earnest.deploy.devnet.server import serve
from tests.cli.conftest import BEAT_S, Result
from tests.demo.short import shorten

Cli = Callable[..., Result]
SMALL = ["--rounds", "1", "--trainers", "2", "--validators", "1"]


def test_the_demo_writes_its_result_and_a_picture(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch)
    result = cli("demo", *SMALL, "--attack", "absent", "--output", str(tmp_path / "out"), "--json")
    assert result.code == 0
    document = result.document
    assert json.loads((tmp_path / "out/demo.json").read_text()).items() <= document.items()
    assert Path(document["picture"]).read_bytes().startswith(b"\x89PNG")
    assert [(played["round"], played["trial"]) for played in document["rounds"]] == [(0, True)]
    assert document["final_loss"] < document["initial_loss"]
    assert "round 0: training and judging" in result.err
    assert "last contests" in result.err


@pytest.mark.parametrize(
    "wrong", [["--rounds", "0"], ["--trainers", "1"], ["--attack", "nice"], ["--codec", "zip"]]
)
def test_impossible_demo_options_are_a_usage_error(wrong: list[str], cli: Cli) -> None:
    assert cli("demo", *wrong, "--json").code == 2


def test_a_penalty_is_shown_and_contested_with_the_owners_key(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch)
    options = DemoOptions(tmp_path, attack="zero", rounds=1, trainers=2, validators=1)
    (tmp_path / "password").write_text("demo\n")
    manifest = ["--manifest", str(tmp_path / "nodes/manifest.json"), "--data-dir", str(tmp_path / "data")]
    said: list[dict[str, Any]] = []

    with set_up(options) as demo:

        def ask(*argv: str, role: str | None = None) -> dict[str, Any]:
            """One command against the demo's chain, which stands still but for a second a block."""
            now = demo.world.devnet.now()
            with serve(demo.world.devnet, port=0, block_time_s=BEAT_S, clock=lambda: now) as server:
                flags = ["--rpc", server.url, *manifest]
                if role is not None:
                    key = tmp_path / f"nodes/keys/{role}.json"
                    flags += ["--keystore", str(key), "--password-file", str(tmp_path / "password")]
                return cli(*argv, *flags, "--json").document

        def on_round(report: dict[str, Any]) -> None:
            while not (shown := ask("penalty", "show", str(demo.world.run)))["penalties"]:
                for member in demo.result.members:
                    member.node.step()
            (penalty,) = shown["penalties"]
            said.append(penalty)
            for role in ("trainer-0", "trainer-1", "trainer-1"):
                said.append(ask("penalty", "contest", penalty["penalty"], role=role))

        result = demo.play(on_round)
        (settled,) = ask("penalty", "show", str(demo.world.run))["penalties"]
        history = ask("run", "show", str(demo.world.run))["history"]
        for mine in (tmp_path / "data").glob("*/*/public"):  # as a validator's on this machine would be
            shutil.copytree(tmp_path / "nodes/validator-0/public", mine, dirs_exist_ok=True)
        model = ask("run", "fetch", str(demo.world.run), "--out", str(tmp_path / "model"))

    locked, strangers, contested, again = said
    cheat = next(one for one in result["participants"] if not one["honest"])
    assert (locked["account"], locked["verdict"]) == (cheat["account"], "malformed")
    assert locked["status"] == "locked"
    assert "is on" in strangers["error"]["cause"]
    assert contested["transactions"][0]["function"] == "contest"
    assert "contested already" in again["error"]["cause"]
    assert settled["status"] == "seized"
    lost = int(cheat["bond_start_wei"]) - int(cheat["bond_end_wei"])
    assert lost == int(settled["amount_wei"]) + int(settled["contest_amount_wei"])
    assert history[0]["trainers"][1]["verdict"] == "malformed"
    assert (model["state"], model["final"]) == ("0x" + result["final_state_root"].removeprefix("0x"), True)
