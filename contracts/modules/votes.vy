# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Votes
@license MIT
@notice Fields of the word in which TrainingRuns keeps a round's votes. Protocol sections 3 and 6.
@dev From the lowest bit: active stake T in wei (128 bits), then the fields below.
"""

STAKE_MASK: constant(uint256) = 2**128 - 1
ACTIVE: constant(uint256) = 128            # 16 bits, bit v: the stake of validator seat v is part of T
REPORTED: constant(uint256) = 144          # 16 bits, bit v: validator seat v revealed its report
STAKES: constant(uint256) = 160            # 24 bits, the round under which this round's stakes are stored
ASKED: constant(uint256) = 184             # 72 bits, the block in which the seed was requested
