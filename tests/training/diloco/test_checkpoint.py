"""A round that is interrupted anywhere continues from its checkpoint and ends with the same bits."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from earnest.training.diloco.checkpoint import Checkpoints, Progress
from earnest.training.diloco.engine import CPU, TrainerState, TrainingStopped, train_round
from tests.training.diloco.killed import STEPS, train
from tests.training.diloco.test_engine import IDS, RECIPE, STATE, TASK, flat

KEY, OTHER = b"k" * 32, b"o" * 32


def killed(folder: Path, point: str, step: int) -> int:
    """Trains in a process of its own; returns how it ended."""
    command = [sys.executable, "-m", "tests.training.diloco.killed", str(folder), point, str(step)]
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode


@pytest.mark.parametrize(
    ("point", "step", "left"),
    [("loss", 1, STEPS), ("loss", 5, STEPS - 4), ("rename", 4, STEPS - 2)],
)
def test_a_trainer_killed_anywhere_ends_with_the_same_bits(
    tmp_path: Path, point: str, step: int, left: int
) -> None:
    untroubled, _ = train(tmp_path / "never", "end", 0)
    assert killed(tmp_path, point, step) == -signal.SIGKILL
    resumed, steps = train(tmp_path, "end", 0)
    assert (resumed, steps) == (untroubled, left)


def checkpoints(folder: Path, **options: float) -> Checkpoints:
    return Checkpoints(folder / "checkpoint", **{"clock": lambda: 0.0, **options})  # type: ignore[arg-type]


def test_a_round_that_is_given_up_is_written_down(tmp_path: Path) -> None:
    looks = iter([False, False, True])
    with pytest.raises(TrainingStopped, match="after 2 steps"):
        train_round(
            *(TASK, RECIPE, STATE, IDS, 0, 2, TrainerState()),
            checkpoints=checkpoints(tmp_path),
            stop=lambda: next(looks),
        )
    memory = TrainerState()
    resumed = train_round(TASK, RECIPE, STATE, IDS, 0, 2, memory, checkpoints=checkpoints(tmp_path))
    whole, untroubled = TrainerState(), train_round(TASK, RECIPE, STATE, IDS, 0, 2, TrainerState())
    train_round(TASK, RECIPE, STATE, IDS, 0, 2, whole)
    assert torch.equal(flat(resumed.pseudo_gradient), flat(untroubled.pseudo_gradient))
    assert (resumed.losses, resumed.tokens) == (untroubled.losses, untroubled.tokens)
    assert memory.to_bytes() == whole.to_bytes()


@pytest.mark.parametrize("other", ["round", "samples", "base", "memory"])
def test_a_checkpoint_of_something_else_is_not_used(tmp_path: Path, other: str) -> None:
    looks = iter([False, False, True])
    arguments = {"round": 0, "samples": IDS, "base": STATE, "memory": TrainerState()}

    def run(**options: object) -> object:
        state, ids, round, memory = (arguments[k] for k in ("base", "samples", "round", "memory"))
        return train_round(TASK, RECIPE, state, ids, round, 2, memory, machine=CPU, **options)  # type: ignore[arg-type]

    with pytest.raises(TrainingStopped):
        run(checkpoints=checkpoints(tmp_path), stop=lambda: next(looks))
    trained = TrainerState()
    train_round(TASK, RECIPE, STATE, IDS, 0, 2, trained)
    moved = {name: value + 0.01 for name, value in STATE.parameters.items()}
    arguments |= {
        "round": {"round": 1},
        "samples": {"samples": range(200, 240)},
        "base": {"base": type(STATE)(moved, STATE.momentum, 1.0)},
        "memory": {"memory": trained},
    }[other]
    arguments["memory"] = TrainerState(dict(arguments["memory"].inner))
    kept = TrainerState(dict(arguments["memory"].inner))
    resumed = run(checkpoints=checkpoints(tmp_path))
    arguments["memory"] = kept
    assert torch.equal(flat(resumed.pseudo_gradient), flat(run().pseudo_gradient))  # type: ignore[attr-defined]


def progress() -> Progress:
    numbers = {"w": torch.tensor([[1.5, -2.0]]), "b.c": torch.tensor(3.0)}
    return Progress(
        [0.1, 0.2], 64, numbers, {"w/exp_avg": torch.ones(1, 2), "scaler/scale": torch.tensor(8.0)}
    )


def test_a_saved_checkpoint_is_loaded_unchanged(tmp_path: Path) -> None:
    store = checkpoints(tmp_path)
    store.save(KEY, progress())
    found = store.load(KEY)
    assert found is not None
    assert (found.losses, found.tokens, found.step) == ([0.1, 0.2], 64, 2)
    for saved, back in ((progress().parameters, found.parameters), (progress().inner, found.inner)):
        assert saved.keys() == back.keys()
        assert all(torch.equal(back[name], value) for name, value in saved.items())
    assert store.load(OTHER) is None
    store.clear()
    assert store.load(KEY) is None


@pytest.mark.parametrize("place", [0, 40, -1])
def test_a_damaged_checkpoint_counts_as_none(tmp_path: Path, place: int) -> None:
    store = checkpoints(tmp_path)
    store.save(KEY, progress())
    content = bytearray(store.path.read_bytes())
    content[place] ^= 1
    store.path.write_bytes(content)
    assert store.load(KEY) is None
    store.path.write_bytes(content[:20])
    assert store.load(KEY) is None


def test_checkpoints_come_by_steps_or_by_time(tmp_path: Path) -> None:
    now = [0.0]
    store = checkpoints(tmp_path, every_steps=3, every_s=10.0, clock=lambda: now[0])  # type: ignore[arg-type]
    assert [step for step in range(1, 8) if store.due(step)] == [3, 6]
    now[0] = 10.0
    assert store.due(1)
    store.save(KEY, progress())
    assert not store.due(1)


def test_a_full_disk_does_not_end_the_training(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()  # a file cannot take its place
    store = checkpoints(tmp_path, every_steps=1)
    local = train_round(TASK, RECIPE, STATE, IDS, 0, 2, TrainerState(), checkpoints=store)
    assert local.steps == 5
