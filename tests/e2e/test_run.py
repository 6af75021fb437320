"""A whole run by real processes over real JSON-RPC, two of which are killed at critical moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from earnest.protocol.report import read_report
from earnest.protocol.run import Role
from tests.e2e.processes import Town, Watch, town
from tests.e2e.runs import BOND, Seat, bond_of, earned, join, open_run, settle_in

pytestmark = pytest.mark.e2e

ROUNDS = 2
FATAL_ROUND = 1
"""The round in which a trainer and a validator are killed."""


@pytest.fixture(params=[("devnet", 0.5), ("anvil", 1.0)], ids=["devnet", "anvil"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Town]:
    network, block_time_s = request.param
    with town(tmp_path, network, block_time_s) as made:
        yield made


def test_a_trainer_and_a_validator_killed_in_between_lose_nothing(place: Town) -> None:
    trainers, validators, watch = _open(place)
    for round in range(ROUNDS):
        _play(round, trainers, validators, watch)
    _finish(trainers, validators, watch)

    seats = [*trainers, *validators]
    assert [bond_of(watch, seat) for seat in seats] == [BOND[seat.role] for seat in seats]
    assert all(earned(watch, seat) > 0 for seat in seats)
    _check_states(validators, watch)
    _check_transactions(place, seats, watch)
    assert all("Traceback" not in process.err for process in place.processes)
    _check_claim(trainers[0], watch)


def _open(place: Town) -> tuple[list[Seat], list[Seat], Watch]:
    """Deploys, opens the run, has everybody at work, and opens round 0."""
    sponsor, people = settle_in(place, ("t0", "t1", "t2", "v0", "v1"))
    run = open_run(sponsor, ROUNDS, people[3:]).document["run"]
    trainers, validators = join(run, Role.TRAINER, people[:3]), join(run, Role.VALIDATOR, people[3:])
    validators[0].actor.environment["OMP_NUM_THREADS"] = "1"  # states do not depend on it
    for seat in (*trainers, *validators):
        seat.work(run)
    for seat in (*trainers, *validators):
        seat.at_work()
    watch = Watch(place, run)
    watch.jump(watch.record.params.start)
    return trainers, validators, watch


def _play(round: int, trainers: Sequence[Seat], validators: Sequence[Seat], watch: Watch) -> None:
    """Waits for all that each window is for, then goes on to the next; kills and restarts in the fatal round."""
    schedule, record = watch.record.params.schedule(), watch.record
    seen, deadly = record.round(round), round == FATAL_ROUND

    watch.until(lambda _: len(seen.commits) == 3, f"all have committed in round {round}")
    if deadly:
        trainers[0].node.kill()
    watch.jump(schedule.reveal(round).start)
    if deadly:
        _restart(trainers[0], watch)
    watch.until(lambda _: len(seen.manifests) == 3, f"all have revealed in round {round}")
    if deadly:
        _check_revealed_in_time("Revealed", trainers[0], watch, round)

    watch.jump(schedule.report_commit(round).start)
    _report(round, validators, watch)
    watch.jump(schedule.settle(round).start)
    watch.until(
        lambda _: bool(watch.events("ValidatorsPaid", round=round)), f"round {round} is settled and paid"
    )


def _report(round: int, validators: Sequence[Seat], watch: Watch) -> None:
    """Both report; in the fatal round one is killed after committing its report."""
    schedule, seen = watch.record.params.schedule(), watch.record.round(round)
    watch.until(lambda _: len(seen.report_commits) == 2, f"both have committed a report of round {round}")
    if round == FATAL_ROUND:
        validators[0].node.kill()
    watch.jump(schedule.report_reveal(round).start)
    if round == FATAL_ROUND:
        _restart(validators[0], watch)
    watch.until(lambda _: len(seen.report_words) == 2, f"both have revealed their reports of round {round}")
    if round == FATAL_ROUND:
        _check_revealed_in_time("ReportRevealed", validators[0], watch, round)


def _restart(seat: Seat, watch: Watch) -> None:
    """The same command again; what it was killed before has not happened by then."""
    round = watch.record.round(FATAL_ROUND)
    watch.look()
    assert seat.index not in (round.manifests if seat.role is Role.TRAINER else round.report_words)
    seat.work(watch.record.run)


def _check_revealed_in_time(event: str, seat: Seat, watch: Watch, round: int) -> None:
    schedule = watch.record.params.schedule()
    window = schedule.reveal(round) if seat.role is Role.TRAINER else schedule.report_reveal(round)
    (revealed,) = watch.events(event, round=round, seat=seat.index)
    assert window.contains(watch.time_of(revealed.block))
    assert len(seat.nodes) == 2
    assert seat.node.running


def _finish(trainers: Sequence[Seat], validators: Sequence[Seat], watch: Watch) -> None:
    """The report-only round, after which the nodes end by themselves."""
    schedule = watch.record.params.schedule()
    watch.jump(schedule.report_commit(ROUNDS).start)
    _report(ROUNDS, validators, watch)
    watch.jump(schedule.settle(ROUNDS).start)
    watch.until(lambda _: bool(watch.events("FinalState")), "the final state is recorded")
    watch.jump(schedule.contest(ROUNDS).end)
    for seat in (*trainers, *validators):
        assert seat.node.ended() == 0
        assert seat.node.document["finished"] is True


def _check_states(validators: Sequence[Seat], watch: Watch) -> None:
    """Both validators report one state per round, a new one each time, and the last is the run's result."""
    record, newest = watch.record, []
    for round in range(ROUNDS + 1):
        words = record.round(round).report_words
        mine, theirs = (read_report(words[seat.index], 3) for seat in validators)
        assert mine is not None and theirs is not None
        assert (mine.base_root, mine.newest_root) == (theirs.base_root, theirs.newest_root)
        newest.append(mine.newest_root)
    assert newest[0] == record.params.initial_state
    assert len(set(newest)) == ROUNDS + 1
    final = watch.contracts.settlement.final_state(record.run, at=watch.look())
    assert final == newest[-1]


def _check_transactions(place: Town, seats: Sequence[Seat], watch: Watch) -> None:
    """Nobody sent a call twice; but a seed's is sent to ask for it and again to store it, as the protocol has it.

    Empty transfers to oneself are how a transaction is withdrawn that somebody else was faster with.
    """
    runs = watch.contracts.runs
    seeds = {
        (runs.address.lower(), "0x" + runs.seed(watch.record.run, r).data.hex()) for r in range(ROUNDS + 1)
    }
    head = int(place.ask("eth_blockNumber"), 16)
    blocks = (place.ask("eth_getBlockByNumber", hex(number), True) for number in range(head + 1))
    sent = [transaction for block in blocks for transaction in block["transactions"]]
    for seat in seats:
        mine = [one for one in sent if one["from"].lower() == seat.actor.address.lower()]
        assert len(mine) == place.nonce(seat.actor.address)
        calls = Counter((one["to"].lower(), one["input"]) for one in mine if one["input"] != "0x")
        assert not [call for call, times in calls.items() if times > 1 + (call in seeds)]


def _check_claim(seat: Seat, watch: Watch) -> None:
    """What was earned can be taken home."""
    pay = earned(watch, seat)
    before = watch.contracts.token.balance_of(seat.actor.address, at=watch.look())
    seat.actor.earnest("claim")
    assert watch.contracts.token.balance_of(seat.actor.address, at=watch.look()) == before + pay
