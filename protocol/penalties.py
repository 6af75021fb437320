"""Penalties: charges, locks, contests and the amounts they seize. Protocol sections 5 and 9.

A penalty takes a share (bps) of the bond at the moment of the charge or lock, at most what is not locked yet. The
ceiling caps what an account loses in a window of rounds, and counts when money is seized: no account's penalty shields
another's, and a released penalty uses nothing up. Amounts are capped by `min()`: nothing reverts because a bond is too
small.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from earnest.protocol.constants import AMOUNT_LIMIT, BPS
from earnest.protocol.verdicts import Verdict

BARRING = frozenset({Verdict.HARMFUL, Verdict.COPIED, Verdict.UNFAITHFUL})
"""Verdicts whose lock bars the account until the ceiling window ends, or the penalty is released."""


@dataclass(frozen=True)
class PenaltyTerms:
    """A run's penalties, with the defaults of `RunParams` and of the run file.

    Shares of the bond in bps; the ceiling is in wei per account and aligned window of `ceiling_rounds` rounds.
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


def network_failed(committed: int, revealed: int) -> bool:
    """Returns True if fewer than half of the counted commitments were revealed: then nobody is charged."""
    return 2 * revealed < committed


def below_ceiling(terms: PenaltyTerms, amount: int, used: int) -> int:
    """Returns the part of `amount` that is seized; `used`: wei seized from the account in the same window."""
    return min(amount, max(0, terms.ceiling - used))


def charges(
    terms: PenaltyTerms,
    committed: Collection[int],
    revealed: Collection[int],
    bonds: Mapping[int, Bond],
    used: Mapping[int, int],
) -> dict[int, int]:
    """Returns the amounts that `charge` seizes from the seats that committed and did not reveal, by seat.

    `committed`: seats whose commitment of the round is counted; `bonds` and `used` (see `below_ceiling`) by seat.
    Objective faults settle at once.
    """
    shown = set(committed) & set(revealed)
    if network_failed(len(set(committed)), len(shown)):
        return {}
    return {
        seat: objective_charge(terms, bonds[seat], used.get(seat, 0))
        for seat in sorted(set(committed) - shown)
    }


def objective_charge(terms: PenaltyTerms, bond: Bond, used: int) -> int:
    """Returns what an objective fault costs: a commitment not revealed, or a report on other states."""
    return below_ceiling(terms, bond.share(terms.unrevealed_bps), used)


def broken_round(harmful: int, revealed: int) -> bool:
    """Returns True if seats with verdict 4 have more than half of the bond of the revealed seats.

    Then the round is broken, and nobody cheated. Both in wei: each bond as it counted in the round, at most what is
    left of it.
    """
    return 2 * harmful > revealed


def lock_amounts(
    terms: PenaltyTerms,
    verdicts: Sequence[int | None],
    broken: bool,
    seats: Sequence[int],
    bonds: Mapping[int, Bond],
) -> dict[int, int]:
    """Returns the amounts that `lock` locks, by seat.

    `verdicts`: those that hold, of all trainer seats (`Settled.verdicts`); `broken`: see `broken_round`; `bonds` by
    seat. Seats without a penalty are left out; an amount may be 0 and still consumes its penalty id and bars the
    account.
    """
    return {
        seat: bonds[seat].share(terms.bps(verdicts[seat]))
        for seat in seats
        if terms.bps(verdicts[seat]) and not (broken and verdicts[seat] == Verdict.HARMFUL)
    }


def seized_amount(terms: PenaltyTerms, verdict: int, amount: int, contest: int, used: int) -> int:
    """Returns what is seized of a penalty that is upheld: `amount` below the ceiling, and what a contest locked.

    The ceiling does not limit verdict 6, which does not use it up either.
    """
    if verdict != Verdict.UNFAITHFUL:
        amount = below_ceiling(terms, amount, used)
    return amount + contest


def contest_amount(terms: PenaltyTerms, bond: Bond) -> int:
    """Returns the amount that a contest locks in addition; `bond.locked` already contains the penalty."""
    return bond.share(terms.contest_bps)


def stands(upheld: int, active_stake: int) -> bool:
    """Returns True if more than T/2 uphold the penalty."""
    return 2 * upheld > active_stake
