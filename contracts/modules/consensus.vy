# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Consensus
@notice Stake-weighted medians and verdicts of sealed reports. Protocol section 8.
@dev Nothing is sorted: whoever settles gives each median as a hint, and one pass over the validators checks it.
     A report is [base root, newest root, evidence hash, seats 0..9, seats 10..19, ...]; in a word, seat 10j + i has
     bits [24 (9 - i), 24 (10 - i)), weight << 8 | verdict. Omitted words mean absent.
     One threshold throughout: strictly more than half of the active stake T.
"""

struct Tally:
    positive: uint256             # seats with c > 0
    harmful: uint256              # seats on which verdict 4 holds
    matches: uint256              # 16-bit lane v: seats with c > 0 on which validator seat v is within 2 % of c

BASE: constant(uint256) = 0       # words of a report
NEWEST: constant(uint256) = 1
SEATS: constant(uint256) = 3

SEATS_A_WORD: constant(uint256) = 10
FIELD: constant(uint256) = 2**24 - 1
VERDICT: constant(uint256) = 2**8 - 1
WEIGHT: constant(uint256) = 2**16 - 1
ABSENT_WORD: constant(uint256) = (2**240 - 1) // (2**24 - 1)  # 1 in each 24-bit field: weight 0, verdict 1

MALFORMED: constant(uint256) = 3
HARMFUL: constant(uint256) = 4
UNFAITHFUL: constant(uint256) = 6


@internal
@pure
def _check(reports: DynArray[DynArray[bytes32, 29], 16], hashes: bytes32[16]):
    """
    @notice Reverts unless `reports` are exactly the round's revealed ones, each at its validator's seat.
    """
    for v: uint256 in range(16):
        if v < len(reports) and len(reports[v]) != 0:
            assert keccak256(abi_encode(reports[v])) == hashes[v], "settlement: wrong report"
        else:
            assert hashes[v] == empty(bytes32), "settlement: report missing"


@internal
@pure
def _holds_majority(
    reports: DynArray[DynArray[bytes32, 29], 16], stakes: uint256[16], active_stake: uint256, seat: uint256
) -> bool:
    """
    @notice Whether the pair (base root, newest root) of one validator seat's report has more than half of T.
    """
    if seat >= len(reports) or len(reports[seat]) == 0:
        return False
    held: uint256 = 0
    for v: uint256 in range(len(reports), bound=16):
        if len(reports[v]) != 0:
            if reports[v][BASE] == reports[seat][BASE] and reports[v][NEWEST] == reports[seat][NEWEST]:
                held += stakes[v]
    return held * 2 > active_stake


@internal
@pure
def _tally(
    reports: DynArray[DynArray[bytes32, 29], 16],
    stakes: uint256[16],
    active_stake: uint256,
    revealed: uint256,
    first: uint256,
    count: uint256,
    hints: DynArray[uint256, 16],
) -> Tally:
    """
    @notice Check the hint of each of `count` seats and count what pay and penalties need.
    @dev A weight counts as 0 unless its verdict is 0, and on unrevealed seats. Sums of stakes stay below 16 * 2**96,
         lanes of `matches` at or below 256.
    """
    tally: Tally = empty(Tally)
    words: uint256[16] = empty(uint256[16])
    for i: uint256 in range(count, bound=256):
        seat: uint256 = unsafe_add(first, i)
        if i == 0 or seat % SEATS_A_WORD == 0:
            index: uint256 = unsafe_add(SEATS, seat // SEATS_A_WORD)
            for v: uint256 in range(len(reports), bound=16):
                words[v] = convert(reports[v][index], uint256) if index < len(reports[v]) else ABSENT_WORD
        c: uint256 = self._hint(hints, i)
        if (revealed >> seat) & 1 == 0:
            assert c == 0, "settlement: hint for unrevealed"
            continue

        offset: uint256 = unsafe_mul(24, unsafe_sub(9, seat % SEATS_A_WORD))
        low: uint256 = max(unsafe_sub(c, c // 50), 1)
        high: uint256 = unsafe_add(c, c // 50)
        at_least: uint256 = 0
        above: uint256 = 0
        harm: uint256 = 0
        for v: uint256 in range(len(reports), bound=16):
            vote: uint256 = (words[v] >> offset) & FIELD
            if vote & VERDICT == 0:
                weight: uint256 = vote >> 8
                if weight >= low:
                    if weight >= c:
                        at_least = unsafe_add(at_least, stakes[v])
                        if weight > c:
                            above = unsafe_add(above, stakes[v])
                    if weight <= high:
                        tally.matches = unsafe_add(tally.matches, 1 << unsafe_mul(16, v))
            elif vote & VERDICT == HARMFUL:
                harm = unsafe_add(harm, stakes[v])
        assert above * 2 <= active_stake, "settlement: hint too low"
        if c != 0:
            assert at_least * 2 > active_stake, "settlement: hint too high"
            tally.positive = unsafe_add(tally.positive, 1)
        if harm * 2 > active_stake:
            tally.harmful = unsafe_add(tally.harmful, 1)
    return tally


@internal
@pure
def _hint(hints: DynArray[uint256, 16], i: uint256) -> uint256:
    """
    @notice The i-th consensus weight: sixteen a word, most significant first.
    """
    return (hints[i // 16] >> (240 - 16 * (i % 16))) & WEIGHT


@internal
@pure
def _penal_verdict(
    reports: DynArray[DynArray[bytes32, 29], 16], stakes: uint256[16], active_stake: uint256, seat: uint256
) -> (uint256, uint256, uint256):
    """
    @notice The verdict out of 3 to 6 that holds for a seat; 0 if none does.
    @return Verdict, stake behind it in wei, bitmap of the validator seats behind it
    """
    index: uint256 = SEATS + seat // SEATS_A_WORD
    offset: uint256 = 24 * (9 - seat % SEATS_A_WORD)
    held: uint256[4] = empty(uint256[4])
    behind: uint256[4] = empty(uint256[4])
    for v: uint256 in range(len(reports), bound=16):
        if index < len(reports[v]) and stakes[v] != 0:
            verdict: uint256 = (convert(reports[v][index], uint256) >> offset) & VERDICT
            if verdict >= MALFORMED and verdict <= UNFAITHFUL:
                held[verdict - MALFORMED] += stakes[v]
                behind[verdict - MALFORMED] |= 1 << v
    for k: uint256 in range(4):
        if held[k] * 2 > active_stake:
            return k + MALFORMED, held[k], behind[k]
    return 0, 0, 0
