"""Trainers that cheat: each attack makes the payload that a dishonest trainer publishes.

An attacker attacks in every round and is otherwise honest: it commits to its payload and reveals it in time. Every
attack knows the honest update of its own round; those that train in another way do so in a `Workshop`. An attack with
`seats` above 1 plays on that many seats at once. `earnest demo --attack` takes a name in `ATTACKS` or the path of a
class, `package.module:Class`. To add one: CONTRIBUTING.md, "An attack".
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from earnest.base.errors import EarnestError, StorageError
from earnest.client.run.follower import Follower
from earnest.client.trainer.job import HonestWork
from earnest.demo.attacks.workshop import Deviation, Workshop
from earnest.training.codecs import Codec
from earnest.training.diloco.engine import TrainerState
from earnest.training.tasks.task import Task


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

    workshop: Workshop | None = None
    """Inputs of an attack that trains; None if no such attack is played."""

    def reencode(self, change: Callable[[Tensor], Tensor]) -> bytes:
        """Applies `change` to the honest update, float32 [size], and encodes the result."""
        return self.encode(change(self.codec.decode(self.honest).flat()))

    def encode(self, flat: Tensor) -> bytes:
        """Encodes float32 [size] as a payload."""
        return self.codec.encode(self.codec.spec.split(flat)).payload


class Attack(ABC):
    """A way to cheat. One object plays one seat in every round of a run."""

    seats: int = 1
    """Number of seats that the attack plays at once, the last ones of the run."""

    def start(self, state: TrainerState) -> None:
        """Continues from an honest trainer's optimizer and codec state, for attacks that begin later than the run."""
        self._state = state

    @abstractmethod
    def forge(self, context: Forgery) -> bytes | None:
        """Returns the payload to publish, or None to publish nothing this round."""


class Honest(Attack):
    """No attack: the honest payload."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.honest


class SignFlip(Attack):
    """The honest update with the opposite sign, which undoes training."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.reencode(lambda flat: -flat)


class Noise(Attack):
    """Gaussian noise whose encoded norm is the clip norm: the largest that counts in full, without any training."""

    def forge(self, context: Forgery) -> bytes | None:
        noise = torch.from_numpy(context.rng.standard_normal(context.codec.spec.size)).float()
        norm = context.codec.decode(context.encode(noise)).norm
        return context.encode(noise * (context.clip_norm / norm))


class Zero(Attack):
    """An update of zeros."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.reencode(lambda flat: flat.new_zeros(flat.shape))


class Copy(Attack):
    """Another trainer's update of the previous round; nothing in round 0."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.others.get(context.round - 1)


class Stale(Attack):
    """Its own honest update of two rounds ago, which it has not published; nothing in rounds 0 and 1."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.own.get(context.round - 2)


class Scaled(Attack):
    """Ten times the honest update, to outweigh all others."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.reencode(lambda flat: 10 * flat)


