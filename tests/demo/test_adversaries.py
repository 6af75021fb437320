"""Every attack makes exactly the payload that its name promises."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from earnest.demo.attacks.trainers import Forgery, make_attack
from earnest.protocol.recipe import CodecChoice
from earnest.training.codecs import Codec, PayloadError, make_codec
from earnest.training.diloco.state import Spec

SPEC = Spec((("bias", (64,)), ("weight", (64, 128))))


@pytest.fixture(params=["dense-bf16", "topk-2bit"])
def codec(request: pytest.FixtureRequest) -> Codec:
    return make_codec(CodecChoice(request.param), SPEC)


@pytest.fixture
def context(codec: Codec) -> Forgery:
    flat = torch.randn(SPEC.size, generator=torch.Generator().manual_seed(1))
    honest = codec.encode(SPEC.split(flat)).payload
    return Forgery(3, codec, honest, 2.5, np.random.default_rng(0), {1: b"own 1"}, {2: b"other's 2"})


def forged(name: str, context: Forgery) -> bytes:
    payload = make_attack(name).forge(context)
    assert payload is not None
    return payload


def test_no_attack_publishes_the_honest_payload(context: Forgery):
    assert forged("none", context) == context.honest


def test_sign_flip_turns_every_number_around(context: Forgery, codec: Codec):
    honest, flipped = (
        codec.decode(payload).flat() for payload in (context.honest, forged("sign-flip", context))
    )
    assert torch.equal(flipped, -honest)


def test_scaled_is_ten_times_as_long(context: Forgery, codec: Codec):
    ratio = codec.decode(forged("scaled", context)).norm / codec.decode(context.honest).norm
    assert ratio == pytest.approx(10, rel=0.01)


def test_noise_has_the_clip_norm_and_follows_its_generator(context: Forgery, codec: Codec):
    again = replace(context, rng=np.random.default_rng(0))
    payload = forged("noise", context)
    assert codec.decode(payload).norm == pytest.approx(2.5, rel=0.01)
    assert forged("noise", again) == payload


def test_zero_is_a_sound_payload_of_nothing(context: Forgery, codec: Codec):
    assert codec.decode(forged("zero", context)).norm == 0


def test_copy_takes_anothers_update_of_the_round_before_and_nothing_in_round_zero(context: Forgery):
    assert forged("copy", context) == b"other's 2"
    assert make_attack("copy").forge(replace(context, round=0)) is None


def test_stale_takes_its_own_update_of_two_rounds_before_else_nothing(context: Forgery):
    assert forged("stale", context) == b"own 1"
    assert make_attack("stale").forge(replace(context, round=1)) is None


def test_malformed_is_refused_by_the_codec(context: Forgery, codec: Codec):
    with pytest.raises(PayloadError):
        codec.decode(forged("malformed", context))


def test_absent_publishes_nothing(context: Forgery):
    assert make_attack("absent").forge(context) is None
