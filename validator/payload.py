"""Checks that a payload is an update at all. Protocol sections 5 and 7."""

from __future__ import annotations

from dataclasses import dataclass

from earnest.protocol.verdicts import Verdict
from earnest.training.codecs import PayloadError, Update


@dataclass(frozen=True)
class Rejection:
    """A verdict other than accepted, and the reason as text, which goes into the measurements file."""

    verdict: Verdict
    reason: str


UNAVAILABLE = Rejection(Verdict.UNAVAILABLE, "no mirror had the payload by the end of the reveal window")
OWN_FAILURE = Rejection(Verdict.ABSTAIN, "the validator's own infrastructure failed")
"""A failure of the validator's own machine is never a verdict on a trainer."""


def check_update(decoded: Update | PayloadError) -> Update | Rejection:
    """Returns the update, or verdict 3 (malformed) for a payload that does not decode or has norm 0.

    The payload's root and size were checked when it was fetched: other bytes are not the trainer's payload, and prove
    nothing against it. `manifest.size` is for the record only.
    """
    if isinstance(decoded, PayloadError):
        return Rejection(Verdict.MALFORMED, str(decoded))
    if decoded.norm == 0:
        return Rejection(Verdict.MALFORMED, "norm is zero")
    return decoded
