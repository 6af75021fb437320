"""The validator node in whole runs: what it judges, when it abstains, and what it keeps over a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from earnest.base.errors import StorageError
from earnest.client.trainer.job import HonestWork
from earnest.demo.world import TRAINER_BOND, VALIDATOR_BOND, VALIDATOR_POOL, World
from earnest.protocol.merkle import content_root
from earnest.protocol.report import Report, SeatVote
from earnest.protocol.run import Role
from earnest.protocol.verdicts import Verdict
from earnest.protocol.weights import PastMargin, Score, seat_weights
from earnest.validator.gain import summarise
from earnest.validator.judge import History, Judgement, RoundInputs, judge_round
from earnest.validator.margin import margin
from earnest.validator.node import ValidatorNode
from tests.client.world import make_world, tiny_recipe

ATTACKS = ("none", "none", "none", "copy", "malformed", "zero", "absent", "scaled")
HONEST = ("trainer-0", "trainer-1", "trainer-2")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A run that was played to its end: three honest trainers, five that are not, and a validator that lies."""
    # Norms are about 0.3: no luck of the drawn samples lets a scaled update set the clip norm of round 1.
    recipe = tiny_recipe()
    recipe = replace(recipe, scoring=replace(recipe.scoring, clip_norm=0.4))
    folder = tmp_path_factory.mktemp("run")
    with make_world(folder, attacks=ATTACKS, liars=1, rounds=2, recipe=recipe) as world:
        world.play()
        yield world


def reports(world: World, round: int) -> tuple[Report | None, ...]:
    return world.nodes["validator-0"].record.reports(round)


def verdicts(world: World, round: int) -> tuple[int | None, ...]:
    return world.nodes["validator-0"].record.settled(round).verdicts


# A whole run


def test_honest_work_is_paid_and_keeps_its_bond(attacked: World) -> None:
    for name in HONEST:
        assert attacked.idle(name) > 0
        assert attacked.bond(name) == TRAINER_BOND
    for name in ("validator-0", "validator-1"):
        assert attacked.idle(name) > 0
        assert attacked.bond(name) == VALIDATOR_BOND


