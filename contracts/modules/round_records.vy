# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Round Records
@notice Settlement's record of a round: one word of flags, and a bitmap of harmful seats where there are any. Section 8.
"""

AGREEING: constant(uint256) = 2**16 - 1       # bit v: validator seat v reported the majority's pair of roots
SETTLED: constant(uint256) = 1 << 16
VOID: constant(uint256) = 1 << 17
CHARGED: constant(uint256) = 1 << 17          # shifted by the role: bits 18 and 19, objective faults were charged

_records: HashMap[uint256, HashMap[uint256, uint256]]     # run -> round
_harmful: HashMap[uint256, HashMap[uint256, uint256]]     # run -> round: bit i, verdict 4 holds for trainer seat i


@internal
@view
def _has(run: uint256, round: uint256, flag: uint256) -> bool:
    return self._records[run][round] & flag != 0


@internal
def _mark(run: uint256, round: uint256, flag: uint256):
    self._records[run][round] |= flag


@internal
def _record(run: uint256, round: uint256, agreeing: uint256, harmful: uint256):
    """
    @notice Mark a round as settled, once.
    """
    record: uint256 = self._records[run][round]
    assert record & SETTLED == 0, "settlement: already settled"
    self._records[run][round] = record | SETTLED | agreeing
    if harmful != 0:
        self._harmful[run][round] = harmful


@internal
@view
def _agreeing(run: uint256, round: uint256) -> uint256:
    return self._records[run][round] & AGREEING


# Views.


@external
@view
def round_record(run: uint256, round: uint256) -> (bool, bool, uint256, uint256):
    """
    @return Settled, void, bitmap of the validator seats that reported the majority's pair of roots, bitmap of the
            trainer seats on which verdict 4 holds
    """
    record: uint256 = self._records[run][round]
    return record & SETTLED != 0, record & VOID != 0, record & AGREEING, self._harmful[run][round]


@external
@view
def charged(run: uint256, round: uint256, role: uint256) -> bool:
    """
    @notice True once the objective faults of a role (1 trainers, 2 validators) were charged.
    """
    return self._has(run, round, CHARGED << role)
