from dataclasses import replace

import pytest

from earnest.protocol.constants import ZERO_ADDRESS
from earnest.protocol.require import Refused
from earnest.protocol.run import Role
from earnest.protocol.seats import SeatsModel
from tests.protocol.test_run import PARAMS

BOND = PARAMS.trainer_min_bond
SMALL = replace(PARAMS, start=0, rounds=40, trainer_limit=2, validator_limit=2)
SCHEDULE = SMALL.schedule()


def model() -> SeatsModel:
    return SeatsModel(replace(SMALL, start=1_000))


def at(r: int) -> int:
    """The second in which round r of the model opens."""
    return 1_000 + SCHEDULE.opens(r)


def joined(*accounts: str, role: Role = Role.TRAINER) -> SeatsModel:
    seats = model()
    for account in accounts:
        seats.join(account, role, account, at(0) - 1, BOND)
    return seats


def owners(seats: SeatsModel, seat: int, *rounds: int) -> list[str | None]:
    tenures = [seats.tenure(Role.TRAINER, seat, r) for r in rounds]
    return [tenure and tenure.owner for tenure in tenures]


def refused(reason: str, call, *args, **kwargs) -> None:
    with pytest.raises(Refused) as refusal:
        call(*args, **kwargs)
    assert refusal.value.reason == f"runs: {reason}"


def test_seats_count_from_the_next_round():
    seats = model()
    assert seats.join("trainer", Role.TRAINER, "key", at(0) - 1, BOND) == 0
    assert seats.join("late", Role.TRAINER, "late", at(0), BOND) == 1
    assert seats.active_trainers(0) == [0]
    assert seats.active_trainers(1) == [0, 1]
    assert seats.tenure(Role.TRAINER, 1, 0) is None


def test_joining_needs_bond_admission_an_operator_and_time():
    seats = joined("trainer")
    now = at(0)
    refused("already seated", seats.join, "trainer", Role.VALIDATOR, "key", now, BOND)
    refused("not admitted", seats.join, "stranger", Role.TRAINER, "key", now, BOND, admitted=False)
    refused("bond too small", seats.join, "stranger", Role.TRAINER, "key", now, BOND - 1)
    refused("no operator", seats.join, "stranger", Role.TRAINER, ZERO_ADDRESS, now, BOND)
    refused("a seat is free", seats.join, "stranger", Role.TRAINER, "key", now, BOND, take=0)
    refused("too late to join", seats.join, "stranger", Role.TRAINER, "key", at(39), BOND)
    assert seats.join("stranger", Role.TRAINER, "key", at(39) - 1, BOND) == 1


def test_operator_changes_count_from_the_next_round():
    seats = joined("trainer")
    refused("not the owner", seats.set_operator, "stranger", Role.TRAINER, 0, "key", at(0))
    refused("not the owner", seats.set_operator, "stranger", Role.TRAINER, 1, "key", at(0))
    refused("no operator", seats.set_operator, "trainer", Role.TRAINER, 0, ZERO_ADDRESS, at(0))
    seats.set_operator("trainer", Role.TRAINER, 0, "key", at(0))
    refused("not the operator", seats.commit, "key", 0, 0, at(0), BOND)
    seats.commit("trainer", 0, 0, at(0), BOND)
    seats.commit("key", 1, 0, at(1), BOND)


def test_no_bond_moved_inside_a_round_counts_in_it():
    seats = joined("trainer")
    seats.sync(Role.TRAINER, 0, at(3), 5 * BOND)
    seats.sync(Role.TRAINER, 0, at(3) + 1, 7 * BOND)
    stakes = seats.trainers[0].stakes
    assert [stakes.at(r) for r in (2, 3, 4)] == [BOND, BOND, 7 * BOND]
    seats.sync(Role.TRAINER, 0, at(5), 0)
    assert seats.active_trainers(5) == [0]
    assert seats.active_trainers(6) == []
    refused("empty seat", seats.sync, Role.TRAINER, 1, at(5), BOND)


def test_commits_are_once_a_round_in_its_window_and_stop_with_an_exit():
    seats = joined("trainer")
    seats.commit("trainer", 1, 0, at(1), BOND)
    refused("already committed", seats.commit, "trainer", 1, 0, at(1) + 1, BOND)
    seats.commit("trainer", 2, 0, at(3) - 1 - 150 + SMALL.commit_s, BOND)
    refused("not in commit window", seats.commit, "trainer", 3, 0, at(3) + SMALL.commit_s, BOND)
    refused("not in commit window", seats.commit, "trainer", 0, 0, at(0) - 1, BOND)
    refused("not in commit window", seats.commit, "trainer", 40, 0, at(40), BOND)
    refused("no live bond", seats.commit, "trainer", 3, 0, at(3), 0)


