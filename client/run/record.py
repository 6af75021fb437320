"""The public record of a run: its rounds and seats, built from the contracts' events.

The same events give the same record on every machine, in whatever batches they arrive (Protocol sections 3 to
8). Contracts store only what current rounds need; earlier rounds are read from this record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from earnest.protocol.attestation import key_entry
from earnest.protocol.consensus import Ballot, Settled, settle
from earnest.protocol.constants import ACTIVE_ROUNDS
from earnest.protocol.manifest import Manifest
from earnest.protocol.report import Report, read_report
from earnest.protocol.run import Role, RunParams
from earnest.protocol.timeline import Timeline


@dataclass
class SeatRecord:
    """One seat's history: owner, operator and stake by round, and where its objects are served."""

    owner: Timeline[str | None] = field(default_factory=lambda: Timeline(None))
    operator: Timeline[str | None] = field(default_factory=lambda: Timeline(None))
    stake: Timeline[int | None] = field(default_factory=lambda: Timeline(None))
    asked_back: Timeline[int | None] = field(default_factory=lambda: Timeline(None))
    uris: Timeline[str | None] = field(default_factory=lambda: Timeline(None))
    """One URI per tenure, so that the payloads of an earlier owner are still found after a takeover."""

    @property
    def uri(self) -> str:
        """URI of the newest owner's objects; empty if there is none."""
        return self.uris.latest or ""

    def tenure_start(self, round: int) -> int | None:
        """Returns the first round of the tenure that covers `round`; None if nobody owns the seat yet."""
        starts = [start for start, _ in self.owner.changes if start <= round]
        return starts[-1] if starts else None


class LogPosition(NamedTuple):
    """Position of an event on the chain; earlier positions compare as smaller."""

    block: int
    log_index: int


@dataclass(frozen=True)
class KeyRegistration:
    """A registered enclave key and the values that it depends on. Protocol section 11."""

    trainer: str
    key: str
    policy: bytes
    workload: bytes
    root_id: bytes
    platform: bytes
    pck: bytes
    quote: bytes
    """SHA-256 of the quote's signed part."""

    expiry: int
    """Unix seconds: the block's time at registration plus the policy's `ttl_s`."""

    challenge_block: int
    evidence_root: bytes
    collateral_digest: bytes
    revoked: int | None = None
    """End of validity after `revoke`, unix seconds; None if it was not revoked."""

    revoked_for: bytes | None = None
    """The denied entry that it was revoked for; zeros if its trainer's bond grew beyond the counted one."""

    @property
    def ends(self) -> int:
        """End of validity, unix seconds: the key signs for rounds that open before."""
        return self.expiry if self.revoked is None else self.revoked

    @property
    def depends_on(self) -> frozenset[bytes]:
        """Deny-list entries that end the key: workload, platform, PCK key, root and the key itself."""
        return frozenset((self.workload, self.platform, self.pck, self.root_id, key_entry(self.key)))


@dataclass
class RoundRecord:
    """Recorded events of one round, by seat."""

    commits: dict[int, LogPosition] = field(default_factory=dict)
    manifests: dict[int, Manifest] = field(default_factory=dict)
    attested: dict[int, KeyRegistration] = field(default_factory=dict)
    """Registration of the key that signed the manifest, at the time of the reveal, by trainer seat."""

    seed: bytes | None = None
    seed_requested: int = 0
    """Block of the seed's newest request."""

    seed_drawn: int = 0
    """Block that drew the seed."""

    report_commits: dict[int, LogPosition] = field(default_factory=dict)
    live_bonds: dict[int, int] = field(default_factory=dict)
    """Live bond of each validator seat's owner at the first report commit, wei."""

    report_words: dict[int, tuple[bytes, ...]] = field(default_factory=dict)


