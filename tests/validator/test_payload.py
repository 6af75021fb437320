"""Checks of a payload: every broken one gets its verdict and a reason, and none causes a crash."""

import pickle

import pytest
import torch

from earnest.protocol.recipe import CodecChoice
from earnest.protocol.verdicts import Verdict
from earnest.training.codecs import Codec, Update, make_codec
from earnest.training.diloco.state import Spec
from earnest.validator.payload import Rejection
from tests.validator.arena import decoded

SPEC = Spec((("bias", (8,)), ("weight", (4, 8))))


@pytest.fixture
def codec() -> Codec:
    return make_codec(CodecChoice("dense-bf16"), SPEC)


@pytest.fixture
def payload(codec: Codec) -> bytes:
    return codec.encode(SPEC.split(torch.linspace(-1, 1, SPEC.size))).payload


def refusal_of(payload: bytes, codec: Codec) -> Rejection:
    checked = decoded(codec, payload)
    assert isinstance(checked, Rejection)
    return checked


def test_a_sound_payload_is_decoded(codec: Codec, payload: bytes):
    checked = decoded(codec, payload)
    assert isinstance(checked, Update)
    assert checked.norm > 0


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda good: good[: len(good) // 2], "truncated"),
        (lambda good: good + b"\0", "oversized"),
        (lambda good: good[:-2] + b"\xc0\x7f", "NaN"),
        (lambda good: good[:-2] + b"\x80\x7f", "infinity"),
        (lambda good: good.replace(b"[8]", b"[9]"), "wrong shape"),
        (lambda good: pickle.dumps({"weight": [1.0]}), "pickle"),
        (lambda good: b"", "truncated"),
    ],
    ids=["truncated", "oversized", "nan", "infinite", "wrong-shape", "pickle", "empty"],
)
def test_a_damaged_payload_is_malformed_and_the_reason_says_how(damage, reason, codec: Codec, payload: bytes):
    refusal = refusal_of(damage(payload), codec)
    assert refusal.verdict == Verdict.MALFORMED
    assert reason in refusal.reason


@pytest.mark.parametrize("name", ["dense-bf16", "topk-2bit"])
def test_an_update_of_norm_zero_is_malformed(name: str):
    codec = make_codec(CodecChoice(name), SPEC)
    refusal = refusal_of(codec.encode(SPEC.split(torch.zeros(SPEC.size))).payload, codec)
    assert (refusal.verdict, refusal.reason) == (Verdict.MALFORMED, "norm is zero")