def test_each_attack_gets_its_treatment(attacked: World) -> None:
    assert verdicts(attacked, 0)[3:7] == (None, Verdict.MALFORMED, Verdict.MALFORMED, None)
    assert verdicts(attacked, 1)[3:7] == (Verdict.COPIED, Verdict.MALFORMED, Verdict.MALFORMED, None)
    assert verdicts(attacked, 1)[7] == Verdict.NOT_COUNTED, "its norm is ten times anybody else's"
    malformed = TRAINER_BOND - TRAINER_BOND // 100
    malformed -= malformed // 100
    expected = (TRAINER_BOND * 95 // 100, malformed, malformed, TRAINER_BOND)
    assert tuple(attacked.bond(f"trainer-{seat}") for seat in range(3, 7)) == expected
    assert all(attacked.locked(name) == 0 for name in attacked.seated)
    assert all(attacked.idle(f"trainer-{seat}") == 0 for seat in range(3, 7))


def test_a_lying_validator_earns_nothing_and_changes_nothing(attacked: World) -> None:
    for round in range(2):
        honest, same, lie = reports(attacked, round)
        assert honest is not None and lie is not None
        assert honest == same != lie
        settled = attacked.nodes["validator-0"].record.settled(round)
        assert settled.consensus == tuple(vote.counted_weight for vote in honest.votes)
        assert settled.validator_pay[2] == 0
    assert attacked.idle("validator-2") == 0
    assert attacked.idle("validator-0") <= 2 * VALIDATOR_POOL


def test_every_node_reaches_the_state_that_the_contract_records(attacked: World) -> None:
    roots = {node.follower.state_after(1).root for node in attacked.nodes.values()}  # type: ignore[union-attr]
    assert roots == {attacked.contracts.settlement.final_state(attacked.run, at=attacked.chain.head())}


def test_the_measurements_file_can_be_fetched_and_gives_the_same_weights(attacked: World) -> None:
    report = reports(attacked, 1)[0]
    assert report is not None
    measurements = attacked.account("validator-0").public.get(report.measurements, 1 << 24)
    assert content_root(measurements) == report.measurements
    document = json.loads(measurements)
    held = {key: np.array(document["held_out"][key]) for key in ("before", "control")}
    scores: dict[int, Score] = {}
    for seat in document["seats"]:
        if "score" not in seat:
            continue
        own = {key: np.array(seat["own"][key]) for key in ("before", "control", "after")}
        fresh = held["before"] - np.array(seat["held_out_after"])
        gain = summarise(fresh)
        controlled = margin(
            own["before"] - own["after"],
            own["before"] - own["control"],
            fresh,
            held["before"] - held["control"],
        )
        past = tuple(PastMargin(*one) for one in seat["score"]["past"])
        scores[seat["seat"]] = Score(gain.mean, gain.se, controlled, past)
        assert seat["score"] == {
            "gain": gain.mean,
            "gain_se": gain.se,
            "margin": controlled.excess,
            "margin_se": controlled.se,
            "past": seat["score"]["past"],
        }
    weights = dict(zip(scores, seat_weights(list(scores.values())), strict=True))
    assert weights == {seat: report.votes[seat].weight for seat in scores}
    assert set(scores) >= {0, 1, 2}


def test_money_is_conserved_to_the_wei(attacked: World) -> None:
    bonds = {n: VALIDATOR_BOND if n.startswith("v") else TRAINER_BOND for n in attacked.seated}
    seized = sum(bond - attacked.bond(name) for name, bond in bonds.items())
    paid = sum(attacked.idle(name) for name in attacked.seated)
    refunded = attacked.refund()
    assert paid + refunded + attacked.burned() == attacked.params.budget + seized
    assert attacked.burned() == seized


# What cannot be judged is no verdict


def judged(world: World, seats: int) -> list[SeatVote]:
    """Plays round 0 up to its reveals of reports; what validator-0 said of the seats."""
    world.play(until=world.schedule.report_reveal(0).start + 1)
    world.turn()
    world.turn()
    report = reports(world, 0)[0]
    assert report is not None
    return [report.vote(seat) for seat in range(seats)]


def test_a_payload_that_nobody_serves_is_unavailable_and_costs_nothing(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none", "none"), validators=1, rounds=1) as world:
        world.play(until=world.schedule.reveal(0).start)
        hidden = world.account("trainer-1")
        world.nodes["trainer-1"].parts.store.folder = tmp_path / "elsewhere"  # where nobody serves from
        (tmp_path / "elsewhere").mkdir()
        votes = judged(world, 2)
        assert [vote.verdict for vote in votes] == [Verdict.ACCEPTED, Verdict.UNAVAILABLE]
        world.play()
        assert world.bond("trainer-1") == TRAINER_BOND
        assert hidden.owner == world.address("trainer-1")


def test_a_validator_that_fetches_no_payload_abstains(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none", "none"), validators=1, rounds=1) as world:
        world.play(until=world.schedule.reveal(0).start)
        for name in ("trainer-0", "trainer-1"):
            world.nodes[name].parts.store.folder = tmp_path / "elsewhere"
        (tmp_path / "elsewhere").mkdir()
        assert [vote.verdict for vote in judged(world, 2)] == [Verdict.ABSTAIN] * 2


def larger(work: HonestWork) -> bytes:
    return work.payload + bytes(1)


def test_a_payload_above_the_limit_is_never_downloaded(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none", "none"), validators=1, rounds=1) as world:
        world.node("trainer-1", forge=larger)
        assert judged(world, 2)[1].verdict == Verdict.UNAVAILABLE
        record = world.nodes["validator-0"].record
        assert not world.account("validator-0").public.has(record.round(0).manifests[1].update)


class Broken:
    """A store whose disk fails at every call of one of its methods."""

    def __init__(self, store: Any, method: str, error: Exception) -> None:
        self._store, self._method, self._error = store, method, error

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            return self._fail
        return getattr(self._store, name)

    def _fail(self, *arguments: object) -> Any:
        raise self._error


FULL = OSError(28, "No space left on device")
UNREADABLE = StorageError("the disk failed", "replace it")


@pytest.mark.parametrize("method", ["get", "put"])
@pytest.mark.parametrize("error", [FULL, UNREADABLE], ids=["full", "unreadable"])
def test_a_failing_disk_abstains_and_still_reports_the_states(
    method: str, error: Exception, tmp_path: Path
) -> None:
    with make_world(tmp_path, attacks=("none", "none"), validators=3, rounds=1) as world:
        node = world.nodes["validator-0"]
        broken: Any = Broken(node.parts.store, method, error)
        node.parts = replace(node.parts, store=broken)
        node.follower._store = broken
        assert [vote.verdict for vote in judged(world, 2)] == [Verdict.ABSTAIN] * 2
        world.play()
        assert world.bond("trainer-0") == world.bond("trainer-1") == TRAINER_BOND
        if method == "put":
            final = reports(world, 1)
            assert final[0] == final[1], "what it cannot keep it still computes"
            assert final[0] is not None and final[0].newest_root != world.params.initial_state


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("out of memory"), ValueError("NaN"), FULL])
def test_a_judgement_that_fails_abstains(error: Exception, tmp_path: Path) -> None:
    def failing(inputs: RoundInputs) -> Judgement:
        raise error

    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1) as world:
        world.node("validator-0", judge=failing)
        assert [vote.verdict for vote in judged(world, 1)] == [Verdict.ABSTAIN]


def test_the_log_gives_the_verdict_on_each_update_and_the_reason(tmp_path: Path) -> None:
    with (
        make_world(tmp_path, attacks=("none", "malformed"), validators=1, rounds=1) as world,
        capture_logs() as logs,
    ):
        world.play()
    honest, cheat = sorted((one for one in logs if one["event"] == "judged"), key=lambda one: one["seat"])
    assert (honest["verdict"], "reason" in honest) == ("accepted", False)
    assert (cheat["verdict"], cheat["weight"]) == ("malformed", 0)
    assert cheat["reason"]


def test_the_log_says_that_judging_took_too_long(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1) as world, capture_logs() as logs:

        def slow(inputs: RoundInputs) -> Judgement:
            world.devnet.travel(world.schedule.report_commit(inputs.round).end)
            return judge_round(inputs)

        world.node("validator-0", judge=slow)
        world.play()
    (late,) = (one for one in logs if one["event"] == "too late to report")
    assert (late["round"], late["log_level"]) == (0, "warning")
    assert "report commit window" in late["cause"]


# Memory


def test_a_restarted_validator_has_the_history_of_an_uninterrupted_one(tmp_path: Path) -> None:
    seen: dict[str, list[RoundInputs]] = {"validator-0": [], "validator-1": []}

    def watching(name: str) -> Any:
        def judge(inputs: RoundInputs) -> Judgement:
            seen[name].append(inputs)
            return judge_round(inputs)

        return judge

    with make_world(tmp_path, attacks=("none", "zero", "sign-flip"), validators=2, rounds=3) as world:
        for name in seen:
            world.node(name, judge=watching(name))
        for round in range(3):
            world.play(until=world.schedule.settle(round).start + 1)
            world.open("validator-1").serve()
            world.node("validator-1", judge=watching("validator-1"))
        for whole, restarted in zip(*seen.values(), strict=True):
            assert whole.history.to_bytes() == restarted.history.to_bytes()
            assert [(p.round, p.seat, p.position, p.update.content) for p in whole.history.earlier] == [
                (p.round, p.seat, p.position, p.update.content) for p in restarted.history.earlier
            ]
        assert len(seen["validator-1"]) == 3
        for round in range(3):
            first, second = reports(world, round)
            assert first == second != None  # noqa: E711

        # A round that was missed is judged afterwards: its margins count in the next rounds.
        node, history = world.nodes["validator-0"], seen["validator-0"][2].history
        assert isinstance(node, ValidatorNode)
        node.forget()
        node.parts.journal.put(f"{world.run}/judged/1", b"")
        assert history.margins
        assert node._history_before(2).to_bytes() == history.to_bytes()


def test_rounds_that_were_missed_do_not_wipe_the_memory(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1) as world:
        node = world.nodes["validator-0"]
        assert isinstance(node, ValidatorNode)
        kept = json.dumps({"alike": {"trainer": [3]}, "harm": {}, "margins": {}}, sort_keys=True).encode()
        node.parts.journal.put(f"{world.run}/judged/3", kept)
        known, history = node._saved_history(6)
        assert (known, history.to_bytes()) == (3, kept)
        assert node._saved_history(3) == (-1, History())


# Silence


def test_a_silent_validator_asks_back_as_soon_as_it_may_and_not_before(tmp_path: Path) -> None:
    """Joined from round 0: inactive from round 3 on, may ask in round 4, counts again in round 5."""
    with make_world(tmp_path, attacks=("none",), validators=2, rounds=7, recipe=tiny_recipe()) as world:
        world.nodes.pop("validator-1")
        world.play(until=world.schedule.opens(3) + 1)
        world.node("validator-1")
        world.play(until=world.schedule.settle(5).start + 1)
        record = world.nodes["validator-1"].record
        asked = [event for event in record.events if event.name == "AskedBack"]
        assert [event.args["from_round"] for event in asked] == [5]
        assert [bool(record.validator_stakes(round)[1]) for round in range(7)] == [
            *[True] * 3,
            *[False] * 2,
            *[True] * 2,
        ]
        assert record.round(5).report_words.keys() == {0, 1}
        assert record.seats[Role.VALIDATOR][0].asked_back.latest is None


def test_an_inactive_seat_is_logged_once_a_round_with_a_fix(tmp_path: Path) -> None:
    setup: dict[str, Any] = {"attacks": ("none",), "validators": 2, "rounds": 6, "recipe": tiny_recipe()}
    with make_world(tmp_path, **setup) as world, capture_logs() as logs:
        world.nodes.pop("validator-1")
        world.play(until=world.schedule.opens(3) + 1)
        node = world.node("validator-1")
        for round in (3, 4):
            world.play(until=world.schedule.report_reveal(round).start - 60)
            for _ in range(4):
                world.devnet.travel(world.devnet.now() + 2)
                node.step()
    told = [log for log in logs if log["event"] == "refused" and "inactive seat" in log["cause"]]
    assert [log["intent"] for log in told] == [f"{world.run}/report-commit/{round}" for round in (3, 4)]
    assert all("ask_back" in log["fix"] for log in told)


# Contests


def accuse(report: Report) -> Report:
    """Says of every seat that its payload is malformed."""
    votes = tuple(
        vote if vote.verdict == Verdict.ABSENT else SeatVote(0, Verdict.MALFORMED) for vote in report.votes
    )
    return replace(report, votes=votes)


def test_a_contested_verdict_is_looked_at_again_and_given_up_if_it_was_wrong(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none", "zero"), validators=2, rounds=1) as world:
        for name in ("validator-0", "validator-1"):
            world.node(name, lie=accuse)
        world.play(until=world.schedule.settle(0).start + 60)
        record, settlement = world.nodes["validator-0"].record, world.contracts.settlement
        for node in world.nodes.values():
            node.observe()
        assert {seen["seat"] for seen in record.penalties.values()} == {0, 1}
        for penalty, seen in record.penalties.items():
            world.send(f"trainer-{seen['seat']}", settlement.contest(penalty))
        world.play()
        outcomes = {seen["seat"]: seen["status"] for seen in record.penalties.values()}
        assert outcomes == {0: "released", 1: "seized"}
        assert world.bond("trainer-0") == TRAINER_BOND
        assert world.bond("trainer-1") == TRAINER_BOND * 98 // 100, "the fault, and the contest that was lost"


# Turns


def test_whose_turn_it_is_to_pay_for_everybody_goes_round(attacked: World) -> None:
    nodes = [attacked.nodes[f"validator-{seat}"] for seat in range(3)]
    for node in nodes:
        node.observe()
    for round in range(3):
        turns = [node.turn(round) for node in nodes]
        assert sorted(turns) == [0, 1, 2]
        assert turns.index(0) == round % 3
    assert attacked.nodes["trainer-0"].turn(0) == 0
