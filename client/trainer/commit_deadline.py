"""Rules that keep a commitment from being late: when training is cut short, and when a key may not be registered.

A commitment that is not mined before its window ends is cancelled (`client/chain/outbox.py`), or reverts: the seat is
absent in that round and pays no charge, only gas. The error feedback of such a round: `trainer_states.py`.
"""

from __future__ import annotations

from earnest.protocol.schedule import Window

LATE_SHARE = 1 / 50
"""Share of a commit window that is left for encoding and committing; training ends before it."""

MIN_LATE_S = 5
"""Minimum of that share, in seconds."""

REGISTRATION_S = 200
"""Seconds that registering an enclave key may take: a quote, its collateral, a transaction."""


def must_finish(commit: Window, time: int) -> bool:
    """Returns True if training must end at `time` so that its commitment is not late."""
    return time >= commit.end - max(MIN_LATE_S, (commit.end - commit.start) * LATE_SHARE)


def commit_is_near(commit: Window, time: int) -> bool:
    """Returns True if the commit window is past its middle: nothing slow may start before the commitment then."""
    return commit.contains(time) and 2 * time >= commit.start + commit.end


def reveal_is_near(reveal: Window, time: int) -> bool:
    """Returns True if registering a key now would last past the middle of the reveal window."""
    starts_late = time >= reveal.start or 2 * (time + REGISTRATION_S) >= reveal.start + reveal.end
    return starts_late and time < reveal.end


def absence(committed: bool) -> str:
    """Returns the reason that a trained round has no revealed update, as text."""
    if committed:
        return "the update was committed but not revealed in its window: no pay, and a charge if most others revealed"
    return "the commitment was not mined in its window: no pay, no charge"
