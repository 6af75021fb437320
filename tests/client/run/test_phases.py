"""What is open in a run at a moment, with and without overlap."""

from dataclasses import replace

import pytest

from earnest.client.run.phases import next_phase, open_phases, round_phases, run_state
from earnest.protocol.schedule import Schedule

SCHEDULE = Schedule(
    start=1_000,
    rounds=2,
    commit_s=10,
    reveal_s=4,
    report_commit_s=6,
    report_reveal_s=4,
    settle_s=5,
    contest_s=3,
    overlap=False,
)


def names(t: int, schedule: Schedule = SCHEDULE) -> list[tuple[int, str]]:
    return [(phase.round, phase.name) for phase in open_phases(schedule, schedule.rounds, t)]


@pytest.mark.parametrize(
    ("t", "opened"),
    [
        (999, []),
        (1_000, [(0, "commit")]),
        (1_009, [(0, "commit")]),
        (1_010, [(0, "reveal")]),
        (1_014, [(0, "report commit")]),
        (1_020, [(0, "report reveal")]),
        (1_024, [(0, "settle"), (1, "commit")]),
        (1_029, [(0, "contest"), (1, "commit")]),
        (1_032, [(1, "commit")]),
        (1_048, [(1, "settle")]),
        (1_053, [(1, "contest")]),
        (1_062, [(2, "report commit")]),
        (1_072, [(2, "settle")]),
        (1_077, []),
    ],
)
def test_windows_are_half_open_and_the_last_round_only_reports(t: int, opened: list[tuple[int, str]]) -> None:
    assert names(t) == opened


def test_with_overlap_several_rounds_are_at_work() -> None:
    overlapping = replace(SCHEDULE, commit_s=30, overlap=True)
    assert names(1_000 + 30 + 5, overlapping) == [(0, "report commit"), (1, "commit")]


def test_the_time_left_is_never_negative() -> None:
    for t in range(990, 1_090):
        assert all(phase.left(t) > 0 for phase in open_phases(SCHEDULE, 2, t))
        upcoming = next_phase(SCHEDULE, 2, t)
        assert upcoming is None or upcoming.left(t) == upcoming.window.start - t > 0
    assert round_phases(SCHEDULE, 2, 0)[0].left(2_000) == 0


def test_what_comes_next() -> None:
    def following(t: int) -> tuple[int, str] | None:
        phase = next_phase(SCHEDULE, 2, t)
        return None if phase is None else (phase.round, phase.name)

    assert following(0) == (0, "commit")
    assert following(1_000) == (0, "reveal")
    assert following(1_053) == (2, "report commit")
    assert following(1_072) is None


def test_a_run_waits_runs_and_is_over() -> None:
    assert [run_state(SCHEDULE, 2, t) for t in (999, 1_000, 1_076, 1_077)] == [
        "waiting",
        "running",
        "running",
        "over",
    ]
