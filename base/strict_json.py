"""Strict JSON: one reader for bytes that a stranger may have written, one canonical writer for bytes that are hashed.

Python's JSON parser recurses in C. Where py-evm is loaded, which raises the interpreter's own limit to 100,000 levels,
a long row of brackets overruns the stack and ends the process, so the depth is checked before anything is parsed.
"""

import json
import re
from itertools import accumulate
from math import isfinite
from typing import Any, Final, NoReturn

MAX_BYTES: Final = 1 << 20
"""Default limit of a text, in bytes of UTF-8."""

MAX_DEPTH: Final = 64
"""Limit of nested lists and objects; no file of the protocol is nested half as deep."""

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""Matches a string, or the rest of the text after a quote that is not closed; visits every byte once."""

_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class JsonError(ValueError):
    """A text that is not strict JSON, or a value that strict JSON cannot hold; says why."""


def read_json(text: bytes | str, *, max_bytes: int = MAX_BYTES) -> Any:
    """Parses JSON of any layout.

    Raises JsonError for a text that is larger than `max_bytes`, not UTF-8, nested deeper than MAX_DEPTH or not JSON,
    that has a key twice in one object, or a number that is not finite.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        if len(data) > max_bytes:
            raise JsonError(f"larger than {max_bytes} bytes")
        check_depth(data)
        return _DECODER.decode(data.decode())
    except JsonError:
        raise
    except UnicodeError as error:
        raise JsonError("not UTF-8") from error
    except ValueError as error:
        raise JsonError(f"not JSON: {error}") from error


def write_json(value: Any) -> bytes:
    """Returns the canonical bytes of `value`: sorted keys, no spaces, ASCII, floats in shortest form.

    Raises JsonError for a float that is not finite.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise JsonError(str(error)) from error


def check_depth(text: bytes) -> None:
    """Raises JsonError for a JSON text that is nested deeper than MAX_DEPTH, or not UTF-8.

    For use before parsers other than `read_json`. Python's parser also accepts UTF-16 and UTF-32, in which a quote is
    not the one byte that is searched for here. What follows the first error in the text does not matter: no parser gets
    there.
    """
    if not json.detect_encoding(text).startswith("utf-8"):
        raise JsonError("not UTF-8")
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    brackets = _STRING.sub(b"", text).translate(None, _NO_BRACKETS)
    if max(accumulate(_STEPS[bracket] for bracket in brackets), default=0) > MAX_DEPTH:
        raise JsonError(f"nested deeper than {MAX_DEPTH}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise JsonError("a key occurs twice")
    return result


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise JsonError(f"{text[:32]} is too large a number")
    return number


def _no_constant(name: str) -> NoReturn:
    raise JsonError(f"{name} is not a number")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_constant
)
