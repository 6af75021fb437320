"""The demo: the model learns, honest work is paid, a cheat earns nothing and loses bond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.demo import facts, judge_once
from earnest.demo.options import DemoOptions
from earnest.demo.play import set_up
from earnest.demo.world import TRAINER_POOL, VALIDATOR_POOL
from tests.demo.short import shorten


def play(output: Path, **options: Any) -> dict[str, Any]:
    with set_up(DemoOptions(output, judge=judge_once(), **options)) as demo:
        return demo.play(lambda report: None)


def assert_money_adds_up(result: dict[str, Any]) -> None:
    earned = sum(int(one["earned_wei"]) for one in result["participants"])
    seized = sum(int(one["bond_start_wei"]) - int(one["bond_end_wei"]) for one in result["participants"])
    funded = len(result["rounds"]) * (TRAINER_POOL + VALIDATOR_POOL)
    assert earned + int(result["refunded_wei"]) == funded
    assert seized == int(result["burned_wei"])


def test_a_cheat_loses_bond_in_time_and_the_honest_lose_nothing(tmp_path: Path):
    result = play(tmp_path, attack="sign-flip", rounds=5, seed=1)
    assert result["final_loss"] <= 2.35
    assert facts(result)["least_pay"] > 0
    assert_the_cheat_alone_loses(result, "harmful", latest=4)


@pytest.mark.parametrize(
    ("attack", "rounds", "verdict", "latest"), [("copy", 3, "copied", 1), ("malformed", 2, "malformed", 0)]
)
def test_a_cheat_that_its_payload_gives_away_loses_bond_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str, rounds: int, verdict: str, latest: int
):
    shorten(monkeypatch)
    lying = attack == "malformed"
    result = play(tmp_path, attack=attack, rounds=rounds, seed=1, lying_validator=lying)
    assert_the_cheat_alone_loses(result, verdict, latest)


def assert_the_cheat_alone_loses(result: dict[str, Any], verdict: str, latest: int) -> None:
    found = facts(result)
    cheat = next(o for o in result["participants"] if not o["honest"] and o["role"] == "trainer")
    assert found["honest_lost"] == 0
    assert found["share"] <= 0.05
    assert found["lost"] > 0
    assert min(r["round"] for r in result["rounds"] if r["verdicts"][cheat["name"]] == verdict) <= latest
    assert set(result["state_roots"].values()) == {result["final_state_root"]}
    assert_money_adds_up(result)


def test_the_same_seed_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shorten(monkeypatch)
    first, second, other = (
        play(tmp_path / name, seed=seed, rounds=1, trainers=2, validators=1, attack="noise")
        for name, seed in (("first", 7), ("second", 7), ("other", 8))
    )
    assert first == second
    assert first["rounds"][0]["seed"] != other["rounds"][0]["seed"]
    assert other["final_state_root"] != first["final_state_root"]


def test_sparse_updates_cost_a_hundredth_and_the_model_still_learns(tmp_path: Path):
    result = play(tmp_path, attack="none", codec="topk-2bit", rounds=2)
    assert result["final_loss"] <= 2.45
    assert result["final_loss"] < result["initial_loss"] - 0.03
    for report in result["rounds"]:
        assert 100 * report["update_bytes"] <= report["dense_bytes"]
    assert facts(result)["honest_lost"] == 0
