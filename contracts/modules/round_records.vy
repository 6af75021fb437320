# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Round Records
@notice Settlement's record of a round: one word, written once per page. Protocol section 8.
@dev Counts are of 256 seats at most, so nine bits hold each. Validator seat v's matches are bits 9v .. 9v + 8.
"""

from modules import consensus

PAGE: constant(uint256) = 64                  # seats
COUNT: constant(uint256) = 2**9 - 1
POSITIVE: constant(uint256) = 144             # seats with c > 0, after the matches of 16 validators
HARMFUL: constant(uint256) = 153              # seats on which verdict 4 holds
SETTLED: constant(uint256) = 162              # settled pages, a bit each
PAGES: constant(uint256) = 2**4 - 1
COMPLETE: constant(uint256) = 1 << 166        # every seat is settled
VOID: constant(uint256) = 1 << 167
PAID: constant(uint256) = 1 << 168            # validators were paid
CHARGED: constant(uint256) = 1 << 168         # shifted by the role: bits 169 and 170, objective faults were charged
WEIGHT: constant(uint256) = 171               # sum of c: 24 bits

_records: HashMap[uint256, HashMap[uint256, uint256]]     # run -> round


@internal
@view
def _has(run: uint256, round: uint256, flag: uint256) -> bool:
    return self._records[run][round] & flag != 0


@internal
def _mark(run: uint256, round: uint256, flag: uint256):
    self._records[run][round] |= flag


@internal
@view
def _unsettled_pages(run: uint256, round: uint256, span: uint256, first: uint256, count: uint256) -> uint256:
    """
    @notice Bitmap of the pages that seats first .. first + count - 1 fill, in a round whose revealed seats are below
            `span`. Reverts unless they are whole pages, hold such seats, and none of them is settled.
    """
    assert first <= 256 and count <= 256 - first and first % PAGE == 0, "settlement: not whole pages"
    end: uint256 = first + count
    assert end % PAGE == 0 or end >= span, "settlement: seats missing"
    pages: uint256 = self._pages_below(min(end, span)) & ~self._pages_below(first)
    assert pages != 0 or (span == 0 and first == 0), "settlement: no seats there"
    assert self._records[run][round] & ((pages << SETTLED) | COMPLETE) == 0, "settlement: already settled"
    return pages


@internal
def _record(run: uint256, round: uint256, span: uint256, pages: uint256, tally: consensus.Tally):
    record: uint256 = self._records[run][round] + tally.matches + (pages << SETTLED)
    record += (tally.positive << POSITIVE) + (tally.harmful << HARMFUL) + (tally.weight << WEIGHT)
    if (record >> SETTLED) & PAGES == self._pages_below(span):
        record |= COMPLETE
    self._records[run][round] = record


@internal
@pure
def _pages_below(seat: uint256) -> uint256:
    """
    @notice Bitmap of the pages that hold seats 0 .. seat - 1.
    """
    return (1 << ((seat + PAGE - 1) // PAGE)) - 1


@internal
@view
def _positive(run: uint256, round: uint256) -> uint256:
    return (self._records[run][round] >> POSITIVE) & COUNT


@internal
@view
def _weight(run: uint256, round: uint256) -> uint256:
    """
    @return Sum of c over the settled seats.
    """
    return self._records[run][round] >> WEIGHT


@internal
@view
def _harmful(run: uint256, round: uint256) -> uint256:
    return (self._records[run][round] >> HARMFUL) & COUNT


@internal
@view
def _matches_of(run: uint256, round: uint256, seat: uint256) -> uint256:
    if seat >= 16:
        return 0
    return (self._records[run][round] >> (consensus.MATCHES * seat)) & COUNT


# Views.


@external
@view
def round_record(run: uint256, round: uint256) -> (uint256, uint256, uint256, bool, bool):
    """
    @return Bitmap of settled 64-seat pages, seats with c > 0, seats with verdict 4, all settled, void
    """
    record: uint256 = self._records[run][round]
    return (
        (record >> SETTLED) & PAGES,
        (record >> POSITIVE) & COUNT,
        (record >> HARMFUL) & COUNT,
        record & COMPLETE != 0,
        record & VOID != 0,
    )


@external
@view
def matches(run: uint256, round: uint256, seat: uint256) -> uint256:
    """
    @notice Settled seats with c > 0 on which a validator seat's weight is within 2 % of c.
    """
    return self._matches_of(run, round, seat)


@external
@view
def validators_paid(run: uint256, round: uint256) -> bool:
    """
    @notice True once `pay_validators` was called.
    """
    return self._has(run, round, PAID)


@external
@view
def charged(run: uint256, round: uint256, role: uint256) -> bool:
    """
    @notice True once the objective faults of a role (1 trainers, 2 validators) were charged.
    """
    return self._has(run, round, CHARGED << role)
