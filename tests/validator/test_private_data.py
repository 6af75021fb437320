"""What changes in a judgement where trainers use data of their own, or fewer of their samples."""

from __future__ import annotations

import json
from dataclasses import replace

from earnest.demo.attacks.trainers import make_attack
from earnest.protocol.recipe import CodecChoice, Inner, Recipe
from earnest.protocol.verdicts import Verdict
from earnest.training.tasks.task import Task
from earnest.validator.judge import RoundInputs, judge_round
from tests.validator.arena import Arena

CHEAT = 3


def private(inputs: RoundInputs) -> RoundInputs:
    """The same round of a run on private data: nobody was assigned anything."""
    return replace(inputs, recipe=replace(inputs.recipe, data="private"), assigned={})


def test_on_private_data_the_gain_on_fresh_samples_alone_is_weighed(arena: Arena):
    judgement = judge_round(private(arena.train()))
    assert [vote.verdict for vote in judgement.votes] == [Verdict.ACCEPTED] * 4
    assert all(vote.weight > 10_000 for vote in judgement.votes)
    assert all(score.margin is None for score in judgement.scores.values())
    seats = json.loads(judgement.measurements_file)["seats"]
    assert all("own" not in seat and len(seat["held_out_after"]) == 256 for seat in seats)


def test_on_private_data_harm_costs_pay_and_never_the_bond(arena: Arena):
    arena.attacks[CHEAT] = make_attack("sign-flip")
    verdicts = []
    for _ in range(3):
        inputs = private(arena.train())
        judgement = judge_round(inputs)
        arena.advance(inputs, judgement)
        verdicts.append(judgement.votes[CHEAT].verdict)
    assert verdicts[-1] == Verdict.NOT_COUNTED
    assert Verdict.HARMFUL not in verdicts
    assert "threshold" in judgement.rejections[CHEAT].reason


def test_a_trainer_with_fewer_steps_is_judged_on_the_samples_they_cover(task: Task, recipe: Recipe):
    adaptive = replace(
        recipe,
        codec=CodecChoice("topk-2bit", k_min=8, energy=0.9),
        inner=Inner(steps=12, steps_min=4, batch=8, lr=1e-2),
        scoring=replace(recipe.scoring, held_out=32, own=32),
    )
    inputs = Arena(task, adaptive, ["none", "none"], rounds=8).train()
    own = judge_round(inputs).measurements.own
    assert own.keys() == {0, 1}
    for seat, losses in own.items():
        assert set(losses.samples) == set(inputs.assigned[seat][: 4 * 8])