def test_the_smallest_bond_can_be_outbid_by_a_quarter():
    seats = joined("small", "large")
    seats.sync(Role.TRAINER, 1, at(0) - 1, 2 * BOND)
    for r in range(3):
        seats.commit("small", r, 0, at(r), BOND)
        seats.commit("large", r, 1, at(r), BOND)
    now, enough = at(2), BOND * 5 // 4
    refused("no free seat", seats.join, "newcomer", Role.TRAINER, "newcomer", now, enough)
    refused("bond does not outbid", seats.join, "newcomer", Role.TRAINER, "key", now, enough - 1, take=0)
    refused("not the smallest bond", seats.join, "newcomer", Role.TRAINER, "key", now, 9 * BOND, take=1)
    assert seats.join("newcomer", Role.TRAINER, "key", now, enough, take=0) == 0
    assert owners(seats, 0, 1, 2, 3) == ["small", "small", "newcomer"]
    assert [seats.trainers[0].stakes.at(r) for r in (2, 3)] == [BOND, enough]


def test_a_seat_changes_hands_at_most_once_a_full_round():
    seats = joined("small", "large")
    seats.sync(Role.TRAINER, 1, at(0) - 1, 9 * BOND)
    seats.join("second", Role.TRAINER, "second", at(2), 2 * BOND, take=0)
    for now in (at(2), at(3)):
        refused("seat taken too recently", seats.join, "third", Role.TRAINER, "key", now, 5 * BOND, take=0)
    assert seats.join("third", Role.TRAINER, "key", at(4), 5 * BOND, take=0) == 0
    assert owners(seats, 0, 2, 3, 4, 5) == ["small", "second", "second", "third"]


def test_who_lost_a_seat_may_join_again():
    seats = joined("small", "large")
    seats.sync(Role.TRAINER, 1, at(0) - 1, 2 * BOND)
    seats.join("newcomer", Role.TRAINER, "newcomer", at(1), 4 * BOND, take=0)
    assert seats.join("small", Role.TRAINER, "small", at(2), 9 * BOND, take=1) == 1


def test_a_quarter_of_the_seats_at_least_one_can_be_outbid_in_a_round():
    seats = SeatsModel(replace(SMALL, start=1_000, trainer_limit=9))
    for i in range(9):
        seats.join(f"trainer {i}", Role.TRAINER, "key", at(0) - 1, BOND + i)
    for i in range(2):
        seats.join(f"rich {i}", Role.TRAINER, "key", at(1), 9 * BOND, take=i)
    refused("no outbid left", seats.join, "rich 2", Role.TRAINER, "key", at(2) - 1, 9 * BOND, take=2)
    seats.join("humble", Role.TRAINER, "key", at(1), BOND, take=8, leaving=True)
    seats.join("rich 2", Role.TRAINER, "key", at(2), 9 * BOND, take=2)


def test_before_the_start_any_seat_can_be_outbid():
    seats = joined("squatter", "other")
    seats.sync(Role.TRAINER, 1, at(0) - 1, 2 * BOND)
    refused("not the smallest bond", seats.join, "first", Role.TRAINER, "key", at(0) - 1, 9 * BOND, take=1)
    seats.join("first", Role.TRAINER, "key", at(0) - 1, 3 * BOND, take=0)
    seats.join("second", Role.TRAINER, "key", at(0) - 1, 3 * BOND, take=1)
    assert owners(seats, 0, 0) == ["first"] and owners(seats, 1, 0) == ["second"]
    refused("seat taken too recently", seats.join, "third", Role.TRAINER, "key", at(0), 9 * BOND, take=0)


def test_a_tenure_whose_bond_leaves_can_be_taken_at_once():
    seats = joined("squatter", "other")
    take = {"live_bond": BOND, "take": 0, "leaving": True}
    seats.join("first", Role.TRAINER, "key", at(0), **take)  # no round comes before round 0
    seats.join("second", Role.TRAINER, "key", at(0), **take)  # the first one's tenure never began
    assert owners(seats, 0, 0, 1) == ["squatter", "second"]
    refused("seat taken too recently", seats.join, "third", Role.TRAINER, "key", at(1), **take)
    seats.join("third", Role.TRAINER, "key", at(2), **take)
    assert owners(seats, 0, 0, 1, 2, 3) == ["squatter", "second", "second", "third"]


def test_a_seat_silent_for_eight_rounds_can_be_taken_at_the_minimum():
    seats = joined("idle", "busy")
    seats.sync(Role.TRAINER, 0, at(0) - 1, 9 * BOND)
    seats.commit("idle", 2, 0, at(2), BOND)
    refused("bond does not outbid", seats.join, "newcomer", Role.TRAINER, "key", at(10), BOND, take=0)
    assert seats.join("newcomer", Role.TRAINER, "key", at(11), BOND, take=0) == 0


def test_a_young_tenure_is_not_silent():
    seats = joined("idle", "busy")
    refused("bond does not outbid", seats.join, "newcomer", Role.TRAINER, "key", at(7), BOND, take=0)
    assert seats.join("newcomer", Role.TRAINER, "key", at(8), BOND, take=0) == 0


def test_a_validator_is_replaced_only_when_silent():
    seats = joined("validator", "other", role=Role.VALIDATOR)
    refused("validator is not silent", seats.join, "rich", Role.VALIDATOR, "rich", at(5), 9 * BOND, take=0)
    assert seats.join("rich", Role.VALIDATOR, "rich", at(8), BOND, take=0) == 0


