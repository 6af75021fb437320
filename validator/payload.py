"""Checks of a payload: could it be fetched, and is it an update at all? Protocol sections 5 and 7."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from earnest.base.errors import StorageError, Unavailable, WrongContent
from earnest.protocol.verdicts import Verdict
from earnest.training.codecs import PayloadError, Update

log = structlog.get_logger()


@dataclass(frozen=True)
class Rejection:
    """A verdict other than accepted, and the reason as text, which goes into the measurements file."""

    verdict: Verdict
    reason: str


UNAVAILABLE = Rejection(Verdict.UNAVAILABLE, "no mirror had the payload by the end of the reveal window")
OWN_FAILURE = Rejection(Verdict.ABSTAIN, "the validator's own infrastructure failed")
"""Abstention: a failure of the validator's own machine is never a verdict on a trainer."""


def check_updates(
    round: int, results: Mapping[int, Update | PayloadError | StorageError | OSError]
) -> dict[int, Update | Rejection]:
    """Returns the update of every seat, or the verdict in place of one that is missing or malformed.

    A payload that cannot be fetched is verdict 2 (unavailable). A validator that could fetch no payload at all abstains
    on every seat instead: its own network may have failed.
    """
    reachable = any(isinstance(result, Update | PayloadError) for result in results.values())
    checked: dict[int, Update | Rejection] = {}
    for seat, result in results.items():
        if isinstance(result, Update | PayloadError):
            checked[seat] = check_update(result)
            continue
        unavailable = isinstance(result, Unavailable | WrongContent) and reachable
        log.warning("no payload", round=round, seat=seat, cause=str(result), abstaining=not unavailable)
        checked[seat] = UNAVAILABLE if unavailable else OWN_FAILURE
    return checked


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
