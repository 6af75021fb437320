"""The reason of a verdict, read from a stranger's measurements file."""

from __future__ import annotations

import json

import pytest

from earnest.client.run.outcome import TEXTS, _read
from earnest.protocol.verdicts import Verdict


def test_every_verdict_has_a_text() -> None:
    assert TEXTS.keys() == set(Verdict)


def test_the_seat_s_own_reason_is_read() -> None:
    seats = [{"seat": 0, "reason": "alike"}, {"seat": 1, "reason": "too large"}, {"seat": 2}]
    assert _read(json.dumps({"seats": seats}).encode(), 1) == "too large"
    assert _read(json.dumps({"seats": seats}).encode(), 2) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"7",
        b"{}",
        b'{"seats": 7}',
        b'{"seats": [7]}',
        b'{"seats": [{"seat": 1, "reason": 7}]}',
    ],
)
def test_a_hostile_file_gives_no_reason(content: bytes) -> None:
    assert _read(content, 1) is None
