"""The public attestation evidence in tests/data, with the verdicts expected of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "attestation"
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def read(name: str) -> bytes:
    """A file of the evidence."""
    return (DATA / name).read_bytes()


@dataclass(frozen=True)
class Vector:
    """One quote under one collateral at one time, and what has to come of it."""

    name: str
    quote: bytes
    collateral: bytes
    root: bytes
    now: int
    accepted: bool
    status: str | None
    advisories: tuple[str, ...]
    error: str
    up_to_date_only: bool


def mutate(quote: bytes, how: dict[str, Any]) -> bytes:
    """A quote with bytes flipped, appended, or its signature's s replaced by n - s."""
    raw = bytearray(quote)
    for offset, mask in how.get("xor", []):
        raw[offset] ^= mask
    if (at := how.get("negate_s")) is not None:
        raw[at : at + 32] = (P256_ORDER - int.from_bytes(raw[at : at + 32])).to_bytes(32)
    return bytes(raw) + bytes.fromhex(how.get("append", ""))


def _vector(entry: dict[str, Any]) -> Vector:
    expect = entry["expect"]
    return Vector(
        name=entry["id"],
        quote=mutate(read(entry["quote"]), entry.get("mutate", {})),
        collateral=read(entry["collateral"]),
        root=read(entry["root"]),
        now=entry["now"],
        accepted=expect["verdict"] == "accept",
        status=expect.get("status"),
        advisories=tuple(expect.get("advisories", ())),
        error=expect.get("error", ""),
        up_to_date_only=entry.get("uptodate_only_policy") == "accept",
    )


VECTORS = {entry["id"]: _vector(entry) for entry in json.loads(read("index.json"))["vectors"]}
