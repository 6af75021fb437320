"""Penalties: charges, locks, contests and the amounts they seize. Protocol sections 5 and 9.

A penalty takes a share (bps) of the bond at that moment, at most what is not locked yet, and at most what
the ceiling of its window of rounds still allows. Amounts are capped by `min()`: nothing reverts because a bond
is too small.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from earnest.protocol.constants import AMOUNT_LIMIT, BPS
from earnest.protocol.verdicts import Verdict

BARRING = frozenset({Verdict.HARMFUL, Verdict.COPIED, Verdict.UNFAITHFUL})
"""Verdicts whose lock bars the seat until its ceiling window ends."""


@dataclass(frozen=True)
class PenaltyTerms:
    """A run's penalties, with the defaults of `RunParams` and of the run file.

    Shares of the bond in bps; the ceiling is in wei per aligned window of `ceiling_rounds` rounds.
    """

    unrevealed_bps: int = 100
    malformed_bps: int = 100
    harmful_bps: int = 1000
    copied_bps: int = 500
    unfaithful_bps: int = 5000
    contest_bps: int = 100
    ceiling: int = AMOUNT_LIMIT - 1
    ceiling_rounds: int = 10

    def bps(self, verdict: int | None) -> int:
        """Returns the bps that a verdict costs; 0 for verdicts that cost pay only."""
        shares: dict[int, int] = {
            Verdict.MALFORMED: self.malformed_bps,
            Verdict.HARMFUL: self.harmful_bps,
            Verdict.COPIED: self.copied_bps,
            Verdict.UNFAITHFUL: self.unfaithful_bps,
        }
        return shares.get(verdict, 0) if verdict is not None else 0

    def window(self, round: int) -> int:
        """Returns the index of the aligned ceiling window of the round."""
        return round // self.ceiling_rounds

    def barred_until(self, round: int) -> int:
        """Returns the first round in which a seat barred in `round` may commit again."""
        return (self.window(round) + 1) * self.ceiling_rounds


@dataclass(frozen=True)
class Bond:
    """One account's bond in a run, wei."""

    total: int
    locked: int = 0

    @property
    def free(self) -> int:
        return max(0, self.total - self.locked)

    def share(self, bps: int) -> int:
        """Returns `bps` of the whole bond, rounded down in the account's favour, at most the part not locked."""
        return min(self.total * bps // BPS, self.free)


@dataclass(frozen=True)
class Taken:
    """Outcome of one call: amounts per seat, and the used part of the window's ceiling after it; wei."""

    amounts: dict[int, int]
    used: int


def network_failed(committed: int, revealed: int) -> bool:
    """Returns True if fewer than half of the counted commitments were revealed: then nobody is charged."""
    return 2 * revealed < committed


def charges(
    terms: PenaltyTerms,
    committed: Collection[int],
    revealed: Collection[int],
    bonds: Mapping[int, Bond],
    used: int,
) -> Taken:
    """Returns the amounts that `charge` seizes from the seats that committed and did not reveal, in seat order.

    `committed`: seats whose commitment of the round is counted; `bonds` by seat; `used`: wei
    already counted against the window's ceiling. Objective faults settle at once.
    """
    shown = set(committed) & set(revealed)
    if network_failed(len(set(committed)), len(shown)):
        return Taken({}, used)
    amounts = {}
    for seat in sorted(set(committed) - shown):
        amounts[seat] = min(bonds[seat].share(terms.unrevealed_bps), max(0, terms.ceiling - used))
        used += amounts[seat]
    return Taken(amounts, used)


def broken_round(harmful: int, revealed: int) -> bool:
    """Returns True if more than half of the revealed seats have verdict 4: the round is broken, nobody cheated."""
    return 2 * harmful > revealed


def lock_amounts(
    terms: PenaltyTerms,
    verdicts: Sequence[int | None],
    revealed: int,
    seats: Sequence[int],
    bonds: Mapping[int, Bond],
    used: int,
) -> Taken:
    """Returns the amounts that `lock` locks, for the given seats in the given order.

    `verdicts`: those that hold, of all trainer seats (`Settled.verdicts`); `revealed`: n; `bonds` by
    seat; `used`: wei already counted against the window's ceiling. Verdict 6 neither is limited by the ceiling
    nor uses it up. Seats without a penalty are left out; an amount may be 0 and still consumes its
    penalty id and bars the seat.
    """
    broken = broken_round(sum(verdict == Verdict.HARMFUL for verdict in verdicts), revealed)
    amounts: dict[int, int] = {}
    for seat in seats:
        verdict = verdicts[seat]
        if terms.bps(verdict) == 0 or (broken and verdict == Verdict.HARMFUL):
            continue
        amount = bonds[seat].share(terms.bps(verdict))
        if verdict != Verdict.UNFAITHFUL:
            amount = min(amount, max(0, terms.ceiling - used))
            used += amount
        amounts[seat] = amount
    return Taken(amounts, used)


def contest_amount(terms: PenaltyTerms, bond: Bond) -> int:
    """Returns the amount that a contest locks in addition; `bond.locked` already contains the penalty."""
    return bond.share(terms.contest_bps)


def stands(upheld: int, active_stake: int) -> bool:
    """Returns True if more than T/2 uphold the penalty."""
    return 2 * upheld > active_stake
