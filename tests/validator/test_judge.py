"""A round judged whole: honest work gets weight, every attack its verdict, and failures of the machine no verdict."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from earnest.client.run.record import LogPosition
from earnest.demo.attacks.trainers import make_attack
from earnest.protocol.consensus import Ballot, settle
from earnest.protocol.report import Report, SeatVote
from earnest.protocol.verdicts import Verdict
from earnest.training.tasks.shakespeare import Shakespeare
from earnest.validator.gain import Meter
from earnest.validator.judge import History, Judgement, RoundInputs, Submission, judge_round
from earnest.validator.payload import OWN_FAILURE, UNAVAILABLE
from earnest.validator.round import Measurements
from tests.validator.arena import Arena
from tests.validator.conftest import OPTIONS

CHEAT = 3
HONEST = (0, 1, 2)


def attack(arena: Arena, name: str, rounds: int = 1) -> Judgement:
    """The last of `rounds` rounds in which the fourth trainer attacks."""
    arena.attacks[CHEAT] = make_attack(name)
    return [arena.play() for _ in range(rounds)][-1]


def swapped(inputs: RoundInputs, seat: int, submission: Submission) -> RoundInputs:
    submissions = tuple(submission if one.seat == seat else one for one in inputs.submissions)
    return replace(inputs, submissions=submissions)


def assert_honest_are_accepted(judgement: Judgement) -> None:
    assert all(judgement.votes[seat].verdict == Verdict.ACCEPTED for seat in HONEST)
    assert all(judgement.votes[seat].weight >= 1 for seat in HONEST)
    assert max(judgement.votes[seat].weight for seat in HONEST) > 10_000


# Honest work and the attacks


def test_honest_trainers_are_accepted_with_weight(arena: Arena):
    judgement = arena.play()
    assert [vote.verdict for vote in judgement.votes] == [Verdict.ACCEPTED] * 4
    assert sum(vote.weight for vote in judgement.votes) > 60_000
    assert all(score.gain > 0 for score in judgement.scores.values())
    assert not judgement.rejections


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("zero", Verdict.MALFORMED),
        ("malformed", Verdict.MALFORMED),
        ("copy", Verdict.COPIED),
        ("absent", Verdict.ABSENT),
        ("scaled", Verdict.NOT_COUNTED),
    ],
)
def test_an_attack_that_shows_in_the_payload_meets_its_verdict_at_once(
    arena: Arena, name: str, verdict: Verdict
):
    judgement = attack(arena, name)
    assert judgement.votes[CHEAT] == SeatVote(0, verdict)
    assert_honest_are_accepted(judgement)


@pytest.mark.parametrize("name", ["sign-flip", "noise", "stale"])
def test_an_attack_that_shows_in_the_loss_earns_nothing_from_its_first_round(arena: Arena, name: str):
    judgement = attack(arena, name)
    assert judgement.votes[CHEAT].weight <= 1
    assert_honest_are_accepted(judgement)


def test_a_turned_update_is_harmful_in_its_third_round(arena: Arena):
    assert attack(arena, "sign-flip", 2).votes[CHEAT] == SeatVote(0, Verdict.ACCEPTED)
    judgement = arena.play()
    assert judgement.votes[CHEAT] == SeatVote(0, Verdict.HARMFUL)
    assert "threshold" in judgement.rejections[CHEAT].reason
    assert_honest_are_accepted(judgement)


def test_the_sparse_codec_is_judged_by_the_same_rules(sparse: Arena):
    inputs = sparse.train()
    honest = judge_round(inputs)
    assert [vote.verdict for vote in honest.votes] == [Verdict.ACCEPTED] * 4
    copied = sparse.published[0][0]
    judgement = judge_round(swapped(inputs, CHEAT, sparse.with_payload(inputs.submissions[CHEAT], copied)))
    assert judgement.votes[CHEAT] == SeatVote(0, Verdict.COPIED)
    assert judgement.likeness[CHEAT].value == 1


def test_a_sparse_copy_with_other_numbers_is_not_counted(sparse: Arena):
    inputs = sparse.train()
    original = sparse.codec.decode(sparse.published[0][0]).flat()
    disguised = sparse.codec.encode(sparse.codec.spec.split(original * 1.3)).payload
    judgement = judge_round(swapped(inputs, CHEAT, sparse.with_payload(inputs.submissions[CHEAT], disguised)))
    assert judgement.votes[CHEAT] == SeatVote(0, Verdict.NOT_COUNTED)


# One question after the other


@pytest.mark.parametrize("block", [1, 10_000], ids=["committed first", "committed last"])
def test_framing_an_honest_trainer_costs_it_nothing_and_earns_nothing(arena: Arena, block: int):
    """The framer computes the victim's update, as anybody can, and commits it before or after the victim does."""
    inputs = arena.train()
    twin = arena.with_payload(inputs.submissions[CHEAT], arena.published[1][arena.round])
    judgement = judge_round(swapped(inputs, CHEAT, replace(twin, position=LogPosition(block, 0))))
    assert_honest_are_accepted(judgement)
    assert judgement.votes[1].weight > 10_000
    assert judgement.votes[CHEAT] == SeatVote(0, Verdict.NOT_COUNTED)
    assert "larger margin" in judgement.rejections[CHEAT].reason


