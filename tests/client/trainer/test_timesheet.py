"""The timesheet: seconds of training, and seconds of waiting by reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulated_idle import simulate_idle
from earnest.client.trainer.timesheet import TRAINING, Timesheet
from earnest.protocol.schedule import Schedule

APART = Schedule(0, 10, 800, 50, 60, 50, 60, 100, overlap=False)
"""Windows of 20 % of the round: 50 + 60 + 50 + 40 of 1000."""

BESIDE = replace(APART, commit_s=1_000, overlap=True)


def test_seconds_count_for_the_latest_activity() -> None:
    now = [0.0]
    sheet = Timesheet(lambda: now[0])
    for what, seconds in (("the run to start", 50), (TRAINING, 90), ("the next round", 6), (TRAINING, 90)):
        sheet.now(what)
        now[0] += seconds
    sheet.now("the base state")
    now[0] += 14
    assert sheet.as_dict() == {
        "training_s": 180,
        "idle_s": 20,
        "idle_share": 0.1,
        "waiting_for": {"the base state": 14, "the next round": 6, "the run to start": 50},
    }


def test_who_has_done_nothing_was_not_idle() -> None:
    assert Timesheet(lambda: 0.0).as_dict()["idle_share"] == 0.0


def test_apart_a_trainer_waits_for_every_window() -> None:
    assert simulate_idle(APART, 790, 100) == pytest.approx(0.18, abs=0.01)


def test_with_overlap_it_waits_for_its_commitment_only() -> None:
    assert not BESIDE.problems()
    assert simulate_idle(BESIDE, 985, 100, latency_s=10) < 0.02


@pytest.mark.parametrize("schedule", [APART, BESIDE])
def test_a_round_that_does_not_fit_is_an_error(schedule: Schedule) -> None:
    assert simulate_idle(schedule, schedule.commit_s - 10, 2, latency_s=10) >= 0
    with pytest.raises(ValueError, match="round 0 needs"):
        simulate_idle(schedule, schedule.commit_s - 9, 2, latency_s=10)
