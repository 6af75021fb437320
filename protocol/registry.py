"""Registered enclave keys: the reference of `AttestationRegistry`'s state. Protocol section 11.

Methods have the contract's names and refuse with its reasons, in its order; nothing changes when a call is refused.
Verification of the quote is not modelled: `claims` are those of a quote that passed.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from earnest.protocol.attestation import CHALLENGE_BLOCKS, Claims, Policy, Registration, key_entry
from earnest.protocol.constants import ZERO_ADDRESS
from earnest.protocol.require import require

BOND_BITS = 48
"""Number of bits in which a platform's bonds are counted."""

TrainerKey = tuple[int, str]
"""(run, trainer)"""


@dataclass
class PlatformSlot:
    """A slot of a platform: one of the keys that it may have in a run."""

    trainer: str
    expiry: int
    bond: int
    """Units counted."""


@dataclass(frozen=True)
class Record:
    """Facts on which a trainer's newest key depends."""

    policy: bytes
    workload: bytes
    platform: bytes
    pck: bytes
    block: int
    """Number of the challenge's block."""


def bond_unit(limit: int) -> int:
    """Returns the unit in wei in which bonds are counted, rounded down, under a `platform_bond`: 1, 2**16, 2**32, .."""
    return 1 << 16 * max(-(-(limit.bit_length() - BOND_BITS) // 16), 0)


@dataclass
class RegistryModel:
    """State of the registry, and the enclave keys that it sets in TrainingRuns."""

    keys: dict[TrainerKey, tuple[str, int]] = field(default_factory=dict[TrainerKey, tuple[str, int]])
    """Key and expiry, unix seconds. A key signs for rounds that open before its expiry."""

    records: dict[TrainerKey, Record] = field(default_factory=dict[TrainerKey, Record])
    places: defaultdict[tuple[int, bytes], list[PlatformSlot]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Keys of each (run, platform). A place is taken over by a later key, never freed."""

    denied: defaultdict[bytes, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    floors: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def register(
        self,
        wanted: Registration,
        policy: Policy,
        claims: Claims,
        live_bond: int,
        now: int,
        block: int,
        oldest: int,
    ) -> int:
        """Registers a seated trainer's key. Returns its expiry, unix seconds.

        `live_bond`: the trainer's, wei; `oldest`: t0 of the oldest round open to reveals.
        """
        name, (run, trainer) = policy.hash(), (wanted.run, wanted.trainer)
        require(wanted.key != ZERO_ADDRESS, "attestation: no key")
        require(claims.workload in policy.workloads, "attestation: workload not allowed")
        for what, entry in (
            ("workload", claims.workload),
            ("platform", claims.platform),
            ("PCK key", claims.pck),
            ("root", policy.root_id),
        ):
            require(entry not in self.denied[name], f"attestation: {what} denied")
        require(block - CHALLENGE_BLOCKS <= wanted.challenge_block < block, "attestation: challenge expired")
        require(key_entry(wanted.key) not in self.denied[name], "attestation: key denied")
        before = self.records.get((run, trainer))
        require(before is None or wanted.challenge_block > before.block, "attestation: challenge used")
        expiry = now + policy.ttl_s
        require(live_bond != 0, "attestation: no live bond")
        bond = live_bond // bond_unit(policy.platform_bond) if policy.platform_bond else 0
        self._take(run, claims.platform, policy, PlatformSlot(trainer, expiry, bond), oldest)
        self.records[run, trainer] = Record(
            name, claims.workload, claims.platform, claims.pck, wanted.challenge_block
        )
        self.keys[run, trainer] = wanted.key, expiry
        return expiry

    def _take(self, run: int, platform: bytes, policy: Policy, place: PlatformSlot, oldest: int) -> None:
        """Takes the trainer's own place, else the first with an expired key, else a new one."""
        taken = self.places[run, platform]
        own = [i for i, other in enumerate(taken) if other.trainer == place.trainer]
        over = [i for i, other in enumerate(taken) if other.expiry <= oldest]
        new = [len(taken)] if len(taken) < policy.platform_keys else []
        free = [*own, *over, *new]
        require(bool(free), "attestation: platform is full")
        others = sum(
            other.bond for other in taken if other.trainer != place.trainer and other.expiry > oldest
        )
        limit = policy.platform_bond // bond_unit(policy.platform_bond)
        require(others + place.bond <= limit, "attestation: platform bond too high")
        taken[free[0] : free[0] + 1] = [place]

    def revoke(
        self,
        run: int,
        trainer: str,
        policy: Policy,
        depends_on: tuple[bytes, bytes, bytes],
        live_bond: int,
        cutoff: int,
    ) -> None:
        """Ends a key at `cutoff`, t0 of the run's second next round.

        `depends_on`: workload, platform and PCK hash as logged. `live_bond`: the trainer's, wei.
        """
        record = self.records.get((run, trainer))
        require(record is not None, "attestation: nothing registered")
        assert record is not None
        logged = (record.policy, record.workload, record.platform, record.pck)
        require(logged == (policy.hash(), *depends_on), "attestation: not what was logged")
        key, expiry = self.keys[run, trainer]
        require(expiry > cutoff, "attestation: key ends before")
        entries = {*depends_on, policy.root_id, key_entry(key)}
        counted = self._counted(run, record.platform, trainer)
        grew = policy.platform_bond != 0 and live_bond // bond_unit(policy.platform_bond) > counted
        require(bool(entries & self.denied[record.policy]) or grew, "attestation: nothing against the key")
        self.keys[run, trainer] = key, cutoff

    def _counted(self, run: int, platform: bytes, trainer: str) -> int:
        return next((p.bond for p in self.places[run, platform] if p.trainer == trainer), 0)

    def deny(self, guardian: str, policy: Policy, entry: bytes) -> None:
        require(guardian == policy.guardian, "attestation: not the guardian")
        require(entry != bytes(32), "attestation: nothing to deny")
        require(entry not in self.denied[policy.hash()], "attestation: already denied")
        self.denied[policy.hash()].add(entry)

    def raise_floor(self, guardian: str, policy: Policy, floor: int) -> None:
        require(guardian == policy.guardian, "attestation: not the guardian")
        lowest = max(self.floors.get(policy.hash(), 0), policy.evaluation_floor)
        require(lowest < floor < 1 << 32, "attestation: floor not higher")
        self.floors[policy.hash()] = floor

    def counts(self, run: int, trainer: str, key: str, opens: int) -> bool:
        """Returns True if the trainer's key signs for a round that opens at `opens`, unix seconds."""
        named, expiry = self.keys.get((run, trainer), (ZERO_ADDRESS, 0))
        return named == key and opens < expiry
