"""Who makes a quote: the interface that the simulated attester and the two hardware ones share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from earnest.attestation.formats.quote import QuoteError, parse_quote
from earnest.base.errors import EarnestError

REPORT_DATA_BYTES = 64
"""What a quote carries for its owner, in every format."""

MAX_QUOTE_BYTES = 16 * 1024
"""Genuine quotes with their certificates have about 5 KB."""


class AttesterError(EarnestError):
    """The platform gave no quote, or one that is not for what was asked."""


class NoTeeError(AttesterError):
    """This machine does not offer that kind of attester."""


@dataclass(frozen=True)
class Quoted:
    """A quote, and what the attester knows beside it.

    `event_log` is the JSON list of what was measured into the registers; `collateral` the JSON that judges the
    quote, canonical as `earnest.attestation.formats.collateral` has it. Hardware leaves out what it does not have.
    """

    quote: bytes
    event_log: bytes | None = None
    collateral: bytes | None = None


class Attester(Protocol):
    """Makes quotes over 64 bytes of its owner's choice."""

    @property
    def kind(self) -> str:
        """`simulated`, `tdx-guest` or `dstack`."""
        ...

    @property
    def root_id(self) -> bytes:
        """Id of the root CA that its quotes lead to: keccak256 of the root's public key, x then y."""
        ...

    def quote(self, report_data: bytes) -> Quoted:
        """A quote over `report_data` (64 bytes). Raises AttesterError."""
        ...


def check_report_data(report_data: bytes) -> None:
    """Raises ValueError for anything but 64 bytes: a shorter one would be padded, each platform in its own way."""
    if len(report_data) != REPORT_DATA_BYTES:
        raise ValueError(f"report data has {REPORT_DATA_BYTES} bytes, not {len(report_data)}")


def check_quote_is_for(quote: bytes, report_data: bytes, who: str) -> None:
    """Raises AttesterError unless the quote is of a plausible size and made over `report_data`.

    A quote that was cached, or asked for by somebody else meanwhile, is caught here rather than by the chain.
    """
    if not 0 < len(quote) <= MAX_QUOTE_BYTES:
        raise AttesterError(
            f"{who} gave a quote of {len(quote)} bytes, at most {MAX_QUOTE_BYTES} are plausible",
            "look at the quoting service's log",
        )
    try:
        over = parse_quote(quote).report_data
    except QuoteError as error:
        raise AttesterError(
            f"{who} gave what is no quote: {error}", "use a platform with TDX or SGX quotes"
        ) from error
    if over != report_data:
        raise AttesterError(f"{who} gave a quote over other report data", "ask again")
