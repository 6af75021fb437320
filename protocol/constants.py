"""Limits that the contracts enforce. Protocol section 3."""

from typing import Final

PROTOCOL_VERSION: Final = 1

MAX_TRAINERS: Final = 256
MAX_VALIDATORS: Final = 16
MAX_ROUNDS: Final = 65_535
START_LIMIT: Final = 2**40
"""A run must start before this unix second: the contract stores 40 bits."""

WEIGHT_ONE: Final = 65_535
"""The largest weight of a seat: weights are 16-bit."""

AMOUNT_LIMIT: Final = 2**96
"""Amounts (wei) are below this, so that products with weights and stakes stay inside 256 bits."""

BPS: Final = 10_000
MAX_PENALTY_BPS: Final = 5_000
MAX_EXIT_DELAY_S: Final = 60 * 86_400
MIN_WINDOW_S: Final = 60
"""Least length of the settle and the contest window, seconds: five blocks of Ethereum."""

EXIT_MARGIN_S: Final = 86_400
"""Seconds of an exit delay after the last window in which a fault can be charged (section 4)."""

SILENT_ROUNDS: Final = 8
"""A trainer seat without a commitment for this many rounds can be taken over by anyone who qualifies."""

OUTBID_SHARE: Final = 4
"""One in this many trainer seats, at least one, can be outbid in a round."""

ACTIVE_ROUNDS: Final = 2
"""A validator seat counts for this many rounds after it joined, asked back or revealed a report."""

TAKEOVER_NUMERATOR: Final = 5
TAKEOVER_DENOMINATOR: Final = 4
"""If all trainer seats are taken, a bond of 5/4 of the smallest one takes over its seat."""

NO_SEAT: Final = 2**256 - 1
"""Value of `take` when `join` takes a free seat."""

ZERO_ADDRESS: Final = "0x" + "00" * 20
