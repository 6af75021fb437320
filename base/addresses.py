"""Addresses as people give them: a mistyped letter is found by the checksum in its capitals (EIP-55)."""

from __future__ import annotations

from eth_utils.address import is_checksum_address, is_hex_address, to_checksum_address

from earnest.base.errors import EarnestError


class AddressError(EarnestError):
    """A text that is not an address, or one whose checksum is wrong."""


def checked_address(text: str) -> str:
    """The address, checksummed. All lower or all upper case carries no checksum and is taken as it is."""
    if not text.startswith("0x") or not is_hex_address(text):
        raise AddressError(f"{text!r} is not an address", "write 0x and 40 hex digits, as copied")
    digits = text[2:]
    if digits not in (digits.lower(), digits.upper()) and not is_checksum_address(text):
        raise AddressError(f"{text} has a wrong checksum", "a letter is mistyped: copy the address again")
    return to_checksum_address(text)
