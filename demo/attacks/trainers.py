"""Trainers that cheat: each attack makes the payload that a dishonest trainer publishes.

An attacker attacks in every round and is otherwise honest: it commits to its payload and reveals it in time. Every
attack knows the honest update of its own round. The command line takes its choices
from `ATTACKS`. To add one: CONTRIBUTING.md, "An attack".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from earnest.base.errors import StorageError

if (
    TYPE_CHECKING
):  # `earnest --help` imports this module for the names in ATTACKS, and need not wait for torch
    import numpy as np
    from torch import Tensor

    from earnest.client.run.follower import Follower
    from earnest.client.trainer.job import HonestWork
    from earnest.training.codecs import Codec


@dataclass(frozen=True)
class Forgery:
    """Everything that an attack may use in one round."""

    round: int
    codec: Codec
    honest: bytes
    """The payload an honest trainer in its place would publish."""

    clip_norm: float
    rng: np.random.Generator
    own: Mapping[int, bytes] = field(default_factory=dict)
    """The attacker's own honest payloads by round, whether published or not."""

    others: Mapping[int, bytes] = field(default_factory=dict)
    """A payload of another trainer by round."""

    def reencode(self, change: Callable[[Tensor], Tensor]) -> bytes:
        """Applies `change` to the honest update, float32 [size], and encodes the result."""
        return self.encode(change(self.codec.decode(self.honest).flat()))

    def encode(self, flat: Tensor) -> bytes:
        """Encodes float32 [size] as a payload."""
        return self.codec.encode(self.codec.spec.split(flat)).payload


class Attack(Protocol):
    """A way to cheat."""

    def forge(self, context: Forgery) -> bytes | None:
        """Returns the payload to publish, or None to publish nothing this round."""
        ...


class Honest:
    """No attack: the honest payload."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.honest


class SignFlip:
    """The honest update with the opposite sign, which undoes training."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.reencode(lambda flat: -flat)


class Noise:
    """Gaussian noise whose encoded norm is the clip norm: the largest that counts in full, without any training."""

    def forge(self, context: Forgery) -> bytes | None:
        import torch

        noise = torch.from_numpy(context.rng.standard_normal(context.codec.spec.size)).float()
        norm = context.codec.decode(context.encode(noise)).norm
        return context.encode(noise * (context.clip_norm / norm))


class Zero:
    """An update of zeros."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.reencode(lambda flat: flat.new_zeros(flat.shape))


class Copy:
    """Another trainer's update of the previous round; nothing in round 0."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.others.get(context.round - 1)


class Stale:
    """Its own honest update of two rounds ago, which it has not published; nothing in rounds 0 and 1."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.own.get(context.round - 2)


class Scaled:
    """Ten times the honest update, to outweigh all others."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.reencode(lambda flat: 10 * flat)


class Malformed:
    """The first half of the honest payload."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.honest[: len(context.honest) // 2]


class Absent:
    """Publishes nothing."""

    def forge(self, context: Forgery) -> bytes | None:
        return None


ATTACKS: Mapping[str, type[Attack]] = {
    "none": Honest,
    "sign-flip": SignFlip,
    "noise": Noise,
    "zero": Zero,
    "copy": Copy,
    "stale": Stale,
    "scaled": Scaled,
    "malformed": Malformed,
    "absent": Absent,
}
"""Every attack by its name in `earnest demo --attack`."""


class Attacker:
    """Forges the payloads of a trainer node by one attack, from its honest work and published payloads."""

    def __init__(self, attack: str, follower: Follower, rng: np.random.Generator) -> None:
        self._attack = ATTACKS[attack]()
        self._follower = follower
        self._rng = rng
        self._own: dict[int, bytes] = {}

    def __call__(self, work: HonestWork) -> bytes | None:
        self._own[work.round] = work.payload
        newest = self._follower.newest(work.round)
        context = Forgery(
            round=work.round,
            codec=self._follower.codec,
            honest=work.payload,
            clip_norm=newest.state.clip_norm if newest else self._follower.recipe.scoring.clip_norm,
            rng=self._rng,
            own=self._own,
            others=self._others(work),
        )
        return self._attack.forge(context)

    def _others(self, work: HonestWork) -> dict[int, bytes]:
        """The first available payload that another trainer published in the previous round."""
        if work.round == 0:
            return {}
        for seat in sorted(self._follower.record.round(work.round - 1).manifests):
            if seat != work.seat:
                try:
                    return {work.round - 1: self._follower.payload(work.round - 1, seat)}
                except StorageError:
                    continue
        return {}
