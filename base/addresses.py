"""Addresses as text, with the checksum in their capitals (EIP-55)."""

from __future__ import annotations

from eth_utils.address import is_checksum_address, is_hex_address, to_checksum_address

from earnest.base.errors import EarnestError


class AddressError(EarnestError):
    """A text that is not an address, or that has a wrong checksum."""


def checked_address(text: str) -> str:
    """Returns the checksummed address. Text in one case has no checksum and is accepted."""
    if not text.startswith("0x") or not is_hex_address(text):
        raise AddressError(f"{text!r} is not an address", "write 0x and 40 hex digits, as copied")
    digits = text[2:]
    if digits not in (digits.lower(), digits.upper()) and not is_checksum_address(text):
        raise AddressError(f"{text} has a wrong checksum", "a letter is mistyped: copy the address again")
    return to_checksum_address(text)
