"""A node's own copy of a run: the record from the chain, the samples and the states that follow from it.

Everything here is recomputed from the public record and the published payloads (Protocol sections 6, 8 and 10), so two
nodes that have seen the same blocks hold the same states, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import structlog

from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.scanner import Scanner
from earnest.client.diloco.codecs import Codec, Update
from earnest.client.diloco.outer import aggregate, outer_step
from earnest.client.diloco.state import State, from_bytes, state_bytes, state_root, to_bytes
from earnest.client.errors import ReorgDetected, Unavailable, WrongContent
from earnest.client.record import RunRecord
from earnest.client.storage.fetch import fetch
from earnest.client.storage.journal import Journal
from earnest.client.storage.objects import ObjectStore
from earnest.protocol.assignment import RoundSamples
from earnest.protocol.recipe import Recipe
from earnest.protocol.schedule import Schedule
from earnest.protocol.seed import fallback_seed
from earnest.protocol.step import clip_norm, shares
from earnest.protocol.verdicts import Role

log = structlog.get_logger()


@dataclass(frozen=True)
class Standing:
    """The state after a round, and its root."""

    state: State
    root: bytes


class Follower:
    """Follows one run. `advance` to a block first; every answer then speaks of that block.

    `store` is the node's public object store: states and payloads that it has seen are kept and served from there.
    """

    def __init__(
        self,
        *,
        record: RunRecord,
        recipe: Recipe,
        codec: Codec,
        initial: State,
        scanner: Scanner,
        store: ObjectStore,
        journal: Journal,
    ) -> None:
        self.record = record
        self.recipe = recipe
        self.codec = codec
        self._scanner = scanner
        self._store = store
        self._journal = journal
        self._samples: list[RoundSamples] = []
        self._pool = recipe.sample_pool()
        self._standings = {-1: Standing(initial, state_root(initial))}
        self._updates: dict[bytes, Update] = {}
        self.at: BlockRef | None = None

    @property
    def schedule(self) -> Schedule:
        return self.record.params.schedule()

    def advance(self, head: BlockRef) -> None:
        """Reads everything up to `head`. What was derived from blocks that are no longer there is derived anew."""
        try:
            self.record.apply(self._scanner.poll(head))
        except ReorgDetected as reorg:
            log.warning("blocks were replaced", after=reorg.number, cause=reorg.cause)
            self._forget_everything(reorg.number)
            self.record.apply(self._scanner.poll(head))
        self.at = head

    def _forget_everything(self, after: int) -> None:
        self.record.rewind(after)
        self._standings = {-1: self._standings[-1]}
        self._samples, self._pool = [], self.recipe.sample_pool()

    # Where objects are

    def sources(self, seat: int | None = None) -> list[str]:
        """Base URLs to ask for objects: the trainer's own first, then every validator's mirror."""
        trainers, validators = self.record.seats[Role.TRAINER], self.record.seats[Role.VALIDATOR]
        first = [trainers[seat].uri] if seat is not None and seat in trainers else []
        return first + [record.uri for _, record in sorted(validators.items())]

    def payload(self, round: int, seat: int) -> bytes:
        """The payload that the seat revealed, verified, from this node's store or any mirror; kept from then on.

        Raises Unavailable or WrongContent (client.storage.fetch).
        """
        root, limit = self.record.round(round).manifests[seat].update, self.recipe.max_payload_bytes
        return fetch(root, None, self.sources(seat), limit, self._store)

    def update(self, round: int, seat: int) -> Update:
        """The decoded update of a seat; raises what `payload` raises, or PayloadError."""
        root = self.record.round(round).manifests[seat].update
        if root not in self._updates:
            self._updates[root] = self.codec.decode(self.payload(round, seat))
        return self._updates[root]

    # Samples

    def samples(self, round: int) -> RoundSamples | None:
        """Who trains on what in `round`; None while an earlier round's seed is still to come (Protocol section 6)."""
        while len(self._samples) <= round:
            seed = self._assignment_seed(len(self._samples))
            if seed is None:
                return None
            seats = self.record.active_trainers(len(self._samples))
            self._samples.append(self._pool.assign(seed, seats))
        return self._samples[round]

    def _assignment_seed(self, round: int) -> bytes | None:
        run, source = self.record.run, self.schedule.assignment_seed_round(round)
        if source is None:
            return fallback_seed(run, round)
        seed = self.record.round(source).seed
        over = self.at is not None and self.at.time >= self.schedule.score_commit(source).end
        if seed is None and over:
            return fallback_seed(run, round)
        return seed

    # States

    def closed(self, round: int) -> bool:
        """Whether the round's reports are all revealed, so that its outcome is decided."""
        return self.at is not None and self.at.time >= self.schedule.score_reveal(round).end

    def standing_after(self, round: int) -> Standing | None:
        """The state after `round` (-1: the initial state); None while it cannot be computed yet.

        Raises Unavailable when an accepted payload is to be had from nobody.
        """
        known = max(r for r in self._standings if r <= round)
        while known < round:
            if not self.closed(known + 1):
                return None
            known += 1
            self._standings[known] = self._step(known, self._standings[known - 1])
            self._forget(known)
        return self._standings[round]

    def newest(self, round: int) -> Standing | None:
        """The state that this round's aggregate is added to."""
        return self.standing_after(round - 1)

    def base(self, round: int) -> Standing | None:
        """The state that this round's training starts from."""
        return self.standing_after(self.schedule.base_round(round))

    def _step(self, round: int, before: Standing) -> Standing:
        settled = self.record.settled(round)
        portion = {} if settled.void else shares(settled.consensus)
        if not portion:
            return before
        try:
            updates = {seat: self.update(round, seat) for seat in sorted(portion)}
        except (Unavailable, WrongContent):
            return self._download(round)
        outer = self.recipe.outer
        gradient = aggregate(
            [(seat, updates[seat]) for seat in sorted(portion)],
            portion,
            before.state.clip_norm,
            outer.aggregation,
        )
        stepped = outer_step(before.state, gradient, outer.lr, outer.momentum)
        norms = [(updates[seat].norm, settled.consensus[seat]) for seat in sorted(portion)]
        state = replace(stepped, clip_norm=clip_norm(norms, self.recipe.scoring.clip_norm))
        root = self.keep(state)
        log.info("state", round=round, root=root.hex(), counted=len(portion))
        return Standing(state, root)

    def _download(self, round: int) -> Standing:
        """The state after `round` as a later round's majority reported it, for payloads that are gone."""
        later = self.record.settled(round + 1) if self.closed(round + 1) else None
        if later is None or later.pair is None:
            raise Unavailable(
                f"an accepted update of round {round} is served by nobody, and no later report names its state",
                "wait for the next round's reports, or add a mirror that has the payload",
            )
        root = later.pair[1]
        data = fetch(root, None, self.sources(), state_bytes(self.codec.spec), self._store)
        return Standing(from_bytes(data, self.codec.spec), root)

    def keep(self, state: State) -> bytes:
        """Puts the state's file where others can fetch it; returns its root."""
        return self._store.put(to_bytes(state))

    def _forget(self, round: int) -> None:
        for old in [r for r in self._standings if -1 < r < round - 3]:
            del self._standings[old]
        if len(self._updates) > 4096:
            self._updates.clear()
