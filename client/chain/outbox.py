"""The outbox: transactions that are written down before they leave, and never leave twice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Status(StrEnum):
    """What became of an intent. Everything but `OPEN` is final."""

    OPEN = "open"  # written down; perhaps sent, perhaps mined
    DONE = "done"  # mined, did what it should
    REVERTED = "reverted"  # mined, the contract refused
    CANCELLED = (
        "cancelled"  # no longer needed; its nonce was used up by an empty transfer, or never signed away
    )
    LOST = "lost"  # its nonce was used by a transaction that is not ours


@dataclass(frozen=True)
class Intent:
    """One transaction that the node wants mined once, whatever its fee turns out to be.

    `name` is unique and says why ("1/commit/4" = run 1, round 4). `hashes` are the transaction hashes of all
    versions signed so far, oldest first, on the same `nonce`; a version is written here before it is sent.
    `max_fee` and `tip` (wei per gas) are the newest version's. `deadline` is chain time, seconds.
    """

    name: str
    to: str  # checksummed address
    data: bytes
    value: int  # wei
    gas: int
    nonce: int
    max_fee: int
    tip: int
    hashes: tuple[str, ...]  # 0x-prefixed hex
    status: str  # a Status
    created_block: int
    deadline: int | None = None


class IntentStore(Protocol):
    """Where intents live; every method is on disk and synced when it returns."""

    def add_intent(self, intent: Intent) -> None:
        """Write a new intent. An earlier one of the same name that is not open gives way to it."""
        ...

    def update_intent(self, intent: Intent) -> None:
        """Overwrite the intent of this name."""
        ...

    def intent(self, name: str) -> Intent | None:
        """The intent of this name, or None."""
        ...

    def open_intents(self) -> list[Intent]:
        """Every intent whose status is `open`, lowest nonce first."""
        ...
