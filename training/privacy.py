"""What an update may tell about the private data it was trained on: clipping, noise, and the epsilon they give.

**What is protected.** One trainer's whole part in one round: anything at all in its private data, one record or all of
it, may be exchanged for anything else, and the published update is nearly as likely either way. Over a run the rounds
compose. **From whom.** From everybody: updates are published one by one, so the guarantee is for each trainer's updates
as they lie open, without trusting an aggregator, a validator or the other trainers. Everything made from an update
afterwards (codec, error feedback, adaptive rank, outer step, the model itself) costs nothing more.

**What is not protected.** That a trainer took part, how many steps and tokens it declares, and the root of its shard in
the manifest: keep that root salted (`root` of a PrivateData is its owner's). Nor does it hide what a log prints.

**What it costs.** The update is clipped to norm C and every coordinate gets noise of standard deviation noise * C.
For d parameters the noise has norm noise * C * sqrt(d), against an update of norm C; averaged over n trainers, that
over sqrt(n). For models of millions of parameters a small epsilon buries the update: `noise_to_signal` says how deep.

The mechanism is Gaussian. Exchanging the data moves a clipped update by at most 2 C, so a round is a Gaussian mechanism
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
"""Normal numbers made from one stretch of the stream; fixed, so that the same secret gives the same noise."""

GRID_BITS = 11
"""Published numbers are multiples of sigma / 2^11 or less: their low bits, where floating-point noise gives itself away
(Mironov, CCS 2012), are rounded off. 8.6 sigma, the farthest that the noise goes, is then exact in float32."""

SHRINK = 1 - 2**-30
"""Keeps a clipped norm below C whatever way float64 rounds."""

Finish = Callable[[Parameters, int], Parameters]
"""(pseudo-gradient, round) -> what is encoded."""


class PrivacyError(EarnestError):
    """The privacy asked for cannot be given."""


class Values(Protocol):
    """Small values that survive a crash: the node's journal."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...


def epsilon(privacy: Privacy, rounds: int) -> float:
    """The epsilon, at `privacy.delta`, of one trainer's updates in `rounds` rounds; infinite without noise.

    Raises PrivacyError where dp-accounting is not installed.
    """
    if privacy.clip == 0 or privacy.noise == 0:
        return math.inf
    return float(_accounting().get_epsilon_gaussian(privacy.noise / (2 * math.sqrt(rounds)), privacy.delta))


def noise_for(epsilon: float, delta: float, rounds: int) -> float:
    """The least `noise` (in units of the clip) that gives epsilon at delta over `rounds` rounds.

    Raises PrivacyError for an epsilon or delta out of range, or where dp-accounting is not installed.
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1 and rounds >= 1):
        raise PrivacyError(
            "no noise gives that", "epsilon and rounds are above 0, delta lies between 0 and 1"
        )
    try:
        return float(_accounting().get_sigma_gaussian(epsilon, delta)) * 2 * math.sqrt(rounds)
    except (ValueError, ArithmeticError) as error:
        raise PrivacyError(
            f"no noise is known for epsilon {epsilon:g}", "ask for one between 0.001 and 1000"
        ) from error


def noise_to_signal(privacy: Privacy, parameters: int, trainers: int = 1) -> float:
    """Norm of the noise over the norm of a clipped update, in the mean of `trainers` updates that agree."""
    return privacy.noise * math.sqrt(parameters / trainers)


def noise_secret(journal: Values, random: Callable[[int], bytes]) -> bytes:
    """The trainer's own 32 secret bytes, made once, on disk before they are used."""
    kept = journal.get(SECRET_KEY)
    if kept is None:
        kept = random(SECRET_BYTES)
        journal.put(SECRET_KEY, kept)
    return kept


def finish_with(privacy: Privacy, secret: bytes, context: bytes) -> Finish:
    """The engine's hook: clips an update and adds its noise. `context` names chain, contract and run.

    The noise is a function of the secret, the context, the round and the clipped update itself: a round that is
    trained again after a crash gives the same bytes, and no two different updates share their noise, even of one round.
    Raises ValueError for a secret that is too short, and where an update holds a number that is not finite.
    """
    if len(secret) < SECRET_BYTES:
        raise ValueError(f"the noise's secret has {len(secret)} bytes, at least {SECRET_BYTES} are needed")

    def finish(update: Parameters, round: int) -> Parameters:
        if privacy.clip == 0:
            return update
        layout = Spec.of(update)
        flat = clipped(layout.join(update).double().numpy(), privacy.clip)
        if privacy.noise:
            sigma = privacy.noise * privacy.clip
            seed = noise_seed(secret, context, round, flat)
            flat = _on_grid(flat + sigma * normals(seed, len(flat)), sigma)
        return layout.split(torch.from_numpy(flat.astype(np.float32)))

    return finish


def clipped(update: np.ndarray, clip: float) -> np.ndarray:
    """Float64 [size] of norm at most `clip`. Raises ValueError where a number is not finite."""
    if not np.isfinite(update).all():
        raise ValueError("update holds a number that is not finite")
    norm = float(np.linalg.norm(update))
    return update * (SHRINK * min(1.0, clip / norm)) if norm else update


def noise_seed(secret: bytes, context: bytes, round: int, update: np.ndarray) -> bytes:
    """HMAC-SHA256 over what the noise belongs to."""
    content = hashlib.sha256(np.ascontiguousarray(update, "<f8").tobytes()).digest()
    told = DOMAIN + hashlib.sha256(context).digest() + round.to_bytes(8, "big") + content
    return hmac.digest(secret, told, "sha256")


def normals(seed: bytes, count: int) -> np.ndarray:
    """Float64 [count] standard normal numbers from SHAKE-256 of the seed, by Box and Muller."""
    found = np.empty(count)
    for start in range(0, count, CHUNK):
        stream = hashlib.shake_256(seed + start.to_bytes(8, "big")).digest(8 * CHUNK)
        words = np.frombuffer(stream, "<u8").astype(np.uint64) >> np.uint64(11)
        first, second = words.reshape(2, -1).astype(np.float64)
        radius = np.sqrt(-2 * np.log((first + 1) * 2.0**-53))  # (0, 1]: never the logarithm of 0
        angle = 2 * math.pi * 2.0**-53 * second
        pairs = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        found[start : start + CHUNK] = pairs[: count - start]
    return found


def _on_grid(values: np.ndarray, sigma: float) -> np.ndarray:
    step = 2.0 ** (math.floor(math.log2(sigma)) - GRID_BITS)
    return np.round(values / step) * step


def _accounting():  # type: ignore[no-untyped-def]
    try:
        import dp_accounting
    except ImportError as error:
        raise PrivacyError("dp-accounting is not installed", "pip install 'earnest[privacy]'") from error
    return dp_accounting
