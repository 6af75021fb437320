"""Event logs: a real one replays to the quote's registers, any other is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha384
from typing import Any

import pytest

from earnest.attestation.formats.quote import parse_quote
from earnest.attestation.verifier.event_log import (
    MAX_EVENTS,
    MAX_LOG_BYTES,
    RUNTIME_EVENT,
    EventLogError,
    check_event_log,
    read_event_log,
    replay,
)
from tests.attestation.vectors import read

LOG = read("quotes/tdx4-90c06f-dstack.eventlog.json")
MEASURED = parse_quote(read("quotes/tdx4-90c06f-dstack.bin")).measurements()
REGISTERS = [MEASURED[f"rtmr{index}"] for index in range(4)]
COMPOSE = next(entry for entry in json.loads(LOG) if entry["event"] == "compose-hash")


def entries() -> list[dict[str, Any]]:
    return json.loads(LOG)


def encoded(events: Any) -> bytes:
    return json.dumps(events).encode()


def runtime(name: str, payload: str) -> dict[str, Any]:
    """An event as software in the TD would measure it."""
    message = RUNTIME_EVENT.to_bytes(4, "little") + f":{name}:".encode() + bytes.fromhex(payload)
    digest = sha384(message).hexdigest()
    return {"imr": 3, "event_type": RUNTIME_EVENT, "digest": digest, "event": name, "event_payload": payload}


def test_a_real_log_replays_to_all_four_registers() -> None:
    events = read_event_log(LOG)
    assert len(events) == 28
    assert list(replay(events)) == REGISTERS
    assert [check.passed for check in check_event_log(LOG, REGISTERS)] == [True]


def test_no_events_leave_the_registers_at_zero() -> None:
    assert replay(()) == (bytes(48),) * 4


@pytest.mark.parametrize(
    "change",
    [
        lambda events: events[:-1],
        lambda events: [*events, events[-1]],
        lambda events: [events[1], events[0], *events[2:]],
        lambda events: [*events[:-1], runtime("LIUM_MINER_HOTKEY", "00")],
        lambda events: [{**events[0], "imr": 1}, *events[1:]],
    ],
    ids=["one less", "one twice", "two swapped", "one replaced", "another register"],
)
def test_any_other_log_does_not_replay(change: Callable[[list[Any]], list[Any]]) -> None:
    (check,) = check_event_log(encoded(change(entries())), REGISTERS)
    assert not check.passed
    assert "does not replay to register" in check.reason


def test_a_required_event_is_found_with_its_payload() -> None:
    wanted = {"compose-hash": COMPOSE["event_payload"]}
    assert all(check.passed for check in check_event_log(LOG, REGISTERS, wanted))
    *_, other = check_event_log(LOG, REGISTERS, {"compose-hash": "00" * 32})
    assert not other.passed
    assert other.reason.startswith(f"measured: {COMPOSE['event_payload'][:32]}")
    *_, absent = check_event_log(LOG, REGISTERS, {"training-image": "00"})
    assert (absent.passed, absent.reason) == (False, "measured: nothing")


def test_an_event_added_later_can_not_cover_the_one_before() -> None:
    """Whoever runs in the TD may extend register 3, also with the name and payload that the policy wants."""
    log = encoded([*entries(), runtime("compose-hash", "ab" * 32)])
    registers = replay(read_event_log(log))
    replayed, required = check_event_log(log, registers, {"compose-hash": "ab" * 32})
    assert replayed.passed
    assert not required.passed


def test_an_event_of_another_register_is_not_the_required_one() -> None:
    log = encoded([{**runtime("compose-hash", "ab"), "imr": 2}])
    _, required = check_event_log(log, replay(read_event_log(log)), {"compose-hash": "ab"})
    assert (required.passed, required.reason) == (False, "measured: nothing")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"event_payload": "00"}, "is not that of its name and payload"),
        ({"event": "other"}, "is not that of its name and payload"),
        ({"event_type": 1}, "does not belong in register 3"),
        ({"event": "compose:hash"}, "must not contain a colon"),
        ({"event": "\ud800"}, "the name is not text"),
        ({"imr": 4}, "does not exist"),
        ({"imr": -1}, "does not exist"),
        ({"imr": True}, "imr is not int"),
        ({"imr": "3"}, "imr is not int"),
        ({"event_type": 1 << 32}, "does not exist"),
        ({"digest": "AB" * 48}, "not 96 lower-case"),
        ({"digest": "ab" * 47}, "not 96 lower-case"),
        ({"event_payload": "abc"}, "payload is not lower-case hexadecimal"),
        ({"more": 1}, "not the fields"),
    ],
)
def test_an_event_is_read_strictly(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(EventLogError, match=reason):
        read_event_log(encoded([{**COMPOSE, **change}]))


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (b"", "not JSON"),
        (b"{}", "not a list"),
        (b"[[]]", "event 0: not the fields"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "nested deeper"),
        (b" " * MAX_LOG_BYTES + b"[]", "larger than"),
        (b"[" + b"0," * MAX_EVENTS + b"0]", "at most"),
        (b'[{"imr": 0, "imr": 1}]', "a key occurs twice"),
    ],
)
def test_a_malformed_log_is_a_failed_check_with_a_reason(log: bytes, reason: str) -> None:
    (check,) = check_event_log(log, REGISTERS)
    assert not check.passed
    assert reason in check.reason
