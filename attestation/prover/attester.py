"""The interface of attesters (sources of quotes): one for simulation and two for hardware, in files beside this one.

To add one: CONTRIBUTING.md, "A platform that makes quotes".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from earnest.attestation.formats.quote import QuoteError, parse_quote
from earnest.base.errors import EarnestError

REPORT_DATA_BYTES = 64
"""Size of the report data in a quote of every format."""

MAX_QUOTE_BYTES = 16 * 1024
"""Limit of an attester's quote. Genuine quotes with their certificates have about 5 KB."""


class AttesterError(EarnestError):
    """The platform gave no quote, or one over other report data."""


class NoTeeError(AttesterError):
    """This machine does not support that attester."""


@dataclass(frozen=True)
class Quoted:
    """A quote, with event log and collateral if the attester has them.

    `event_log` is the JSON list of the events measured into the registers, `collateral` is canonical JSON
    (`earnest.attestation.formats.collateral`).
    """

    quote: bytes
    event_log: bytes | None = None
    collateral: bytes | None = None


class Attester(Protocol):
    """Makes quotes over 64 bytes of report data."""

    @property
    def kind(self) -> str:
        """`simulated`, `tdx-guest` or `dstack`."""
        ...

    @property
    def root_id(self) -> bytes:
        """Id of the root CA of its quotes: keccak256 of the root's public key, x then y."""
        ...

    def quote(self, report_data: bytes) -> Quoted:
        """Returns a quote over `report_data` (64 bytes). Raises AttesterError."""
        ...


def check_report_data(report_data: bytes) -> None:
    """Raises ValueError for anything but 64 bytes: platforms pad shorter data in different ways."""
    if len(report_data) != REPORT_DATA_BYTES:
        raise ValueError(f"report data has {REPORT_DATA_BYTES} bytes, not {len(report_data)}")


def check_quote_is_for(quote: bytes, report_data: bytes, source: str) -> None:
    """Raises AttesterError unless the quote is of a plausible size and made over `report_data`.

    Detects a cached quote, or one that another process requested, before the chain refuses it.
    """
    if not 0 < len(quote) <= MAX_QUOTE_BYTES:
        raise AttesterError(
            f"{source} gave a quote of {len(quote)} bytes, at most {MAX_QUOTE_BYTES} are plausible",
            "read the quoting service's log",
        )
    try:
        quoted_data = parse_quote(quote).report_data
    except QuoteError as error:
        raise AttesterError(
            f"{source} gave bytes that are no quote: {error}", "use a platform with TDX or SGX quotes"
        ) from error
    if quoted_data != report_data:
        raise AttesterError(f"{source} gave a quote over other report data", "try again")
