"""A node's own copy of a run: the record from the chain, and the samples and states derived from it.

Everything here is recomputed from the public record and the published payloads (Protocol sections 6, 8 and 10), so two
nodes that have read the same blocks have bit-identical states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from errno import ENOMEM

import structlog

from earnest.attestation.evidence_file import MAX_EVIDENCE_BYTES
from earnest.attestation.policy_file import PolicyFile
from earnest.base.errors import ReorgDetected, StorageError, Unavailable, WrongContent
from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.scanner import Scanner
from earnest.client.run.record import RunRecord
from earnest.client.storage.fetch import fetch
from earnest.client.storage.journal import Journal
from earnest.client.storage.objects import ObjectStore
from earnest.protocol.assignment import RoundSamples
from earnest.protocol.merkle import content_root
from earnest.protocol.recipe import Recipe
from earnest.protocol.run import Role
from earnest.protocol.schedule import Schedule
from earnest.protocol.seed import fallback_seed
from earnest.protocol.step import clip_norm, shares
from earnest.training.codecs import Codec, Update
from earnest.training.diloco.clip_and_aggregate import aggregate
from earnest.training.diloco.outer_step import outer_step
from earnest.training.diloco.state import RootedState, StateError, state_bytes, to_bytes
from earnest.training.diloco.tensorfile import PayloadError

log = structlog.get_logger()

UPDATES_KEPT = 9
"""Rounds whose decoded updates stay in memory: the current one, and the 8 that it is compared with."""

SLOWEST_FETCH_S = 10.0
"""Seconds for one source to deliver a payload, so that a slow server cannot make a validator late."""

FETCHERS = 32
"""Payloads that are fetched concurrently."""


Obtain = Callable[[int, int], bytes]
"""Returns one object of a seat in a round: `Follower.payload` or `Follower.evidence`."""


class Follower:
    """Follows one run. Call `advance` with a block first; all other methods then answer for that block.

    `store` is the node's public object store, from which payloads and states are served to others. `locate` maps a
    registered URI to the one to fetch from. `policy` is the attestation policy of a run that has one.
    """

    def __init__(
        self,
        *,
        record: RunRecord,
        recipe: Recipe,
        codec: Codec,
        initial: RootedState,
        scanner: Scanner,
        store: ObjectStore,
        journal: Journal,
        locate: Callable[[str], str] = str,
        policy: PolicyFile | None = None,
    ) -> None:
        self.record = record
        self.policy = policy
        self._locate = locate
        self.recipe = recipe
        self.codec = codec
        self._scanner = scanner
        self._store = store
        self._journal = journal
        self._samples: list[RoundSamples] = []
        self._pool = recipe.sample_pool()
        self._states = {-1: initial}
        self._lineage = [self._states[-1].root]
        self._updates: dict[tuple[int, int], Update] = {}
        self.at: BlockRef | None = None
        self.forks = 0
        """Number of reorganisations so far; after each, everything that a node derived before is invalid."""

    @property
    def schedule(self) -> Schedule:
        return self.record.params.schedule()

    def advance(self, head: BlockRef) -> None:
        """Reads every event up to `head`; after a reorganisation, everything is derived again."""
        try:
            self.record.apply(self._scanner.poll(head))
        except ReorgDetected as reorg:
            log.warning("blocks were replaced", after=reorg.number, cause=reorg.cause)
            self._forget_everything(reorg.number)
            self.record.apply(self._scanner.poll(head))
        self.at = head

    def _forget_everything(self, after: int) -> None:
        self.forks += 1
        self.record.rewind(after)
        self._updates.clear()
        self._states = {-1: self._states[-1]}
        self._lineage = self._lineage[:1]
        self._samples, self._pool = [], self.recipe.sample_pool()

    # Objects

    def sources(self, round: int, seat: int) -> list[str]:
        """Returns the base URLs of a payload: that of the seat's owner in `round`, then every validator's mirror."""
        record = self.record.seats[Role.TRAINER].get(seat)
        own = record.uris.at(round) if record else None
        return [self._locate(own), *self.mirrors()] if own else self.mirrors()

    def mirrors(self) -> list[str]:
        """Returns every validator's base URL."""
        seats = sorted(self.record.seats[Role.VALIDATOR].items())
        return [self._locate(record.uri) for _, record in seats if record.uri]

    def mirror_of(self, validator: int) -> str | None:
        """Returns the base URL of one validator seat, None if it registered none."""
        seat = self.record.seats[Role.VALIDATOR].get(validator)
        return self._locate(seat.uri) if seat is not None and seat.uri else None

    def payload(self, round: int, seat: int) -> bytes:
        """Returns the verified payload that the seat revealed, from this node's store or any mirror, and stores it.

        Raises Unavailable if no source has it, StorageError or OSError if the store cannot be read.
        """
        root, limit = self.record.round(round).manifests[seat].update, self.recipe.max_payload_bytes
        return self._fetched(root, self.sources(round, seat), limit)

    def evidence(self, round: int, seat: int) -> bytes:
        """Returns the evidence file of the enclave key that signed the seat's manifest, verified against its root.

        Raises KeyError if the reveal was not attested; Unavailable, StorageError or OSError as `payload` does.
        """
        root = self.record.round(round).attested[seat].evidence_root
        return self._fetched(root, self.sources(round, seat), MAX_EVIDENCE_BYTES)

    def _fetched(self, root: bytes, sources: Sequence[str], limit: int) -> bytes:
        try:
            return self._store.get(root, limit)
        except (Unavailable, WrongContent):
            content = fetch(root, sources, limit, timeout_s=SLOWEST_FETCH_S)
        self._publish(content, root)
        return content

    def _publish(self, content: bytes, root: bytes | None = None) -> bytes:
        """Stores an object for others to fetch and returns its root; a full disk is logged only."""
        try:
            return self._store.put(content, root)
        except (StorageError, OSError) as error:
            log.error("object not stored", cause=str(error))
            return root or content_root(content)

    def updates(self, round: int) -> dict[int, Update | PayloadError | StorageError | OSError]:
        """Returns the decoded update, or the error, of every revealed seat. Fetches concurrently, decodes once."""
        seats = sorted(self.record.round(round).manifests)
        payloads = self._obtain(self.payload, round, [s for s in seats if (round, s) not in self._updates])
        return {seat: self._decoded(round, seat, payloads.get(seat)) for seat in seats}

    def _decoded(
        self, round: int, seat: int, payload: bytes | StorageError | OSError | None
    ) -> Update | PayloadError | StorageError | OSError:
        if isinstance(payload, bytes):
            try:
                self._updates[round, seat] = self.codec.decode(payload)
            except PayloadError as error:
                return error
            except MemoryError:
                return OSError(ENOMEM, "not enough memory to decode the payload")
        return self._updates[round, seat] if payload is None or isinstance(payload, bytes) else payload

    def evidences(self, round: int) -> dict[int, bytes | StorageError | OSError]:
        """Returns the evidence file, or the error, for every seat whose reveal was attested."""
        return self._obtain(self.evidence, round, sorted(self.record.round(round).attested))

    def mirror(self, round: int) -> None:
        """Fetches the revealed objects that are not stored yet, so that this node serves them too."""
        recorded = self.record.round(round)
        kinds: tuple[tuple[str, Obtain, dict[int, bytes]], ...] = (
            (
                "payload",
                self.payload,
                {seat: manifest.update for seat, manifest in recorded.manifests.items()},
            ),
            ("evidence", self.evidence, {seat: key.evidence_root for seat, key in recorded.attested.items()}),
        )
        for kind, obtain, roots in kinds:
            missing = [seat for seat in sorted(roots) if not self._has(roots[seat])]
            for seat, content in self._obtain(obtain, round, missing).items():
                if not isinstance(content, bytes):
                    log.warning(f"{kind} not mirrored", round=round, seat=seat, cause=str(content))

    def _obtain(
        self, read: Obtain, round: int, seats: Sequence[int]
    ) -> dict[int, bytes | StorageError | OSError]:
        def obtain(seat: int) -> bytes | StorageError | OSError:
            try:
                return read(round, seat)
            except (StorageError, OSError) as error:
                return error

        with ThreadPoolExecutor(max(1, min(len(seats), FETCHERS))) as pool:
            return dict(zip(seats, pool.map(obtain, seats), strict=True))

    def _has(self, root: bytes) -> bool:
        try:
            return self._store.has(root)
        except StorageError:
            return False

    def update(self, round: int, seat: int) -> Update:
        """Returns the decoded update of a seat. Raises PayloadError, and the errors of `payload`."""
        if (round, seat) not in self._updates:
            self._updates[round, seat] = self.codec.decode(self.payload(round, seat))
        return self._updates[round, seat]

    # Samples

    def samples(self, round: int) -> RoundSamples | None:
        """Returns the sample assignment of `round`; None before it opens, or while an earlier round's seed is pending.

        Protocol section 6: the active seats of a round are known once it is open.
        """
        if self.at is None or self.at.time < self.schedule.opens(round):
            return None
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
        over = self.at is not None and self.at.time >= self.schedule.report_commit(source).end
        if seed is None and over:
            return fallback_seed(run, round)
        return seed

    # States

    def closed(self, round: int) -> bool:
        """Returns True if the round's report-reveal window is over, so that its outcome is decided."""
        return self.at is not None and self.at.time >= self.schedule.report_reveal(round).end

    def state_after(self, round: int) -> RootedState | None:
        """Returns the state after `round` (-1: the initial state); None while it cannot be computed yet.

        Raises Unavailable if no source has an accepted payload.
        """
        if round in self._states:
            return self._states[round]
        if not self.closed(round):
            return None
        known = self._restore(round)
        while known < round:
            known += 1
            self._states[known] = self._step(known, self._states[known - 1])
            self._save_root(known)
            self._forget(known)
        return self._states[round]

    def _restore(self, round: int) -> int:
        """Returns the last round up to `round` whose state is in memory or was stored before a restart."""
        known = max(r for r in self._states if r <= round)
        for earlier in range(round, known, -1):
            root = self._journal.get(self._state_key(earlier))
            if root is None:
                continue
            try:
                data = self._store.get(root, state_bytes(self.codec.spec))
                self._states[earlier] = RootedState.read(data, self.codec.spec, root)
            except (StorageError, StateError, OSError):
                continue
            return earlier
        return known

    def _save_root(self, round: int) -> None:
        try:
            self._journal.put(self._state_key(round), self._states[round].root)
        except StorageError as error:
            log.error("state root not saved", round=round, cause=error.cause)

    def _state_key(self, round: int) -> str:
        return f"{self.record.run}/state/{self._lineage_of(round).hex()}"

    def _lineage_of(self, round: int) -> bytes:
        """Returns a digest of all inputs of the state after `round`; a fork gives another digest."""
        while len(self._lineage) <= round + 1:
            number = len(self._lineage) - 1
            counted = self._counted(number)
            manifests = self.record.round(number).manifests
            inputs = [(seat, weight, manifests[seat].update.hex()) for seat, weight in counted.items()]
            before = self._lineage[-1]
            after = hashlib.sha256(before + repr(inputs).encode()).digest() if inputs else before
            self._lineage.append(after)
        return self._lineage[round + 1]

    def _counted(self, round: int) -> dict[int, int]:
        """Returns the weights above 0 of a decided round by seat, ascending; none if the round is void."""
        return {seat: weight for seat, weight in enumerate(self.record.settled(round).consensus) if weight}

    def newest(self, round: int) -> RootedState | None:
        """Returns the state that this round's aggregate is added to."""
        return self.state_after(round - 1)

    def base(self, round: int) -> RootedState | None:
        """Returns the state that this round's training starts from."""
        return self.state_after(self.schedule.base_round(round))

    def _step(self, round: int, before: RootedState) -> RootedState:
        counted, portion = self._counted(round), shares(self.record.settled(round).consensus)
        if not counted:
            return before
        try:
            updates = {seat: self.update(round, seat) for seat in counted}
        except (Unavailable, WrongContent, PayloadError) as error:
            log.warning("state cannot be computed", round=round, cause=str(error))
            return self._download(round)
        outer = self.recipe.outer
        gradient = aggregate(
            list(updates.items()),
            portion,
            before.state.clip_norm,
            outer.aggregation,
        )
        stepped = outer_step(before.state, gradient, outer.lr, outer.momentum)
        norms = [(updates[seat].norm, weight) for seat, weight in counted.items()]
        state = replace(stepped, clip_norm=clip_norm(norms, before.state.clip_norm))
        root = self._publish(to_bytes(state))
        log.info("state", round=round, root=root.hex(), counted=len(counted))
        return RootedState(state, root)

    def _download(self, round: int) -> RootedState:
        """Returns the state after `round` that a later round's majority reported, where payloads are unavailable."""
        root = self._agreed_root(round)
        if root is None:
            raise Unavailable(
                f"no source has an accepted update of round {round}, and no later report names its state",
                "wait for the next round's reports, or add a mirror that has the payload",
            )
        data = self._fetched(root, self.mirrors(), state_bytes(self.codec.spec))
        try:
            return RootedState.read(data, self.codec.spec, root)
        except StateError as error:
            raise Unavailable(
                f"the object that the reports name as the state after round {round} is not a state: {error}",
                "tell the run's sponsor: more than half of its validators' stake reported this",
            ) from error

    def _agreed_root(self, round: int) -> bytes | None:
        """Returns the root of the state after `round`, as reported in the next round that is not void."""
        for later in range(round + 1, self.record.planned_rounds + 1):
            if not self.closed(later):
                return None
            if (pair := self.record.settled(later).pair) is not None:
                return pair[1]
        return None

    def _forget(self, round: int) -> None:
        for old in [r for r in self._states if -1 < r < round - 3]:
            del self._states[old]
        for key in [key for key in self._updates if key[0] <= round - UPDATES_KEPT]:
            del self._updates[key]
