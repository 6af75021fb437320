"""Consensus of the validators' reports on one round: medians and verdicts. Protocol section 8; pay is in `pay.py`.

Every decision needs more than half of the active stake T. Only reports with the majority's pair of roots vote: another
report judged something else. An absent, abstaining or non-zero-verdict vote counts as weight 0; every vote on a seat
that did not reveal counts as weight 0, and no verdict holds for it.

```
c_i = max { w : stake{ v : w_vi >= w } * 2 > T }, 0 if there is none              stake-weighted median
i is in doubt           iff  stake{ v : v does not abstain on i, w_vi <= c_i + c_i // 50 } * 2 <= T
verdict k holds for i   iff  stake{ v : verdict_vi = k } * 2 > T
```

More than T/2 say that a seat deserves at least c_i. Unless more than T/2 also say that it deserves no more, those that
are missing could have raised c_i, and a minority of those present decided it: then the seat is in doubt.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from earnest.protocol.constants import WEIGHT_ONE
from earnest.protocol.pay import agrees, at_most, burned_pay, shares, trainer_pay, validator_pay
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

    @property
    def span(self) -> int:
        """The last revealed trainer seat plus one; 0 if nobody revealed."""
        return max(self.revealed, default=-1) + 1


@dataclass(frozen=True)
class Settled:
    """One round's outcome; tuples are per trainer seat, those of validators per validator seat."""

    consensus: tuple[int, ...]
    verdicts: tuple[int | None, ...]
    """The verdict that holds, if any."""

    doubtful: frozenset[int]
    """Revealed seats in doubt."""

    trainer_pay: tuple[int, ...]
    burned: int
    """Part of P withheld from the seats in doubt, wei."""

    matches: tuple[int, ...]
    """Seats with c_i > 0, not in doubt, on which the validator agreed."""

    validator_pay: tuple[int, ...]
    judged: int
    """Seats with c_i > 0 or in doubt."""

    pair: tuple[bytes, bytes] | None
    """(base root, newest root) that more than T/2 reported; None: the round is void."""

    agreeing: frozenset[int]
    """Validator seats that reported the pair. The others that reported are not paid, and are charged."""

    void: bool
    majority: int
    """The first validator seat with stake that reported the pair; -1 in a void round."""


def settle(ballot: Ballot, trainer_pool: int, validator_pool: int, full_seats: int = 1) -> Settled:
    """Returns the outcome of a round with pools P and Q (wei). A void round has no pay and no verdicts."""
    majority = _majority(ballot)
    if majority is None:
        return _void(ballot)
    report = ballot.reports[majority]
    assert report is not None
    pair = report.base_root, report.newest_root
    votes = tuple(
        r if r is not None and (r.base_root, r.newest_root) == pair else None for r in ballot.reports
    )
    ballot = replace(ballot, reports=votes)
    consensus = tuple(_consensus(ballot, seat) for seat in range(ballot.seats))
    doubtful = frozenset(seat for seat in ballot.revealed if _in_doubt(ballot, seat, consensus[seat]))
    judged = sum(c > 0 or seat in doubtful for seat, c in enumerate(consensus))
    matches = tuple(_matches(report, consensus, doubtful) for report in votes)
    doubt = sum(WEIGHT_ONE - consensus[seat] for seat in doubtful)
    all_shares = shares(sum(consensus), doubt, full_seats)
    return Settled(
        consensus=consensus,
        verdicts=tuple(_verdict(ballot, seat) for seat in range(ballot.seats)),
        doubtful=doubtful,
        trainer_pay=tuple(trainer_pay(trainer_pool, c, all_shares) for c in consensus),
        burned=burned_pay(trainer_pool, doubt, all_shares),
        matches=matches,
        validator_pay=tuple(
            validator_pay(validator_pool, stake, matched, ballot.active_stake, judged)
            for stake, matched in zip(ballot.stakes, matches, strict=True)
        ),
        judged=judged,
        pair=pair,
        agreeing=frozenset(v for v, vote in enumerate(votes) if vote is not None),
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
    """Packs c_i for `Settlement.settle`: sixteen 16-bit values a word, the first in the top bits.

    The contract takes those up to the last revealed seat: `hint_words(settled.consensus[: ballot.span])`.
    """
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
    return Settled(
        consensus=nothing,
        verdicts=(None,) * ballot.seats,
        doubtful=frozenset(),
        trainer_pay=nothing,
        burned=0,
        matches=nobody,
        validator_pay=nobody,
        judged=0,
        pair=None,
        agreeing=frozenset(),
        void=True,
        majority=-1,
    )


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


def _in_doubt(ballot: Ballot, seat: int, consensus: int) -> bool:
    """Returns True unless more than T/2 say that a revealed seat deserves at most 2 % more than its c."""
    stake = sum(
        stake
        for stake, report in zip(ballot.stakes, ballot.reports, strict=True)
        if report is not None
        and report.vote(seat).verdict != Verdict.ABSTAIN
        and at_most(report.vote(seat).counted_weight, consensus)
    )
    return 2 * stake <= ballot.active_stake


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


def _matches(report: Report | None, consensus: Sequence[int], doubtful: frozenset[int]) -> int:
    if report is None:
        return 0
    return sum(
        agrees(report.vote(seat).counted_weight, c)
        for seat, c in enumerate(consensus)
        if seat not in doubtful
    )
