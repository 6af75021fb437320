"""Noise that gives the stated epsilon, comes from a secret, is never used twice, and is the same after a restart."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from earnest.protocol.recipe import Privacy
from earnest.training.privacy import (
    PrivacyError,
    clipped,
    epsilon,
    noise_for,
    noise_secret,
    noise_to_signal,
    normals,
    privacy_filter,
)

dp_accounting = pytest.importorskip("dp_accounting")

SECRET, RUN = b"s" * 32, b"chain 1, contract 2, run 3"
PRIVACY = Privacy(clip=2.0, noise=0.5, delta=1e-5)
UPDATE = {"a": torch.linspace(-1, 1, 600).view(20, 30), "b": torch.linspace(0, 3, 400)}


def flat(update: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([update[name].double().numpy().reshape(-1) for name in sorted(update)])


def delta_of(sigma: float, eps: float) -> float:
    """Balle and Wang, equation 6, written out: the oracle."""

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    return phi(1 / (2 * sigma) - eps * sigma) - math.exp(eps) * phi(-1 / (2 * sigma) - eps * sigma)


# The accountant


@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 1), (20.0, 100), (5.0, 7), (1.0, 3)])
def test_epsilon_is_that_of_one_gaussian_mechanism_over_the_run(noise: float, rounds: int) -> None:
    eps = epsilon(Privacy(1.0, noise, 1e-5), rounds)
    assert delta_of(noise / 2 / math.sqrt(rounds), eps) == pytest.approx(1e-5, rel=1e-6)


def test_known_values() -> None:
    assert epsilon(Privacy(1.0, 2.0, 1e-5), 1) == pytest.approx(4.37718, abs=1e-5)
    assert epsilon(Privacy(3.0, 2.0, 1e-5), 1) == epsilon(Privacy(1.0, 2.0, 1e-5), 1)


def test_other_accountants_agree_from_above() -> None:
    from dp_accounting import pld, rdp

    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(10.0 / 2), 40)
    ours = epsilon(Privacy(1.0, 10.0, 1e-6), 40)
    for accountant, slack in ((pld.PLDAccountant(), 1e-6), (rdp.RdpAccountant(), 0.15)):
        theirs = accountant.compose(event).get_epsilon(1e-6)
        assert ours - 1e-6 <= theirs <= ours * (1 + slack)


def test_clipping_alone_promises_nothing() -> None:
    assert epsilon(Privacy(1.0, 0.0), 1) == epsilon(Privacy(), 1) == math.inf


def test_noise_for_an_epsilon_gives_it() -> None:
    noise = noise_for(3.0, 1e-6, 50)
    assert epsilon(Privacy(1.0, noise, 1e-6), 50) == pytest.approx(3.0, rel=1e-6)
    with pytest.raises(PrivacyError):
        noise_for(0.0, 1e-6, 50)


def test_the_noise_to_signal_ratio_falls_with_more_trainers() -> None:
    assert noise_to_signal(Privacy(1.0, 0.5), 10_000) == 50
    assert noise_to_signal(Privacy(1.0, 0.5), 10_000, trainers=25) == 10


# The mechanism


def test_an_update_is_clipped_and_gets_noise_of_the_stated_width() -> None:
    private = flat(privacy_filter(PRIVACY, SECRET, RUN)(UPDATE, 4))
    noise = private - clipped(flat(UPDATE), 2.0)
    assert np.linalg.norm(clipped(flat(UPDATE), 2.0)) == pytest.approx(2.0, rel=1e-6)
    assert np.linalg.norm(clipped(flat(UPDATE), 2.0)) <= 2.0
    assert noise.std() == pytest.approx(1.0, abs=0.1)
    assert abs(noise.mean()) < 0.15


def test_a_small_update_is_not_made_larger() -> None:
    assert np.allclose(clipped(np.array([0.3, 0.4]), 2.0), [0.3, 0.4])
    assert not clipped(np.zeros(3), 2.0).any()


def test_clip_without_noise_and_no_clip() -> None:
    only_clipped = privacy_filter(Privacy(clip=2.0), SECRET, RUN)(UPDATE, 0)
    assert np.linalg.norm(flat(only_clipped)) == pytest.approx(2.0, rel=1e-6)
    assert privacy_filter(Privacy(), SECRET, RUN)(UPDATE, 0) is UPDATE


def test_the_same_round_gives_the_same_bytes_in_another_process() -> None:
    here = flat(privacy_filter(PRIVACY, SECRET, RUN)(UPDATE, 4)).tobytes().hex()
    code = (
        "from tests.training.test_privacy import *;"
        "print(flat(privacy_filter(PRIVACY, SECRET, RUN)(UPDATE, 4)).tobytes().hex())"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here


def test_no_noise_is_used_twice() -> None:
    def noise(secret: bytes, run: bytes, round: int, scale: float) -> bytes:
        update = {name: value * scale for name, value in UPDATE.items()}
        private = flat(privacy_filter(PRIVACY, secret, run)(update, round))
        return np.round(private - clipped(flat(update), 2.0), 3).tobytes()

    cases = [(SECRET, RUN, 4), (b"t" * 32, RUN, 4), (SECRET, b"another run", 4), (SECRET, RUN, 5)]
    found = {noise(*case, scale=1.0) for case in cases} | {noise(SECRET, RUN, 4, scale=0.99)}
    assert len(found) == 5


def test_normal_numbers_are_normal() -> None:
    found = normals(b"seed", 200_001)
    assert len(found) == 200_001
    assert (found.mean(), found.std()) == pytest.approx((0, 1), abs=0.01)
    for edge, share in ((1.0, 0.8413), (2.0, 0.97725), (-1.0, 0.1587)):
        assert (found < edge).mean() == pytest.approx(share, abs=0.004)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.01
    assert len(np.unique(found)) == len(found)


def test_low_bits_of_a_published_update_are_rounded_off() -> None:
    private = flat(privacy_filter(PRIVACY, SECRET, RUN)(UPDATE, 4))
    assert not ((private * 2**11) % 1).any()


def test_the_secret_is_made_once_and_kept() -> None:
    kept: dict[str, bytes] = {}

    class Journal:
        get, put = staticmethod(kept.get), staticmethod(kept.__setitem__)

    assert (
        noise_secret(Journal(), lambda n: b"x" * n)
        == noise_secret(Journal(), lambda n: b"y" * n)
        == b"x" * 32
    )


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_never_published(number: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        privacy_filter(PRIVACY, SECRET, RUN)({"a": torch.tensor([1.0, number])}, 0)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 32"):
        privacy_filter(PRIVACY, b"short", RUN)
