"""What a judgement is made from, and what it is made of. Mappings without another word go by trainer seat."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from earnest.client.run.record import LogPosition
from earnest.protocol.manifest import Manifest
from earnest.protocol.recipe import Recipe
from earnest.protocol.report import SeatVote
from earnest.protocol.verdicts import Verdict
from earnest.protocol.weights import Score
from earnest.training.codecs import Codec
from earnest.training.diloco.state import State
from earnest.training.tasks.task import Task
from earnest.validator.gain import Losses, summarise
from earnest.validator.harm import HarmBook, HarmFinding
from earnest.validator.margin import margin
from earnest.validator.payload import Rejection
from earnest.validator.similarity import Likeness, PastUpdate


class Missing(Enum):
    """Why there is no payload to judge."""

    UNAVAILABLE = "no mirror had the payload by the end of the reveal window"
    OWN_FAILURE = "the validator's own infrastructure failed"

    @property
    def verdict(self) -> Verdict:
        """A failure of the validator's own is never a verdict on a trainer."""
        return Verdict.UNAVAILABLE if self is Missing.UNAVAILABLE else Verdict.ABSTAIN


@dataclass(frozen=True)
class Submission:
    """One revealed update: its manifest, where its commitment stands, and the payload, if it was there."""

    seat: int
    manifest: Manifest
    position: LogPosition
    payload: bytes | Missing


@dataclass(frozen=True)
class History:
    """What one round leaves to the next."""

    earlier: tuple[PastUpdate, ...] = ()
    """Updates of the last 8 rounds; they lie open, so they are read again rather than saved."""

    alike: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By trainer, the rounds of those 8 in which its update was too much like another's."""

    harm: HarmBook = field(default_factory=HarmBook)

    def to_bytes(self) -> bytes:
        """All but the earlier updates, for the journal."""
        alike = {trainer: list(rounds) for trainer, rounds in self.alike.items()}
        return json.dumps({"alike": alike, "harm": self.harm.as_json()}, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, saved: bytes) -> History:
        """What `to_bytes` saved. Without the earlier updates: give them back by `with_earlier`."""
        document = json.loads(saved)
        alike = {trainer: tuple(rounds) for trainer, rounds in document["alike"].items()}
        return cls((), alike, HarmBook.from_json(document["harm"]))

    def with_earlier(self, earlier: tuple[PastUpdate, ...]) -> History:
        """The same memory with these earlier updates."""
        return replace(self, earlier=earlier)


@dataclass(frozen=True)
class RoundInputs:
    """All that a judgement depends on."""

    recipe: Recipe
    codec: Codec
    """The recipe's codec for the task's model."""

    task: Task
    round: int
    rounds: int
    trainer_limit: int
    base_root: bytes
    """Root of the state that this round trained from."""

    newest: State
    """The state that this round's aggregate will be added to."""

    newest_root: bytes
    clip_norm: float
    seed: bytes
    """The round's stored seed."""

    submissions: tuple[Submission, ...]
    """Revealed seats, ascending."""

    assigned: Mapping[int, Sequence[int]]
    """Sample ids of each revealed seat: everything it was assigned, trained on or not."""

    held_out: Sequence[int]
    """B: sample ids that nobody was assigned."""

    memory: History = field(default_factory=History)

    unattested: Mapping[int, Rejection] = field(default_factory=dict)
    """Revealed seats of a run that asks for attestation which have none that stands, and why; see `enclaves`."""


@dataclass(frozen=True)
class OwnLosses:
    """Losses on one trainer's own samples, nats per byte, float64 [sequences]; `samples` are the ids."""

    samples: tuple[int, ...]
    before: Losses
    control: Losses
    after: Losses


@dataclass(frozen=True)
class Measurements:
    """Losses on the fresh sequences before, under the control and, by seat, under its update; and on own."""

    before: Losses
    control: Losses
    after: Mapping[int, Losses]
    own: Mapping[int, OwnLosses]

    def gains(self, seat: int) -> tuple[Losses, Losses]:
        """Gains on fresh and on own sequences: loss before minus loss after. On private data both are the fresh."""
        fresh, own = self.before - self.after[seat], self.own.get(seat)
        return fresh, fresh if own is None else own.before - own.after

    def score(self, seat: int) -> Score:
        """Gain and margin of a seat, the numbers that its weight is made of; no margin on private data."""
        (fresh, own), measured = self.gains(seat), self.own.get(seat)
        gain = summarise(fresh)
        if measured is None:
            return Score(gain.mean, gain.se, None)
        controlled = margin(own, measured.before - measured.control, fresh, self.before - self.control)
        return Score(gain.mean, gain.se, controlled)


@dataclass(frozen=True)
class Judgement:
    """A vote for every trainer seat of the run, and everything that led to it."""

    votes: tuple[SeatVote, ...]
    refusals: Mapping[int, Rejection]
    updates: Mapping[int, PastUpdate]
    """Every update that could be decoded, those refused later included."""

    likeness: Mapping[int, Likeness]
    measurements: Measurements
    scores: Mapping[int, Score]
    harm: Mapping[int, HarmFinding]
    memory: History
    measurements_file: bytes = b""
    """The measurements file, written last (`earnest.validator.report`)."""
