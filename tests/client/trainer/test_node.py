"""The trainer node: it works in the rounds in which it owns its seat, and reveals what it committed to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from earnest.base.errors import (
    ChainError,
    EarnestError,
    EndpointDown,
    JournalCorrupt,
    NonceDrift,
    StorageError,
    WrongChain,
)
from earnest.client.account.transactions import operator_calls
from earnest.client.node.node import Node, run_forever
from earnest.client.trainer.node import TrainerNode
from earnest.demo.world import TRAINER_BOND, World
from earnest.protocol.merkle import samples_root
from earnest.protocol.recipe import CodecChoice, Inner
from earnest.protocol.run import Role
from earnest.protocol.verdicts import Verdict
from earnest.training.codecs import inner_steps
from earnest.training.diloco.engine import LocalRound, SingleProcess, TrainerState, TrainingDiverged
from earnest.training.diloco.state import State
from tests.client.world import make_world, tiny_recipe

T0, T1, T9, V0 = "trainer-0", "trainer-1", "trainer-9", "validator-0"


def test_a_manifest_names_the_base_state_and_the_samples(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1) as world:
        world.play()
        manifest = world.nodes[V0].record.round(0).manifests[0]
        samples = world.nodes[V0].follower.samples(0)
        assert samples is not None
        assert manifest.samples == samples_root(samples.assigned[0])
        assert manifest.base_state == world.params.initial_state
        assert (manifest.steps, manifest.tokens) == (2, 2 * 4 * 8)
        assert manifest.size == len(world.account(T0).public.get(manifest.update, 1 << 24))


def test_who_loses_a_seat_finishes_the_round_and_who_took_it_begins_with_the_next(tmp_path: Path) -> None:
    setup: dict[str, Any] = {"attacks": ("none", "none"), "validators": 1, "rounds": 3, "spare": (T9,)}
    with make_world(tmp_path, **setup) as world:
        world.play(until=world.schedule.commit(1).start + 1)
        world.turn()
        world.take_seat(T9, bond=2 * TRAINER_BOND, take=1)
        world.node(T9)
        world.play()
        record, address = world.nodes[V0].record, world.address
        owners = [record.round(round).manifests[1].trainer for round in range(3)]
        assert owners == [address(T1), address(T1), address(T9)]
        assert world.bond(T1) == TRAINER_BOND, "nothing of what it committed to stayed hidden"
        verdicts = [record.settled(round).verdicts[1] for round in range(3)]
        assert verdicts == [Verdict.ACCEPTED] * 3, "both served their payloads from their own addresses"
        assert world.accounts[T9].journal.salts.find(world.run, 1, Role.TRAINER) is None


def test_an_operator_works_with_its_own_key_for_the_owners_seat(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1) as world:
        owner, operator = world.address(T0), world.address("stranger")
        (step,) = operator_calls(world.contracts, world.run, owner, operator, world.chain.head())
        world.send(T0, step.call)
        sent = world.transactions(T0)
        world.open(T0, signer=world.signers["stranger"])
        world.node(T0)
        world.play()
        assert world.nodes[V0].record.round(0).manifests[0].trainer == owner
        assert (world.transactions(T0), world.bond(T0)) == (sent, TRAINER_BOND)


def test_a_lost_payload_is_revealed_all_the_same(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none", "none"), validators=1, rounds=1) as world:
        world.play(until=world.schedule.commit(0).start + 1)
        world.turn()
        for path in (tmp_path / T1 / "private").iterdir():
            path.unlink()
        world.play()
        record = world.nodes[V0].record
        assert record.round(0).manifests.keys() == {0, 1}
        assert record.settled(0).verdicts == (Verdict.ACCEPTED, Verdict.UNAVAILABLE)
        assert world.bond(T1) == TRAINER_BOND


def test_who_comes_after_the_commit_window_sits_the_round_out(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=2, idle=(T0,)) as world:
        world.devnet.travel(world.schedule.commit(0).end)
        world.node(T0)
        world.play()
        record = world.nodes[V0].record
        assert (record.round(0).commits, record.round(1).commits.keys()) == ({}, {0})
        assert world.bond(T0) == TRAINER_BOND


def test_the_number_of_steps_follows_the_codec_and_is_in_the_manifest(tmp_path: Path) -> None:
    recipe = tiny_recipe(
        codec=CodecChoice("topk-2bit", k=16, k_min=1, chunk=64, energy=0.4, error_feedback=0.5),
        inner=Inner(steps=6, steps_min=2, batch=4),
    )
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=2, recipe=recipe) as world:
        world.play(until=world.schedule.opens(1))
        node, record = world.nodes[T0], world.nodes[V0].record
        assert isinstance(node, TrainerNode)
        kept = node._trainer_states.start(1)
        kept.codec["history"] = torch.tensor([16.0, 8.0])  # the update's spectrum has become half as wide
        node._trainer_states.end(0, kept.to_bytes())
        world.play()
        taken = []
        for round in range(2):
            manifest, samples = record.round(round).manifests[0], node.follower.samples(round)
            assert samples is not None
            steps = inner_steps(recipe, node._trainer_states.start(round).codec)
            assert (manifest.steps, manifest.tokens) == (steps, steps * 4 * 8)
            assert manifest.samples == samples_root(samples.assigned[0][: steps * 4])
            assert record.settled(round).verdicts == (Verdict.ACCEPTED,)
            taken.append(steps)
        assert taken == [6, 3]


@dataclass
class Failing:
    """A LocalTrainer that fails as often as `errors` says, and then works."""

    world: World
    errors: dict[int, list[EarnestError]]
    tried: list[int] = field(default_factory=list)

    def train(self, state: State, ids: Sequence[int], round: int, memory: TrainerState) -> LocalRound:
        self.tried.append(round)
        if self.errors.get(round):
            raise self.errors[round].pop()
        files = self.world.files[T0]
        sole = SingleProcess(files.task, files.bundle.recipe, self.world.params.rounds)
        return sole.train(state, ids, round, memory)


def test_training_that_diverges_submits_nothing_and_does_not_end_the_node(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=2) as world:
        failing = Failing(world, {0: [TrainingDiverged("the local loss is not finite", "lower the rate")]})
        world.node(T0, trainer=failing)
        world.play()
        record = world.nodes[V0].record
        assert (record.round(0).commits, record.round(1).commits.keys()) == ({}, {0})
        assert failing.tried == [0, 1]


def test_a_training_that_fails_for_another_reason_is_retried_a_few_times(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=2) as world:
        lost = EarnestError("a worker is gone", "look at its log")
        failing = Failing(world, {0: [lost], 1: [lost] * 5})
        world.node(T0, trainer=failing)
        world.play()
        record = world.nodes[V0].record
        assert (record.round(0).commits.keys(), record.round(1).commits) == ({0}, {})
        assert failing.tried == [0, 0, 1, 1, 1]


def test_a_missed_round_does_not_cost_the_optimizer_its_state(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1) as world:
        world.play()
        node = world.nodes[T0]
        assert isinstance(node, TrainerNode)
        after = node._trainer_states.start(1).to_bytes()
        assert after != TrainerState().to_bytes()
        assert node._trainer_states.start(5).to_bytes() == after
        assert node._trainer_states.start(0).to_bytes() == TrainerState().to_bytes()
        for path in (tmp_path / T0 / "private").iterdir():
            path.write_bytes(b"damaged")
        assert node._trainer_states.start(1).to_bytes() == TrainerState().to_bytes()


def test_an_exit_stops_the_commits_and_keeps_the_bond_whole(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none", "none"), validators=1, rounds=2) as world:
        world.play(until=world.schedule.reveal(0).start)
        settlement = world.contracts.settlement.address
        world.send(T1, world.contracts.vault.start_exit(settlement, world.run))
        world.play()
        record = world.nodes[V0].record
        assert (record.round(0).manifests.keys(), record.round(1).manifests.keys()) == ({0, 1}, {0})
        assert world.bond(T1) == TRAINER_BOND


# The loop


class Troubled:
    """A node whose steps raise one thing after the other, and that is finished when nothing is left to raise."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)

    @property
    def finished(self) -> bool:
        return not self.errors

    def step(self, *, wait: bool = True) -> int:
        if (error := self.errors.pop(0)) is not None:
            raise error
        return 0

    def close(self) -> None:
        self.closed = True


