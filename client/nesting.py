"""How deep a stranger's JSON is nested, before a parser is let near it.

Python's JSON parser recurses in C. Where py-evm is loaded, which lifts the interpreter's own limit to 100,000 levels, a
long row of brackets overruns the stack and ends the process.
"""

from __future__ import annotations

import re
from itertools import accumulate

MAX_DEPTH = 64
"""Nothing that we read is nested half as deep."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def check_depth(text: bytes) -> None:
    """Raises ValueError for a JSON text whose lists and objects are nested deeper than MAX_DEPTH.

    What lies behind the first error in the text does not matter: no parser gets there.
    """
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    brackets = _STRING.sub(b"", text).translate(None, _NO_BRACKETS)
    if max(accumulate(_STEPS[bracket] for bracket in brackets), default=0) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
