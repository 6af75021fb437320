"""Differential privacy of updates trained on private data: clipping, noise, and the epsilon that they give.

**Protected**: all of one trainer's private data in one round. If any of it, one record or everything, is replaced, the
published update is nearly as likely. Over a run the rounds compose. **Against**: everybody. Updates are published one
by one, so the guarantee holds for each trainer's public updates without trusting an aggregator, a validator or other
trainers. Whatever is computed from an update (codec, error feedback, adaptive rank, outer step, model) is covered.

**Not protected**: the fact that a trainer submitted an update, its declared steps and tokens, the root of its shard in
the manifest (so that root must be salted, see `PrivateData.root`), and what a log prints.

**Cost**: the update is clipped to norm C and every coordinate gets noise of standard deviation noise * C. For d
parameters the noise has norm noise * C * sqrt(d), against an update of norm C; averaged over n trainers, that divided
by sqrt(n). With millions of parameters a small epsilon drowns the update; `noise_to_signal` returns the ratio.

The mechanism is Gaussian. Replacing the data moves a clipped update by at most 2 C, so a round is a Gaussian mechanism
with noise multiplier noise / 2, and R rounds are together one with noise / (2 sqrt(R)) (Dong, Roth, Su, 1905.02383),
whose epsilon dp-accounting computes exactly (Balle and Wang, 1805.06530).
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from earnest.base.errors import EarnestError
from earnest.protocol.recipe import Privacy
from earnest.training.diloco.state import Parameters, Spec

SECRET_KEY = "privacy/noise-secret"  # the journal's key for it  # noqa: S105
SECRET_BYTES = 32
DOMAIN = b"earnest/update-noise/v1"
CHUNK = 1 << 16
"""Normal numbers per piece of the stream; fixed, so that the same secret gives the same noise."""

GRID_BITS = 11
"""Published numbers are multiples of sigma / 2^11 or less: their low bits, where floating-point noise gives itself away
(Mironov, CCS 2012), are rounded off. 8.6 sigma, the farthest that the noise goes, is then exact in float32."""

SHRINK = 1 - 2**-30
"""Factor that keeps a clipped norm below C, however float64 rounds."""

UpdateFilter = Callable[[Parameters, int], Parameters]
"""(pseudo-gradient, round) -> the update to encode."""


class PrivacyError(EarnestError):
    """The requested privacy is not possible, or cannot be computed here."""


class KeyValues(Protocol):
    """Small values that survive a crash: the node's journal."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...


def epsilon(privacy: Privacy, rounds: int) -> float:
    """Returns the epsilon, at `privacy.delta`, of one trainer's updates in `rounds` rounds; infinite without noise.

    Raises PrivacyError if dp-accounting is not installed.
    """
    if privacy.clip == 0 or privacy.noise == 0:
        return math.inf
    return float(_accounting().get_epsilon_gaussian(privacy.noise / (2 * math.sqrt(rounds)), privacy.delta))


def noise_for(epsilon: float, delta: float, rounds: int) -> float:
    """Returns the smallest `noise` (in units of the clip) that gives epsilon at delta over `rounds` rounds.

    Raises PrivacyError for an epsilon or delta out of range, or if dp-accounting is not installed.
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1 and rounds >= 1):
        raise PrivacyError(
            f"no noise gives epsilon {epsilon:g} at delta {delta:g} over {rounds} rounds",
            "choose epsilon and rounds above 0, and delta between 0 and 1",
        )
    try:
        return float(_accounting().get_sigma_gaussian(epsilon, delta)) * 2 * math.sqrt(rounds)
    except (ValueError, ArithmeticError) as error:
        raise PrivacyError(
            f"dp-accounting finds no noise for epsilon {epsilon:g}", "choose one between 0.001 and 1000"
        ) from error


def noise_to_signal(privacy: Privacy, parameters: int, trainers: int = 1) -> float:
    """Returns norm of noise / norm of a clipped update, in the mean of `trainers` equal updates."""
    return privacy.noise * math.sqrt(parameters / trainers)


def noise_secret(journal: KeyValues, random: Callable[[int], bytes]) -> bytes:
    """Returns the trainer's 32 secret bytes; makes them once and stores them before use."""
    secret = journal.get(SECRET_KEY)
    if secret is None:
        secret = random(SECRET_BYTES)
        journal.put(SECRET_KEY, secret)
    return secret


def privacy_filter(privacy: Privacy, secret: bytes, context: bytes) -> UpdateFilter:
    """Returns a function that clips an update and adds noise before it is encoded. `context`: chain, contract and run.

    The noise is a function of secret, context, round and the clipped update: a round trained again after a crash gives
    the same bytes, and different updates, even of one round, never share their noise. Raises ValueError for a secret
    that is too short; the returned function raises it for a number that is not finite.
    """
    if len(secret) < SECRET_BYTES:
        raise ValueError(
            f"the secret for the noise has {len(secret)} bytes, at least {SECRET_BYTES} are needed"
        )

    def finish(update: Parameters, round: int) -> Parameters:
        if privacy.clip == 0:
            return update
        spec = Spec.of(update)
        flat = clipped(spec.join(update).double().numpy(), privacy.clip)
        if privacy.noise:
            sigma = privacy.noise * privacy.clip
            seed = noise_seed(secret, context, round, flat)
            flat = _on_grid(flat + sigma * normals(seed, len(flat)), sigma)
        return spec.split(torch.from_numpy(flat.astype(np.float32)))

    return finish


def clipped(update: np.ndarray, clip: float) -> np.ndarray:
    """Returns float64 [size] of norm at most `clip`. Raises ValueError for a number that is not finite."""
    if not np.isfinite(update).all():
        raise ValueError("update contains a number that is not finite")
    norm = float(np.linalg.norm(update))
    return update * (SHRINK * min(1.0, clip / norm)) if norm else update


def noise_seed(secret: bytes, context: bytes, round: int, update: np.ndarray) -> bytes:
    """Returns the HMAC-SHA256 over context, round and clipped update."""
    content = hashlib.sha256(np.ascontiguousarray(update, "<f8").tobytes()).digest()
    message = DOMAIN + hashlib.sha256(context).digest() + round.to_bytes(8, "big") + content
    return hmac.digest(secret, message, "sha256")


def normals(seed: bytes, count: int) -> np.ndarray:
    """Returns float64 [count] standard normal numbers from SHAKE-256 of the seed, by Box and Muller."""
    numbers = np.empty(count)
    for start in range(0, count, CHUNK):
        stream = hashlib.shake_256(seed + start.to_bytes(8, "big")).digest(8 * CHUNK)
        words = np.frombuffer(stream, "<u8").astype(np.uint64) >> np.uint64(11)
        first, second = words.reshape(2, -1).astype(np.float64)
        radius = np.sqrt(-2 * np.log((first + 1) * 2.0**-53))  # (0, 1]: never the logarithm of 0
        angle = 2 * math.pi * 2.0**-53 * second
        pairs = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        numbers[start : start + CHUNK] = pairs[: count - start]
    return numbers


def _on_grid(values: np.ndarray, sigma: float) -> np.ndarray:
    step = 2.0 ** (math.floor(math.log2(sigma)) - GRID_BITS)
    return np.round(values / step) * step


def _accounting():  # type: ignore[no-untyped-def]
    try:
        import dp_accounting
    except ImportError as error:
        raise PrivacyError("dp-accounting is not installed", "pip install 'earnest[privacy]'") from error
    return dp_accounting
