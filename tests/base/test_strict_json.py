"""JSON of strangers: none of it may overrun the parser's stack, or take long to be refused."""

import json
import time

import pytest

from earnest.base.strict_json import MAX_DEPTH, check_depth

TOO_DEEP = b"[" * (MAX_DEPTH + 1)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32-le", "utf-32"])
def test_brackets_behind_a_quote_that_only_other_encodings_see_are_refused(encoding: str) -> None:
    text = ('["\\"",' + "[" * 1000 + '"').encode(encoding)

    with pytest.raises(ValueError, match="UTF-8"):
        check_depth(text)


def test_a_text_with_a_byte_order_mark_is_read_as_the_parser_reads_it() -> None:
    check_depth(b"\xef\xbb\xbf" + json.dumps({"a": [1]}).encode())


@pytest.mark.parametrize(
    "unclosed", [b'"' + b'\\"' * (1 << 19), b'"' + b"\\" * (1 << 20), b'"' + b"a" * (1 << 20)]
)
def test_a_megabyte_of_quotes_that_nothing_closes_is_refused_at_once(unclosed: bytes) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match="nested deeper"):
        check_depth(TOO_DEEP + unclosed)

    assert time.process_time() - began < 2


def test_brackets_in_an_unclosed_string_are_no_nesting() -> None:
    check_depth(b'["' + b"[" * 1000 + b'\\"')


@pytest.mark.parametrize("inside", [b'"a\\\\"', b'"\\\\\\""', b'""'])
def test_brackets_behind_a_closed_string_count(inside: bytes) -> None:
    with pytest.raises(ValueError, match="nested deeper"):
        check_depth(b"[" + inside + b"," + TOO_DEEP)
