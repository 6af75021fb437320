"""Checks a TD's event log: it must replay to the four run-time registers of the quote.

A register starts at zero and can only be extended: `rtmr = SHA-384(rtmr || digest)`. The log is the JSON of dstack
(github.com/Dstack-TEE/dstack): a list of `imr` (register 0 to 3), `event_type`, `digest`, `event` (name) and
`event_payload`, digests and payloads in hexadecimal. Without the replay it proves nothing.

Registers 0 to 2 measure firmware, kernel and command line; the workload id pins them, and their payloads are not
checked, because the digests are not over them. Register 3 is for software: there, a digest is
`SHA-384(event_type as 4 bytes, little endian || ":" || name || ":" || payload)`, and is recomputed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha384
from typing import Any, Final

from earnest.attestation.verifier.verification import Check
from earnest.base.strict_json import JsonError, read_json

MAX_LOG_BYTES: Final = 1 << 20
MAX_EVENTS: Final = 4096
REGISTERS: Final = 4
RUNTIME_REGISTER: Final = 3
RUNTIME_EVENT: Final = 0x08000001
"""Type of events measured by software, the only type allowed in register 3."""

_FIELDS: Final = {"imr": int, "event_type": int, "digest": str, "event": str, "event_payload": str}


class EventLogError(ValueError):
    """Bytes that are no event log, with the reason."""


@dataclass(frozen=True)
class Event:
    """One extension of a register."""

    register: int
    kind: int
    digest: bytes
    """48 bytes."""

    name: str
    payload: bytes


def read_event_log(data: bytes) -> tuple[Event, ...]:
    """Parses a log, in order of measurement. Raises EventLogError; strict about keys, types, lengths and digests."""
    try:
        document = read_json(data, max_bytes=MAX_LOG_BYTES)
    except JsonError as error:
        raise EventLogError(str(error)) from error
    if not isinstance(document, list) or len(document) > MAX_EVENTS:
        raise EventLogError(f"not a list of at most {MAX_EVENTS} events")
    return tuple(_event(entry, f"event {index}") for index, entry in enumerate(document))


def replay(events: Sequence[Event]) -> tuple[bytes, bytes, bytes, bytes]:
    """Returns the four registers, 48 bytes each, that result from the events."""
    registers = [bytes(48)] * REGISTERS
    for event in events:
        registers[event.register] = sha384(registers[event.register] + event.digest).digest()
    return (registers[0], registers[1], registers[2], registers[3])


def check_event_log(
    data: bytes, registers: Sequence[bytes], required: Mapping[str, str] | None = None
) -> list[Check]:
    """Checks that the log replays to the quote's `registers` and has each required event of register 3 exactly once.

    `required` maps names to payloads in hexadecimal. Exactly once, because code in the TD can add events later, but
    cannot remove the one that the system measured before.
    """
    try:
        events = read_event_log(data)
    except EventLogError as error:
        return [Check("event log", False, str(error))]
    replayed = replay(events)
    wrong = [str(i) for i in range(REGISTERS) if replayed[i] != registers[i]]
    reason = f"does not replay to register {', '.join(wrong)}" if wrong else f"{len(events)} events replay"
    checks = [Check("event log", not wrong, reason)]
    for name, payload in (required or {}).items():
        payloads = [e.payload.hex() for e in events if e.register == RUNTIME_REGISTER and e.name == name]
        passed = payloads == [payload]
        measured = ", ".join(value[:32] for value in payloads[:4]) or "nothing"
        checks.append(Check(f"event {name}", passed, "as required" if passed else f"measured: {measured}"))
    return checks


def _event(entry: Any, where: str) -> Event:
    if not isinstance(entry, dict) or entry.keys() != _FIELDS.keys():
        raise EventLogError(f"{where}: not the fields {', '.join(_FIELDS)}")
    for name, kind in _FIELDS.items():
        if type(entry[name]) is not kind:
            raise EventLogError(f"{where}: {name} is not {kind.__name__}")
    register, kind = entry["imr"], entry["event_type"]
    if not 0 <= register < REGISTERS or not 0 <= kind < 2**32:
        raise EventLogError(f"{where}: register {register} or type {kind} does not exist")
    if re.fullmatch(r"[0-9a-f]{96}", entry["digest"]) is None:
        raise EventLogError(f"{where}: the digest is not 96 lower-case hexadecimal digits")
    if re.fullmatch(r"([0-9a-f]{2})*", entry["event_payload"]) is None:
        raise EventLogError(f"{where}: the payload is not lower-case hexadecimal")
    event = Event(
        register,
        kind,
        bytes.fromhex(entry["digest"]),
        entry["event"],
        bytes.fromhex(entry["event_payload"]),
    )
    if register == RUNTIME_REGISTER:
        _check_runtime(event, where)
    return event


def _check_runtime(event: Event, where: str) -> None:
    if event.kind != RUNTIME_EVENT:
        raise EventLogError(f"{where}: type {event.kind:#x} does not belong in register {RUNTIME_REGISTER}")
    try:
        name = event.name.encode()
    except UnicodeEncodeError as error:
        raise EventLogError(f"{where}: the name is not text") from error
    if ":" in event.name:
        raise EventLogError(f"{where}: a name must not contain a colon")
    digest = sha384(event.kind.to_bytes(4, "little") + b":" + name + b":" + event.payload).digest()
    if digest != event.digest:
        raise EventLogError(f"{where}: the digest of {event.name!r} is not that of its name and payload")
