"""Processes die or hang; the node does not hang, reports the cause, and trains the next round with the same result."""

import os
import signal
import time
from collections.abc import Iterator
from threading import Timer

import pytest

from earnest.training.diloco.engine import TrainerState, TrainingStopped
from earnest.training.parallel import Layout, ParallelTrainer, Rendezvous, WorkerGroup, WorkersFailed
from earnest.training.parallel.worker import main
from tests.training.parallel.rounds import ROUNDS, same_bits, same_state, shakespeare, start, two_rounds

TIMEOUT_S = 8.0
RECIPE = shakespeare(steps=30)
MANY = range(30 * 8)


@pytest.fixture(scope="module")
def trainer() -> Iterator[ParallelTrainer]:
    with ParallelTrainer(
        RECIPE,
        ROUNDS,
        Layout(stages=2, microbatches=2),
        WorkerGroup(Rendezvous(local_processes=2), TIMEOUT_S),
    ) as parallel:
        yield parallel


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent to notice does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_killed_in_the_middle_of_a_round_costs_the_round_and_nothing_else(
    trainer: ParallelTrainer,
) -> None:
    wanted, kept = two_rounds(trainer, start(RECIPE), MANY)
    layouts = [Layout.parse(layout) for layout in ("dp2", "fsdp2")]
    others = [ParallelTrainer(RECIPE, ROUNDS, layout, trainer.workers) for layout in layouts]
    before_others = [other.train(start(RECIPE), MANY[:40], 0, TrainerState()) for other in others]
    victims = trainer.workers.pids
    trainer_state = TrainerState()
    trainer.train(start(RECIPE), MANY, 0, trainer_state)
    before = trainer_state.to_bytes()
    Timer(0.2, os.kill, (victims[1], signal.SIGKILL)).start()
    began = time.monotonic()
    with pytest.raises(WorkersFailed, match=r"process 1 ended with code -9") as caught:
        for _ in range(50):
            trainer.train(start(RECIPE), MANY, 1, TrainerState.from_bytes(before))
    assert time.monotonic() - began < 60
    assert "next round" in caught.value.fix
    assert trainer_state.to_bytes() == before
    assert not any(alive(pid) for pid in victims)
    again = trainer.train(start(RECIPE), MANY, 1, trainer_state)
    assert same_bits(again, wanted)
    assert same_state(trainer_state, kept)
    assert not set(trainer.workers.pids) & set(victims)
    for other, earlier in zip(others, before_others, strict=True):
        assert same_bits(other.train(start(RECIPE), MANY[:40], 0, TrainerState()), earlier)


def test_a_hung_process_is_detected_and_ended(trainer: ParallelTrainer) -> None:
    trainer.train(start(RECIPE), MANY[:8], 0, TrainerState())
    stuck = trainer.workers.pids
    os.kill(stuck[1], signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(WorkersFailed):
        trainer.train(start(RECIPE), MANY, 0, TrainerState())
    assert time.monotonic() - began < TIMEOUT_S + 30
    assert not any(alive(pid) for pid in stuck)


def test_a_stopped_node_does_not_wait_for_other_hosts() -> None:
    workers = WorkerGroup(Rendezvous(hosts=2, local_processes=1, address="127.0.0.1", port=29818), TIMEOUT_S)
    with pytest.raises(TrainingStopped):
        workers.ask({"do": "train"}, stop=lambda: True)


def test_processes_do_not_see_the_nodes_password(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    def watched(command, *, env, **options):  # type: ignore[no-untyped-def]
        started.append(env)
        raise OSError("not started")

    monkeypatch.setenv("EARNEST_PASSWORD", "a good password")
    monkeypatch.setenv("EARNEST_TOKENS", "/data")
    monkeypatch.setattr("earnest.training.parallel.launcher.subprocess.Popen", watched)
    with pytest.raises(OSError, match="not started"):
        WorkerGroup(Rendezvous(local_processes=1), TIMEOUT_S).ask({"do": "train"})
    assert "PATH" in started[0]
    assert "a good password" not in started[0].values()
    assert started[0]["EARNEST_TOKENS"] == "/data", "they read the same token files"


def test_hosts_that_do_not_connect_are_an_error() -> None:
    workers = WorkerGroup(
        Rendezvous(hosts=2, local_processes=1, address="127.0.0.1", port=29817), TIMEOUT_S, start_s=3.0
    )
    with pytest.raises(WorkersFailed, match="did not connect within 3 s"):
        workers.ask({"do": "train"})
    assert workers.pids == []


def test_a_first_process_without_a_node_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit):
        main([])
    assert "needs --socket" in capsys.readouterr().err
