"""Pay of trainers and validators for one round. Protocol section 8.

c_i (0..65535) is the consensus weight of trainer seat i, from `consensus.py`; P and Q are the pools of the round for
trainers and validators, in wei; n is the number of trainer seats that revealed; T is the active stake.

```
pay_i = P * c_i // (65535 * n)
pay_v = Q * stake_v * #{ i : c_i > 0 and |w_vi - c_i| * 50 <= c_i } // (T * #{ i : c_i > 0 })
```
"""

from earnest.protocol.constants import WEIGHT_ONE

AGREEMENT = 50
"""A weight matches the consensus if it is off by at most one part in this many."""


def trainer_pay(pool: int, consensus: int, revealed: int) -> int:
    """Returns pay_i in wei, rounded down: the remainder stays in escrow. n = `revealed` >= 1 wherever c_i > 0."""
    return pool * consensus // (WEIGHT_ONE * revealed) if consensus else 0


def validator_pay(pool: int, stake: int, matched: int, active_stake: int, counted: int) -> int:
    """Returns pay_v in wei, rounded down; 0 when no seat counts."""
    return pool * stake * matched // (active_stake * counted) if counted else 0


def agrees(weight: int, consensus: int) -> bool:
    """Returns True if a validator's weight for a seat with c > 0 is within 2 % of c."""
    return consensus > 0 and abs(weight - consensus) * AGREEMENT <= consensus
