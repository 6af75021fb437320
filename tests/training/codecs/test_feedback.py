"""Error feedback: what was not sent is sent later, once, and only if the round counted."""

import pytest
import torch
from torch import Tensor

from earnest.protocol.recipe import CodecChoice
from earnest.training.codecs import Codec, CodecState, make_codec, undo_feedback
from earnest.training.diloco.state import Spec
from tests.training.codecs.updates import random_update

SPEC = Spec((("a", (12, 14)), ("b", (20,))))
SHARE = 0.5
CHOICES = [
    CodecChoice("dense-bf16", error_feedback=SHARE),
    CodecChoice("int8", chunk=64, error_feedback=SHARE),
    CodecChoice("topk-2bit", k=4, chunk=64, error_feedback=SHARE),
    CodecChoice("topk-2bit", k=8, k_min=2, chunk=64, energy=0.5, error_feedback=SHARE),
    CodecChoice("lowrank-int4", rank=2, error_feedback=SHARE),
    CodecChoice("lowrank-int4", rank=3, rank_min=1, energy=0.5, error_feedback=SHARE),
]
ALL = pytest.mark.parametrize("choice", CHOICES, ids=lambda c: c.name + ("-adaptive" if c.adaptive else ""))


def flat(state: CodecState) -> Tensor:
    return SPEC.join({name: state[f"residual/{name}"] for name, _ in SPEC.shapes})


@ALL
def test_a_residual_is_the_update_with_feedback_minus_the_decoded_payload(choice: CodecChoice) -> None:
    codec, update = make_codec(choice, SPEC), random_update(SPEC, 3)
    first = codec.encode(update)
    assert torch.equal(flat(first.state), SPEC.join(update) - first.update.flat())
    second = codec.encode(update, first.state)
    owed = flat(first.state) * SHARE + SPEC.join(update)
    assert torch.equal(flat(second.state), owed - second.update.flat())


@ALL
def test_encoding_changes_neither_update_nor_state(choice: CodecChoice) -> None:
    codec, update = make_codec(choice, SPEC), random_update(SPEC, 3)
    state = codec.encode(random_update(SPEC, 4)).state
    before = {name: value.clone() for name, value in (update | state).items()}
    codec.encode(update, state)
    assert all(torch.equal(before[name], value) for name, value in (update | state).items())


@pytest.mark.parametrize("name", ["dense-bf16", "int8", "topk-2bit", "lowrank-int4"])
def test_without_error_feedback_nothing_is_owed(name: str) -> None:
    codec = make_codec(CodecChoice(name, rank=2), SPEC)
    stale = {f"residual/{name}": value for name, value in random_update(SPEC, 4).items()}
    encoded = codec.encode(random_update(SPEC, 3), stale)
    assert not any(name.startswith("residual/") for name in encoded.state)
    assert encoded.payload == codec.encode(random_update(SPEC, 3)).payload


@pytest.mark.parametrize("name", ["topk-2bit", "lowrank-int4"])
def test_with_a_full_share_everything_arrives_in_the_end(name: str) -> None:
    """The sum of what was sent is the sum of the updates but for one residual, which stays bounded."""
    codec = make_codec(CodecChoice(name, k=8, chunk=64, rank=2, error_feedback=1.0), SPEC)
    update, state, sent = random_update(SPEC, 1), CodecState(), torch.zeros(SPEC.size)
    lost = []
    for round in range(1, 61):
        encoded = codec.encode(update, state)
        state, sent = encoded.state, sent + encoded.update.flat()
        lost.append(float((SPEC.join(update) - sent / round).norm() / SPEC.join(update).norm()))
    assert lost[-1] < 0.2 * lost[0]


def history(codec: Codec, seeds: list[int]) -> list[CodecState]:
    """Memories before the first and after each round."""
    states = [CodecState()]
    for seed in seeds:
        states.append(codec.encode(random_update(SPEC, seed), states[-1]).state)
    return states


@ALL
def test_a_round_that_did_not_count_leaves_nothing_behind(choice: CodecChoice) -> None:
    """The state never moved: the next round trains it all again, and its leftovers would be sent twice."""
    codec = make_codec(choice, SPEC)
    start, kept, void = history(codec, [1, 2])
    state = undo_feedback(void, kept, void, SHARE)
    assert torch.equal(flat(state), flat(kept))
    assert not torch.equal(flat(state), flat(void))
    steering = [name for name in void if not name.startswith("residual/")]
    assert all(state[name] is void[name] for name in steering)
    first = undo_feedback(kept, start, kept, SHARE)
    assert not any(name.startswith("residual/") for name in first)


@ALL
@pytest.mark.parametrize("since", [1, 2])
def test_a_round_that_later_does_not_count_is_removed_from_the_feedback_of_the_next(
    choice: CodecChoice, since: int
) -> None:
    """With overlap a verdict comes after the next encoding. What was sent stays sent; what is owed is righted."""
    codec = make_codec(choice, SPEC)
    states = history(codec, [1, 2, 3, 4])
    before, after, now = states[1], states[2], states[2 + since]
    righted = flat(undo_feedback(now, before, after, SHARE, since))
    owed = flat(before)
    for round in range(since):
        gradient = SPEC.join(random_update(SPEC, 3 + round))
        sent = SHARE * flat(states[2 + round]) + gradient - flat(states[3 + round])
        owed = SHARE * owed + gradient - sent
    assert torch.allclose(righted, owed, atol=1e-5)
    assert not torch.allclose(righted, flat(now), atol=1e-3)
