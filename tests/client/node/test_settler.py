"""Settlement calls: what is due is found and sent once, whatever others did; what is past its window is not sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from earnest.client.account.transactions import NotDueError, contest_calls
from earnest.client.chain.contracts import PenaltyStatus
from earnest.demo.world import TRAINER_BOND, TRAINER_POOL, VALIDATOR_BOND, VALIDATOR_POOL
from earnest.protocol.report import Report, SeatVote
from earnest.protocol.verdicts import Verdict
from tests.client.by_hand import BASE, EVIDENCE, NEWEST, Rounds, words
from tests.client.world import make_world

V0, V1, V2 = "validator-0", "validator-1", "validator-2"
T0, T1, T2 = "trainer-0", "trainer-1", "trainer-2"
EVERYBODY = {T0: 0, T1: 1, T2: 2}


@contextmanager
def played(folder: Path, **setup: Any) -> Iterator[Rounds]:
    """A run of three trainers and three validators whose nodes are not at work."""
    chosen = {
        "attacks": ("none",) * 3,
        "validators": 3,
        "rounds": 3,
        "idle": (*EVERYBODY, V0, V1, V2),
        **setup,
    }
    with make_world(folder, **chosen) as world:
        yield Rounds(world)


def accusing(seat: int, verdict: Verdict) -> list[bytes]:
    """A report that gives every seat a weight but one, which gets a verdict."""
    votes = [SeatVote(1000, Verdict.ACCEPTED)] * 3
    votes[seat] = SeatVote(0, verdict)
    return Report(BASE, NEWEST, EVIDENCE, tuple(votes)).words()


def all_say(report: list[bytes]) -> dict[str, list[bytes]]:
    return {V0: report, V1: report, V2: report}


# Rounds


def test_a_settled_round_needs_each_transaction_once(tmp_path: Path) -> None:
    with played(tmp_path) as rounds:
        assert rounds.play(0, EVERYBODY, all_say(words(9, 9, 9))) == ["settle/0"]
        assert rounds.due() == []


def test_void_rounds_burn_their_budget_only_if_work_was_revealed(tmp_path: Path) -> None:
    with played(tmp_path) as rounds:
        assert rounds.play(0, EVERYBODY, {}) == ["void/0"]
        assert rounds.world.burned() == TRAINER_POOL + VALIDATOR_POOL
        split = {V0: words(9), V1: words(9, newest=bytes(32)), V2: words(9, newest=bytes(31) + b"1")}
        assert rounds.play(1, EVERYBODY, split) == ["void/1"]
        assert rounds.play(2, {}, {}) == []
        assert rounds.world.burned() == 2 * (TRAINER_POOL + VALIDATOR_POOL)
        rounds.world.devnet.travel(rounds.world.schedule.settle(2).end)
        assert rounds.world.refund() == TRAINER_POOL + VALIDATOR_POOL


def test_a_round_without_counted_updates_pays_nobody_and_delivers_the_final_state(tmp_path: Path) -> None:
    with played(tmp_path, rounds=1) as rounds:
        assert rounds.play(0, {}, all_say(words())) == ["settle/0"]
        rounds.report(1, all_say(words()))
        rounds.world.devnet.travel(rounds.world.schedule.settle(1).start)
        assert rounds.settle(1) == ["settle/1"]
        final = rounds.world.contracts.settlement.final_state(rounds.world.run, at=rounds.world.chain.head())
        assert final == NEWEST


def test_an_unrevealed_commitment_is_charged_unless_the_network_failed(tmp_path: Path) -> None:
    with played(tmp_path) as rounds:
        reports = {V0: words(9, 9, 9), V1: words(9, 9, 9), V2: None}
        sent = rounds.play(0, EVERYBODY, reports, hiding=[T2])
        assert sent[:2] == ["charge/0/trainer", "charge/0/validator"]
        assert rounds.world.bond(T2) == TRAINER_BOND * 99 // 100
        assert rounds.world.bond(V2) == VALIDATOR_BOND * 99 // 100
        sent = rounds.play(1, EVERYBODY, {V0: words(9), V1: None}, hiding=[T1, T2])
        assert [name for name in sent if name.startswith("charge")] == ["charge/1/validator"]
        assert rounds.world.bond(T1) == TRAINER_BOND


def test_the_first_go_is_left_to_others_but_never_the_whole_window(tmp_path: Path) -> None:
    with played(tmp_path) as rounds:
        world, schedule = rounds.world, rounds.world.schedule
        original, rounds.settle = rounds.settle, lambda round: []  # type: ignore[method-assign]
        rounds.play(0, EVERYBODY, all_say(words(9, 9, 9)), hiding=[T0])
        rounds.settle = original  # type: ignore[method-assign]
        settle = schedule.settle(0)
        assert rounds.due(patience=0)
        assert not [due_call for due_call in rounds.due(patience=300) if due_call.intent.startswith("settle")]
        world.devnet.travel(settle.start + 300)
        assert rounds.due(patience=300)
        assert not [
            due_call for due_call in rounds.due(patience=10**9) if due_call.intent.startswith("settle")
        ]
        world.devnet.travel(settle.start + (settle.end - settle.start) // 2)
        assert {due_call.intent for due_call in rounds.due(patience=10**9)} >= {
            "settle/0",
            "charge/0/trainer",
        }
        world.devnet.travel(settle.end - 1)
        assert rounds.due()
        world.devnet.travel(settle.end)
        assert rounds.due() == [], "what is missed has lapsed"


# Penalties


def test_a_penalty_is_locked_and_settled_however_late_somebody_comes(tmp_path: Path) -> None:
    with played(tmp_path) as rounds:
        world = rounds.world
        sent = rounds.play(0, EVERYBODY, all_say(accusing(1, Verdict.MALFORMED)))
        assert sent == ["settle/0", "lock/0/1"]
        assert (world.bond(T1), world.locked(T1)) == (TRAINER_BOND, TRAINER_BOND // 100)
        world.devnet.travel(world.schedule.contest(0).end - 1)
        assert rounds.due() == []
        world.devnet.travel(world.schedule.contest(0).end + 30 * 86_400)
        (penalty,) = world.deployment.read_run(world.run).penalties
        with pytest.raises(NotDueError, match="window is over"):
            contest_calls(world.contracts, penalty, world.address(T1), world.chain.head())
        with pytest.raises(NotDueError, match="there is no penalty"):
            contest_calls(world.contracts, bytes(32), world.address(T1), world.chain.head())
        (due_call,) = rounds.due()
        assert due_call.intent.startswith("settle-penalty/") and due_call.deadline > world.devnet.now()
        rounds.settle(0)
        assert (world.bond(T1), world.locked(T1)) == (TRAINER_BOND * 99 // 100, 0)
        assert rounds.due() == []


def test_votes_release_a_contested_penalty(tmp_path: Path) -> None:
    with played(tmp_path) as rounds:
        world, settlement = rounds.world, rounds.world.contracts.settlement
        rounds.play(0, EVERYBODY, all_say(accusing(1, Verdict.COPIED)))
        (penalty,) = world.deployment.read_run(world.run).penalties
        with pytest.raises(NotDueError, match="not on"):
            contest_calls(world.contracts, penalty, world.address(T0), world.chain.head())
        (step,) = contest_calls(world.contracts, penalty, world.address(T1), world.chain.head())
        world.send(T1, step.call)
        with pytest.raises(NotDueError, match="contested already"):
            contest_calls(world.contracts, penalty, world.address(T1), world.chain.head())
        assert world.locked(T1) == TRAINER_BOND * 5 // 100 + TRAINER_BOND // 100
        for name in (V0, V1):
            world.send(name, settlement.vote(penalty, False))
        world.devnet.travel(world.schedule.contest(0).end)
        assert [due_call.intent for due_call in rounds.due()] == [f"settle-penalty/{penalty.hex()}"]
        rounds.settle(0)
        assert settlement.penalty(penalty, at=world.chain.head()).status is PenaltyStatus.RELEASED
        assert (world.bond(T1), world.locked(T1)) == (TRAINER_BOND, 0)


def test_in_a_broken_round_nobody_is_asked_to_lock_harm(tmp_path: Path) -> None:
    with played(tmp_path) as rounds:
        votes = (SeatVote(0, Verdict.HARMFUL), SeatVote(0, Verdict.HARMFUL), SeatVote(0, Verdict.MALFORMED))
        report = Report(BASE, NEWEST, EVIDENCE, votes).words()
        assert rounds.play(0, EVERYBODY, all_say(report)) == ["settle/0", "lock/0/2"]
        assert rounds.world.locked(T0) == 0