class RunRecord:
    """The rounds and seats that result from one run's events. `apply` takes them in chain order, each once.

    `params` and `uri` come with the run's first event; reading `params` earlier raises LookupError.
    """

    def __init__(self, run: int) -> None:
        self.run = run
        self._events: list[Any] = []
        self._reset()

    def _reset(self) -> None:
        self.sponsor = ""
        self.uri = ""
        self.rounds: dict[int, RoundRecord] = {}
        self.seats: dict[Role, dict[int, SeatRecord]] = {Role.TRAINER: {}, Role.VALIDATOR: {}}
        self.penalties: dict[bytes, dict[str, Any]] = {}
        self.barred: dict[str, int] = {}
        self.keys: dict[str, list[KeyRegistration]] = {}
        """Every enclave key registered, by trainer, the newest last."""

        self._denied: dict[bytes, list[tuple[int, bytes]]] = {}
        self._floors: dict[bytes, list[tuple[int, int]]] = {}
        self._params: RunParams | None = None
        self._planned_rounds = 0
        self._settled: dict[int, Settled] = {}

    @property
    def params(self) -> RunParams:
        if self._params is None:
            raise LookupError(f"run {self.run} has not been seen on this chain")
        return self._params

    @property
    def known(self) -> bool:
        return self._params is not None

    @property
    def planned_rounds(self) -> int:
        """Rounds that will be played: fewer than the parameters say once the sponsor has ended the run."""
        return self._planned_rounds

    def round(self, round: int) -> RoundRecord:
        return self.rounds.setdefault(round, RoundRecord())

    def seat(self, role: Role, seat: int) -> SeatRecord:
        return self.seats[role].setdefault(seat, SeatRecord())

    # Folding

    def apply(self, events: Iterable[Any]) -> None:
        """Applies events (client.chain.scanner.Event) in chain order; ignores events of other runs."""
        for event in events:
            if event.args.get("run") == self.run:
                self._events.append(event)
                self._settled.clear()
                if (fold := _FOLDS.get(event.name)) is not None:
                    fold(self, event.args, LogPosition(event.block, event.index))
            elif event.args.get("penalty") in self.penalties:
                self._events.append(event)
                self._on_penalty(event.name, event.args)
            elif event.name in _NARROWINGS and self._may_narrow(event.args["policy"]):
                self._events.append(event)
                _NARROWINGS[event.name](self, event.args)

    def _may_narrow(self, policy: bytes) -> bool:
        """Returns True if the policy is, or may be, the run's. A policy may be narrowed before the run is created."""
        return self._params is None or policy == self._params.attestation_policy

    def rewind(self, block: int) -> None:
        """Forgets every event after `block`: those blocks are no longer on the chain."""
        remaining = [event for event in self._events if event.block <= block]
        self._events = []
        self._reset()
        self.apply(remaining)

    @property
    def events(self) -> Sequence[Any]:
        """All events of the run so far (client.chain.scanner.Event), in chain order."""
        policy = self._params and self._params.attestation_policy
        return [e for e in self._events if e.name not in _NARROWINGS or e.args["policy"] == policy]

    def _run_created(self, args: dict[str, Any], at: LogPosition) -> None:
        self._params = RunParams(*_as_tuple(args["params"]))
        self._planned_rounds = self._params.rounds
        self.sponsor, self.uri = args["sponsor"], args["uri"]

    def _run_ended(self, args: dict[str, Any], at: LogPosition) -> None:
        self._planned_rounds = args["rounds"]

    def _seat_taken(self, args: dict[str, Any], at: LogPosition) -> None:
        seat, start = self.seat(Role(args["role"]), args["seat"]), args["from_round"]
        seat.owner.set(start, args["account"])
        seat.operator.set(start, args["operator"])
        seat.stake.set(start, 0)
        noticed = start > 0 and args["role"] == Role.VALIDATOR  # a validator's stake counts a round later
        seat.stake.set(start + noticed, args["stake"])
        seat.uris.set(start, args["uri"])

    def _operator_changed(self, args: dict[str, Any], at: LogPosition) -> None:
        self.seat(Role(args["role"]), args["seat"]).operator.set(args["from_round"], args["new"])

    def _uri_changed(self, args: dict[str, Any], at: LogPosition) -> None:
        seat = self.seat(Role(args["role"]), args["seat"])
        newest, _ = seat.owner.changes[-1]
        seat.uris.set(newest, args["uri"])

    def _stake_synced(self, args: dict[str, Any], at: LogPosition) -> None:
        self.seat(Role(args["role"]), args["seat"]).stake.set(args["from_round"], args["new"])

    def _asked_back(self, args: dict[str, Any], at: LogPosition) -> None:
        self.seat(Role.VALIDATOR, args["seat"]).asked_back.set(args["from_round"], args["from_round"])

    def _committed(self, args: dict[str, Any], at: LogPosition) -> None:
        self.round(args["round"]).commits[args["seat"]] = at

    def _revealed(self, args: dict[str, Any], at: LogPosition) -> None:
        self.round(args["round"]).manifests[args["seat"]] = Manifest(*_as_tuple(args["manifest"]))

    def _attested_reveal(self, args: dict[str, Any], at: LogPosition) -> None:
        self._revealed(args, at)
        round, seat = self.round(args["round"]), args["seat"]
        registered = self.newest_key(round.manifests[seat].trainer)
        if registered is not None and registered.key == args["key"]:
            round.attested[seat] = registered

    def _key_registered(self, args: dict[str, Any], at: LogPosition) -> None:
        fields = {name: value for name, value in args.items() if name != "run"}
        self.keys.setdefault(args["trainer"], []).append(KeyRegistration(**fields))

    def _key_revoked(self, args: dict[str, Any], at: LogPosition) -> None:
        registered = self.keys[args["trainer"]]
        registered[-1] = replace(registered[-1], revoked=args["expiry"], revoked_for=args["entry"])

    def _entry_denied(self, args: dict[str, Any]) -> None:
        self._denied.setdefault(args["policy"], []).append((args["time"], args["entry"]))

    def _floor_raised(self, args: dict[str, Any]) -> None:
        self._floors.setdefault(args["policy"], []).append((args["time"], args["floor"]))

    def _seed_requested(self, args: dict[str, Any], at: LogPosition) -> None:
        self.round(args["round"]).seed_requested = args["block_number"]

    def _seed_stored(self, args: dict[str, Any], at: LogPosition) -> None:
        record = self.round(args["round"])
        record.seed, record.seed_drawn = bytes(args["seed"]), at.block

    def _report_committed(self, args: dict[str, Any], at: LogPosition) -> None:
        record = self.round(args["round"])
        if not record.report_commits:  # this call read all validators' bonds: what is leaving votes no more
            record.live_bonds = {
                i: seat.stake.latest or 0 if seat.owner.changes[-1][0] <= args["round"] else 0
                for i, seat in self.seats[Role.VALIDATOR].items()
            }
        record.report_commits[args["seat"]] = at

    def _report_revealed(self, args: dict[str, Any], at: LogPosition) -> None:
        words = tuple(bytes(word) for word in args["report"])
        self.round(args["round"]).report_words[args["seat"]] = words

    def _penalty_locked(self, args: dict[str, Any], at: LogPosition) -> None:
        self.penalties[bytes(args["penalty"])] = {**args, "status": "locked"}

    def _bar_set(self, args: dict[str, Any], at: LogPosition) -> None:
        self.barred[args["account"]] = args["until_round"]

    def _on_penalty(self, name: str, args: dict[str, Any]) -> None:
        penalty = self.penalties[bytes(args["penalty"])]
        if name == "PenaltyContested":
            penalty["status"] = "contested"
        elif name == "PenaltySettled":
            penalty["status"] = "seized" if args["upheld"] else "released"

    # Reading

    def newest_key(self, trainer: str) -> KeyRegistration | None:
        """Returns the enclave key that the trainer registered last, expired or not; None if there is none."""
        registered = self.keys.get(trainer)
        return registered[-1] if registered else None

    @property
    def denied(self) -> tuple[bytes, ...]:
        """Entries denied by the guardian of the run's attestation policy, oldest first."""
        return tuple(self.denials)

    @property
    def denials(self) -> dict[bytes, int]:
        """Denied entries, with the first round in which each counts: the second next one (Protocol section 11)."""
        schedule, denied = self.params.schedule(), self._denied.get(self.params.attestation_policy, ())
        return {entry: schedule.next_round(time) + 1 for time, entry in denied}

    @property
    def raised_floors(self) -> dict[int, int]:
        """Raised evaluation floors, oldest first, with the first round in which each counts."""
        schedule, raised = self.params.schedule(), self._floors.get(self.params.attestation_policy, ())
        return {floor: schedule.next_round(time) + 1 for time, floor in raised}

    def denied_in(self, round: int) -> frozenset[bytes]:
        """Returns the denied entries that count in `round`."""
        return frozenset(entry for entry, first in self.denials.items() if first <= round)

    def evaluation_floor(self, round: int) -> int:
        """Returns the raised evaluation floor that counts in `round`; 0 if the guardian has not raised it."""
        return max((floor for floor, first in self.raised_floors.items() if first <= round), default=0)

    def owner(self, role: Role, seat: int, round: int) -> str | None:
        """Returns the account that owns the seat in `round`."""
        record = self.seats[role].get(seat)
        return record.owner.at(round) if record else None

    def find_seat(self, role: Role, account: str, round: int) -> int | None:
        """Returns the seat that the account owns in `round`; None if it has none."""
        for index, seat in self.seats[role].items():
            if seat.owner.at(round) == account:
                return index
        return None

    def active_trainers(self, round: int) -> list[int]:
        """Returns the active trainer seats in `round`, ascending: owned, and with stake (Protocol section 6)."""
        seats = self.seats[Role.TRAINER]
        return sorted(i for i, s in seats.items() if s.owner.at(round) and (s.stake.at(round) or 0) > 0)

    def may_commit(self, seat: int, round: int) -> bool:
        """Returns True if the trainer seat is active in `round` and its owner is not barred by a penalty."""
        owner = self.owner(Role.TRAINER, seat, round) or ""
        return seat in self.active_trainers(round) and self.barred.get(owner, 0) <= round

    def validator_stakes(self, round: int) -> tuple[int, ...]:
        """Returns the stake of each validator seat that counts in `round`; 0 for inactive ones (Protocol section 3)."""
        seats = self.seats[Role.VALIDATOR]
        count = max(seats, default=-1) + 1
        return tuple(self._validator_stake(i, round) if i in seats else 0 for i in range(count))

    def _validator_stake(self, seat: int, round: int) -> int:
        record, start = self.seats[Role.VALIDATOR][seat], self.newest_entry(seat, round)
        if start is None:
            return 0
        before = (self.rounds.get(round - back) for back in range(1, ACTIVE_ROUNDS + 1))
        reported = any(seat in seen.report_words for seen in before if seen is not None)
        if not reported and start + ACTIVE_ROUNDS < round:
            return 0
        stake, live = record.stake.at(round) or 0, self.round(round).live_bonds
        return min(stake, self.params.validator_max_stake, live.get(seat, stake))

    def newest_entry(self, seat: int, round: int) -> int | None:
        """Returns the round from which the seat's owner in `round` counts since it last joined or asked back."""
        record = self.seats[Role.VALIDATOR][seat]
        start = record.tenure_start(round)
        return None if start is None else max(start, record.asked_back.at(round) or 0)

    def trainer_count(self) -> int:
        """Returns the number of trainer seats ever taken."""
        return max(self.seats[Role.TRAINER], default=-1) + 1

    def reports(self, round: int) -> tuple[Report | None, ...]:
        """Returns the revealed reports by validator seat; None if there is none."""
        words, count = self.round(round).report_words, max(self.seats[Role.VALIDATOR], default=-1) + 1
        seats = self.trainer_count()
        return tuple(read_report(words[v], seats) if v in words else None for v in range(count))

    def ballot(self, round: int) -> Ballot:
        """Returns the votes of a round whose report-reveal window is over."""
        seen, stakes = self.round(round), self.validator_stakes(round)
        total = sum(stakes) if seen.report_commits else 0
        return Ballot(
            stakes=stakes,
            active_stake=total,
            reports=self.reports(round),
            revealed=frozenset(seen.manifests),
            seats=self.trainer_count(),
        )

    def settled(self, round: int) -> Settled:
        """Returns a round's consensus (section 8) once its report reveals are over; cached until the next event."""
        if round not in self._settled:
            params = self.params
            self._settled[round] = settle(
                self.ballot(round), params.trainer_pool, params.validator_pool, params.full_seats
            )
        return self._settled[round]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value.values()) if isinstance(value, dict) else tuple(value)


_FOLDS = {
    "RunCreated": RunRecord._run_created,
    "RunEnded": RunRecord._run_ended,
    "SeatTaken": RunRecord._seat_taken,
    "OperatorChanged": RunRecord._operator_changed,
    "UriChanged": RunRecord._uri_changed,
    "StakeSynced": RunRecord._stake_synced,
    "AskedBack": RunRecord._asked_back,
    "Committed": RunRecord._committed,
    "Revealed": RunRecord._revealed,
    "AttestedReveal": RunRecord._attested_reveal,
    "KeyRegistered": RunRecord._key_registered,
    "KeyRevoked": RunRecord._key_revoked,
    "SeedRequested": RunRecord._seed_requested,
    "SeedStored": RunRecord._seed_stored,
    "ReportCommitted": RunRecord._report_committed,
    "ReportRevealed": RunRecord._report_revealed,
    "PenaltyLocked": RunRecord._penalty_locked,
    "BarSet": RunRecord._bar_set,
}

_NARROWINGS = {"Denied": RunRecord._entry_denied, "FloorRaised": RunRecord._floor_raised}