class Malformed(Attack):
    """The first half of the honest payload."""

    def forge(self, context: Forgery) -> bytes | None:
        return context.honest[: len(context.honest) // 2]


class Absent(Attack):
    """Publishes nothing."""

    def forge(self, context: Forgery) -> bytes | None:
        return None


class Dust(Attack):
    """The honest update scaled to a ten-thousandth, on two seats, to lower the references and the clip norm."""

    seats = 2

    def forge(self, context: Forgery) -> bytes | None:
        return context.reencode(lambda flat: 1e-4 * flat)


class Framing(Attack):
    """The victim's own update of this round, computed as its machine would: all inputs of it are public."""

    def __init__(self) -> None:
        self._victim = TrainerState()

    def forge(self, context: Forgery) -> bytes | None:
        return context.encode(self._update(context))

    def _update(self, context: Forgery) -> Tensor:
        shop = _workshop(context)
        return shop.train(shop.assigned[shop.victim], self._victim)


class FramingSparse(Framing):
    """The first 4,096 numbers of the victim's update only: all of its indices are among the victim's."""

    def forge(self, context: Forgery) -> bytes | None:
        update = self._update(context)
        update[FRAMED:] = 0
        return context.encode(update)


class Deviant(Attack):
    """Trains on its own samples, but with other steps, batch, rate or scale than the recipe's."""

    def __init__(self, deviation: Deviation, seats: int = 1) -> None:
        self.deviation, self.seats = deviation, seats
        self._state = TrainerState()

    def forge(self, context: Forgery) -> bytes | None:
        shop = _workshop(context)
        update = self.deviation.update(shop, shop.assigned[shop.seat], self._state)
        encoded = context.codec.encode(context.codec.spec.split(update), self._state.codec)
        self._state.codec = encoded.state
        return encoded.payload


class Disguise(Attack):
    """One update on two seats: the second seat's model has some hidden units in another order.

    The function of both models is the same; their numbers are not. Only for the bundled GPT.
    """

    seats = 2

    def __init__(self) -> None:
        self._state = TrainerState()

    def forge(self, context: Forgery) -> bytes | None:
        shop = _workshop(context)
        first = min(shop.partners)
        update = shop.train(shop.assigned[first], self._state)
        return context.encode(update if shop.seat == first else shop.reordered(update, context.rng, SWAPS))


class Backdoor(Attack):
    """The honest update, and one row of the byte embedding: after a byte that no text has, always the same byte.

    The row's byte is in no sample, so no measured loss changes. Only for the bundled GPT.
    """

    def forge(self, context: Forgery) -> bytes | None:
        shop = _workshop(context)
        return context.reencode(partial(shop.with_backdoor, trigger=TRIGGER, answer=ANSWER))


FRAMED = 4096
SWAPS = 4
TRIGGER, ANSWER = 7, ord("!")


def _workshop(context: Forgery) -> Workshop:
    if context.workshop is None:
        raise AttackError("this attack trains, and there is nothing to train with", "play it in a whole run")
    return context.workshop


class AttackError(EarnestError):
    """An attack that does not exist, or cannot be played."""


TUNED_HALF = Deviation(batch=0.5, shape="linear", scale=1.5)

ATTACKS: Mapping[str, Callable[[], Attack]] = {
    "none": Honest,
    "sign-flip": SignFlip,
    "noise": Noise,
    "zero": Zero,
    "copy": Copy,
    "stale": Stale,
    "scaled": Scaled,
    "malformed": Malformed,
    "absent": Absent,
    "dust": Dust,
    "framing": Framing,
    "framing-sparse": FramingSparse,
    "half-steps": partial(Deviant, Deviation(steps=0.5)),
    "tuned-half": partial(Deviant, TUNED_HALF),
    "straggler": partial(Deviant, Deviation(steps=0.5, rate=2.0)),
    "split-2": partial(Deviant, TUNED_HALF, 2),
    "split-4": partial(Deviant, Deviation(batch=0.25, shape="linear", scale=1.5), 4),
    "disguise": Disguise,
    "backdoor": Backdoor,
}
"""Every attack by its name in `earnest demo --attack`."""


def make_attack(name: str) -> Attack:
    """Returns a new attack: one of `ATTACKS`, or the class at `package.module:Class`. Raises AttackError."""
    if name in ATTACKS:
        return ATTACKS[name]()
    fix = f"name one of {', '.join(ATTACKS)}, or a class as package.module:Class"
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name):
        raise AttackError(f"there is no attack {name[:80]!r}", fix)
    module, _, attack = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), attack)()
    except (ImportError, AttributeError, TypeError) as error:
        raise AttackError(f"attack {name} cannot be loaded: {error}", fix) from error
    if not isinstance(made, Attack):
        raise AttackError(f"{name} is no attack", "name a class that subclasses demo.attacks.trainers.Attack")
    return made


class Attacker:
    """Forges the payloads of a trainer node by one attack, from its honest work and published payloads."""

    def __init__(
        self,
        attack: str,
        follower: Follower,
        task: Task,
        rng: np.random.Generator,
        partners: tuple[int, ...],
    ) -> None:
        self._attack = make_attack(attack)
        self._follower, self._task, self._rng = follower, task, rng
        self._partners = partners
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
            workshop=self._workshop(work),
        )
        return self._attack.forge(context)

    def _workshop(self, work: HonestWork) -> Workshop | None:
        base, samples = self._follower.base(work.round), self._follower.samples(work.round)
        if base is None or samples is None:
            return None
        return Workshop(
            task=self._task,
            recipe=self._follower.recipe,
            state=base.state,
            round=work.round,
            rounds=self._follower.record.params.rounds,
            assigned=samples.assigned,
            seat=work.seat,
            partners=self._partners,
        )

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
