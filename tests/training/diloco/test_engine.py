"""Local rounds are deterministic, resumable, and give a pseudo-gradient that helps when subtracted."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from earnest.protocol.recipe import Inner, Recipe, Scoring
from earnest.training.diloco.engine import (
    Machine,
    TrainerState,
    TrainingDiverged,
    step_rates,
    train_round,
)
from earnest.training.diloco.initial import initial_state
from earnest.training.diloco.optimizers import learning_rate
from earnest.training.diloco.state import Spec, State, read_parameters, to_bytes, write_parameters
from earnest.training.diloco.tensorfile import PayloadError
from earnest.training.tasks.shakespeare import Shakespeare
from earnest.training.tasks.task import Batch, TaskError

OPTIONS = {"layers": 1, "width": 16, "heads": 2, "context": 16}
TASK = Shakespeare(**OPTIONS)
RECIPE = Recipe(
    task="earnest.training.tasks.shakespeare:Shakespeare",
    pool_size=TASK.pool_size,
    task_options=dict(OPTIONS),
    seed=7,
    inner=Inner(steps=5, batch=8, lr=1e-2),
    scoring=Scoring(held_out=2, own=2),
)
STATE = initial_state(TASK, RECIPE)
IDS = range(100, 140)


def flat(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
    return Spec.of(parameters).join(parameters)


def mean_loss(state: State, ids: range = IDS) -> float:
    model = TASK.build_model(0)
    write_parameters(model, state.parameters)
    with torch.inference_mode():
        return float(torch.cat([TASK.loss(model, b) for b in TASK.batches("train", 0, ids, 8)]).mean())


def test_subtracting_the_pseudo_gradient_gives_the_trained_model() -> None:
    local = train_round(TASK, RECIPE, STATE, IDS, 0, 2, TrainerState())
    after = State.start({n: v - local.pseudo_gradient[n] for n, v in STATE.parameters.items()}, 1.0)
    assert mean_loss(after) < mean_loss(STATE) - 0.1


def test_the_round_is_counted_as_it_was() -> None:
    local = train_round(TASK, RECIPE, STATE, IDS, 0, 2, TrainerState())
    assert (local.steps, local.tokens, len(local.losses)) == (5, 40 * 16, 5)
    assert local.losses[0] == pytest.approx(mean_loss(STATE, range(100, 108)), abs=1e-5)


def test_a_straggler_may_take_fewer_steps() -> None:
    local = train_round(TASK, RECIPE, STATE, IDS[:20], 0, 2, TrainerState())
    assert (local.steps, local.tokens) == (3, 20 * 16)


def test_the_base_state_is_left_untouched() -> None:
    before = to_bytes(STATE)
    train_round(TASK, RECIPE, STATE, IDS, 0, 2, TrainerState())
    assert to_bytes(STATE) == before


def test_same_inputs_same_bits() -> None:
    memories = TrainerState(), TrainerState()
    first, second = (train_round(TASK, RECIPE, STATE, IDS, 0, 2, memory) for memory in memories)
    assert torch.equal(flat(first.pseudo_gradient), flat(second.pseudo_gradient))
    assert memories[0].to_bytes() == memories[1].to_bytes()


def test_other_samples_give_another_update() -> None:
    first, second = (
        train_round(TASK, RECIPE, STATE, ids, 0, 2, TrainerState()) for ids in (IDS, range(200, 240))
    )
    assert not torch.equal(flat(first.pseudo_gradient), flat(second.pseudo_gradient))


def test_the_inner_optimizer_continues_after_a_restart() -> None:
    memory = TrainerState()
    train_round(TASK, RECIPE, STATE, IDS, 0, 2, memory)
    restarted = TrainerState.from_bytes(memory.to_bytes())
    went_on, resumed, forgot = (
        train_round(TASK, RECIPE, STATE, IDS, 1, 2, m) for m in (memory, restarted, TrainerState())
    )
    assert torch.equal(flat(went_on.pseudo_gradient), flat(resumed.pseudo_gradient))
    assert not torch.equal(flat(went_on.pseudo_gradient), flat(forgot.pseudo_gradient))
    assert memory.inner["bytes.weight/step"].item() == 10


def test_a_trainer_state_keeps_the_codecs_tensors() -> None:
    memory = TrainerState(codec={f"residual/{name}": value for name, value in STATE.parameters.items()})
    back = TrainerState.from_bytes(memory.to_bytes())
    assert back.codec.keys() == memory.codec.keys()
    assert all(torch.equal(back.codec[name], value) for name, value in memory.codec.items())
    assert TrainerState.from_bytes(TrainerState().to_bytes()) == TrainerState()


@pytest.mark.parametrize("damage", [b"", b"\x80\x05\x95" + bytes(40), TrainerState().to_bytes() + b"\0"])
def test_damaged_memory_is_refused(damage: bytes) -> None:
    with pytest.raises(PayloadError):
        TrainerState.from_bytes(damage)


def test_divergence_is_an_error_with_a_fix() -> None:
    wild = replace(RECIPE, inner=replace(RECIPE.inner, lr=1e30, clip=0.0))
    with pytest.raises(TrainingDiverged, match="lower the recipe's inner learning rate"):
        train_round(TASK, wild, STATE, IDS, 0, 2, TrainerState())


def test_rates_follow_the_schedule_over_the_whole_run() -> None:
    constant = Inner(lr=0.5, round_schedule="constant")
    cosine = replace(constant, lr_schedule="cosine")
    assert {learning_rate(constant, step, 10) for step in range(10)} == {0.5}
    rates = [learning_rate(cosine, step, 10) for step in range(11)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 0.5
    assert rates[5] == pytest.approx(0.275)
    assert rates[10] == pytest.approx(0.05)


def test_later_rounds_continue_the_schedule() -> None:
    cosine = replace(RECIPE, inner=replace(RECIPE.inner, lr_schedule="cosine"))
    first, last = (train_round(TASK, cosine, STATE, IDS, r, 10, TrainerState()) for r in (0, 9))
    sizes = [flat(local.pseudo_gradient).norm().item() for local in (first, last)]
    assert sizes[1] < sizes[0] / 3


def test_a_round_of_fewer_steps_ends_where_the_others_end() -> None:
    inner = replace(RECIPE.inner, lr_schedule="cosine", round_schedule="constant")
    cosine = replace(RECIPE, inner=inner)
    full, short = step_rates(cosine, 1, 4, 5), step_rates(cosine, 1, 4, 2)
    assert full[0] == short[0] == learning_rate(cosine.inner, 5, 20)
    assert full[2] > short[1] > full[3]
    assert step_rates(cosine, 2, 4, 5)[0] < short[1], "and the next round begins where all are"


def test_a_late_joiner_trains_at_the_rate_of_its_round() -> None:
    cosine = replace(RECIPE, inner=replace(RECIPE.inner, lr_schedule="cosine", optimizer="muon"))
    veteran = TrainerState()
    train_round(TASK, cosine, STATE, IDS, 0, 10, veteran)
    assert not [name for name in veteran.inner if "lr" in name], "no rate is carried along"
    joiner = train_round(TASK, cosine, STATE, IDS, 9, 10, TrainerState())
    first = train_round(TASK, cosine, STATE, IDS, 0, 10, TrainerState())
    assert flat(joiner.pseudo_gradient).norm() < flat(first.pseudo_gradient).norm() / 3


def test_whatever_weights_a_new_model_has_training_starts_from_the_state() -> None:
    class Careless(Shakespeare):
        def build_model(self, seed: int) -> torch.nn.Module:
            return super().build_model(seed + 1)

    same, other = (
        train_round(task, RECIPE, STATE, IDS, 0, 2, TrainerState()) for task in (TASK, Careless(**OPTIONS))
    )
    assert torch.equal(flat(same.pseudo_gradient), flat(other.pseudo_gradient))


def test_who_is_late_ends_with_the_steps_it_has() -> None:
    looks = iter([False, True])
    local = train_round(TASK, RECIPE, STATE, IDS, 0, 2, TrainerState(), late=lambda: next(looks))
    whole = train_round(TASK, RECIPE, STATE, IDS, 0, 2, TrainerState())
    assert (local.steps, local.losses) == (2, whole.losses[:2])
    assert train_round(TASK, RECIPE, STATE, IDS, 0, 2, TrainerState(), late=lambda: True).steps == 1


def test_private_batches_replace_the_assigned_samples() -> None:
    class Own:
        root = bytes(32)

        def batches(self, round: int, steps: int, batch: int) -> Iterator[Batch]:
            return TASK.batches("train", 0, range(1_000 * round, 1_000 * round + steps * batch), batch)

    private = train_round(TASK, RECIPE, STATE, IDS, 1, 2, TrainerState(), private=Own())
    same = train_round(TASK, RECIPE, STATE, range(1_000, 1_040), 1, 2, TrainerState())
    assert torch.equal(flat(private.pseudo_gradient), flat(same.pseudo_gradient))
    assert private.tokens == 40 * 16


def test_data_that_gives_nothing_is_an_error() -> None:
    class Empty:
        root = bytes(32)

        def batches(self, round: int, steps: int, batch: int) -> Iterator[Batch]:
            return iter(())

    with pytest.raises(TaskError, match="no batch in round 0"):
        train_round(TASK, RECIPE, STATE, IDS, 0, 2, TrainerState(), private=Empty())


def test_rounds_side_by_side_give_the_bits_of_rounds_alone() -> None:
    alone = [train_round(TASK, RECIPE, STATE, ids, 0, 2, TrainerState()) for ids in (IDS, range(200, 240))]
    with ThreadPoolExecutor(2) as pool:
        together = list(
            pool.map(
                lambda ids: train_round(TASK, RECIPE, STATE, ids, 0, 2, TrainerState()),
                (IDS, range(200, 240)),
            )
        )
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(flat(one.pseudo_gradient), flat(other.pseudo_gradient))


def test_the_caller_chooses_the_threads() -> None:
    train_round(TASK, RECIPE, STATE, IDS[:8], 0, 2, TrainerState(), machine=Machine("cpu", threads=2))
    assert torch.get_num_threads() == 2
    train_round(TASK, RECIPE, STATE, IDS[:8], 0, 2, TrainerState())
    assert torch.get_num_threads() == 1


# The initial state


def test_initial_state_follows_the_seed_with_momentum_zero() -> None:
    again, other = initial_state(TASK, RECIPE), initial_state(TASK, replace(RECIPE, seed=8))
    assert to_bytes(again) == to_bytes(STATE) != to_bytes(other)
    assert not flat(STATE.momentum).any()
    assert STATE.clip_norm == RECIPE.scoring.clip_norm
    assert torch.equal(flat(STATE.parameters), flat(read_parameters(TASK.build_model(7))))


def test_warm_up_trains_on_reserved_samples_only_and_at_the_first_rate() -> None:
    warm = replace(RECIPE, warmup_steps=5, inner=replace(RECIPE.inner, lr_schedule="cosine"))
    seen: list[int] = []

    class Watched(Shakespeare):
        def batches(self, split, seed, sample_ids, batch):  # type: ignore[no-untyped-def]
            seen.extend(sample_ids)
            return super().batches(split, seed, sample_ids, batch)

    state = initial_state(Watched(**OPTIONS), warm)
    assert seen == list(TASK.warmup_ids[:40])
    assert min(seen) >= TASK.pool_size
    assert not flat(state.momentum).any()
    assert mean_loss(state) < mean_loss(STATE) - 0.1
    steady = initial_state(TASK, replace(warm, inner=RECIPE.inner))
    assert to_bytes(steady) == to_bytes(state)


def test_a_warm_up_longer_than_the_reserve_is_refused() -> None:
    steps = math.ceil(len(TASK.warmup_ids) / 8) + 1
    with pytest.raises(ValueError, match="the task reserves 4800"):
        initial_state(TASK, replace(RECIPE, warmup_steps=steps))
