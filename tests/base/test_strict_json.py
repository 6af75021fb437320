"""JSON from strangers: it cannot overrun the parser's stack, is refused quickly, and has one meaning."""

import json
import time
from typing import Any

import pytest

from earnest.base.strict_json import MAX_DEPTH, JsonError, check_depth, read_json, write_json

TOO_DEEP = b"[" * (MAX_DEPTH + 1)


@pytest.mark.parametrize("text", [b' {"b": [1, 2.5, null], "a": "\xc3\xa9"}\n', '{"b":[1,2.5,null],"a":"é"}'])
def test_any_layout_is_read_from_bytes_and_text(text: bytes | str) -> None:
    assert read_json(text) == {"a": "é", "b": [1, 2.5, None]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not JSON: Expecting value"),
        (b"{} {}", "not JSON: Extra data"),
        (b"\xff", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        ("\ud800", "not UTF-8"),
        (TOO_DEEP, "nested deeper than 64"),
        (b'{"a": {"b": 1, "b": 1}}', "a key occurs twice"),
        (b"[NaN]", "NaN is not a number"),
        (b"[-Infinity]", "-Infinity is not a number"),
        (b"1e999", "1e999 is too large a number"),
        (b"9" * 5_000, "not JSON"),
        (b" " * 101, "larger than 100 bytes"),
    ],
    ids=range(12),
)
def test_anything_else_is_refused_with_a_reason(text: bytes | str, reason: str) -> None:
    with pytest.raises(JsonError, match=reason):
        read_json(text, max_bytes=100 if reason.startswith("larger") else 10_000)


def test_a_text_at_both_limits_is_read() -> None:
    text = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH

    assert read_json(text, max_bytes=len(text))
    with pytest.raises(JsonError, match="larger"):
        read_json(text, max_bytes=len(text) - 1)


def test_canonical_bytes_have_sorted_keys_no_spaces_ascii_and_shortest_floats() -> None:
    value = {"b": [1.0, 1e-7, 0.1], "a": {"é": None, "d": True}}

    assert write_json(value) == b'{"a":{"d":true,"\\u00e9":null},"b":[1.0,1e-07,0.1]}'
    assert read_json(write_json(value)) == value


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": -float("inf")}])
def test_a_float_that_is_not_finite_is_not_written(value: Any) -> None:
    with pytest.raises(JsonError):
        write_json(value)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32-le", "utf-32"])
def test_brackets_after_a_quote_that_only_other_encodings_see_are_refused(encoding: str) -> None:
    text = ('["\\"",' + "[" * 1000 + '"').encode(encoding)

    with pytest.raises(JsonError, match="UTF-8"):
        check_depth(text)


def test_a_byte_order_mark_does_not_hide_the_depth() -> None:
    check_depth(b"\xef\xbb\xbf" + json.dumps({"a": [1]}).encode())
    with pytest.raises(JsonError, match="nested deeper"):
        check_depth(b"\xef\xbb\xbf" + TOO_DEEP)


@pytest.mark.parametrize(
    "unclosed", [b'"' + b'\\"' * (1 << 19), b'"' + b"\\" * (1 << 20), b'"' + b"a" * (1 << 20)]
)
def test_a_megabyte_of_quotes_that_nothing_closes_is_refused_at_once(unclosed: bytes) -> None:
    began = time.process_time()
    with pytest.raises(JsonError, match="nested deeper"):
        check_depth(TOO_DEEP + unclosed)

    assert time.process_time() - began < 2


def test_brackets_in_an_unclosed_string_are_no_nesting() -> None:
    check_depth(b'["' + b"[" * 1000 + b'\\"')


@pytest.mark.parametrize("inside", [b'"a\\\\"', b'"\\\\\\""', b'""'])
def test_brackets_after_a_closed_string_count(inside: bytes) -> None:
    with pytest.raises(JsonError, match="nested deeper"):
        check_depth(b"[" + inside + b"," + TOO_DEEP)
