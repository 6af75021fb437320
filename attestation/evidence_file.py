"""The evidence file: all that a validator needs to verify a registered key, named by its content root.

Canonical JSON: equal contents have equal bytes, and so the same root, which `register` records on chain. The file is
served under the trainer's URI like a payload. A stranger wrote it, so `EvidenceFile.read` bounds every part.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from earnest.attestation.formats.collateral import CollateralError, canonical_collateral, collateral_digest
from earnest.attestation.prover.attester import MAX_QUOTE_BYTES
from earnest.base.errors import EarnestError
from earnest.base.strict_json import JsonError, read_json, write_json
from earnest.protocol.merkle import content_root

VERSION: Final = 1
MAX_EVIDENCE_BYTES: Final = 1 << 20
"""Limit of the whole file: a quote and collateral have 30 KB, evidence of eight GPUs 100 KB."""

MAX_TEXT_BYTES: Final = 1 << 19
"""Limit of the event log, and of the GPU evidence."""

FIELDS: Final = ("collateral", "event_log", "gpu", "quote", "version")
NO_GPU: Final = bytes(32)


class EvidenceFileError(EarnestError):
    """Bytes that are not an evidence file in canonical form."""


@dataclass(frozen=True)
class EvidenceFile:
    """A quote, its canonical collateral, and the unchanged JSON texts of event log and GPU evidence, if any."""

    quote: bytes
    collateral: bytes
    event_log: bytes | None = None
    gpu: bytes | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.quote) <= MAX_QUOTE_BYTES:
            raise _wrong(f"a quote has 1 to {MAX_QUOTE_BYTES} bytes, this one {len(self.quote)}")
        try:
            canonical = canonical_collateral(self.collateral)
        except CollateralError as error:
            raise _wrong(str(error)) from error
        object.__setattr__(self, "collateral", canonical)
        for name, text in (("event log", self.event_log), ("GPU evidence", self.gpu)):
            if text is not None and not 0 < len(text) <= MAX_TEXT_BYTES:
                raise _wrong(f"the {name} has {len(text)} bytes, the limit is {MAX_TEXT_BYTES}")

    def to_bytes(self) -> bytes:
        """Returns the file's bytes. Raises EvidenceFileError if they exceed the limit, or a text is not UTF-8."""
        try:
            texts = {
                name: None if text is None else text.decode()
                for name, text in (("event_log", self.event_log), ("gpu", self.gpu))
            }
        except UnicodeDecodeError as error:
            raise _wrong("a text is not UTF-8") from error
        document = {
            "version": VERSION,
            "quote": self.quote.hex(),
            "collateral": read_json(self.collateral),
            **texts,
        }
        content = write_json(document)
        if len(content) > MAX_EVIDENCE_BYTES:
            raise _wrong(f"it has {len(content)} bytes, the limit is {MAX_EVIDENCE_BYTES}")
        return content

    def root(self) -> bytes:
        """Returns the content root of the file, which is its name."""
        return content_root(self.to_bytes())

    def collateral_digest(self) -> bytes:
        """Returns the SHA-256 of the canonical collateral, as `register` records it."""
        return collateral_digest(self.collateral)

    def gpu_digest(self) -> bytes:
        """Returns the required second half of the quote's report data: SHA-256 of the GPU evidence, zero without it."""
        return gpu_digest(self.gpu)

    @classmethod
    def read(cls, content: bytes) -> EvidenceFile:
        """Parses a file. Raises EvidenceFileError unless `content` is exactly what `to_bytes` would write."""
        try:
            document = read_json(content, max_bytes=MAX_EVIDENCE_BYTES)
        except JsonError as error:
            raise _wrong(str(error)) from error
        if not isinstance(document, dict) or tuple(sorted(document)) != FIELDS:
            raise _wrong(f"it does not have exactly the fields {', '.join(FIELDS)}")
        if document["version"] != VERSION:
            raise _wrong(f"version {document['version']!r} is not {VERSION}")
        file = cls(
            quote=_hex(document["quote"]),
            collateral=write_json(document["collateral"]),
            event_log=_text(document["event_log"]),
            gpu=_text(document["gpu"]),
        )
        if file.to_bytes() != content:
            raise _wrong("it is not in canonical form")
        return file


def gpu_digest(gpu: bytes | None) -> bytes:
    """Returns the SHA-256 of the GPU evidence, 32 zero bytes if there is none."""
    return NO_GPU if gpu is None else sha256(gpu).digest()


def _hex(value: Any) -> bytes:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError) as error:
        raise _wrong("the quote is not hex") from error


def _text(value: Any) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise _wrong("a text is not a string")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise _wrong("a text is not UTF-8") from error


def _wrong(reason: str) -> EvidenceFileError:
    return EvidenceFileError(
        f"not an evidence file: {reason}", "have the trainer publish the file that `attest register` wrote"
    )
