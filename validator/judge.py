"""The judgement of one round: all checks and measurements of protocol section 7, in order.

`judge_round` is a pure function: the same inputs give the same votes and the same measurements file. The types of its
inputs and results are in `round.py`, the measurements file in `report.py`. What the next round needs is in the
`History` that it returns.

The order decides the verdict. The payload must be available (verdict 2) and decode (3). An update identical to one
that precedes it is a copy, which is a fact (5). An update that would not be applied anyway, because of its base, norm
or similarity to an earlier round's, is not counted (7). Only updates that would be applied are measured, and only these
measurements enter the harm test (4). Of similar updates of this round, the one with the largest margin is kept (7). So
nobody is punished for the loss under a wrong base, and nothing unmeasured is applied to the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from earnest.protocol.harm import threshold
from earnest.protocol.report import ABSENT, SeatVote
from earnest.protocol.seed import OWN, shuffled, tagged
from earnest.protocol.step import clip_factor
from earnest.protocol.verdicts import Verdict
from earnest.protocol.weights import PastMargin, Score, reference_margin, seat_weights
from earnest.validator.gain import Losses, Meter, applied, mean_update
from earnest.validator.harm import HarmBook, HarmFinding
from earnest.validator.payload import Rejection
from earnest.validator.report import measurements_file
from earnest.validator.round import (
    History,
    Judgement,
    Measurements,
    OwnLosses,
    RoundInputs,
    Submission,
    past_update,
)
from earnest.validator.similarity import (
    Likeness,
    PastUpdate,
    identical,
    most_like,
    original_of,
    outdone,
    recent,
    recent_rounds,
    remember,
    similarities,
    too_alike,
)

__all__ = ["History", "Judgement", "RoundInputs", "Submission", "judge_round"]


def judge_round(inputs: RoundInputs, meter: Meter | None = None) -> Judgement:
    """Judges every revealed update of a round, with a meter of the recipe's task. Protocol section 7.

    Raises ValueError for inputs that cannot be measured (fewer than two sequences). Failures of the machine (memory,
    disk) are not caught: the caller has to abstain, they are never a verdict.
    """
    updates, rejections = _decoded(inputs)
    current, earlier = list(updates.values()), inputs.history.earlier
    table = similarities(current, earlier)
    likeness = most_like(current, earlier, table, inputs.base_round)
    alike = {
        seat for seat, nearest in likeness.items() if too_alike(updates[seat], nearest, inputs.recipe.scoring)
    }
    rejections |= _examine(inputs, updates, likeness, alike)

    clean = {seat: update for seat, update in updates.items() if seat not in rejections}
    measurements = _measure(inputs, clean, meter or Meter(inputs.task, inputs.recipe.seed))
    book, harm = _test_harm(inputs, clean, measurements)
    # On private data harm costs the pay, never the bond.
    verdict = Verdict.HARMFUL if inputs.recipe.data == "assigned" else Verdict.NOT_COUNTED
    rejections |= {
        seat: Rejection(verdict, str(finding)) for seat, finding in harm.items() if finding.harmful
    }
    scores = {
        seat: measurements.score(seat, inputs.history.past_margins(update.trainer, inputs.round))
        for seat, update in clean.items()
        if seat not in rejections
    }

    margins = {seat: score.margin and score.margin.lower for seat, score in scores.items()}
    losers = outdone(current, table[:, len(earlier) :], margins, inputs.recipe.scoring)
    likeness |= losers
    rejections |= _outdone(inputs, updates, losers)
    scores = {seat: score for seat, score in scores.items() if seat not in rejections}

    repeated = remember(
        inputs.history.alike, {updates[s].trainer for s in alike | losers.keys()}, inputs.round
    )
    margins = _margins(inputs, {updates[seat].trainer: score for seat, score in scores.items()})
    history = History(recent([*earlier, *current], inputs.round + 1), repeated, margins, book)
    judgement = Judgement(
        votes=_votes(inputs, rejections, scores),
        rejections=rejections,
        updates=updates,
        likeness=likeness,
        measurements=measurements,
        scores=scores,
        harm=harm,
        history=history,
    )
    return replace(judgement, measurements_file=measurements_file(inputs, judgement))


def _decoded(inputs: RoundInputs) -> tuple[dict[int, PastUpdate], dict[int, Rejection]]:
    """Returns the updates that decoded, and the rejections of the other payloads (verdicts 2, 3 and 255)."""
    updates: dict[int, PastUpdate] = {}
    rejections: dict[int, Rejection] = {}
    for submission in inputs.submissions:
        if isinstance(submission.update, Rejection):
            rejections[submission.seat] = submission.update
        else:
            updates[submission.seat] = past_update(submission, submission.update)
    return updates, rejections


def _examine(
    inputs: RoundInputs,
    updates: Mapping[int, PastUpdate],
    likeness: Mapping[int, Likeness],
    alike: Collection[int],
) -> dict[int, Rejection]:
    """Returns the rejections that need no measurement (verdicts 5 and 7)."""
    bases = {submission.seat: submission.manifest.base_state for submission in inputs.submissions}
    rejections: dict[int, Rejection] = {}
    for seat, update in updates.items():
        rejection = _copied(inputs, update) or _not_counted(inputs, update, bases[seat])
        if rejection is None and seat in alike:
            rejection = _too_alike(inputs, update, likeness[seat])
        if rejection is not None:
            rejections[seat] = rejection
    return rejections


def _copied(inputs: RoundInputs, late: PastUpdate) -> Rejection | None:
    """Returns verdict 5 if the decoded update is identical to one that precedes it."""
    original = original_of(late, inputs.history.earlier, inputs.base_round)
    if original is None:
        return None
    return Rejection(Verdict.COPIED, f"identical to seat {original.seat}'s of round {original.round}")


def _not_counted(inputs: RoundInputs, late: PastUpdate, base_root: bytes) -> Rejection | None:
    """Returns verdict 7 for a required attestation that is missing, no assignment, a wrong base or too large a norm."""
    if (unattested := inputs.unattested.get(late.seat)) is not None:
        return unattested
    if inputs.recipe.data == "assigned" and not inputs.assigned.get(late.seat):
        return Rejection(Verdict.NOT_COUNTED, "the seat was assigned no samples in this round")
    norm, limit = late.update.norm, inputs.recipe.scoring.norm_limit * inputs.clip_norm
    if base_root != inputs.base_root:
        return Rejection(Verdict.NOT_COUNTED, "trained from another base state")
    if norm > limit:
        return Rejection(Verdict.NOT_COUNTED, f"norm {norm:.6g} is above {limit:.6g}")
    return None


def _too_alike(inputs: RoundInputs, late: PastUpdate, nearest: Likeness) -> Rejection | None:
    """Returns verdict 7 for an update too similar to another: on one overlap of indices, or on the second cosine."""
    if late.update.indices is None and not recent_rounds(
        inputs.history.alike.get(late.trainer, ()), inputs.round
    ):
        return None
    original = f"seat {nearest.original.seat}'s of round {nearest.original.round}"
    return Rejection(Verdict.NOT_COUNTED, f"like {original}: {nearest.value:.3f}")


def _outdone(
    inputs: RoundInputs, updates: Mapping[int, PastUpdate], losers: Mapping[int, Likeness]
) -> dict[int, Rejection]:
    """Returns verdict 7 for updates identical, or too similar, to one of this round with a larger margin."""
    rejections: dict[int, Rejection] = {}
    for seat, nearest in losers.items():
        if identical(updates[seat], nearest.original):
            reason = f"identical to seat {nearest.original.seat}'s of this round, which has the larger margin"
            rejections[seat] = Rejection(Verdict.NOT_COUNTED, reason)
        elif rejection := _too_alike(inputs, updates[seat], nearest):
            rejections[seat] = rejection
    return rejections


def _measure(inputs: RoundInputs, clean: Mapping[int, PastUpdate], meter: Meter) -> Measurements:
    """Runs all forward passes of a round. Base and control are measured once per sequence.

    Own samples are drawn from the assigned ids that every honest trainer has trained on, even with the fewest steps
    that the recipe allows. On private data there are none. Identical updates count once in the control.
    """
    scoring, base = inputs.recipe.scoring, inputs.newest.parameters
    factors = {seat: clip_factor(one.update.norm, inputs.clip_norm) for seat, one in clean.items()}
    distinct = {one.update.content: (one, factors[seat]) for seat, one in clean.items()}
    clipped = ((one.update.dense(), factor) for one, factor in distinct.values())
    control = applied(base, mean_update(clipped, len(clean)), scoring.strength) if len(clean) > 1 else base

    fresh = meter.batches(inputs.held_out)
    before, controlled = meter.losses(base, fresh), meter.losses(control, fresh)
    after: dict[int, Losses] = {}
    own: dict[int, OwnLosses] = {}
    for seat, one in clean.items():
        changed = applied(base, one.update.dense(), scoring.strength * factors[seat])
        after[seat] = meter.losses(changed, fresh)
        if inputs.recipe.data == "private":
            continue
        judged = inputs.assigned[seat][: inputs.recipe.judged_per_seat]
        samples = tuple(shuffled(judged, tagged(inputs.seed, OWN), scoring.own))
        batches = meter.batches(samples)
        own[seat] = OwnLosses(samples, *(meter.losses(state, batches) for state in (base, control, changed)))
    return Measurements(before, controlled, after, own)


def _test_harm(
    inputs: RoundInputs, clean: Mapping[int, PastUpdate], measurements: Measurements
) -> tuple[HarmBook, dict[int, HarmFinding]]:
    """Adds this round's gains to each trainer's harm test; returns the book and the findings by seat."""
    trainers = {seat: one.trainer for seat, one in clean.items()}
    gains = {trainers[seat]: measurements.gains(seat) for seat in clean}
    terms = inputs.recipe.scoring.harm
    limit = threshold(terms, inputs.rounds, inputs.trainer_limit)
    book, findings = inputs.history.harm.after(inputs.round, gains, terms, limit)
    return book, {seat: findings[trainer] for seat, trainer in trainers.items() if trainer in findings}


def _margins(inputs: RoundInputs, scores: Mapping[str, Score]) -> dict[str, tuple[PastMargin, ...]]:
    """Returns the margins that count in the next round, by trainer.

    A trial round says nothing about work, nor does a round in which nobody's work shows.
    """
    known = {
        trainer: inputs.history.past_margins(trainer, inputs.round + 1) for trainer in inputs.history.margins
    }
    reference = reference_margin(list(scores.values()))
    if reference and not _trial(inputs):
        for trainer, score in scores.items():
            if score.margin is not None:
                past = PastMargin(inputs.round, score.margin.excess, reference)
                known[trainer] = (*known.get(trainer, ()), past)
    return {trainer: pasts for trainer, pasts in sorted(known.items()) if pasts}


def _trial(inputs: RoundInputs) -> bool:
    return inputs.round < inputs.recipe.scoring.trial_rounds


def _votes(
    inputs: RoundInputs, rejections: Mapping[int, Rejection], scores: Mapping[int, Score]
) -> tuple[SeatVote, ...]:
    """Returns one vote per trainer seat; a seat without a submission is absent."""
    weights = dict(zip(scores, seat_weights(list(scores.values()), trial=_trial(inputs)), strict=True))
    votes = [ABSENT] * inputs.trainer_limit
    for seat in (submission.seat for submission in inputs.submissions):
        rejection = rejections.get(seat)
        votes[seat] = (
            SeatVote(0, rejection.verdict) if rejection else SeatVote(weights[seat], Verdict.ACCEPTED)
        )
    return tuple(votes)
