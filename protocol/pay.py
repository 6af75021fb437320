"""Pay of trainers and validators for one round. Protocol section 8.

c_i (0..65535) is the consensus weight of trainer seat i, from `consensus.py`; P and Q are the pools of the round for
trainers and validators, in wei; F is the run's `full_seats`; T is the active stake. A seat is judged if c_i > 0 or in
doubt; doubt is the sum of 65535 - c_i over the seats in doubt.

```
D      = max(sum c_i + doubt, 65535 * F)
pay_i  = P * c_i // D
burned = P * doubt // D
pay_v  = Q * stake_v * #{ i : c_i > 0, i not in doubt, |w_vi - c_i| * 50 <= c_i } // (T * #{ i : i judged })
```

D counts weight and not heads, so seats that reveal junk take nothing from others; and it counts a seat in doubt in
full, so nobody gains by putting a rival in doubt.
"""

from earnest.protocol.constants import WEIGHT_ONE

AGREEMENT = 50
"""A weight matches the consensus if it is off by at most one part in this many."""


def shares(weight: int, doubt: int, full_seats: int) -> int:
    """Returns D, of which a seat's pay is the part c_i; at least `full_seats` seats of full weight."""
    return max(weight + doubt, WEIGHT_ONE * full_seats)


def trainer_pay(pool: int, consensus: int, shares: int) -> int:
    """Returns pay_i in wei, rounded down: the remainder stays in escrow."""
    return pool * consensus // shares


def burned_pay(pool: int, doubt: int, shares: int) -> int:
    """Returns the part of P in wei that is withheld from the seats in doubt and burned, rounded down."""
    return pool * doubt // shares


def validator_pay(pool: int, stake: int, matched: int, active_stake: int, judged: int) -> int:
    """Returns pay_v in wei, rounded down; 0 when no seat is judged."""
    return pool * stake * matched // (active_stake * judged) if judged else 0


def at_most(weight: int, consensus: int) -> bool:
    """Returns True if a weight is at most 2 % above c."""
    return weight <= consensus + consensus // AGREEMENT


def agrees(weight: int, consensus: int) -> bool:
    """Returns True if a validator's weight for a seat with c > 0 is within 2 % of c."""
    return consensus > 0 and abs(weight - consensus) * AGREEMENT <= consensus
