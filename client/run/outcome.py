"""The outcome of an update in a decided round: its verdict, weight and pay, and the reason a validator gave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from earnest.base.errors import StorageError
from earnest.base.strict_json import JsonError, read_json
from earnest.client.run.record import RunRecord
from earnest.client.storage.fetch import fetch
from earnest.protocol.constants import WEIGHT_ONE
from earnest.protocol.verdicts import Verdict

if TYPE_CHECKING:  # which needs torch
    from earnest.client.run.follower import Follower

MAX_FILE_BYTES = 1 << 24
"""Limit of a measurements file in bytes, which holds every loss that a validator measured in a round."""

FILES_ASKED = 2
FETCH_S = 3.0
"""Limits of looking for a reason: measurements files, and seconds for each, so that the next round does not wait."""

MAX_REASON_CHARS = 300

VOID = "void: no reports holding more than half of the validators' stake agree on the state"
UNDECIDED = "undecided"
TEXTS = {
    Verdict.ACCEPTED: "accepted",
    Verdict.ABSENT: "absent",
    Verdict.UNAVAILABLE: "payload unavailable",
    Verdict.MALFORMED: "malformed payload",
    Verdict.HARMFUL: "harmful",
    Verdict.COPIED: "copy of an earlier update",
    Verdict.UNFAITHFUL: "not what its trace says",
    Verdict.NOT_COUNTED: "not counted",
    Verdict.ABSTAIN: "validators could not judge",
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of one seat's update in a decided round."""

    void: bool
    verdict: Verdict | None
    """None if no verdict has more than half of the active stake."""

    weight: float
    """Weight in the next state and of its pay, 0 to 1."""

    pay: int
    """In wei."""

    @property
    def text(self) -> str:
        """The verdict as text."""
        return VOID if self.void else UNDECIDED if self.verdict is None else TEXTS[self.verdict]

    @property
    def why_unpaid(self) -> str | None:
        """The reason for weight 0 of an accepted or undecided update, as text; None if it has weight."""
        if self.weight:
            return None
        if self.verdict is None:
            return "no verdict has more than half of the validators' stake"
        return "the validators' median weight is 0: no measured gain, or none beyond that of others' updates"


def outcome(record: RunRecord, round: int, seat: int) -> Outcome:
    """Returns the consensus on a trainer seat in a round whose reports are all revealed."""
    settled = record.settled(round)
    verdict = settled.verdicts[seat]
    known = Verdict(verdict) if verdict in Verdict.__members__.values() else None
    return Outcome(settled.void, known, settled.consensus[seat] / WEIGHT_ONE, settled.trainer_pay[seat])


def reason(follower: Follower, round: int, seat: int, verdict: Verdict) -> str | None:
    """Returns the reason that a validator with this verdict gave; None if its measurements file is not available."""
    for root, source in list(_files(follower, round, seat, verdict))[:FILES_ASKED]:
        try:
            text = _read(fetch(root, [source], MAX_FILE_BYTES, timeout_s=FETCH_S), seat)
        except (StorageError, OSError):
            continue
        if text is not None:
            return text[:MAX_REASON_CHARS]
    return None


def _files(follower: Follower, round: int, seat: int, verdict: Verdict) -> Iterator[tuple[bytes, str]]:
    """Yields (root, base URL) of the measurements file of each validator that gave this verdict."""
    for validator, report in enumerate(follower.record.reports(round)):
        source = follower.mirror_of(validator)
        if (
            report is not None
            and any(report.measurements)
            and source
            and report.vote(seat).verdict == verdict
        ):
            yield report.measurements, source


def _read(content: bytes, seat: int) -> str | None:
    """Returns the seat's reason in a measurements file, which is untrusted; None if it has none."""
    try:
        document = read_json(content, max_bytes=MAX_FILE_BYTES)
    except JsonError:
        return None
    seats = document.get("seats") if isinstance(document, dict) else None
    for entry in seats if isinstance(seats, list) else ():
        if isinstance(entry, dict) and entry.get("seat") == seat and isinstance(entry.get("reason"), str):
            return entry["reason"]
    return None
