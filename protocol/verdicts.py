"""Verdicts of a validator on an update. Protocol section 7.

The rules that give them are in `validator/judge.py`, their penalties in `penalties.py`. To add one: CONTRIBUTING.md,
"A verdict".
"""

from enum import IntEnum


class Verdict(IntEnum):
    """A validator's verdict on one trainer seat in one round."""

    ACCEPTED = 0
    """Counted, with its weight."""

    ABSENT = 1
    """Nothing revealed."""

    UNAVAILABLE = 2
    """No mirror had the payload by the end of the reveal window."""

    MALFORMED = 3
    """The payload fails a check."""

    HARMFUL = 4
    """Both e-values are above the threshold (`earnest.protocol.harm`)."""

    COPIED = 5
    """The decoded update is identical to one committed earlier."""

    UNFAITHFUL = 6
    """A re-executed segment does not match the trace, or was not served."""

    NOT_COUNTED = 7
    """Wrong base, similar to an earlier update, norm too large, attestation missing: no pay, no penalty."""

    ABSTAIN = 255
    """The validator could not judge, by its own infrastructure's fault."""
