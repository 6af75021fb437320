"""How deep a stranger's JSON is nested, before a parser is let near it.

Python's JSON parser recurses in C. Where py-evm is loaded, which lifts the interpreter's own limit to 100,000 levels, a
long row of brackets overruns the stack and ends the process.
"""

import json
import re
from itertools import accumulate
from typing import Final

MAX_DEPTH: Final = 64
"""Nothing that we read is nested half as deep."""

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or the rest of the text behind a quote that nothing closes: every byte is looked at once."""

_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def check_depth(text: bytes) -> None:
    """Raises ValueError for a JSON text whose lists and objects are nested deeper than MAX_DEPTH, or not in UTF-8.

    Python's parser would take UTF-16 and UTF-32 too, in which a quote is not the one byte that is looked for here.
    What lies behind the first error in the text does not matter: no parser gets there.
    """
    if not json.detect_encoding(text).startswith("utf-8"):
        raise ValueError("not UTF-8")
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    brackets = _STRING.sub(b"", text).translate(None, _NO_BRACKETS)
    if max(accumulate(_STEPS[bracket] for bracket in brackets), default=0) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
