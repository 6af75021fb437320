"""Amounts: exact in both directions, and strict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.base.amounts import AmountError, format_amount, parse_amount


@given(st.integers(0, 2**96), st.integers(0, 30))
def test_what_is_written_reads_back_exactly(wei: int, decimals: int) -> None:
    assert parse_amount(format_amount(wei, decimals), decimals) == wei


@pytest.mark.parametrize(
    ("text", "decimals", "wei"),
    [
        ("12.5", 18, 12_500_000_000_000_000_000),
        ("1", 0, 1),
        ("0.000001", 6, 1),
        ("1.50", 1, 15),
        ("007", 2, 700),
    ],
)
def test_tokens_become_wei(text: str, decimals: int, wei: int) -> None:
    assert parse_amount(text, decimals) == wei


@pytest.mark.parametrize("text", ["", ".", "1.", ".5", "-1", "+1", "1e18", "1,000", " 1", "0x1", "١", "nan"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(AmountError):
        parse_amount(text, 18)


def test_less_than_one_wei_is_refused() -> None:
    with pytest.raises(AmountError, match="more than the token's 6 decimals"):
        parse_amount("0.0000001", 6)


def test_a_loss_keeps_its_sign() -> None:
    assert format_amount(-1_500, 3) == "-1.5"
