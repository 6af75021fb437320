"""Consensus of the validators' reports on one round: medians and verdicts. Protocol section 8; pay is in `pay.py`.

Every decision needs more than half of the active stake T. An absent, abstaining or non-zero-verdict vote counts as
weight 0; every vote on a seat that did not reveal counts as weight 0, and no verdict holds for it.

```
c_i = max { w : stake{ v : w_vi >= w } * 2 > T }, 0 if there is none              stake-weighted median
verdict k holds for i  iff  stake{ v : verdict_vi = k } * 2 > T
```
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from earnest.protocol.pay import agrees, trainer_pay, validator_pay
from earnest.protocol.report import Report
from earnest.protocol.verdicts import Verdict

HINTS_PER_WORD = 16


@dataclass(frozen=True)
class Ballot:
    """Input of one round's settlement."""

    stakes: tuple[int, ...]
    """Per validator seat, wei; 0 when not active in this round."""

    active_stake: int
    """T: the sum of the active validators' stakes, wei."""

    reports: tuple[Report | None, ...]
    """Per validator seat; None if none was revealed."""

    revealed: frozenset[int]
    """Trainer seats that revealed."""

    seats: int
    """Trainer seats ever taken."""


@dataclass(frozen=True)
class Settled:
    """One round's outcome; tuples are per trainer seat, those of validators per validator seat."""

    consensus: tuple[int, ...]
    verdicts: tuple[int | None, ...]
    """The verdict that holds, if any."""

    trainer_pay: tuple[int, ...]
    matches: tuple[int, ...]
    """Seats with c_i > 0 on which the validator agreed."""

    validator_pay: tuple[int, ...]
    counted: int
    """Seats with c_i > 0."""

    pair: tuple[bytes, bytes] | None
    """(base root, newest root) that more than T/2 reported; None: the round is void."""

    void: bool
    majority: int
    """The first validator seat with stake that reported the pair; -1 in a void round."""


def settle(ballot: Ballot, trainer_pool: int, validator_pool: int) -> Settled:
    """Returns the outcome of a round with pools P and Q (wei). A void round has no pay and no verdicts."""
    majority = _majority(ballot)
    if majority is None:
        return _void(ballot)
    report = ballot.reports[majority]
    assert report is not None
    consensus = tuple(_consensus(ballot, seat) for seat in range(ballot.seats))
    matches = tuple(_matches(report, consensus) for report in ballot.reports)
    counted = sum(c > 0 for c in consensus)
    return Settled(
        consensus=consensus,
        verdicts=tuple(_verdict(ballot, seat) for seat in range(ballot.seats)),
        trainer_pay=tuple(trainer_pay(trainer_pool, c, len(ballot.revealed)) for c in consensus),
        matches=matches,
        validator_pay=tuple(
            validator_pay(validator_pool, stake, matched, ballot.active_stake, counted)
            for stake, matched in zip(ballot.stakes, matches, strict=True)
        ),
        counted=counted,
        pair=(report.base_root, report.newest_root),
        void=False,
        majority=majority,
    )


def median_weight(votes: Sequence[tuple[int, int]], active_stake: int) -> int:
    """Returns c, the largest weight that more than half of the active stake reaches; `votes` are (stake, weight)."""
    reached = 0
    for stake, weight in sorted(votes, key=lambda vote: -vote[1]):
        reached += stake
        if 2 * reached > active_stake:
            return weight
    return 0


def hint_words(consensus: Sequence[int]) -> list[int]:
    """Packs the c_i of a page for `Settlement.settle`: sixteen 16-bit values a word, the first in the top bits."""
    words = []
    for first in range(0, len(consensus), HINTS_PER_WORD):
        page = consensus[first : first + HINTS_PER_WORD]
        word = 0
        for i in range(HINTS_PER_WORD):
            word = word << 16 | (page[i] if i < len(page) else 0)
        words.append(word)
    return words


def _void(ballot: Ballot) -> Settled:
    nothing = (0,) * ballot.seats
    nobody = (0,) * len(ballot.stakes)
    return Settled(nothing, (None,) * ballot.seats, nothing, nobody, nobody, 0, None, True, -1)


def _majority(ballot: Ballot) -> int | None:
    """Returns the first validator seat with stake whose pair of roots has more than T/2; None in a void round.

    If there is one, the reports have more than T/2 too, so this test alone decides whether a round is void.
    """
    held: dict[tuple[bytes, bytes], int] = defaultdict(int)
    for stake, report in zip(ballot.stakes, ballot.reports, strict=True):
        if report is not None:
            held[report.base_root, report.newest_root] += stake
    for seat, (stake, report) in enumerate(zip(ballot.stakes, ballot.reports, strict=True)):
        if report is None or stake == 0:
            continue
        if 2 * held[report.base_root, report.newest_root] > ballot.active_stake:
            return seat
    return None


def _consensus(ballot: Ballot, seat: int) -> int:
    if seat not in ballot.revealed:
        return 0
    votes = [
        (stake, report.vote(seat).counted_weight)
        for stake, report in zip(ballot.stakes, ballot.reports, strict=True)
        if report is not None
    ]
    return median_weight(votes, ballot.active_stake)


def _verdict(ballot: Ballot, seat: int) -> int | None:
    if seat not in ballot.revealed:
        return None
    held: dict[int, int] = defaultdict(int)
    for stake, report in zip(ballot.stakes, ballot.reports, strict=True):
        if report is not None:
            held[report.vote(seat).verdict] += stake
    return next((k for k, stake in held.items() if 2 * stake > ballot.active_stake and k in _HOLDING), None)


_HOLDING = frozenset(Verdict) - {Verdict.ABSTAIN}
"""Verdicts that can hold. An abstention and an unknown byte say nothing about the trainer."""


def _matches(report: Report | None, consensus: Sequence[int]) -> int:
    if report is None:
        return 0
    return sum(agrees(report.vote(seat).counted_weight, c) for seat, c in enumerate(consensus))