def forever(node: Any) -> None:
    never = threading.Event()
    never.wait = lambda timeout=None: False  # type: ignore[method-assign]
    run_forever(node, lambda: 0.0, never, 1.0)


@pytest.mark.parametrize(
    "error",
    [
        EndpointDown("down", "wait"),
        NonceDrift("drift", "stop the other"),
        StorageError("the disk failed", "replace it"),
        OSError(28, "No space left on device"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_node_waits_out_temporary_errors(error: Exception) -> None:
    node = Troubled(error, None, error)
    forever(node)
    assert node.finished


@pytest.mark.parametrize("error", [WrongChain("chain 5", "fix it"), JournalCorrupt("damaged", "restore it")])
def test_a_node_stops_on_permanent_errors(error: Exception) -> None:
    with pytest.raises(type(error)):
        forever(Troubled(error, None))


def play_with(world: World, trouble: Callable[[Node], None]) -> None:
    """Plays on with trainer-0's node in trouble."""
    trouble(world.nodes[T0])
    world.play()


def test_a_lost_nonce_does_not_keep_a_node_from_its_duties(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1) as world:
        outbox = world.nodes[T0].parts.outbox
        resume, raised = outbox.resume, list[ChainError]()

        def drifting() -> Any:
            if len(raised) < 3:
                raised.append(NonceDrift("nonce 4 was used by something else", "stop the other program"))
                raise raised[-1]
            return resume()

        play_with(world, lambda node: setattr(node.parts.outbox, "resume", drifting))
        assert len(raised) == 3
        assert world.nodes[V0].record.round(0).manifests.keys() == {0}


def test_the_trainers_log_gives_the_outcome_of_its_update_and_the_reason(tmp_path: Path) -> None:
    with (
        make_world(tmp_path, attacks=("none", "malformed"), validators=1, rounds=1) as world,
        capture_logs() as logs,
    ):
        world.play()
        told = {(log["event"], log["seat"]): log for log in logs if log["event"] == "outcome"}
        record = world.nodes[V0].record
    assert len(told) == sum(log["event"] == "outcome" for log in logs) == 2, "each once"
    assert told["outcome", 0]["verdict"] == "accepted"
    assert told["outcome", 0]["weight"] == pytest.approx(record.settled(0).consensus[0] / 65535, abs=1e-3)
    assert told["outcome", 1]["verdict"] == "malformed payload"
    judged = next(log for log in logs if log["event"] == "judged" and log["seat"] == 1)
    assert told["outcome", 1]["reason"] == judged["reason"]


def test_the_trainers_log_names_a_void_round(tmp_path: Path) -> None:
    with (
        make_world(tmp_path, attacks=("none",), validators=1, rounds=1, idle=(V0,)) as world,
        capture_logs() as logs,
    ):
        world.play()
    (told,) = [log for log in logs if log["event"] == "round void"]
    assert (told["round"], told["seat"]) == (0, 0)
    assert "more than half" in told["cause"]


def test_a_commitment_that_is_never_mined_is_logged_as_an_absence_without_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = TrainerNode.submit

    def lose_the_commitment(node: TrainerNode, intent: str, *arguments: Any) -> bool:
        return not intent.startswith("commit/") and submit(node, intent, *arguments)

    monkeypatch.setattr(TrainerNode, "submit", lose_the_commitment)
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1) as world, capture_logs() as logs:
        world.play()
    absences = [log for log in logs if log["event"] == "absent"]
    assert [(log["round"], log["seat"]) for log in absences] == [(0, 0)]
    assert "no pay, no charge" in absences[0]["cause"]
