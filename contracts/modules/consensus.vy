# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Consensus
@notice Stake-weighted medians and verdicts of reports. Protocol section 8.
@dev Nothing is sorted: the caller gives each median as a hint, and one pass over the validators checks it.
     A report is [base root, newest root, measurements hash, seats 0..9, seats 10..19, ...]; in a word, seat 10j + i has
     bits [24 (9 - i), 24 (10 - i)), weight << 8 | verdict. Omitted words mean absent.
     TrainingRuns accepts no report of fewer than three words.
     One threshold throughout: strictly more than half of the active stake T.
"""

from modules import verdicts

struct Tally:
    judged: uint256               # seats that validators are paid for: c > 0 or in doubt
    weight: uint256               # sum of c
    doubt: uint256                # sum of 65535 - c over the seats in doubt
    harmful: uint256              # bit i: verdict 4 holds for seat i
    matches: uint256              # bits 9v .. 9v + 8: judged seats, not in doubt, on which validator v is within 2 % of c

struct Lanes:                     # what the check of up to ten seats finds
    doubtful: uint256             # 1 in the lane of each seat in doubt
    doubt: uint256
    harmful: uint256

BASE: constant(uint256) = 0       # words of a report
NEWEST: constant(uint256) = 1
SEATS: constant(uint256) = 3
MATCHES: constant(uint256) = 9    # bits of a validator's matches: 256 at most

LANES_A_WORD: constant(uint256) = 10
LANE: constant(uint256) = 24      # bits
LANE_SUM: constant(uint256) = 2**24 - 1  # modulo this a word is the sum of its lanes, as 2**24 is 1
ONES: constant(uint256) = (2**240 - 1) // (2**24 - 1)  # 1 in each lane
VERDICTS: constant(uint256) = ONES * (2**8 - 1)
WEIGHTS: constant(uint256) = ONES * (2**16 - 1)
VERDICT: constant(uint256) = 2**8 - 1
WEIGHT: constant(uint256) = 2**16 - 1


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
def _majority(
    reports: DynArray[DynArray[bytes32, 29], 16], stakes: uint256[16], active_stake: uint256, seat: uint256
) -> uint256:
    """
    @notice Bitmap of the validator seats that reported the same pair (base root, newest root) as `seat`; 0 unless they
            have more than half of T.
    """
    if seat >= len(reports) or len(reports[seat]) == 0:
        return 0
    held: uint256 = 0
    agreeing: uint256 = 0
    for v: uint256 in range(len(reports), bound=16):
        if len(reports[v]) != 0:
            if reports[v][BASE] == reports[seat][BASE] and reports[v][NEWEST] == reports[seat][NEWEST]:
                held += stakes[v]
                agreeing |= 1 << v
    return agreeing if held * 2 > active_stake else 0


@internal
@pure
def _tally(
    reports: DynArray[DynArray[bytes32, 29], 16],
    stakes: uint256[16],
    active_stake: uint256,
    agreeing: uint256,
    revealed: uint256,
    count: uint256,
    hints: DynArray[uint256, 16],
) -> Tally:
    """
    @notice Check the hint of each of the first `count` seats and count what pay and penalties need.
    @dev Ten seats at once, one in each lane of a word. A lane of `reached`, `passed`, `most` and `near` collects one bit
         for each validator, 1 << v, that gave at least the hint, more than it, at most 2 % more, and both the first and
         the last. A sum of lanes is the remainder by 2**24 - 1.
    """
    tally: Tally = empty(Tally)
    sums: uint256[64] = self._subset_sums(stakes)
    shortest: uint256 = max_value(uint256)  # whole reports, the common case, need one comparison a word
    for v: uint256 in range(len(reports), bound=16):
        if (agreeing >> v) & 1 != 0:
            shortest = min(shortest, len(reports[v]))
    for group: uint256 in range((count + LANES_A_WORD - 1) // LANES_A_WORD, bound=26):
        index: uint256 = unsafe_add(group, SEATS)
        begin: uint256 = unsafe_mul(group, LANES_A_WORD)
        stop: uint256 = min(count, unsafe_add(begin, LANES_A_WORD))
        medians: uint256 = 0
        slack: uint256 = 0
        positive: uint256 = 0
        medians, slack, positive = self._lanes(hints, begin, stop)

        reached: uint256 = 0
        passed: uint256 = 0
        most: uint256 = 0
        near: uint256 = 0
        harmful: uint256 = 0
        for v: uint256 in range(len(reports), bound=16):
            if (agreeing >> v) & 1 == 0:
                continue  # none, or of other states: says nothing
            if index >= shortest and index >= len(reports[v]):
                most |= ONES << v
                continue  # absent
            word: uint256 = convert(reports[v][index], uint256)
            weights: uint256 = (word >> 8) & WEIGHTS
            stated: uint256 = ONES
            if word & VERDICTS != 0:
                accepted: uint256 = self._zero_lanes(word & VERDICTS)
                weights &= unsafe_sub(accepted << 16, accepted)
                stated ^= self._zero_lanes((word & VERDICTS) ^ VERDICTS)
                harmful |= self._zero_lanes((word & VERDICTS) ^ (ONES * verdicts.HARMFUL)) << v
            # Bit 16 of weight + 2**16 - x says whether weight >= x; no lane borrows from the next.
            over: uint256 = unsafe_sub(weights | (ONES << 16), medians)
            reached |= ((over >> 16) & ONES) << v
            passed |= ((unsafe_sub(over, ONES) >> 16) & ONES) << v
            # At most 2 % more: bit 17 of c + slack + 2**17 - weight, which is below 2**18. Within 2 %: weight >= c - slack too.
            under: uint256 = unsafe_sub(unsafe_add(unsafe_add(medians, slack), ONES << 17), weights)
            most |= ((under >> 17) & stated) << v
            within: uint256 = (unsafe_add(over, slack) >> 16) & (under >> 17) & positive
            near |= within << v
            tally.matches = unsafe_add(tally.matches, (within % LANE_SUM) << unsafe_mul(v, MATCHES))
        found: Lanes = self._verify(
            sums, active_stake, revealed, begin, stop, medians, positive, reached, passed, most, harmful
        )
        tally.weight = unsafe_add(tally.weight, medians % LANE_SUM)
        tally.judged = unsafe_add(tally.judged, (positive | found.doubtful) % LANE_SUM)
        tally.harmful |= found.harmful
        if found.doubtful != 0:
            tally.doubt = unsafe_add(tally.doubt, found.doubt)
            for v: uint256 in range(16):  # nobody is paid for a seat in doubt
                undone: uint256 = ((near >> v) & found.doubtful) % LANE_SUM
                tally.matches = unsafe_sub(tally.matches, undone << unsafe_mul(v, MATCHES))
    return tally


@internal
@pure
def _lanes(hints: DynArray[uint256, 16], begin: uint256, stop: uint256) -> (uint256, uint256, uint256):
    """
    @notice Hints `begin` .. `stop - 1` in lanes, the first on top: c, c // 50, and 1 where c > 0.
    """
    medians: uint256 = 0
    slack: uint256 = 0
    positive: uint256 = 0
    place: uint256 = self._place(begin)
    left: uint256 = 0       # of the present word of hints
    if begin & 15 != 0:
        left = hints[begin >> 4] << ((begin & 15) << 4)
    for i: uint256 in range(begin, stop, bound=10):
        if i & 15 == 0:
            left = hints[i >> 4]
        c: uint256 = left >> 240
        left <<= 16
        if c != 0:
            medians |= c << place
            slack |= unsafe_div(c, 50) << place
            positive |= 1 << place
        place = unsafe_sub(place, LANE)
    return medians, slack, positive


@internal
@pure
def _verify(
    sums: uint256[64],
    active_stake: uint256,
    revealed: uint256,
    begin: uint256,
    stop: uint256,
    medians: uint256,
    positive: uint256,
    reached: uint256,
    passed: uint256,
    most: uint256,
    harmful: uint256,
) -> Lanes:
    """
    @notice Check the hints of up to ten seats: more than T/2 reaches each, no more than T/2 passes it. Find the seats in
            doubt, for which no more than T/2 says at most 2 % more than the hint, and those on which verdict 4 holds.
    @dev Validators that agree are looked up once: `over`, `enough` and `under` keep the last that reached a hint, said at
         most 2 % more, and passed one.
    """
    found: Lanes = empty(Lanes)
    over: uint256 = max_value(uint256)
    enough: uint256 = max_value(uint256)
    under: uint256 = 0
    place: uint256 = self._place(begin)
    for seat: uint256 in range(begin, stop, bound=10):
        if (revealed >> seat) & 1 == 0:
            assert (positive >> place) & 1 == 0, "settlement: hint for unrevealed"
        else:
            voters: uint256 = (passed >> place) & WEIGHT
            if voters != under:
                assert self._behind(sums, voters) * 2 <= active_stake, "settlement: hint too low"
                under = voters
            if (positive >> place) & 1 != 0:
                voters = (reached >> place) & WEIGHT
                if voters != over:
                    assert self._behind(sums, voters) * 2 > active_stake, "settlement: hint too high"
                    over = voters
            voters = (most >> place) & WEIGHT
            if voters != enough:
                if self._behind(sums, voters) * 2 > active_stake:
                    enough = voters
                else:
                    found.doubtful |= 1 << place
                    found.doubt = unsafe_add(found.doubt, unsafe_sub(WEIGHT, (medians >> place) & WEIGHT))
            voters = (harmful >> place) & WEIGHT
            if voters != 0 and self._behind(sums, voters) * 2 > active_stake:
                found.harmful |= 1 << seat
        place = unsafe_sub(place, LANE)
    return found


@internal
@pure
def _place(seat: uint256) -> uint256:
    """
    @notice Lowest bit of a seat's lane.
    """
    return unsafe_mul(LANE, unsafe_sub(9, seat % LANES_A_WORD))


@internal
@pure
def _zero_lanes(lanes: uint256) -> uint256:
    """
    @notice 1 in each lane whose low byte is zero; the lanes must hold nothing else.
    """
    return ONES ^ ((unsafe_add(lanes, VERDICTS) >> 8) & ONES)


@internal
@pure
def _subset_sums(stakes: uint256[16]) -> uint256[64]:
    """
    @notice For each quarter of the validators, the stake of each of its sixteen subsets: at most T, so nothing overflows.
    """
    sums: uint256[64] = empty(uint256[64])
    for quarter: uint256 in range(4):
        place: uint256 = unsafe_mul(16, quarter)
        for v: uint256 in range(4):
            stake: uint256 = stakes[unsafe_add(unsafe_mul(4, quarter), v)]
            size: uint256 = 1 << v
            for subset: uint256 in range(size, bound=8):
                low: uint256 = unsafe_add(place, subset)
                sums[unsafe_add(low, size)] = unsafe_add(sums[low], stake)
    return sums


@internal
@pure
def _behind(sums: uint256[64], voters: uint256) -> uint256:
    """
    @notice Sum of the stakes of the validators in the low sixteen bits of `voters`, in wei.
    """
    # Safe: all stakes together are T, of 128 bits.
    return unsafe_add(
        unsafe_add(sums[voters & 15], sums[(voters >> 4) & 15 | 16]),
        unsafe_add(sums[(voters >> 8) & 15 | 32], sums[(voters >> 12) & 15 | 48]),
    )


@internal
@pure
def _penal_verdicts(
    reports: DynArray[DynArray[bytes32, 29], 16],
    stakes: uint256[16],
    active_stake: uint256,
    agreeing: uint256,
    seats: DynArray[uint256, 32],
) -> DynArray[uint256, 32]:
    """
    @notice The verdict out of 3 to 6 that holds for each of `seats`, of 256 each at most; 0 if none does.
    @return Verdict, << 8 the bitmap of the validators that gave it, << 24 their stake in wei
    """
    found: DynArray[uint256, 32] = []
    for seat: uint256 in seats:
        index: uint256 = SEATS + seat // LANES_A_WORD
        place: uint256 = self._place(seat)
        held: uint256[4] = empty(uint256[4])
        behind: uint256[4] = empty(uint256[4])
        for v: uint256 in range(len(reports), bound=16):
            if (agreeing >> v) & 1 != 0 and index < len(reports[v]):
                verdict: uint256 = (convert(reports[v][index], uint256) >> place) & VERDICT
                if verdict >= verdicts.MALFORMED and verdict <= verdicts.UNFAITHFUL:
                    held[verdict - verdicts.MALFORMED] += stakes[v]
                    behind[verdict - verdicts.MALFORMED] |= 1 << v
        holds: uint256 = 0
        for k: uint256 in range(4):
            if held[k] * 2 > active_stake:
                holds = (k + verdicts.MALFORMED) | (behind[k] << 8) | (held[k] << 24)
        found.append(holds)
    return found
