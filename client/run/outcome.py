"""What came of an update in a decided round, in words: the verdict that holds, and why as a validator wrote down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from earnest.base.errors import StorageError
from earnest.base.strict_json import check_depth
from earnest.client.run.record import RunRecord
from earnest.client.storage.fetch import fetch
from earnest.protocol.constants import WEIGHT_ONE
from earnest.protocol.verdicts import Verdict

if TYPE_CHECKING:  # which needs torch
    from earnest.client.run.follower import Follower

MAX_FILE_BYTES = 1 << 24
"""Largest measurements file that is fetched: it holds every loss that a validator measured in a round."""

FILES_ASKED = 2
FETCH_S = 3.0
"""Files and seconds that a reason is worth: the node has a next round to see to."""

MAX_REASON_CHARS = 300

VOID = "void: no report of more than half of the validators' stake"
UNDECIDED = "undecided: no verdict of more than half of the validators' stake"
WORDS = {
    Verdict.ACCEPTED: "accepted",
    Verdict.ABSENT: "nothing revealed",
    Verdict.UNAVAILABLE: "payload served by nobody",
    Verdict.MALFORMED: "malformed payload",
    Verdict.HARMFUL: "harmful",
    Verdict.COPIED: "copy of an earlier update",
    Verdict.UNFAITHFUL: "not what its trace says",
    Verdict.NOT_COUNTED: "not counted",
    Verdict.ABSTAIN: "validators could not judge",
}


@dataclass(frozen=True)
class Outcome:
    """What a decided round made of one seat's update."""

    void: bool
    verdict: Verdict | None
    """None where none holds."""

    weight: float
    """Share of a whole update that it was counted and paid as, 0 to 1."""

    pay: int
    """wei"""

    @property
    def words(self) -> str:
        """The verdict for people."""
        return VOID if self.void else UNDECIDED if self.verdict is None else WORDS[self.verdict]


def outcome(record: RunRecord, round: int, seat: int) -> Outcome:
    """What the consensus says of a trainer seat in a round whose reports are all revealed."""
    settled = record.settled(round)
    verdict = settled.verdicts[seat]
    known = verdict if verdict in Verdict.__members__.values() else None
    held = None if known is None else Verdict(known)
    return Outcome(settled.void, held, settled.consensus[seat] / WEIGHT_ONE, settled.trainer_pay[seat])


def reason(follower: Follower, round: int, seat: int, verdict: Verdict) -> str | None:
    """Why, in the words of a validator that gave this verdict; None where its measurements file is not available."""
    for root, source in list(_files(follower, round, seat, verdict))[:FILES_ASKED]:
        try:
            told = _read(fetch(root, None, [source], MAX_FILE_BYTES, timeout_s=FETCH_S), seat)
        except (StorageError, OSError):
            continue
        if told is not None:
            return told[:MAX_REASON_CHARS]
    return None


def _files(follower: Follower, round: int, seat: int, verdict: Verdict) -> Iterator[tuple[bytes, str]]:
    """(root, base URL) of the measurements file of each validator that gave this verdict."""
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
    """The seat's reason in a measurements file, which is a stranger's: None for anything else."""
    try:
        check_depth(content)
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    found = document.get("seats") if isinstance(document, dict) else None
    for one in found if isinstance(found, list) else ():
        if isinstance(one, dict) and one.get("seat") == seat and isinstance(one.get("reason"), str):
            return one["reason"]
    return None