def test_dust_on_half_of_the_seats_takes_nothing_from_the_others(arena: Arena):
    inputs = arena.train()
    honest = judge_round(inputs).votes
    for seat in (2, 3):
        dust = arena.codec.decode(arena.published[seat][arena.round]).flat() * 1e-4
        payload = arena.codec.encode(arena.codec.spec.split(dust)).payload
        inputs = swapped(inputs, seat, arena.with_payload(inputs.submissions[seat], payload))
    judgement = judge_round(inputs)
    assert max(judgement.votes[seat].weight for seat in (2, 3)) <= 65
    assert max(judgement.votes[seat].weight for seat in (0, 1)) > 10_000
    clip_norm = arena.state.clip_norm
    arena.advance(inputs, judgement)
    assert arena.state.clip_norm >= clip_norm / 2
    assert [vote.verdict for vote in honest] == [vote.verdict for vote in judgement.votes]


def test_a_replay_of_its_own_published_update_is_copied(arena: Arena):
    inputs = arena.train()
    replay = arena.with_payload(inputs.submissions[1], arena.published[1][0])
    assert judge_round(swapped(inputs, 1, replay)).votes[1].verdict == Verdict.COPIED


def test_a_wrong_base_costs_pay_and_is_not_tested_for_harm(arena: Arena):
    arena.attacks[CHEAT] = make_attack("sign-flip")
    inputs = arena.train()
    lagging = inputs.submissions[CHEAT]
    lagging = replace(lagging, manifest=replace(lagging.manifest, base_state=b"\7" * 32))
    judgement = judge_round(swapped(inputs, CHEAT, lagging))
    assert judgement.votes[CHEAT] == SeatVote(0, Verdict.NOT_COUNTED)
    trainer = lagging.manifest.trainer
    assert judgement.history.harm.tests.get(trainer) == inputs.history.harm.tests.get(trainer)


def test_a_copy_from_a_wrong_base_is_still_a_copy(arena: Arena):
    inputs = arena.train()
    copy = arena.with_payload(inputs.submissions[CHEAT], arena.published[0][arena.round - 1])
    copy = replace(copy, manifest=replace(copy.manifest, base_state=b"\7" * 32))
    assert judge_round(swapped(inputs, CHEAT, copy)).votes[CHEAT].verdict == Verdict.COPIED


def test_a_broken_payload_from_a_wrong_base_is_still_broken(arena: Arena):
    inputs = arena.train()
    broken = arena.with_payload(inputs.submissions[CHEAT], b"nonsense")
    broken = replace(broken, manifest=replace(broken.manifest, base_state=b"\7" * 32))
    assert judge_round(swapped(inputs, CHEAT, broken)).votes[CHEAT].verdict == Verdict.MALFORMED


def test_a_norm_at_the_limit_counts_and_one_above_does_not(arena: Arena):
    inputs = arena.train()
    norm = arena.codec.decode(arena.published[0][arena.round]).norm
    at_limit = replace(inputs, clip_norm=norm / inputs.recipe.scoring.norm_limit)
    assert judge_round(at_limit).votes[0].verdict == Verdict.ACCEPTED
    below = replace(inputs, clip_norm=norm / inputs.recipe.scoring.norm_limit * (1 - 1e-9))
    assert judge_round(below).votes[0].verdict == Verdict.NOT_COUNTED


