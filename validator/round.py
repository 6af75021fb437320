"""Inputs and result of a judgement. Mappings are by trainer seat unless stated otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace

from earnest.client.run.record import LogPosition
from earnest.protocol.manifest import Manifest
from earnest.protocol.recipe import Recipe
from earnest.protocol.report import SeatVote
from earnest.protocol.weights import POOLED_ROUNDS, PastMargin, Score
from earnest.training.codecs import Update
from earnest.training.diloco.state import State
from earnest.training.tasks.task import Task
from earnest.validator.gain import Losses, summarise
from earnest.validator.harm import HarmBook, HarmFinding
from earnest.validator.margin import margin
from earnest.validator.payload import Rejection
from earnest.validator.similarity import Likeness, PastUpdate


@dataclass(frozen=True)
class Submission:
    """A revealed update: its manifest, the place of its commitment on the chain, and the decoded payload."""

    seat: int
    manifest: Manifest
    position: LogPosition
    update: Update | Rejection
    """The verified, decoded update, or the verdict on a payload that is missing or malformed."""


def past_update(submission: Submission, update: Update) -> PastUpdate:
    """Returns the submission's update in the form in which later rounds compare it."""
    manifest = submission.manifest
    return PastUpdate(
        manifest.round, submission.seat, manifest.trainer, submission.position, manifest.update, update
    )


@dataclass(frozen=True)
class History:
    """State of the judgement that is carried from round to round."""

    earlier: tuple[PastUpdate, ...] = ()
    """Updates of the last 8 rounds. They are public, so they are fetched again and not saved."""

    alike: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Rounds of those 8 in which a trainer's update was too similar to another's, by trainer."""

    margins: Mapping[str, tuple[PastMargin, ...]] = field(default_factory=dict)
    """Margins of the last rounds that still count, by trainer."""

    harm: HarmBook = field(default_factory=HarmBook)

    def past_margins(self, trainer: str, round_: int) -> tuple[PastMargin, ...]:
        """Returns the trainer's margins that count in `round_` beside its own."""
        return tuple(past for past in self.margins.get(trainer, ()) if past.round > round_ - POOLED_ROUNDS)

    def to_bytes(self) -> bytes:
        """Returns everything but the earlier updates, for the journal."""
        alike = {trainer: list(rounds) for trainer, rounds in self.alike.items()}
        margins = {trainer: [astuple(past) for past in pasts] for trainer, pasts in self.margins.items()}
        saved = {"alike": alike, "margins": margins, "harm": self.harm.as_json()}
        return json.dumps(saved, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, saved: bytes) -> History:
        """Reads the output of `to_bytes`. Add the earlier updates by `with_earlier`."""
        document = json.loads(saved)
        alike = {trainer: tuple(rounds) for trainer, rounds in document["alike"].items()}
        margins = {
            trainer: tuple(PastMargin(*past) for past in pasts)
            for trainer, pasts in document["margins"].items()
        }
        return cls((), alike, margins, HarmBook.from_json(document["harm"]))

    def with_earlier(self, earlier: tuple[PastUpdate, ...]) -> History:
        """Returns the same history with these earlier updates."""
        return replace(self, earlier=earlier)


@dataclass(frozen=True)
class RoundInputs:
    """Everything that a judgement depends on."""

    recipe: Recipe
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
    """All sample ids that each revealed seat was assigned, trained on or not."""

    held_out: Sequence[int]
    """B: sample ids that no seat was assigned."""

    history: History = field(default_factory=History)

    unattested: Mapping[int, Rejection] = field(default_factory=dict)
    """Revealed seats without a valid attestation, at verification level attested; see `attested`."""

    @property
    def base_round(self) -> int:
        """The round after which the state is the one that this round trained from."""
        return self.round - (1 if self.recipe.overlap == "none" else 2)


@dataclass(frozen=True)
class OwnLosses:
    """Losses on one trainer's own samples, nats per byte, float64 [sequences]; `samples` are the ids."""

    samples: tuple[int, ...]
    before: Losses
    control: Losses
    after: Losses


@dataclass(frozen=True)
class Measurements:
    """Losses on fresh sequences (before, with the control, with each seat's update) and on own sequences."""

    before: Losses
    control: Losses
    after: Mapping[int, Losses]
    own: Mapping[int, OwnLosses]

    def gains(self, seat: int) -> tuple[Losses, Losses]:
        """Returns gains (loss before minus after) on fresh and on own sequences; private data: the fresh ones twice."""
        fresh, own = self.before - self.after[seat], self.own.get(seat)
        return fresh, fresh if own is None else own.before - own.after

    def score(self, seat: int, past: tuple[PastMargin, ...] = ()) -> Score:
        """Returns gain and margin of a seat, from which its weight follows; no margin on private data.

        `past` are the trainer's margins of earlier rounds that still count.
        """
        (fresh, own), measured = self.gains(seat), self.own.get(seat)
        gain = summarise(fresh)
        if measured is None:
            return Score(gain.mean, gain.se, None)
        controlled = margin(own, measured.before - measured.control, fresh, self.before - self.control)
        return Score(gain.mean, gain.se, controlled, past)


@dataclass(frozen=True)
class Judgement:
    """Votes on every trainer seat of the run, and everything they follow from."""

    votes: tuple[SeatVote, ...]
    rejections: Mapping[int, Rejection]
    updates: Mapping[int, PastUpdate]
    """All updates that decoded, also those rejected later."""

    likeness: Mapping[int, Likeness]
    measurements: Measurements
    scores: Mapping[int, Score]
    harm: Mapping[int, HarmFinding]
    history: History
    measurements_file: bytes = b""
    """Content of the measurements file (`earnest.validator.report`)."""