def test_a_barred_account_sits_out_in_any_seat():
    seats = joined("cheat", "other")
    seats.sync(Role.TRAINER, 1, at(0) - 1, 2 * BOND)
    seats.join("newcomer", Role.TRAINER, "newcomer", at(2), 4 * BOND, take=0)
    seats.set_bar("cheat", 10, at_most=10)
    assert seats.join("cheat", Role.TRAINER, "cheat", at(3), 9 * BOND, take=1) == 1
    refused("seat is barred", seats.commit, "cheat", 9, 1, at(9), BOND)
    seats.commit("newcomer", 9, 0, at(9), BOND)
    seats.commit("cheat", 10, 1, at(10), BOND)


def report(seats: SeatsModel, account: str, seat: int, r: int) -> None:
    seats.report_commit(account, r, seat, seats.schedule.report_commit(r).start)
    seats.report_reveal(account, r, seat, seats.schedule.report_reveal(r).start)


def test_t_is_fixed_at_the_first_report_commit():
    seats = joined("validator", "other", role=Role.VALIDATOR)
    seats.sync(Role.VALIDATOR, 1, at(0) - 1, 3 * BOND)
    assert seats.active_stake(0) == 0
    opens = seats.schedule.report_commit(0).start
    seats.report_commit("validator", 0, 0, opens)
    assert seats.stakes(0)[:2] == (BOND, 3 * BOND)
    seats.sync(Role.VALIDATOR, 0, opens, 7 * BOND)
    seats.report_commit("other", 0, 1, opens)
    assert seats.active_stake(0) == 4 * BOND


def test_a_validator_that_reveals_nothing_falls_out_of_t_until_it_asks_back():
    seats = joined("validator", "sleeper", role=Role.VALIDATOR)
    for r in range(4):
        report(seats, "validator", 0, r)
    assert [seats.stakes(r)[1] for r in range(4)] == [BOND, BOND, BOND, 0]
    opens = seats.schedule.report_commit(3).start
    refused("inactive seat", seats.report_commit, "sleeper", 3, 1, opens)
    refused("not owner or operator", seats.ask_back, "stranger", 1, at(4))
    refused("seat is still active", seats.ask_back, "sleeper", 1, at(3))
    seats.ask_back("sleeper", 1, at(4))
    for r in (4, 5):
        report(seats, "validator", 0, r)
    assert [seats.stakes(r)[1] for r in (4, 5)] == [0, BOND]


def test_reports_keep_a_validator_active_for_two_rounds():
    seats = joined("validator", "other", role=Role.VALIDATOR)
    report(seats, "other", 1, 2)
    report(seats, "other", 1, 3)
    opens = seats.schedule.report_commit
    seats.report_commit("other", 5, 1, opens(5).start)
    refused("inactive seat", seats.report_commit, "other", 6, 1, opens(6).start)


def test_report_windows_are_half_open():
    seats = joined("validator", role=Role.VALIDATOR)
    commit, reveal = seats.schedule.report_commit(0), seats.schedule.report_reveal(0)
    refused("not in report-commit window", seats.report_commit, "validator", 0, 0, commit.start - 1)
    refused("not in report-commit window", seats.report_commit, "validator", 0, 0, commit.end)
    refused("not the operator", seats.report_commit, "stranger", 0, 0, commit.start)
    seats.report_commit("validator", 0, 0, commit.end - 1)
    refused("already committed", seats.report_commit, "validator", 0, 0, commit.end - 1)
    refused("not in report-reveal window", seats.report_reveal, "validator", 0, 0, reveal.end)
    refused("not in report-reveal window", seats.report_reveal, "validator", 0, 0, reveal.start - 1)
    refused("not the committed report", seats.report_reveal, "validator", 1, 0, at(1) + 130)
    seats.report_reveal("validator", 0, 0, reveal.end - 1)
    refused("report already revealed", seats.report_reveal, "validator", 0, 0, reveal.end - 1)


def test_a_report_only_round_follows_the_last():
    seats = joined("validator", role=Role.VALIDATOR)
    for r in range(0, 41):
        report(seats, "validator", 0, r)
    opens = seats.schedule.report_commit(41).start
    refused("not in report-commit window", seats.report_commit, "validator", 41, 0, opens)


def test_the_sponsor_ends_a_run_with_one_full_rounds_notice():
    seats = joined("trainer")
    seats.end(at(3))
    assert seats.rounds == 5
    seats.commit("trainer", 4, 0, at(4), BOND)
    refused("not in commit window", seats.commit, "trainer", 5, 0, at(5), BOND)
    refused("no round left to end", seats.end, at(3))
    refused("no round left to end", model().end, at(38))


def test_changes_before_the_start_count_from_round_0():
    assert model().clock(at(0) - 1) == (0, 0)
    assert model().clock(at(0)) == (0, 1)
    assert model().clock(at(999)) == (42, 43)
