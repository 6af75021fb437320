"""The base class of both nodes: a loop that reads the chain, sends what is due, and checks that it is still needed.

All state that matters is on the chain or in the journal, so a node that is killed at any point can be restarted.
`figures` is what a node reports of itself; to add a metric: CONTRIBUTING.md, "A metric".
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from earnest.base.errors import (
    ChainError,
    JournalCorrupt,
    JournalLocked,
    NonceDrift,
    OutOfFunds,
    Reverted,
    StorageError,
    WrongChain,
)
from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.contracts import Call, Contracts
from earnest.client.chain.endpoints import Chain
from earnest.client.chain.outbox import Outbox
from earnest.client.node.settler import DueCall, Settler
from earnest.client.run.follower import Follower
from earnest.client.storage.journal import Journal
from earnest.client.storage.objects import ObjectStore
from earnest.protocol.run import Role
from earnest.training.diloco.state import RootedState

log = structlog.get_logger()


FIXES = {
    "runs: inactive seat": "wait: this round is lost; the node sends `ask_back` as soon as it may, and the "
    "seat counts from the round after that; without a bond: `earnest stake bond RUN AMOUNT`"
}
"""Fixes for reverts by reason, where docs/reverts.md does not help a node."""


@dataclass(frozen=True)
class NodeParts:
    """The parts of a node, all passed in: none of them opens a clock or a network itself. `owner` owns the seat."""

    chain: Chain
    contracts: Contracts
    follower: Follower
    outbox: Outbox
    journal: Journal
    store: ObjectStore
    private: ObjectStore
    owner: str
    salt: Callable[[], bytes]


class Node(ABC):
    """One seat's node. Call `step` again and again; it returns the time at which something is next due.

    The outbox signs with the operator's key, which may be the owner's own.
    """

    role: Role

    def __init__(self, parts: NodeParts, patience: int = 0) -> None:
        self.parts = parts
        self.follower = parts.follower
        self.record = parts.follower.record
        contracts = parts.contracts
        self._settler = Settler(self.record, contracts.runs, contracts.settlement, patience, self.turn)
        self._reported: set[str] = set()
        self._logged_failures: set[tuple[str, str]] = set()

    def seat_in(self, round: int) -> int | None:
        """Returns the seat that the account owns in `round`; None if it has none."""
        return self.record.find_seat(self.role, self.parts.owner, round)

    def turn(self, round: int) -> int:
        """Returns the number of nodes that send what anyone may send before this one does; 0 unless overridden."""
        return 0

    @property
    def run(self) -> int:
        return self.record.run

    def observe(self) -> BlockRef:
        """Reads the chain up to its newest final block."""
        head = self.parts.chain.final()
        forks = self.follower.forks
        self.follower.advance(head)
        if self.follower.forks != forks:
            self.forget()
        return head

    def step(self, *, wait: bool = True) -> int:
        """Does what is due at the newest final block; returns when something is next due (unix seconds).

        Without `wait`, heavy work continues in the background, and a later step collects it.
        """
        head = self.observe()
        try:
            if wait:
                self.prepare(head)
            else:
                self.begin(head)
        except (StorageError, OSError) as error:  # earlier commitments can still be revealed
            log.error("not prepared", cause=str(error))
        return self.act_on(head)

    @abstractmethod
    def prepare(self, head: BlockRef) -> None:
        """Does the heavy work that is due at `head`; sends nothing, so several nodes may do it concurrently."""

    def begin(self, head: BlockRef) -> None:
        """Does as `prepare`, but may return before the work is done, so that due transactions need not wait."""
        self.prepare(head)

    def close(self) -> None:  # noqa: B027  (not every node has something to end)
        """Stops background work, which the next start can continue."""

    def figures(self) -> dict[str, Any]:
        """Returns the node's measurements of itself, for `--json`."""
        return {}

    def act_on(self, head: BlockRef) -> int:
        """Sends what is due at `head` and prepared; returns when something is next due (unix seconds).

        That is at once after a settlement call, since pay and penalties become due with it.
        """
        try:
            self.parts.outbox.resume()
        except (NonceDrift, OutOfFunds) as error:
            log.error("transaction lost", cause=error.cause, fix=error.fix)
        self.act(head)
        settled = [self.send(due_call) for due_call in self._settler.due_calls(head)]
        return head.time + 1 if any(settled) else self.next_due(head.time)

    @abstractmethod
    def act(self, head: BlockRef) -> None:
        """Sends the role's own transactions that are due at `head`."""

    @abstractmethod
    def forget(self) -> None:
        """Drops values that were derived from blocks no longer on the chain and are not yet in the journal."""

    def reached(self, find: Callable[[int], RootedState | None], round: int) -> RootedState | None:
        """Returns the state from `find`; None while an update is unavailable or the disk fails, which is logged."""
        try:
            return find(round)
        except (StorageError, OSError) as error:
            log.warning("state not available", round=round, cause=str(error))
            return None

    def times(self, round: int) -> Iterable[int]:
        """Returns the times in a round at which the role has something to do."""
        schedule = self.follower.schedule
        return (schedule.opens(round), schedule.commit(round).end, schedule.reveal(round).end)

    def next_due(self, now: int) -> int:
        schedule, last = self.follower.schedule, self.record.planned_rounds
        current = schedule.round_at(now)
        times = [
            time for r in range(max(0, current - 1), min(current + 2, last + 1)) for time in self.times(r)
        ]
        settle = self._settler.next_due(now)
        times += [settle] if settle is not None else []
        times.append(schedule.contest(last).end)
        return min((time for time in times if time > now), default=now + schedule.period)

    @property
    def finished(self) -> bool:
        """True once the settle and contest windows of the report-only round have ended."""
        at, schedule = self.follower.at, self.follower.schedule
        return at is not None and at.time >= schedule.contest(self.record.planned_rounds).end

    def send(self, due_call: DueCall) -> bool:
        """Sends a due call if it is still needed; a revert is only logged, since another node is often faster."""
        return self.submit(due_call.intent, due_call.call, due_call.still_needed, due_call.deadline)

    def submit(
        self,
        intent: str,
        call: Call,
        still_needed: Callable[[BlockRef], bool],
        deadline: int,
        refused: Callable[[Reverted], None] = lambda error: None,
    ) -> bool:
        """Sends a call once, named by run and `intent` in the journal, while `still_needed`, by `deadline` (unix time).

        Returns True the first time that it is found mined, else False. A ChainError is logged, not raised; `refused`
        receives a revert.
        """
        name = f"{self.run}/{intent}"
        try:
            receipt = self.parts.outbox.send(
                name, call, still_needed=lambda: still_needed(self.parts.chain.head()), deadline=deadline
            )
        except ChainError as error:
            self._log_failure(name, error)
            if isinstance(error, Reverted):
                refused(error)
            return False
        if receipt is None or name in self._reported:
            return False
        self._reported.add(name)
        log.info("sent", intent=name, block=receipt.block_number, gas=receipt.gas_used)
        return True

    def _log_failure(self, name: str, error: ChainError) -> None:
        """Logs why a call failed, once for each name and reason; it is tried again in every step."""
        reason = error.reason if isinstance(error, Reverted) else error.cause
        if (name, reason) not in self._logged_failures:
            self._logged_failures.add((name, reason))
            event = "refused" if isinstance(error, Reverted) else "not sent"
            log.warning(event, intent=name, cause=error.cause, fix=FIXES.get(reason, error.fix))


def run_forever(node: Node, clock: Callable[[], float], stop: threading.Event, poll_s: float) -> None:
    """Steps the node until the run is over or `stop` is set.

    Waits while endpoints fail, the disk is full or the account has no coins, since a stopped node cannot reveal.
    Raises WrongChain, JournalLocked and JournalCorrupt, which waiting does not fix.
    """
    try:
        while not stop.is_set() and not node.finished:
            try:
                due = node.step(wait=False)
            except (WrongChain, JournalLocked, JournalCorrupt):
                raise
            except (ChainError, StorageError, OSError) as error:
                log.error("waiting", cause=getattr(error, "cause", str(error)), fix=getattr(error, "fix", ""))
                due = clock() + poll_s
            stop.wait(max(0.2, min(poll_s, due - clock())))
    finally:
        node.close()
