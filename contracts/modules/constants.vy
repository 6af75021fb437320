# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Constants
@license MIT
@notice Limits and masks that more than one contract uses, as in `protocol/constants.py`. Protocol section 3.
"""

PROTOCOL_VERSION: public(constant(uint256)) = 1

TRAINER: constant(uint256) = 1             # roles of a seat
VALIDATOR: constant(uint256) = 2

INCENTIVE: constant(uint256) = 0           # levels of verification
AUDITED: constant(uint256) = 1

MAX_TRAINERS: constant(uint256) = 256
MAX_VALIDATORS: constant(uint256) = 16
MAX_ROUNDS: constant(uint256) = 2**16 - 1
WEIGHT_ONE: constant(uint256) = 2**16 - 1  # the largest weight of a seat
BPS: constant(uint256) = 10_000            # hundredths of a percent in the whole
DAY: constant(uint256) = 86_400            # seconds
MAX_EXIT_DELAY: constant(uint256) = 60 * DAY

AMOUNT_BITS: constant(uint256) = 96        # amounts in wei, so that products with weights and stakes fit a word
AMOUNT_MASK: constant(uint256) = 2**AMOUNT_BITS - 1
ADDRESS_MASK: constant(uint256) = 2**160 - 1
ROUND_MASK: constant(uint256) = 2**24 - 1  # rounds in packed words
SEATS_MASK: constant(uint256) = 2**16 - 1  # bitmap of the validator seats
