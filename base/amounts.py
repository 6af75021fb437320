"""Conversion of token amounts between text with a decimal point and whole wei."""

from __future__ import annotations

import re

from earnest.base.errors import EarnestError

AMOUNT = re.compile(r"([0-9]{1,30})(?:\.([0-9]+))?")


class AmountError(EarnestError):
    """A text that is not an amount of the token."""


def parse_amount(text: str, decimals: int) -> int:
    """Returns the wei of a text such as `12.5`. Raises AmountError for signs, exponents and fractions of a wei."""
    found = AMOUNT.fullmatch(text)
    if found is None:
        raise AmountError(
            f"{text!r} is not an amount", "write tokens as digits with a point, for example 12.5"
        )
    whole, fraction = found[1], (found[2] or "").rstrip("0")
    if len(fraction) > decimals:
        raise AmountError(f"{text} has more than the token's {decimals} decimals", "round it")
    return int(whole) * 10**decimals + int(fraction.ljust(decimals, "0") or 0)


def format_amount(wei: int, decimals: int) -> str:
    """Returns the amount in tokens, exact and without trailing zeros; the inverse of `parse_amount`."""
    sign, wei = ("-", -wei) if wei < 0 else ("", wei)
    whole, fraction = divmod(wei, 10**decimals)
    digits = str(fraction).rjust(decimals, "0").rstrip("0") if fraction else ""
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"


def brief(amount: str, places: int = 4) -> str:
    """Returns a formatted amount cut, not rounded up, to `places` decimals."""
    whole, point, digits = amount.partition(".")
    kept = digits[:places].rstrip("0")
    return f"{whole}{point}{kept}" if kept else whole