def test_a_dense_likeness_counts_only_when_it_comes_twice(arena: Arena):
    for expected in (Verdict.ACCEPTED, Verdict.NOT_COUNTED):
        inputs = arena.train()
        original = arena.codec.decode(arena.published[0][arena.round]).flat()
        rng = np.random.default_rng(arena.round)
        noise = rng.standard_normal(len(original)).astype(np.float32)
        noise *= 0.1 * float(original.norm()) / np.linalg.norm(noise)
        payload = arena.codec.encode(arena.codec.spec.split(original + torch.from_numpy(noise))).payload
        inputs = swapped(inputs, CHEAT, arena.with_payload(inputs.submissions[CHEAT], payload))
        judgement = judge_round(inputs)
        assert judgement.likeness[CHEAT].value >= inputs.recipe.scoring.cosine_similarity
        assert judgement.votes[CHEAT].verdict == expected
        arena.advance(inputs, judgement)


def test_a_rejected_update_is_neither_measured_nor_in_the_control(arena: Arena):
    inputs = arena.train()
    without = replace(inputs, submissions=inputs.submissions[:CHEAT])
    zero = arena.with_payload(inputs.submissions[CHEAT], b"nonsense")
    with_refused = judge_round(swapped(inputs, CHEAT, zero))
    assert CHEAT not in with_refused.measurements.own
    assert np.array_equal(with_refused.measurements.control, judge_round(without).measurements.control)


def test_a_lone_update_is_judged_without_a_control(arena: Arena):
    inputs = arena.train()
    judgement = judge_round(replace(inputs, submissions=inputs.submissions[:1]))
    assert np.array_equal(judgement.measurements.control, judgement.measurements.before)
    assert judgement.votes[0].weight > 10_000


def test_updates_and_control_are_measured_clipped_and_at_half_strength(arena: Arena):
    inputs = arena.train()
    inputs = replace(inputs, clip_norm=inputs.clip_norm / 2)
    measured = judge_round(inputs).measurements
    updates = [arena.codec.decode(published[arena.round]) for published in arena.published]
    clipped = [update.flat() * (inputs.clip_norm / update.norm) for update in updates]
    base, meter = arena.codec.spec.join(inputs.newest.parameters), Meter(inputs.task, inputs.recipe.seed)
    fresh = meter.batches(inputs.held_out)

    def losses_under(change: torch.Tensor) -> np.ndarray:
        return meter.losses(arena.codec.spec.split(base - 0.5 * change), fresh)

    np.testing.assert_allclose(measured.after[1], losses_under(clipped[1]), atol=1e-5)
    np.testing.assert_allclose(
        measured.control, losses_under(sum(clipped, start=torch.zeros(1)) / 4), atol=1e-5
    )
    assert np.abs(measured.after[1] - measured.before).mean() > 1e-3


# Failure of one's own


def test_a_failure_of_its_own_makes_the_validator_abstain_on_that_seat_only(arena: Arena):
    inputs = arena.train()
    failed = replace(inputs.submissions[1], update=OWN_FAILURE)
    judgement = judge_round(swapped(inputs, 1, failed))
    assert judgement.votes[1] == SeatVote(0, Verdict.ABSTAIN)
    assert all(judgement.votes[seat].verdict == Verdict.ACCEPTED for seat in (0, 2, 3))


def test_a_payload_that_no_mirror_had_is_unavailable(arena: Arena):
    inputs = arena.train()
    missing = replace(inputs.submissions[1], update=UNAVAILABLE)
    assert judge_round(swapped(inputs, 1, missing)).votes[1] == SeatVote(0, Verdict.UNAVAILABLE)


class OutOfMemory(Shakespeare):
    def loss(self, model, batch):
        raise MemoryError


def test_a_failing_machine_is_an_error_and_never_a_verdict(arena: Arena):
    inputs = arena.train()
    with pytest.raises(MemoryError):
        judge_round(replace(inputs, task=OutOfMemory(**OPTIONS)))


