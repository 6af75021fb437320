"""The options of `earnest demo`, and the world that they describe."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from earnest.demo.attacks.enclaves import CHEATS, Cheat, demo_policy
from earnest.demo.attacks.trainers import make_attack
from earnest.demo.world import Setup, number_of
from earnest.training.tasks.shakespeare import demo_recipe
from earnest.validator.judge import judge_round
from earnest.validator.node import Judge

PATIENCE_S = 300


@dataclass(frozen=True)
class DemoOptions:
    """Options of a demo. The last trainer attacks, or as many trainers as the attack has seats.

    With `lying_validator` the last validator lies.
    """

    output: Path
    seed: int = 0
    attack: str = "sign-flip"
    lying_validator: bool = False
    codec: str = "dense-bf16"
    rounds: int = 6
    trainers: int = 4
    validators: int = 3
    attested: bool = False
    """Only updates signed by an enclave count; the last three trainers cheat with theirs (`attacks.enclaves`)."""

    judge: Judge = judge_round

    def cheat(self, name: str) -> Cheat | None:
        """Returns the cheat of this trainer in an attested demo; None for an honest one."""
        place = number_of(name) - (self.trainers - len(CHEATS))
        return CHEATS[place] if self.attested and place >= 0 else None

    def setup(self) -> Setup:
        """Returns the setup of this demo's world."""
        trainers = [f"trainer-{number}" for number in range(self.trainers)]
        seats = make_attack(self.attack).seats
        attacks = ["none"] * (self.trainers - seats) + [self.attack] * seats
        if self.attested:
            attacks = [cheat.attack if (cheat := self.cheat(name)) else "none" for name in trainers]
        return Setup(
            recipe=demo_recipe(self.codec, self.trainers, self.seed),
            seed=hashlib.sha256(b"earnest demo" + self.seed.to_bytes(8, "big")).digest(),
            attacks=tuple(attacks),
            validators=self.validators,
            liars=int(self.lying_validator),
            rounds=self.rounds,
            policy=demo_policy() if self.attested else None,
            patience=PATIENCE_S,
            judge=self.judge,
        )
