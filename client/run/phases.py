"""The windows of a run at a point in time: which are open, how long they last, which opens next."""

from __future__ import annotations

from dataclasses import dataclass

from earnest.protocol.schedule import Schedule, Window

TRAINING = ("commit", "reveal")
SCORING = ("report commit", "report reveal", "settle", "contest")


@dataclass(frozen=True)
class Phase:
    """One window of one round, half-open, unix seconds."""

    round: int
    name: str
    window: Window

    def left(self, now: int) -> int:
        """Returns the seconds until it opens or, once open, until it closes; never negative."""
        edge = self.window.start if now < self.window.start else self.window.end
        return max(0, edge - now)


def round_phases(schedule: Schedule, rounds: int, round: int) -> list[Phase]:
    """Returns a round's windows in order. The report-only round after the last one has no contest window."""
    windows = {
        "commit": schedule.commit(round),
        "reveal": schedule.reveal(round),
        "report commit": schedule.report_commit(round),
        "report reveal": schedule.report_reveal(round),
        "settle": schedule.settle(round),
        "contest": schedule.contest(round),
    }
    names = TRAINING + SCORING if round < rounds else SCORING[:3]
    return [Phase(round, name, windows[name]) for name in names]


def open_phases(schedule: Schedule, rounds: int, now: int) -> list[Phase]:
    """Returns every window that is open at `now`, the oldest round's first."""
    newest = min(schedule.round_at(now), rounds)
    longest = schedule.contest(0).end - schedule.opens(0)
    oldest = max(0, newest - longest // schedule.period - 1)
    phases = [phase for r in range(oldest, newest + 1) for phase in round_phases(schedule, rounds, r)]
    return [phase for phase in phases if phase.window.contains(now)]


def next_phase(schedule: Schedule, rounds: int, now: int) -> Phase | None:
    """Returns the window that opens next; None after the last."""
    current = min(schedule.round_at(now), rounds)
    upcoming = [
        phase
        for r in range(max(0, current - 2), min(current + 2, rounds + 1))
        for phase in round_phases(schedule, rounds, r)
        if phase.window.start > now
    ]
    return min(upcoming, key=lambda phase: phase.window.start, default=None)


def run_state(schedule: Schedule, rounds: int, now: int) -> str:
    """Returns `waiting` (for round 0), `running`, or `over` (the settle window of the report-only round has ended)."""
    if now < schedule.start:
        return "waiting"
    return "over" if now >= schedule.settle(rounds).end else "running"