def test_a_round_without_updates_is_a_round_of_absents(arena: Arena):
    judgement = judge_round(replace(arena.train(), submissions=()))
    assert judgement.votes == (SeatVote(0, Verdict.ABSENT),) * 4


# Purity, and what others feel


def test_the_same_inputs_give_the_same_judgement_to_the_last_byte(arena: Arena):
    inputs = arena.train()
    one, other = judge_round(inputs), judge_round(inputs)
    assert one.votes == other.votes
    assert one.measurements_file == other.measurements_file
    assert one.history.to_bytes() == other.history.to_bytes()


def test_own_samples_are_drawn_from_everything_assigned(arena: Arena):
    inputs = arena.train()
    own = judge_round(inputs).measurements.own
    for seat, assigned in inputs.assigned.items():
        assert len(set(own[seat].samples)) == inputs.recipe.scoring.own
        assert set(own[seat].samples) <= set(assigned)
    other_seed = judge_round(replace(inputs, seed=b"\7" * 32)).measurements.own
    assert own[0].samples != other_seed[0].samples


def test_history_is_the_same_after_a_restart(arena: Arena):
    attack(arena, "sign-flip", 2)
    inputs = arena.train()
    saved = inputs.history.to_bytes()
    restored = History.from_bytes(saved).with_earlier(inputs.history.earlier)
    assert restored == inputs.history
    assert (
        judge_round(replace(inputs, history=restored)).measurements_file
        == judge_round(inputs).measurements_file
    )


def pay(votes: tuple[SeatVote, ...]) -> tuple[int, ...]:
    report = Report(bytes(32), bytes(32), bytes(32), votes)
    ballot = Ballot((1,), 1, (report,), frozenset(range(len(votes))), len(votes))
    return settle(ballot, 10**18, 10**18, full_seats=len(votes)).trainer_pay


def test_a_verdict_on_a_cheat_leaves_every_other_pay_as_it_was(arena: Arena):
    """Below F full seats a pay depends on its own weight alone: nobody gains from another's verdict."""
    votes = arena.play().votes
    for verdict in (Verdict.COPIED, Verdict.HARMFUL, Verdict.MALFORMED, Verdict.NOT_COUNTED):
        punished = (*votes[:CHEAT], SeatVote(0, verdict))
        assert pay(punished)[:CHEAT] == pay(votes)[:CHEAT]
        assert pay(punished)[CHEAT] == 0


def test_no_weight_exceeds_the_share_of_the_gain_in_the_upper_quartile(arena: Arena):
    judgement = attack(arena, "copy")
    full = sorted(judgement.scores[seat].gain for seat in HONEST)[1]
    for seat in HONEST:
        assert judgement.votes[seat].weight <= 65_535 * min(1.0, judgement.scores[seat].gain / full)


def test_gains_are_losses_before_minus_losses_after(arena: Arena):
    measurements: Measurements = arena.play().measurements
    fresh, own = measurements.gains(2)
    assert np.array_equal(fresh, measurements.before - measurements.after[2])
    assert np.array_equal(own, measurements.own[2].before - measurements.own[2].after)


def test_a_seat_that_was_assigned_nothing_is_not_counted(arena: Arena):
    inputs = arena.train()
    judgement = judge_round(replace(inputs, assigned={**inputs.assigned, CHEAT: ()}))
    assert judgement.votes[CHEAT].verdict == Verdict.NOT_COUNTED
    assert_honest_are_accepted(judgement)


def test_in_a_trial_round_every_clean_update_counts_alike_and_is_next_to_unpaid(arena: Arena):
    inputs = arena.train()
    votes = {}
    for trial_rounds in (inputs.round, inputs.round + 1):
        scoring = replace(inputs.recipe.scoring, trial_rounds=trial_rounds)
        votes[trial_rounds] = judge_round(
            replace(inputs, recipe=replace(inputs.recipe, scoring=scoring))
        ).votes
    assert max(vote.weight for vote in votes[inputs.round]) > 10_000
    assert all(64 <= vote.weight <= 128 for vote in votes[inputs.round + 1])
