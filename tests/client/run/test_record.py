"""The record equals the contract's state for every round, in whatever batches its events arrive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earnest.client.account.transactions import bond_calls
from earnest.client.chain.scanner import Event
from earnest.client.run.record import RunRecord
from earnest.client.run.seed_check import seed_of_headers
from earnest.demo.world import COIN, TRAINER_BOND
from earnest.protocol.report import words_hash
from earnest.protocol.run import Role
from tests.client.by_hand import BASE, EVIDENCE, NEWEST, Rounds, odd_words, words
from tests.client.world import make_world

ROUNDS = 7


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rounds]:
    names = ("trainer-0", "trainer-1", "validator-0", "validator-1", "validator-2")
    setup: dict[str, Any] = {
        "attacks": ("none", "none"),
        "validators": 3,
        "rounds": ROUNDS,
        "idle": names,
        "spare": ("trainer-9",),
    }
    with make_world(tmp_path_factory.mktemp("record"), **setup) as world:
        played = Rounds(world)
        both = {"trainer-0": 0, "trainer-1": 1}
        v0, v1, v2 = ("validator-0", "validator-1", "validator-2")
        played.play(0, both, {v0: words(40_000, 7), v1: words(39_500, 9), v2: words(100)})
        # trainer-9 takes seat 1 from round 2 on; validator-1 falls silent, validator-2 says nothing that counts
        world.devnet.travel(world.schedule.commit(1).start)
        world.take_seat("trainer-9", bond=2 * TRAINER_BOND, take=1)
        world.send("sponsor", world.contracts.token.mint(world.address(v0), 5_000 * COIN))
        world.account(v0).do(
            bond_calls(world.contracts, world.run, world.address(v0), 5_000 * COIN, world.chain.head()),
            "more",
        )
        played.play(1, both, {v0: words(40_000, 7), v2: [BASE, NEWEST, EVIDENCE]}, hiding=("trainer-1",))
        both = {"trainer-0": 0, "trainer-9": 1}
        played.play(2, both, {v0: words(65_535, 1), v2: odd_words(5 << 8 | 3, 7 << 8 | 200)})
        played.play(3, both, {v0: odd_words(9 << 8, 7 << 8 | 5), v2: None})
        world.devnet.travel(world.schedule.commit(4).start)
        world.send(v1, world.contracts.runs.ask_back(world.run, 1))
        one = {"trainer-0": 0}  # the other sits out: verdict 6 held in round 3
        played.play(4, one, {})
        played.play(5, {}, {v0: words(), v1: words()})
        played.play(6, one, {v1: words(1, 1), v0: words(2, 2, newest=BASE)})
        yield played


def fresh(played: Rounds) -> RunRecord:
    return played.world.deployment.read_run(played.world.run)


@pytest.mark.parametrize("round", range(ROUNDS))
def test_stakes_activity_and_votes_are_the_contracts(rounds: Rounds, round: int) -> None:
    record, facts = fresh(rounds), rounds.facts[round]
    ballot = record.ballot(round)
    assert tuple(facts.stakes[: len(ballot.stakes)]) == (
        ballot.stakes if ballot.active_stake else (0,) * len(ballot.stakes)
    )
    assert facts.active_stake == ballot.active_stake
    assert facts.revealed == sum(1 << seat for seat in ballot.revealed)
    hashes = [facts.report_hashes[v] for v in range(len(ballot.stakes))]
    shown = record.round(round).report_words
    assert hashes == [words_hash(shown[v]) if v in shown else bytes(32) for v in range(len(hashes))]


def test_silence_and_asking_back_show_in_the_stakes(rounds: Rounds) -> None:
    record = fresh(rounds)
    active = [[v for v, stake in enumerate(record.validator_stakes(r)) if stake] for r in range(ROUNDS)]
    assert active == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 2], [0, 2], [0, 1], [0, 1]]


@pytest.mark.parametrize("round", range(ROUNDS))
def test_the_record_gives_the_amounts_that_were_paid(rounds: Rounds, round: int) -> None:
    record, paid = fresh(rounds), rounds.paid[round]
    settled = record.settled(round)
    due = dict.fromkeys(rounds.world.names, 0)
    for role, amounts in (
        (Role.TRAINER, settled.trainer_pay),
        (Role.VALIDATOR, settled.validator_pay),
    ):
        for seat, amount in enumerate(amounts):
            owner = record.owner(role, seat, round)
            name = next(n for n in rounds.world.names if rounds.world.address(n) == owner)
            due[name] += amount
    assert paid == due


def test_a_seed_follows_from_two_headers(rounds: Rounds) -> None:
    record, chain = fresh(rounds), rounds.world.chain
    for round in (0, 1):
        assert seed_of_headers(chain, record, round) == record.round(round).seed is not None
    assert seed_of_headers(chain, record, ROUNDS) is None


def test_a_round_that_nobody_reports_on_is_void(rounds: Rounds) -> None:
    assert [r for r in range(ROUNDS) if fresh(rounds).settled(r).void] == [4]


def test_a_seat_is_its_owners_round_by_round(rounds: Rounds) -> None:
    record, address = fresh(rounds), rounds.world.address
    assert [record.owner(Role.TRAINER, 1, r) for r in (0, 1, 2, 6)] == [
        *[address("trainer-1")] * 2,
        *[address("trainer-9")] * 2,
    ]
    assert record.find_seat(Role.TRAINER, address("trainer-1"), 1) == 1
    assert record.find_seat(Role.TRAINER, address("trainer-1"), 2) is None
    assert record.find_seat(Role.TRAINER, address("trainer-9"), 1) is None
    assert record.find_seat(Role.TRAINER, address("trainer-9"), 2) == 1


def test_who_takes_a_seat_over_does_not_redirect_the_earlier_owners_payloads(rounds: Rounds) -> None:
    uris = fresh(rounds).seats[Role.TRAINER][1].uris
    assert uris.at(1) != uris.at(2)
    before, after = uris.at(1), "http://elsewhere"
    moved = fresh(rounds)
    changed = {"run": rounds.world.run, "role": 1, "seat": 1, "uri": after}
    moved.apply([Event("UriChanged", "", changed, 10**9, 0, "")])
    assert (moved.seats[Role.TRAINER][1].uris.at(1), moved.seats[Role.TRAINER][1].uri) == (before, after)


def summary(record: RunRecord) -> Any:
    """Everything a node asks a record for."""
    return (
        [(record.ballot(r), record.settled(r), record.active_trainers(r)) for r in range(ROUNDS)],
        [[record.may_commit(seat, r) for seat in range(2)] for r in range(ROUNDS)],
        {key: dict(value) for key, value in record.penalties.items()},
        record.barred,
        [[(s.uri, s.owner.changes, s.operator.changes) for s in by.values()] for by in record.seats.values()],
    )


@settings(max_examples=15)
@given(st.data())
def test_any_batches_fold_to_the_same_record(rounds: Rounds, data: st.DataObject) -> None:
    events, whole = list(fresh(rounds).events), fresh(rounds)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=5)))
    record = RunRecord(rounds.world.run)
    for first, last in zip([0, *cuts], [*cuts, len(events)], strict=True):
        record.apply(events[first:last])
    assert summary(record) == summary(whole)


@settings(max_examples=15)
@given(st.data())
def test_after_a_reorganisation_it_is_as_if_the_lost_blocks_had_never_been(
    rounds: Rounds, data: st.DataObject
) -> None:
    events = list(fresh(rounds).events)
    blocks = sorted({event.block for event in events})
    kept = data.draw(st.sampled_from(blocks))
    rewound, straight = fresh(rounds), RunRecord(rounds.world.run)
    rewound.rewind(kept)
    straight.apply(event for event in events if event.block <= kept)
    assert list(rewound.events) == list(straight.events)
    assert summary(rewound) == summary(straight)
    rewound.apply(event for event in events if event.block > kept)
    assert summary(rewound) == summary(fresh(rounds))


def test_the_barred_sit_out_until_their_bar_ends_or_is_lifted(rounds: Rounds) -> None:
    record, account = fresh(rounds), rounds.world.address("trainer-0")

    def apply(name: str, **args: object) -> None:
        args = {"run": rounds.world.run, "account": account, **args}
        record.apply([Event(name, "", args, 10**9, len(record.events), "")])

    locked = {"penalty": bytes([3]) * 32, "round": 3, "seat": 0, "verdict": 5, "amount": 1, "reason": ""}
    apply("PenaltyLocked", **locked)
    apply("BarSet", until_round=10)
    assert not record.may_commit(0, 9)
    assert record.may_commit(0, 10)
    apply("BarSet", until_round=0)
    assert record.may_commit(0, 9)
    assert not record.may_commit(1, 4) and record.may_commit(1, 10)  # of the rounds played
    contested, settled = ({"penalty": bytes([3]) * 32, "upheld": False, "seized": 0} for _ in range(2))
    record.apply([Event("PenaltyContested", "", contested, 10**9, 10, "")])
    assert record.penalties[bytes([3]) * 32]["status"] == "contested"
    record.apply([Event("PenaltySettled", "", settled, 10**9, 11, "")])
    assert record.penalties[bytes([3]) * 32]["status"] == "released"


def test_another_runs_events_change_nothing(rounds: Rounds) -> None:
    record, foreign = fresh(rounds), RunRecord(rounds.world.run + 1)
    foreign.apply(record.events)
    assert not foreign.known
    with pytest.raises(LookupError, match="has not been seen"):
        _ = foreign.params
