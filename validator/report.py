"""The report on a round, and the measurements file from which anyone can recompute it. Protocol section 7.

The measurements file is canonical JSON (sorted keys, no spaces, ASCII). Losses are float64 in nats per byte, written so
that reading them gives the same bits, in the order in which the sequences were drawn. Gains, standard errors, margins,
weights and e-values follow from the file; the losses follow from the states and payloads that it names. A report names
it by its content root, under which it is fetched like a payload.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from earnest.base.strict_json import write_json
from earnest.protocol.merkle import samples_root
from earnest.protocol.report import ABSENT, Report, SeatVote
from earnest.protocol.step import clip_factor
from earnest.protocol.verdicts import Verdict
from earnest.validator.gain import Losses
from earnest.validator.round import Judgement, RoundInputs, Submission

FORMAT = "earnest-measurements-2"


def build_report(judgement: Judgement, base_root: bytes, newest_root: bytes, measurements: bytes) -> Report:
    """Returns the report to commit; `measurements` is the content root of the measurements file."""
    return Report(base_root, newest_root, measurements, judgement.votes)


def abstention(inputs: RoundInputs) -> Report:
    """Returns the report of a validator that could not judge: it abstains on every seat that revealed."""
    votes = [ABSENT] * inputs.trainer_limit
    for submission in inputs.submissions:
        votes[submission.seat] = SeatVote(0, Verdict.ABSTAIN)
    return Report(inputs.base_root, inputs.newest_root, bytes(32), tuple(votes))


def measurements_file(inputs: RoundInputs, judgement: Judgement) -> bytes:
    """Returns everything that a judgement follows from, as canonical JSON."""
    measured = judgement.measurements
    return write_json(
        {
            "format": FORMAT,
            "recipe": inputs.recipe.hash().hex(),
            "round": inputs.round,
            "seed": inputs.seed.hex(),
            "base_root": inputs.base_root.hex(),
            "newest_root": inputs.newest_root.hex(),
            "clip_norm": inputs.clip_norm,
            "held_out": {
                "samples": samples_root(inputs.held_out).hex(),
                "before": _numbers(measured.before),
                "control": _numbers(measured.control),
            },
            "seats": [_seat(inputs, judgement, submission) for submission in inputs.submissions],
        }
    )


def _seat(inputs: RoundInputs, judgement: Judgement, submission: Submission) -> dict[str, Any]:
    """Returns the entry of one seat: only the fields of the checks that it reached."""
    seat = submission.seat
    vote = judgement.votes[seat]
    entry: dict[str, Any] = {
        "seat": seat,
        "trainer": submission.manifest.trainer,
        "position": list(submission.position),
        "update": submission.manifest.update.hex(),
        "verdict": Verdict(vote.verdict).name.lower(),
        "weight": vote.weight,
    }
    if rejection := judgement.rejections.get(seat):
        entry["reason"] = rejection.reason
    if past := judgement.updates.get(seat):
        norm = past.update.norm
        entry |= {"norm": norm, "clip_factor": clip_factor(norm, inputs.clip_norm)}
    if likeness := judgement.likeness.get(seat):
        original = likeness.original
        entry["most_like"] = {
            "seat": original.seat,
            "round": original.round,
            "update": original.root.hex(),
            "value": likeness.value,
        }
    if (after := judgement.measurements.after.get(seat)) is not None:
        entry["held_out_after"] = _numbers(after)
    if own := judgement.measurements.own.get(seat):
        entry["own"] = {
            "samples": samples_root(own.samples).hex(),
            "before": _numbers(own.before),
            "control": _numbers(own.control),
            "after": _numbers(own.after),
        }
    if score := judgement.scores.get(seat):
        entry["score"] = {"gain": score.gain_mean, "gain_se": score.gain_se}
        if score.margin:
            past = [astuple(one) for one in score.past]
            entry["score"] |= {"margin": score.margin.excess, "margin_se": score.margin.se, "past": past}
    if harm := judgement.harm.get(seat):
        entry["harm"] = {"e_held_out": harm.held_out, "e_own": harm.own, "threshold": harm.threshold}
    return entry


def _numbers(losses: Losses) -> list[float]:
    return losses.tolist()
