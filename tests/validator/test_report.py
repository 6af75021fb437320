"""The measurements file: from it alone, anyone can redo every number of a judgement."""

import json

import numpy as np
import pytest

from earnest.base.strict_json import write_json
from earnest.protocol.harm import EProcess
from earnest.protocol.merkle import content_root, samples_root
from earnest.protocol.report import decode_report
from earnest.protocol.verdicts import Verdict
from earnest.protocol.weights import PastMargin, Score, seat_weights
from earnest.validator.judge import Judgement, RoundInputs, judge_round
from earnest.validator.margin import margin
from earnest.validator.report import abstention, build_report
from tests.validator.arena import Arena


@pytest.fixture
def judged(arena: Arena) -> tuple[RoundInputs, Judgement]:
    inputs = arena.train()
    return inputs, judge_round(inputs)


def test_the_report_carries_the_votes_and_names_the_measurements_file(judged: tuple[RoundInputs, Judgement]):
    inputs, judgement = judged
    root = content_root(judgement.measurements_file)
    report = build_report(judgement, inputs.base_root, inputs.newest_root, root)
    assert decode_report(report.words(), len(judgement.votes)) == report
    assert (report.votes, report.measurements) == (judgement.votes, root)


def test_scores_and_weights_can_be_redone_from_the_file(judged: tuple[RoundInputs, Judgement]):
    _, judgement = judged
    document = json.loads(judgement.measurements_file)
    before, control = (np.array(document["held_out"][key]) for key in ("before", "control"))
    scores = []
    for seat in document["seats"]:
        fresh = before - np.array(seat["held_out_after"])
        own, own_control, after = (np.array(seat["own"][key]) for key in ("before", "control", "after"))
        redone = margin(own - after, own - own_control, fresh, before - control)
        past = tuple(PastMargin(*one) for one in seat["score"]["past"])
        assert [one.round for one in past] in ([0, 1, 2], [1, 2]), "round 0 counts if work shows in it"
        scores.append(
            Score(float(fresh.mean()), float(fresh.std(ddof=1) / np.sqrt(len(fresh))), redone, past)
        )
        assert seat["score"] == {
            "gain": scores[-1].gain_mean,
            "gain_se": scores[-1].gain_se,
            "margin": redone.excess,
            "margin_se": redone.se,
            "past": seat["score"]["past"],
        }
    assert seat_weights(scores) == [seat["weight"] for seat in document["seats"]]


def test_e_values_can_be_redone_from_the_file_and_the_memory(judged: tuple[RoundInputs, Judgement]):
    inputs, judgement = judged
    document, terms = json.loads(judgement.measurements_file), inputs.recipe.scoring.harm
    for seat in document["seats"]:
        test = inputs.history.harm.tests[seat["trainer"]]
        gains = np.array(document["held_out"]["before"]) - np.array(seat["held_out_after"])
        process: EProcess = test.held_out.update_round(gains.tolist(), terms)
        assert process.wealth == seat["harm"]["e_held_out"]


def test_the_file_names_everything_it_was_made_from(judged: tuple[RoundInputs, Judgement]):
    inputs, judgement = judged
    document = json.loads(judgement.measurements_file)
    assert document["recipe"] == inputs.recipe.hash().hex()
    assert document["seed"] == inputs.seed.hex()
    assert (document["base_root"], document["newest_root"]) == (
        inputs.base_root.hex(),
        inputs.newest_root.hex(),
    )
    assert document["held_out"]["samples"] == samples_root(inputs.held_out).hex()
    for seat, one in zip(document["seats"], inputs.submissions, strict=True):
        assert seat["update"] == one.manifest.update.hex()
        assert seat["own"]["samples"] == samples_root(judgement.measurements.own[one.seat].samples).hex()


def test_the_file_is_canonical(judged: tuple[RoundInputs, Judgement]):
    _, judgement = judged
    assert write_json(json.loads(judgement.measurements_file)) == judgement.measurements_file


def test_a_validator_that_cannot_judge_abstains_from_every_seat_that_revealed(
    judged: tuple[RoundInputs, Judgement],
):
    inputs, _ = judged
    report = abstention(inputs)
    revealed = {one.seat for one in inputs.submissions}
    assert {seat for seat, vote in enumerate(report.votes) if vote.verdict == Verdict.ABSTAIN} == revealed
    assert not any(vote.counted_weight for vote in report.votes)
    assert (report.base_root, report.newest_root) == (inputs.base_root, inputs.newest_root)
