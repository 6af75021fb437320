"""Addresses: the checksum detects every change of a single letter."""

import pytest
from eth_utils.address import to_checksum_address

from earnest.base.addresses import AddressError, checked_address

ADDRESS = to_checksum_address("0x" + "d5e46e8f29fc67af354b" * 2)


@pytest.mark.parametrize("text", [ADDRESS, ADDRESS.lower(), "0x" + ADDRESS[2:].upper()])
def test_every_way_to_write_it_gives_the_checksummed_one(text: str) -> None:
    assert checked_address(text) == ADDRESS


@pytest.mark.parametrize(
    "text", ["", "0x", ADDRESS[:-1], ADDRESS + "0", ADDRESS[2:], "0x" + "g" * 40, "ens.eth"]
)
def test_a_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(AddressError, match="is not an address"):
        checked_address(text)


def test_a_slip_in_the_capitals_is_found() -> None:
    for place, letter in enumerate(ADDRESS):
        if place > 1 and letter.isalpha():
            slipped = ADDRESS[:place] + letter.swapcase() + ADDRESS[place + 1 :]
            with pytest.raises(AddressError, match="wrong checksum"):
                checked_address(slipped)
