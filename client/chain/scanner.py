"""The event scanner: every event of some contracts from a block on, in order, each once, none of a fork."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import msgspec
import structlog

from earnest.base.errors import BadAnswer, EndpointDown, ReorgDetected
from earnest.client.chain.abi import Abi
from earnest.client.chain.answers import Log
from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.contracts import Contract
from earnest.client.chain.endpoints import Chain

log = structlog.get_logger()


class KeyValues(Protocol):
    """The part of a journal that keeps small things by name."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...


@dataclass(frozen=True)
class Event:
    """A decoded event. `contract` is the emitter's address, `index` the log's index within the block."""

    name: str
    contract: str
    args: dict[str, Any]
    block: int
    index: int
    transaction: str


@dataclass(frozen=True)
class _Page:
    """What one request brought: the events up to block `last`, whose hash was `hash`."""

    last: int
    hash: bytes
    logs: tuple[Log, ...]


@dataclass(frozen=True)
class _Cursor:
    """How far the scan is: `pages` pages with events in them, and the last block looked at."""

    pages: int
    last: int
    hash: bytes


class Scanner:
    """Reads the contracts' events from block `first` on.

    With a `store` (a node's journal) what was read before a restart is not asked for again. `widest` is the
    largest range asked for; it is halved when an endpoint refuses and doubled when it does not.
    """

    def __init__(
        self,
        chain: Chain,
        contracts: Sequence[Contract],
        first: int,
        store: KeyValues | None = None,
        widest: int = 10_000,
    ) -> None:
        self._chain = chain
        self._abis: Mapping[str, Abi] = {contract.address: contract.abi for contract in contracts}
        self._first = first
        self._store = store
        self._widest = self._width = widest
        self._pages: list[_Page] = []
        self._cursor: _Cursor | None = None
        self._load()
        self._unread = [event for page in self._pages for event in self._decode(page.logs)]

    def poll(self, to: BlockRef) -> list[Event]:
        """The events up to block `to` that this object has not returned yet, in chain order.

        Raises ReorgDetected when blocks read before were replaced: forget events of blocks after its `number`;
        the scanner has done so, and the next poll reads on from there. Nothing is lost when a poll raises.
        """
        if self._cursor is not None and to.number == self._cursor.last and to.hash != self._cursor.hash:
            self._rewind()
        while self._next <= to.number:
            last = min(to.number, self._next + self._width - 1)
            page = self._read(self._next, to if last == to.number else self._chain.block(last))
            if page is not None:
                self._keep(page)
                self._unread += self._decode(page.logs)
        found, self._unread = self._unread, []
        return found

    # Reading

    @property
    def _next(self) -> int:
        return self._first if self._cursor is None else self._cursor.last + 1

    def _read(self, first: int, last: BlockRef) -> _Page | None:
        """One range, None if it has to be asked for in smaller pieces."""
        try:
            logs = self._chain.logs(list(self._abis), first, last)
        except (BadAnswer, EndpointDown):
            if self._width == 1:
                raise
            self._width = max(1, min(self._width, last.number - first + 1) // 2)
            return None
        self._width = min(self._widest, self._width * 2)
        self._check_link(first)
        forked = any(e.block_hash != last.hash for e in logs if e.block_number == last.number)
        if forked or self._chain.block(last.number).hash != last.hash:
            raise self._reorganised(first - 1)
        return _Page(last.number, last.hash, logs)

    def _check_link(self, first: int) -> None:
        """The first new block's parent is the last old one."""
        if self._cursor is not None and self._chain.block(first).parent != self._cursor.hash:
            self._rewind()

    def _rewind(self) -> None:
        """Back to the newest page that is still on the chain."""
        while self._pages and self._chain.block(self._pages[-1].last).hash != self._pages[-1].hash:
            self._pages.pop()
        page = self._pages[-1] if self._pages else None
        self._move(_Cursor(len(self._pages), page.last, page.hash) if page else None)
        kept = page.last if page else self._first - 1
        self._unread = [event for event in self._unread if event.block <= kept]
        raise self._reorganised(kept)

    def _reorganised(self, number: int) -> ReorgDetected:
        log.warning("reorganisation", after_block=number)
        return ReorgDetected(
            number,
            f"blocks after {number} were replaced",
            "nothing to do: they are read again; raise the confirmations if it happens often",
        )

    def _decode(self, logs: Sequence[Log]) -> list[Event]:
        events = []
        for entry in logs:
            decoded = self._abis[entry.address].decode_log(entry)
            if decoded is not None:
                name, args = decoded
                events.append(
                    Event(name, entry.address, args, entry.block_number, entry.index, entry.transaction)
                )
        return events

    # Keeping: a page is written before the cursor that counts it, so a crash between the two loses nothing

    def _keep(self, page: _Page) -> None:
        if page.logs:
            if self._store is not None:
                self._store.put(self._key(len(self._pages)), msgspec.msgpack.encode(asdict(page)))
            self._pages.append(page)
        self._move(_Cursor(len(self._pages), page.last, page.hash))

    def _move(self, cursor: _Cursor | None) -> None:
        self._cursor = cursor
        if self._store is not None:
            self._store.put(self._key("cursor"), msgspec.msgpack.encode(asdict(cursor) if cursor else None))

    def _load(self) -> None:
        written = self._store.get(self._key("cursor")) if self._store is not None else None
        cursor = msgspec.msgpack.decode(written, type=_Cursor | None) if written else None
        if self._store is None or cursor is None:
            return
        for number in range(cursor.pages):
            page = self._store.get(self._key(number))
            assert page is not None, "a page is written before the cursor that counts it"
            self._pages.append(msgspec.msgpack.decode(page, type=_Page))
        self._cursor = cursor

    def _key(self, name: int | str) -> str:
        return f"scan/{self._first}/{'+'.join(sorted(self._abis))}/{name}"
