"""Windows of a run: a phase is a function of block time, never a stored state. Protocol section 4.

```
round r:   commit [t0, t0+C)   reveal [.., +R)   seed   report-commit [.., +S)   report-reveal [.., +V)
           then settle window G, then contest window K
```

All times are unix seconds, all windows half-open.
"""

from dataclasses import dataclass

from earnest.protocol.constants import EXIT_MARGIN_S, MAX_EXIT_DELAY_S, MIN_WINDOW_S


@dataclass(frozen=True)
class Window:
    """Half-open interval of block times, [start, end)."""

    start: int
    end: int

    def contains(self, t: int) -> bool:
        return self.start <= t < self.end


@dataclass(frozen=True)
class Schedule:
    """All windows of a run. `rounds` is the index of the report-only round after the last one."""

    start: int
    rounds: int
    commit_s: int
    reveal_s: int
    report_commit_s: int
    report_reveal_s: int
    settle_s: int
    contest_s: int
    overlap: bool

    @property
    def reported_s(self) -> int:
        """Seconds from a round's opening to the end of its report-reveal window: C + R + S + V."""
        return self.commit_s + self.reveal_s + self.report_commit_s + self.report_reveal_s

    @property
    def period(self) -> int:
        """Seconds between the openings of two rounds: C with overlap, else C + R + S + V."""
        return self.commit_s if self.overlap else self.reported_s

    @property
    def least_exit_delay(self) -> int:
        """Minimum of a run's exit delay, seconds: C + R + S + V + G + K, in which a round can cost bond, and a day.

        Checked by `_checks` in `run.py` and by `contracts/modules/terms.vy`; `start_exit` and `finish_exit` of
        `contracts/StakeVault.vy` enforce the delay.
        """
        return self.reported_s + self.settle_s + self.contest_s + EXIT_MARGIN_S

    def opens(self, r: int) -> int:
        """Returns t0 of round r, unix seconds. Raises ValueError for a negative round."""
        if r < 0:
            raise ValueError(f"round {r} is negative")
        return self.start + r * self.period

    def commit(self, r: int) -> Window:
        t = self.opens(r)
        return Window(t, t + self.commit_s)

    def reveal(self, r: int) -> Window:
        t = self.commit(r).end
        return Window(t, t + self.reveal_s)

    def seed_opens(self, r: int) -> int:
        """Returns the time from which `seed` may be called: all updates of the round are public then."""
        return self.reveal(r).end

    def report_commit(self, r: int) -> Window:
        t = self.reveal(r).end
        return Window(t, t + self.report_commit_s)

    def report_reveal(self, r: int) -> Window:
        t = self.report_commit(r).end
        return Window(t, t + self.report_reveal_s)

    def settle(self, r: int) -> Window:
        t = self.report_reveal(r).end
        return Window(t, t + self.settle_s)

    def contest(self, r: int) -> Window:
        t = self.settle(r).end
        return Window(t, t + self.contest_s)

    def bonds_free_at(self, rounds: int) -> int:
        """Returns when the bonds of a run of `rounds` rounds wait no longer, unix seconds.

        A day after the contest window of the report-only round: until then what was locked can be seized.
        """
        return self.contest(rounds).end + EXIT_MARGIN_S

    def round_at(self, t: int) -> int:
        """Returns the round whose period contains t; 0 before the start, not bounded after the end."""
        return max(0, t - self.start) // self.period

    def next_round(self, t: int) -> int:
        """Returns the first round that opens after t: joins, syncs and operator changes count from it."""
        return 0 if t < self.start else self.round_at(t) + 1

    def oldest_open(self, t: int) -> int:
        """Returns the oldest round whose updates may still be revealed at t."""
        current = self.round_at(t)
        return current - min(current, int(self.overlap))

    def base_round(self, r: int) -> int:
        """Returns the last round whose aggregate is in base(r), from which round r trains; -1: none."""
        return max(-1, r - 2 if self.overlap else r - 1)

    def newest_round(self, r: int) -> int:
        """Returns the last round whose aggregate is in the state to which round r's is added; -1: none."""
        return r - 1

    def assignment_seed_round(self, r: int) -> int | None:
        """Returns the round whose seed assigns round r's data; None: `seed.fallback_seed` does (section 6)."""
        source = r - 2 if self.overlap else r - 1
        return source if source >= 0 else None

    def problems(self) -> list[str]:
        """Returns the reasons for which `create_run` refuses these windows, in the contract's order; empty if none."""
        worked = (self.commit_s, self.reveal_s, self.report_commit_s, self.report_reveal_s)
        reasons: list[str] = []
        if max(*worked, self.settle_s, self.contest_s) > MAX_EXIT_DELAY_S:
            reasons.append("runs: window too long")
        if 0 in worked:
            reasons.append("runs: empty window")
        if min(self.settle_s, self.contest_s) < MIN_WINDOW_S:
            reasons.append("runs: window too short")
        if self.overlap and self.reported_s - self.commit_s + self.settle_s > self.commit_s:
            reasons.append("runs: windows exceed commit")
        if not self.overlap and self.settle_s > self.reported_s:
            reasons.append("runs: settle window too long")
        return reasons
