"""Validators that lie. Each changes the report of an honest validator before it is committed."""

from __future__ import annotations

from dataclasses import replace

from earnest.protocol.constants import WEIGHT_ONE
from earnest.protocol.report import Report, SeatVote
from earnest.protocol.verdicts import Verdict


def reverse_scores(report: Report) -> Report:
    """Gives full weight to every update that earned none, and the verdict harmful to every other."""
    return replace(report, votes=tuple(_reversed(vote) for vote in report.votes))


def _reversed(vote: SeatVote) -> SeatVote:
    if vote.verdict == Verdict.ABSENT:
        return vote
    return SeatVote(0, Verdict.HARMFUL) if vote.weight else SeatVote(WEIGHT_ONE, Verdict.ACCEPTED)
