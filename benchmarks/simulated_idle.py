"""The idle share of a trainer that follows from a schedule alone."""

from __future__ import annotations

from earnest.protocol.schedule import Schedule


def simulate_idle(schedule: Schedule, training_s: float, rounds: int, latency_s: float = 0.0) -> float:
    """Returns the share of its time, from first step to last, in which a trainer waits; in [0, 1).

    `training_s`: seconds of one round's training and encoding; `latency_s`: until a commitment is on the chain. The
    trainer starts a round when it is open and its base state is decided, and is done with a round that it committed
    to. Raises ValueError if a round does not fit into its commit window.
    """
    free, first = 0.0, None
    for round in range(rounds):
        base = schedule.base_round(round)
        decided = schedule.report_reveal(base).end if base >= 0 else schedule.start
        start = max(free, schedule.opens(round), decided)
        free = start + training_s
        first = start if first is None else first
        if free + latency_s > schedule.commit(round).end:
            raise ValueError(
                f"round {round} needs {free + latency_s - schedule.opens(round):g} s to its commitment"
            )
    return 1 - rounds * training_s / (free - (first or 0.0)) if rounds else 0.0
