"""The event scanner: reads every event of some contracts once, in chain order, from the canonical chain only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from earnest.base.errors import BadAnswer, EndpointDown, ReorgDetected
from earnest.client.chain.abi import Abi
from earnest.client.chain.answers import Log
from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.contracts import Contract
from earnest.client.chain.endpoints import Chain

log = structlog.get_logger()


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
    """A range of blocks that had events, by its last block."""

    last: int
    hash: bytes


class Scanner:
    """Reads the events of some contracts from block `first` on.

    `widest` is the largest range of blocks in one request. The range is halved after an endpoint refuses it and doubled
    after one accepts it.
    """

    def __init__(self, chain: Chain, contracts: Sequence[Contract], first: int, widest: int = 10_000) -> None:
        self._chain = chain
        self._abis: Mapping[str, Abi] = {contract.address: contract.abi for contract in contracts}
        self._first = first
        self._widest = self._width = widest
        self._pages: list[_Page] = []
        self._read_to: _Page | None = None
        self._unread: list[Event] = []

    def poll(self, to: BlockRef) -> list[Event]:
        """Returns the events up to block `to` that this object has not returned yet, in chain order.

        Raises ReorgDetected if blocks that were read before have been replaced: forget the events of blocks after its
        `number`; the next poll reads on from there. Nothing is lost when a poll raises.
        """
        if self._read_to is not None and to.number == self._read_to.last and to.hash != self._read_to.hash:
            self._rewind()
        while self._next <= to.number:
            last = min(to.number, self._next + self._width - 1)
            self._read(self._next, to if last == to.number else self._chain.block(last))
        events, self._unread = self._unread, []
        return events

    @property
    def _next(self) -> int:
        return self._first if self._read_to is None else self._read_to.last + 1

    def _read(self, first: int, last: BlockRef) -> None:
        """Reads one range, or halves the width where the endpoint refuses it."""
        try:
            logs = self._chain.logs(list(self._abis), first, last)
        except (BadAnswer, EndpointDown):
            if self._width == 1:
                raise
            self._width = max(1, min(self._width, last.number - first + 1) // 2)
            return
        self._width = min(self._widest, self._width * 2)
        if self._read_to is not None and self._chain.block(first).parent != self._read_to.hash:
            self._rewind()
        forked = any(e.block_hash != last.hash for e in logs if e.block_number == last.number)
        if forked or self._chain.block(last.number).hash != last.hash:
            raise self._reorganised(first - 1)
        events = self._decode(logs)
        self._read_to = _Page(last.number, last.hash)
        self._pages += [self._read_to] if logs else []
        self._unread += events

    def _rewind(self) -> None:
        """Goes back to the newest page that is still on the chain. Raises ReorgDetected."""
        while self._pages and self._chain.block(self._pages[-1].last).hash != self._pages[-1].hash:
            self._pages.pop()
        self._read_to = self._pages[-1] if self._pages else None
        last = self._next - 1
        self._unread = [event for event in self._unread if event.block <= last]
        raise self._reorganised(last)

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
            if (decoded := self._abis[entry.address].decode_log(entry)) is not None:
                name, args = decoded
                place = (entry.block_number, entry.index, entry.transaction)
                events.append(Event(name, entry.address, args, *place))
        return events
