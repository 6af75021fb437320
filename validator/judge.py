"""A validator's judgement of one round: every question of protocol section 7, asked in order.

`judge_round` is a pure function: the same inputs give the same votes and the same evidence, and nothing is
read but what is passed in. What the next round needs to know is in the `History` it returns.

The order settles which verdict an update gets. A payload must be there (2) and sound (3); an identical
earlier update is a plain fact (5); what is not applied anyway, for its base, norm or likeness, is not counted
(7); only an update that would be applied is measured, and only such measurements are evidence of harm (4). So
nobody is punished for what a wrong base did to the loss, and nothing reaches the model that was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from earnest.protocol.harm import threshold
from earnest.protocol.report import ABSENT, SeatVote
from earnest.protocol.seed import shuffled
from earnest.protocol.step import clip_factor
from earnest.protocol.verdicts import Verdict
from earnest.protocol.weights import Score, seat_weights
from earnest.validator.gain import Losses, Meter, applied, mean_update
from earnest.validator.harm import HarmBook, HarmFinding
from earnest.validator.payload import Rejection, check_payload
from earnest.validator.report import measurements_file
from earnest.validator.round import (
    History,
    Judgement,
    Measurements,
    Missing,
    OwnLosses,
    RoundInputs,
    Submission,
)
from earnest.validator.similarity import (
    Likeness,
    PastUpdate,
    compare,
    original_of,
    recent,
    remember,
    too_alike,
)

__all__ = ["History", "Judgement", "Missing", "RoundInputs", "Submission", "judge_round"]


def judge_round(inputs: RoundInputs) -> Judgement:
    """Judge every revealed update of a round. Protocol section 7.

    Raises ValueError where the inputs themselves make no sense (fewer than two sequences to measure on). A
    failure of the machine (memory, disk) is not caught: the caller abstains, it never becomes a verdict.
    """
    updates, refusals = _decode(inputs)
    likeness = compare(list(updates.values()), inputs.memory.earlier)
    found, repeated = _examine(inputs, updates, likeness)
    refusals |= found

    running = {seat: update for seat, update in updates.items() if seat not in refusals}
    measurements = _measure(inputs, running)
    book, harm = _weigh_harm(inputs, running, measurements)
    verdict = (
        Verdict.HARMFUL if inputs.recipe.data == "assigned" else Verdict.NOT_COUNTED
    )  # pay, never the bond
    refusals |= {seat: Rejection(verdict, str(found)) for seat, found in harm.items() if found.harmful}
    scores = {seat: measurements.score(seat) for seat in running if seat not in refusals}

    memory = History(recent([*inputs.memory.earlier, *updates.values()], inputs.round + 1), repeated, book)
    judgement = Judgement(
        votes=_votes(inputs, refusals, scores),
        refusals=refusals,
        updates=updates,
        likeness=likeness,
        measurements=measurements,
        scores=scores,
        harm=harm,
        memory=memory,
    )
    return replace(judgement, measurements_file=measurements_file(inputs, judgement))


def _decode(inputs: RoundInputs) -> tuple[dict[int, PastUpdate], dict[int, Rejection]]:
    """Updates that are there and sound, and the refusals of the others (verdicts 2, 3 and 255)."""
    updates: dict[int, PastUpdate] = {}
    refusals: dict[int, Rejection] = {}
    for one in inputs.submissions:
        if isinstance(one.payload, Missing):
            refusals[one.seat] = Rejection(one.payload.verdict, one.payload.value)
            continue
        checked = check_payload(one.payload, one.manifest, inputs.codec, inputs.recipe.max_payload_bytes)
        if isinstance(checked, Rejection):
            refusals[one.seat] = checked
        else:
            updates[one.seat] = PastUpdate(
                inputs.round, one.seat, one.manifest.trainer, one.position, one.manifest.update, checked
            )
    return updates, refusals


def _examine(
    inputs: RoundInputs, updates: Mapping[int, PastUpdate], likeness: Mapping[int, Likeness]
) -> tuple[dict[int, Rejection], dict[str, tuple[int, ...]]]:
    """Refusals that need no measurement (verdicts 5 and 7), and whom to remember for being too alike."""
    scoring = inputs.recipe.scoring
    alike = {seat for seat, found in likeness.items() if too_alike(updates[seat], found, scoring)}
    repeated = remember(inputs.memory.alike, {updates[seat].trainer for seat in alike}, inputs.round)
    bases = {one.seat: one.manifest.base_state for one in inputs.submissions}
    refusals: dict[int, Rejection] = {}
    for seat, update in updates.items():
        refusal = _copied(inputs, update, updates) or _not_counted(inputs, update, bases[seat])
        if refusal is None and seat in alike:
            refusal = _too_alike(update, likeness[seat], len(repeated[update.trainer]))
        if refusal is not None:
            refusals[seat] = refusal
    return refusals, repeated


def _copied(inputs: RoundInputs, late: PastUpdate, updates: Mapping[int, PastUpdate]) -> Rejection | None:
    """Verdict 5: the decoded update is identical to one committed earlier."""
    original = original_of(late, [*inputs.memory.earlier, *updates.values()])
    if original is None:
        return None
    return Rejection(Verdict.COPIED, f"identical to seat {original.seat}'s of round {original.round}")


def _not_counted(inputs: RoundInputs, late: PastUpdate, base_root: bytes) -> Rejection | None:
    """Verdict 7: not attested where the run asks for it, assigned nothing, a wrong base, or a far too large norm."""
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


def _too_alike(late: PastUpdate, found: Likeness, times: int) -> Rejection | None:
    """Verdict 7: like an update committed earlier; one overlap is enough, a cosine has to come twice."""
    if late.update.indices is None and times < 2:
        return None
    original = f"seat {found.original.seat}'s of round {found.original.round}"
    return Rejection(Verdict.NOT_COUNTED, f"like {original}: {found.value:.3f}")


def _measure(inputs: RoundInputs, running: Mapping[int, PastUpdate]) -> Measurements:
    """All forward passes of a round. Base and control are measured once per sequence.

    Own samples are drawn from those assigned ids that every honest trainer has trained on, however few steps the recipe
    allows it; on private data there are none.
    """
    scoring, base = inputs.recipe.scoring, inputs.newest.parameters
    meter = Meter(inputs.task, inputs.recipe.seed)
    factors = {seat: clip_factor(one.update.norm, inputs.clip_norm) for seat, one in running.items()}
    clipped = ((one.update.dense(), factors[seat]) for seat, one in running.items())
    control = (
        applied(base, mean_update(clipped, len(running)), scoring.strength) if len(running) > 1 else base
    )

    fresh = meter.batches(inputs.held_out)
    before, controlled = meter.losses(base, fresh), meter.losses(control, fresh)
    after: dict[int, Losses] = {}
    own: dict[int, OwnLosses] = {}
    for seat, one in running.items():
        changed = applied(base, one.update.dense(), scoring.strength * factors[seat])
        after[seat] = meter.losses(changed, fresh)
        if inputs.recipe.data == "private":
            continue
        judged = inputs.assigned[seat][: inputs.recipe.judged_per_seat]
        samples = tuple(shuffled(judged, inputs.seed, scoring.own))
        batches = meter.batches(samples)
        own[seat] = OwnLosses(samples, *(meter.losses(state, batches) for state in (base, control, changed)))
    return Measurements(before, controlled, after, own)


def _weigh_harm(
    inputs: RoundInputs, running: Mapping[int, PastUpdate], measurements: Measurements
) -> tuple[HarmBook, dict[int, HarmFinding]]:
    """Verdict 4: feed this round's gains to each trainer's two processes. Round 0 is no evidence."""
    trainers = {seat: one.trainer for seat, one in running.items()}
    gains = {trainers[seat]: measurements.gains(seat) for seat in running}
    terms = inputs.recipe.scoring.harm
    limit = threshold(terms, inputs.rounds, inputs.trainer_limit)
    book, found = inputs.memory.harm.after(inputs.round, gains, terms, limit)
    return book, {seat: found[trainer] for seat, trainer in trainers.items() if trainer in found}


def _votes(
    inputs: RoundInputs, refusals: Mapping[int, Rejection], scores: Mapping[int, Score]
) -> tuple[SeatVote, ...]:
    """One vote per trainer seat; a seat without a submission is absent."""
    trial = inputs.round < inputs.recipe.scoring.trial_rounds
    weights = dict(zip(scores, seat_weights(list(scores.values()), trial=trial), strict=True))
    votes = [ABSENT] * inputs.trainer_limit
    for one in inputs.submissions:
        refusal = refusals.get(one.seat)
        votes[one.seat] = (
            SeatVote(0, refusal.verdict) if refusal else SeatVote(weights[one.seat], Verdict.ACCEPTED)
        )
    return tuple(votes)
