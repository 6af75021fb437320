"""Is the payload what its manifest promised, and an update at all? Protocol sections 5 and 7."""

from __future__ import annotations

from dataclasses import dataclass

from earnest.protocol.manifest import Manifest
from earnest.protocol.merkle import content_root
from earnest.protocol.verdicts import Verdict
from earnest.training.codecs import Codec, PayloadError, Update


@dataclass(frozen=True)
class Rejection:
    """Why an update earns nothing: a non-zero verdict, and a reason in words for the evidence file."""

    verdict: Verdict
    reason: str


def check_payload(payload: bytes, manifest: Manifest, codec: Codec, max_bytes: int) -> Update | Rejection:
    """Decode `payload`, or say what is wrong with it. Nothing a payload claims is allocated before it is
    checked.

    Bytes that do not hash to the root committed are not the payload: whoever served them proved nothing
    against the trainer, so it is unavailable, not malformed. `manifest.size` is for the record and decides
    nothing.
    """
    if len(payload) > max_bytes:
        return Rejection(Verdict.MALFORMED, f"{len(payload)} bytes, more than the recipe's {max_bytes}")
    if content_root(payload) != manifest.update:
        return Rejection(Verdict.UNAVAILABLE, "content does not have the root that was committed")
    try:
        update = codec.decode(payload)
    except PayloadError as error:
        return Rejection(Verdict.MALFORMED, str(error))
    if update.norm == 0:
        return Rejection(Verdict.MALFORMED, "norm is zero")
    return update
