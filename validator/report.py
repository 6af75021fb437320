"""From a judgement to what goes on record: the report, and the evidence file from which anyone can redo each
number.

The evidence file is canonical JSON (keys sorted, no spaces, ASCII). Losses are float64 in nats per byte,
written so that reading them back gives the same bits; sequences are in the order they were drawn, so gains,
standard errors, margins, weights and e-values follow from the file, and the losses themselves from the states
and payloads that it names. A report names it by its content root, under which it can be fetched like a
payload.
"""

from __future__ import annotations

import json
from typing import Any

from earnest.protocol.merkle import samples_root
from earnest.protocol.report import ABSENT, Report, SeatVote
from earnest.protocol.step import clip_factor
from earnest.protocol.verdicts import Verdict
from earnest.validator.gain import Losses
from earnest.validator.round import Judgement, RoundInputs, Submission

FORMAT = "earnest-measurements-1"


def build_report(judgement: Judgement, base_root: bytes, newest_root: bytes, evidence: bytes) -> Report:
    """The report to seal; `evidence` is the content root under which the evidence file was put."""
    return Report(base_root, newest_root, evidence, judgement.votes)


def abstention(inputs: RoundInputs) -> Report:
    """The report of a validator that could not judge: it abstains from every seat that revealed."""
    votes = [ABSENT] * inputs.trainer_limit
    for one in inputs.submissions:
        votes[one.seat] = SeatVote(0, Verdict.ABSTAIN)
    return Report(inputs.base_root, inputs.newest_root, bytes(32), tuple(votes))


def measurements_file(inputs: RoundInputs, judgement: Judgement) -> bytes:
    """Everything a judgement rests on, as canonical JSON. Protocol section 7."""
    measured = judgement.measurements
    return canonical_json(
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
            "seats": [_seat(inputs, judgement, one) for one in inputs.submissions],
        }
    )


def canonical_json(document: dict[str, Any]) -> bytes:
    """One document, one byte string. Raises ValueError for a number that JSON has no word for."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _seat(inputs: RoundInputs, judgement: Judgement, one: Submission) -> dict[str, Any]:
    """What was found about one seat, as far as its questions went."""
    seat, vote = one.seat, judgement.votes[one.seat]
    found: dict[str, Any] = {
        "seat": seat,
        "trainer": one.manifest.trainer,
        "position": list(one.position),
        "update": one.manifest.update.hex(),
        "verdict": Verdict(vote.verdict).name.lower(),
        "weight": vote.weight,
    }
    if refusal := judgement.refusals.get(seat):
        found["reason"] = refusal.reason
    if published := judgement.updates.get(seat):
        norm = published.update.norm
        found |= {"norm": norm, "clip_factor": clip_factor(norm, inputs.clip_norm)}
    if likeness := judgement.likeness.get(seat):
        original = likeness.original
        found["most_like"] = {
            "seat": original.seat,
            "round": original.round,
            "update": original.root.hex(),
            "value": likeness.value,
        }
    if (after := judgement.measurements.after.get(seat)) is not None:
        found["held_out_after"] = _numbers(after)
    if own := judgement.measurements.own.get(seat):
        found["own"] = {
            "samples": samples_root(own.samples).hex(),
            "before": _numbers(own.before),
            "control": _numbers(own.control),
            "after": _numbers(own.after),
        }
    if score := judgement.scores.get(seat):
        found["score"] = {"gain": score.gain_mean, "gain_se": score.gain_se, "margin": score.margin}
    if harm := judgement.harm.get(seat):
        found["harm"] = {"e_held_out": harm.held_out, "e_own": harm.own, "threshold": harm.threshold}
    return found


def _numbers(losses: Losses) -> list[float]:
    return losses.tolist()
