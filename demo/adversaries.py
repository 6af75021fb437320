"""Trainers that cheat, for the demo and the tests: each makes the payload that an attack would publish.

An attacker attacks from round 0 on and otherwise behaves: it commits to what it made and reveals it in time.
Every attack knows the honest pseudo-gradient of its own round, which is more than most would care to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from earnest.training.codecs import Codec


@dataclass(frozen=True)
class Forgery:
    """What an attacker has to work with in one round."""

    round: int
    codec: Codec
    honest: bytes
    """The payload an honest trainer in its place would publish."""

    clip_norm: float
    rng: np.random.Generator
    own: Mapping[int, bytes] = field(default_factory=dict)
    """By round, the honest payloads of its own that it kept, published or not."""

    others: Mapping[int, bytes] = field(default_factory=dict)
    """By round, a payload that another trainer published; which one is the caller's choice."""

    def reencode(self, change: Callable[[Tensor], Tensor]) -> bytes:
        """The honest update's numbers, float32 [size], changed and encoded again."""
        return self.encode(change(self.codec.decode(self.honest).flat()))

    def encode(self, flat: Tensor) -> bytes:
        """A payload of float32 [size]."""
        return self.codec.encode(self.codec.spec.split(flat)).payload


class Attack(Protocol):
    """One way to cheat."""

    def forge(self, context: Forgery) -> bytes | None:
        """The payload to publish, or None to publish nothing this round."""
        ...


class Honest:
    """No attack: the payload as it is."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.honest


class SignFlip:
    """Undoes training: the honest update, turned around."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.reencode(torch.neg)


class Noise:
    """Gaussian noise that, once encoded, has the clip norm: large as allowed, and cheap."""

    def forge(self, context: Forgery) -> bytes | None:
        noise = torch.from_numpy(context.rng.standard_normal(context.codec.spec.size).astype(np.float32))
        norm = context.codec.decode(context.encode(noise)).norm
        return context.encode(noise * (context.clip_norm / norm))


class Zero:
    """An update of nothing but zeros: paid for being there, if anyone falls for it."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.reencode(torch.zeros_like)


class Copy:
    """Another trainer's update of the round before; nothing in round 0."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.others.get(context.round - 1)


class Stale:
    """Its own honest update of two rounds before, which then it did not publish; else nothing."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.own.get(context.round - 2)


class Scaled:
    """Ten times the honest update, to outweigh everybody else's."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.reencode(lambda flat: 10 * flat)


class Malformed:
    """A payload that is cut off in the middle."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.honest[: len(context.honest) // 2]


class Absent:
    """Never publishes anything."""

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
"""The attacks by the names that `earnest demo --attack` takes."""
