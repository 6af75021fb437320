# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Schedule
@license MIT
@notice A run's windows as functions of block time. Protocol section 4.
@dev The whole schedule is one word, so that the hot path reads one slot: start (40 bits), commit, reveal,
     report-commit, report-reveal, settle, contest (24 each), rounds (16), overlap (1), trainer limit (9), validator
     limit (5), open trainers (1), commit floor (7), verification level (2), period (26). All windows are half-open.
"""

from interfaces import ITrainingRuns

COMMIT: constant(uint256) = 40
REVEAL: constant(uint256) = 64
REPORT_COMMIT: constant(uint256) = 88
REPORT_REVEAL: constant(uint256) = 112
SETTLE: constant(uint256) = 136
CONTEST: constant(uint256) = 160
ROUNDS: constant(uint256) = 184
OVERLAP: constant(uint256) = 200
TRAINERS: constant(uint256) = 201
VALIDATORS: constant(uint256) = 210
OPEN: constant(uint256) = 215
FLOOR: constant(uint256) = 216             # a commit needs a bond of at least 2**floor wei
LEVEL: constant(uint256) = 223
PERIOD: constant(uint256) = 225

START_MASK: constant(uint256) = 2**40 - 1
SECONDS_MASK: constant(uint256) = 2**24 - 1
ROUNDS_MASK: constant(uint256) = 2**16 - 1
FLOOR_MASK: constant(uint256) = 2**7 - 1
LEVEL_MASK: constant(uint256) = 2**2 - 1


@internal
@pure
def _period(p: ITrainingRuns.RunParams) -> uint256:
    """
    @return Seconds between the starts of two rounds.
    """
    return p.commit_s if p.overlap else p.commit_s + p.reveal_s + p.report_commit_s + p.report_reveal_s


@internal
@pure
def _scored_at(p: ITrainingRuns.RunParams, round: uint256) -> uint256:
    """
    @return End of the report-reveal window of `round`, when its settle window starts; unix seconds.
    """
    scoring: uint256 = p.reveal_s + p.report_commit_s + p.report_reveal_s
    period: uint256 = p.commit_s if p.overlap else p.commit_s + scoring  # as `_period`, without a copy of the struct
    return p.start + round * period + p.commit_s + scoring


@internal
@pure
def _seconds(word: uint256, at: uint256) -> uint256:
    return (word >> at) & SECONDS_MASK


@internal
@pure
def _rounds(word: uint256) -> uint256:
    """
    @return Rounds that will be played; also the index of the report-only round.
    """
    return (word >> ROUNDS) & ROUNDS_MASK


@internal
@pure
def _with_rounds(word: uint256, rounds: uint256) -> uint256:
    return (word & ~(ROUNDS_MASK << ROUNDS)) | (rounds << ROUNDS)


@internal
@pure
def _level(word: uint256) -> uint256:
    return (word >> LEVEL) & LEVEL_MASK


@internal
@pure
def _opens(word: uint256, round: uint256) -> uint256:
    """
    @dev Safe for rounds of 32 bits, as `_scoring` is.
    @return t0 of `round`, unix seconds.
    """
    return unsafe_add(word & START_MASK, unsafe_mul(round, word >> PERIOD))


@internal
@view
def _in_commit(word: uint256, round: uint256) -> bool:
    if round >= (word >> ROUNDS) & ROUNDS_MASK:
        return False
    # A block before the round opens wraps around, far beyond any window.
    return unsafe_sub(block.timestamp, self._opens(word, round)) < (word >> COMMIT) & SECONDS_MASK


@internal
@view
def _clock(word: uint256) -> (uint256, uint256):
    """
    @return The current round and the first one that a change made now applies to: (q, q + 1), or (0, 0) before the
            start. q stops two rounds after the last one, the report-only round included.
    """
    start: uint256 = word & START_MASK
    if block.timestamp < start:
        return 0, 0
    round: uint256 = min((block.timestamp - start) // (word >> PERIOD), self._rounds(word) + 2)
    return round, round + 1


@internal
@pure
def _scoring(word: uint256, round: uint256) -> uint256:
    """
    @dev Safe for rounds of 32 bits, which callers ensure: all fields of the word are far below 2**64.
    @return When S of `round` starts, unix seconds.
    """
    since_start: uint256 = unsafe_add(
        unsafe_mul(round, word >> PERIOD),
        unsafe_add((word >> COMMIT) & SECONDS_MASK, (word >> REVEAL) & SECONDS_MASK),
    )
    return unsafe_add(word & START_MASK, since_start)


@internal
@view
def _in_reveal(word: uint256, round: uint256) -> bool:
    if round >= (word >> ROUNDS) & ROUNDS_MASK:
        return False
    closes: uint256 = self._scoring(word, round)
    return block.timestamp < closes and unsafe_add(block.timestamp, (word >> REVEAL) & SECONDS_MASK) >= closes


@internal
@view
def _in_report_commit(word: uint256, round: uint256) -> bool:
    """
    @dev The report-only round has this window and the next one too.
    """
    if round > self._rounds(word):
        return False
    return self._within(self._scoring(word, round), self._seconds(word, REPORT_COMMIT))


@internal
@view
def _in_report_reveal(word: uint256, round: uint256) -> bool:
    if round > self._rounds(word):
        return False
    opens: uint256 = self._scoring(word, round) + self._seconds(word, REPORT_COMMIT)
    return self._within(opens, self._seconds(word, REPORT_REVEAL))


@internal
@view
def _within(opens: uint256, length: uint256) -> bool:
    return block.timestamp >= opens and block.timestamp < opens + length
