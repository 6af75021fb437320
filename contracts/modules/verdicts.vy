# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Verdicts
@license MIT
@notice Numbers of the verdicts that contracts name, as in `protocol/verdicts.py`. Protocol section 7.
"""

MALFORMED: constant(uint256) = 3
HARMFUL: constant(uint256) = 4
COPIED: constant(uint256) = 5
UNFAITHFUL: constant(uint256) = 6
