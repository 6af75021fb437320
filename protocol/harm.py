"""Harm as a statement about probability: an e-process, valid at every stopping time. Protocol section 7.

**Null.** "Given everything before it, the next sequence's gain, clipped to [-b, b], has a mean >= -delta."

**Bet against it.** Take sequences in draw order. With x = clip(gain, ±b), the payoff y = -(x + delta) lies in
[-(b + delta), b - delta] and has a conditional mean <= 0 under the null. Start with wealth W = 1 and stake a
fraction lambda of it on every y, where lambda >= 0 is fixed before y is seen:

    W *= 1 + lambda * y

As lambda <= 1 / (2 (b + delta)), a factor is at least 1/2, so W stays positive; and its conditional mean is
W (1 + lambda E[y]) <= W. So W is a test supermartingale (the betting construction of Waudby-Smith and Ramdas,
"Estimating means of bounded random variables by betting", JRSS B 86, 2024, section 4, for a one-sided null), and
Ville's inequality gives

    P(W ever exceeds 1/alpha) <= alpha      under the null,

at every stopping time, for any bettor. Capping the factor of a round keeps W a supermartingale, so the cap keeps one
unusual round from convicting a trainer, and the test stays valid.

**The bettor.** Any predictable lambda is valid; a good one makes ln W grow. The loss of a bet, -ln(1 +
lambda y), is exp-concave, so the online Newton step has logarithmic regret against the best constant bet
in hindsight (Cutkosky and Orabona, "Black-box reductions for parameter-free online learning in Banach
spaces", COLT 2018, algorithm 1; used for tests by Waudby-Smith and Ramdas, appendix B). With the
derivative of ln(1 + lambda y),

    z = y / (1 + lambda y)    A += z²    lambda = clamp(lambda + 2 / (2 - ln 3) * z / A, 0, 1 / (2 (b +
    delta)))

where 2 / (2 - ln 3) is the step for bets of at most half the wealth, and A starts at 1. The lower limit 0 makes the
bet one-sided: good sequences never count as harm.

**Two processes.** A trainer is harmful if the smaller of two processes, on held-out and on its own data, exceeds the
threshold. If either null holds, the smaller one exceeds 1/alpha' with probability at most alpha'.

**A run's error.** The threshold 1/alpha' spreads alpha over the restarts (every 10 rounds, so that past good rounds are
no credit) and over the trainer seats by a union bound, which needs no independence: alpha' = alpha / (windows * trainer
limit) with windows = ceil(rounds / 10). Validators that share a seed make one test, not several. An account that takes
over a seat inside a window starts one test more: docs/verification.md.

All arithmetic is float64, one operation at a time, so that validators with the same gains agree to the last bit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, isnan, log

ONS_STEP = 2 / (2 - log(3))


@dataclass(frozen=True)
class HarmTerms:
    """Parameters of the test, from the recipe; gains are in nats per byte."""

    bound: float = 0.2
    """b: gains are clipped to ±b."""

    delta: float = 0.005
    """Mean increase of the loss per sequence that does not count as harm."""

    round_cap: float = 1e3
    """The largest factor of one round."""

    restart_rounds: int = 10
    """Rounds 0 to 9 are one test, 10 to 19 the next."""

    alpha: float = 1e-6
    """Largest probability that a run whose seats keep their owners finds any harmless trainer harmful."""

    def __post_init__(self) -> None:
        if not (self.bound > 0 and self.delta >= 0 and self.delta < self.bound):
            raise ValueError("harm needs 0 <= delta < bound")
        if not (self.round_cap >= 1 and self.restart_rounds >= 1 and 0 < self.alpha < 1):
            raise ValueError("harm needs round_cap >= 1, restart_rounds >= 1 and 0 < alpha < 1")

    @property
    def largest_bet(self) -> float:
        """Largest lambda, 1 / (2 (b + delta)): one sequence costs at most half of the wealth."""
        return 1 / (2 * (self.bound + self.delta))


def threshold(terms: HarmTerms, rounds: int, trainer_limit: int) -> float:
    """Returns 1 / alpha', which both processes must exceed for verdict 4."""
    return ceil(rounds / terms.restart_rounds) * trainer_limit / terms.alpha


@dataclass(frozen=True)
class EProcess:
    """One test supermartingale and the state of its bettor."""

    wealth: float = 1.0
    bet: float = 0.0
    """lambda"""

    curvature: float = 1.0
    """A"""

    def update_round(self, gains: Iterable[float], terms: HarmTerms) -> "EProcess":
        """Returns the process after one round's gains (nats per byte, in draw order).

        The bettor learns from every sequence; the round's factor is capped. Raises ValueError on NaN: the caller has to
        turn a loss that is NaN after the update into a gain of -inf.
        """
        factor, bet, curvature = 1.0, self.bet, self.curvature
        for gain in gains:
            if isnan(gain):
                raise ValueError("a gain is NaN")
            y = -(min(max(gain, -terms.bound), terms.bound) + terms.delta)
            growth = 1 + bet * y
            factor *= growth
            z = y / growth
            curvature += z * z
            bet = min(max(bet + ONS_STEP * z / curvature, 0.0), terms.largest_bet)
        return EProcess(self.wealth * min(factor, terms.round_cap), bet, curvature)


@dataclass(frozen=True)
class HarmTest:
    """The two processes of one trainer, and their restart window."""

    held_out: EProcess = EProcess()
    own: EProcess = EProcess()
    window: int = 0

    def update_round(
        self, round: int, held_out: Iterable[float], own: Iterable[float], terms: HarmTerms
    ) -> "HarmTest":
        """Returns the test after one round's gains on held-out and on the trainer's own sequences.

        Restarts are aligned to the run's rounds, so that validators that missed some agree again from the next window
        on. Raises ValueError for round 0, which the caller has to skip.
        """
        if round < 1:
            raise ValueError("round 0 is not tested for harm")
        window = round // terms.restart_rounds
        test = self if window == self.window else HarmTest(window=window)
        return HarmTest(
            test.held_out.update_round(held_out, terms), test.own.update_round(own, terms), window
        )

    @property
    def e_value(self) -> float:
        """The smaller e-value."""
        return min(self.held_out.wealth, self.own.wealth)

    def harmful(self, limit: float) -> bool:
        """True if the e-value exceeds `limit` (see `threshold`)."""
        return self.e_value > limit

    def restarted(self) -> "HarmTest":
        """Returns a new test for the same window, as after a verdict."""
        return HarmTest(window=self.window)
