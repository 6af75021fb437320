import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.constants import EXIT_MARGIN_S
from earnest.protocol.schedule import Schedule, Window

SERIAL = Schedule(1_000, 6, 60, 30, 40, 20, 100, 50, overlap=False)
OVERLAPPED = Schedule(1_000, 6, 200, 30, 40, 20, 100, 50, overlap=True)

seconds = st.integers(1, 10_000)
schedules = st.builds(
    Schedule,
    start=st.integers(0, 2**32),
    rounds=st.integers(1, 65_535),
    commit_s=seconds,
    reveal_s=seconds,
    report_commit_s=seconds,
    report_reveal_s=seconds,
    settle_s=seconds,
    contest_s=seconds,
    overlap=st.booleans(),
)


def test_windows_are_half_open():
    window = Window(10, 20)
    assert [window.contains(t) for t in (9, 10, 19, 20)] == [False, True, True, False]


def test_windows_of_a_round_follow_each_other():
    assert SERIAL.opens(2) == 1_300
    assert SERIAL.commit(2) == Window(1_300, 1_360)
    assert SERIAL.reveal(2) == Window(1_360, 1_390)
    assert SERIAL.seed_opens(2) == 1_390
    assert SERIAL.report_commit(2) == Window(1_390, 1_430)
    assert SERIAL.report_reveal(2) == Window(1_430, 1_450)
    assert SERIAL.settle(2) == Window(1_450, 1_550)
    assert SERIAL.contest(2) == Window(1_550, 1_600)


def test_period_is_the_commit_window_with_overlap():
    assert SERIAL.period == 150
    assert OVERLAPPED.period == 200
    assert OVERLAPPED.commit(1).start == OVERLAPPED.reveal(0).start


@given(schedules, st.integers(0, 65_535))
def test_every_second_of_a_round_belongs_to_one_window(schedule, r):
    windows = [schedule.commit(r), schedule.reveal(r), schedule.report_commit(r), schedule.report_reveal(r)]
    windows += [schedule.settle(r), schedule.contest(r)]
    assert all(a.end == b.start for a, b in itertools.pairwise(windows))
    assert windows[-1].end - windows[0].start == schedule.least_exit_delay - EXIT_MARGIN_S
    if not schedule.overlap:
        assert schedule.report_reveal(r).end == schedule.opens(r + 1)


@given(schedules, st.integers(0, 65_535))
def test_round_at_changes_exactly_at_the_opening(schedule, r):
    opens = schedule.opens(r)
    assert schedule.round_at(opens) == r
    assert schedule.round_at(opens + schedule.period - 1) == r
    assert schedule.round_at(opens + schedule.period) == r + 1
    assert schedule.next_round(opens) == r + 1
    assert schedule.next_round(opens - 1) == r


def test_before_the_start_round_0_is_next_and_not_open():
    assert SERIAL.round_at(0) == SERIAL.round_at(999) == 0
    assert SERIAL.next_round(999) == 0
    assert SERIAL.next_round(1_000) == 1
    assert not SERIAL.commit(0).contains(999)


def test_rounds_train_from_the_last_state_they_can_know():
    assert [SERIAL.base_round(r) for r in range(4)] == [-1, 0, 1, 2]
    assert [OVERLAPPED.base_round(r) for r in range(4)] == [-1, -1, 0, 1]
    assert [OVERLAPPED.newest_round(r) for r in range(4)] == [-1, 0, 1, 2]


def test_data_is_assigned_by_the_last_seed_known_at_the_opening():
    assert [SERIAL.assignment_seed_round(r) for r in range(4)] == [None, 0, 1, 2]
    assert [OVERLAPPED.assignment_seed_round(r) for r in range(4)] == [None, None, 0, 1]


@given(schedules, st.integers(0, 1_000))
def test_the_assigning_seed_can_be_stored_before_the_round_opens(schedule, r):
    source = schedule.assignment_seed_round(r)
    if source is not None and not schedule.problems():
        assert schedule.seed_opens(source) < schedule.opens(r)


def test_negative_rounds_do_not_exist():
    with pytest.raises(ValueError, match="negative"):
        SERIAL.opens(-1)


def replaced(schedule: Schedule, **changes) -> Schedule:
    return Schedule(**{**schedule.__dict__, **changes})


@pytest.mark.parametrize(
    ("schedule", "settle_limit", "reason"),
    [(SERIAL, 150, "runs: settle window too long"), (OVERLAPPED, 110, "runs: windows exceed commit")],
)
def test_settlement_must_end_before_its_records_are_reused(schedule, settle_limit, reason):
    schedule = replaced(schedule, contest_s=60)
    assert replaced(schedule, settle_s=settle_limit).problems() == []
    assert replaced(schedule, settle_s=settle_limit + 1).problems() == [reason]


@pytest.mark.parametrize("window", ["commit_s", "contest_s"])
def test_no_window_exceeds_the_longest_exit(window):
    longest = 60 * 86_400
    lasting = replaced(SERIAL, settle_s=60, contest_s=60)
    assert replaced(lasting, **{window: longest}).problems() == []
    assert replaced(lasting, **{window: longest + 1}).problems() == ["runs: window too long"]


@pytest.mark.parametrize("window", ["commit_s", "reveal_s", "report_commit_s", "report_reveal_s"])
def test_no_window_is_empty(window):
    assert "runs: empty window" in replaced(OVERLAPPED, **{window: 0}).problems()


@pytest.mark.parametrize("window", ["settle_s", "contest_s"])
def test_settle_and_contest_windows_hold_some_blocks(window):
    lasting = replaced(SERIAL, settle_s=60, contest_s=60)
    assert lasting.problems() == []
    assert replaced(lasting, **{window: 59}).problems() == ["runs: window too short"]
