# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Round Records
@notice What settlement remembers of a round: two words, written once a page. Protocol section 8.
"""

from modules import consensus

PAGE: constant(uint256) = 64                  # seats
PAGES: constant(uint256) = 2**4 - 1              # bits 0..3: settled pages
COMPLETE: constant(uint256) = 1 << 4          # every seat is settled
VOID: constant(uint256) = 1 << 5
PAID: constant(uint256) = 1 << 6              # validators were paid
CHARGED: constant(uint256) = 1 << 6           # shifted by the role: bits 7 and 8, objective faults were charged
POSITIVE: constant(uint256) = 16              # bits 16..31: seats with c > 0
HARMFUL: constant(uint256) = 32               # bits 32..47: seats on which verdict 4 holds
LANE: constant(uint256) = 2**16 - 1

_status: HashMap[uint256, HashMap[uint256, uint256]]      # run -> round
_matches: HashMap[uint256, HashMap[uint256, uint256]]     # 16-bit lane v: matches of validator seat v


@internal
@view
def _has(run: uint256, round: uint256, flag: uint256) -> bool:
    return self._status[run][round] & flag != 0


@internal
def _mark(run: uint256, round: uint256, flag: uint256):
    self._status[run][round] |= flag


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
    assert self._status[run][round] & (pages | COMPLETE) == 0, "settlement: already settled"
    return pages


@internal
def _record(run: uint256, round: uint256, span: uint256, pages: uint256, tally: consensus.Tally):
    status: uint256 = self._status[run][round] + pages + (tally.positive << POSITIVE) + (tally.harmful << HARMFUL)
    if status & PAGES == self._pages_below(span):
        status |= COMPLETE
    self._status[run][round] = status
    self._matches[run][round] += tally.matches


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
    return (self._status[run][round] >> POSITIVE) & LANE


@internal
@view
def _harmful(run: uint256, round: uint256) -> uint256:
    return (self._status[run][round] >> HARMFUL) & LANE


@internal
@view
def _matches_of(run: uint256, round: uint256, seat: uint256) -> uint256:
    return (self._matches[run][round] >> (16 * seat)) & LANE


# Views.


@external
@view
def round_record(run: uint256, round: uint256) -> (uint256, uint256, uint256, bool, bool):
    """
    @return Bitmap of settled 64-seat pages, seats with c > 0, seats with verdict 4, all settled, void
    """
    status: uint256 = self._status[run][round]
    return (
        status & PAGES,
        (status >> POSITIVE) & LANE,
        (status >> HARMFUL) & LANE,
        status & COMPLETE != 0,
        status & VOID != 0,
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
    @notice Whether `pay_validators` was done.
    """
    return self._has(run, round, PAID)


@external
@view
def charged(run: uint256, round: uint256, role: uint256) -> bool:
    """
    @notice Whether the objective faults of a role (1 trainers, 2 validators) were charged.
    """
    return self._has(run, round, CHARGED << role)
