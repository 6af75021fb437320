"""The registry against its reference, `earnest.protocol.registry`, over random sequences of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earnest.attestation.prover.simulated import SimulatedAttester
from earnest.protocol.attestation import Claims, key_entry
from earnest.protocol.registry import RegistryModel, bond_unit
from earnest.protocol.require import Refused
from tests.contracts.attested import GUARDIAN, VENDOR, AttestedRun, claims_of, enclave_key
from tests.contracts.harness import Reverted
from tests.contracts.rounds import STRANGER

ATTESTERS = [SimulatedAttester(VENDOR, platform=platform) for platform in (0, 1)]
SWAPPED = SimulatedAttester(VENDOR, code=b"cheaper")
CLAIMS: dict[SimulatedAttester, Claims] = {a: claims_of(a) for a in (*ATTESTERS, SWAPPED)}
KEYS = [f"key {i}" for i in range(3)]
STEPS = 14
BOND = 10**15


@pytest.fixture(scope="module")
def started() -> AttestedRun:
    made = AttestedRun.create(
        0, run={"rounds": 20}, platform_keys=2, platform_bond=4 * BOND, ttl_s=4_000, evaluation_floor=3
    )
    made.run.join_trainers(4, bond=2 * BOND)
    made.run.enter("commit", 0)
    return made


@pytest.fixture
def attested(started: AttestedRun) -> Iterator[AttestedRun]:
    with started.evm.anchor():
        yield started


class Life:
    """One chain, one model, the same calls to both."""

    def __init__(self, attested: AttestedRun, random: Random) -> None:
        self.attested, self.random, self.model = attested, random, RegistryModel()
        self.run, self.policy = attested.run, attested.policy
        self.parts = attested.run.system
        self.refusals: set[str] = set()

    def both(self, on_chain: Callable[[], object], in_model: Callable[[], object]) -> None:
        """The same call to both has the same end."""
        try:
            in_model()
            expected = ""
        except Refused as refusal:
            expected = refusal.reason
        try:
            on_chain()
            found = ""
        except Reverted as refusal:
            found = refusal.reason
        assert found == expected
        self.refusals.add(found)

    def step(self) -> None:
        self.random.choice(
            (self.register, self.register, self.register, self.revoke, self.narrow, self.pass_time)
        )()
        self.compare()

    def live_bond(self, trainer: str) -> int:
        return self.parts.vault.live_bond(self.parts.settlement.address, self.run.id, trainer)

    def register(self) -> None:
        seat = self.random.randrange(4)
        attester = self.random.choice((*ATTESTERS, *ATTESTERS, SWAPPED))
        if self.random.random() < 0.8:
            self.attested.evm.mine()
        wanted, evidence = self.attested.attempt(seat, attester=attester, key=self.random.choice(KEYS))
        evm = self.attested.evm
        self.both(
            lambda: self.attested.send(wanted, evidence),
            lambda: self.model.register(
                wanted,
                self.policy,
                CLAIMS[attester],
                self.live_bond(wanted.trainer),
                evm.time,
                evm.number,
                self.oldest(),
            ),
        )

    def oldest(self) -> int:
        """t0 of the oldest round still open to reveals."""
        schedule = self.run.params.schedule()
        return schedule.opens(schedule.oldest_open(self.attested.evm.time))

    def revoke(self) -> None:
        trainer = self.random.choice(self.run.trainers)
        said = CLAIMS[self.random.choice(ATTESTERS)]
        depends_on = (said.workload, said.platform, said.pck)
        _, cutoff, oldest = self.parts.runs.attestation(self.run.id)
        assert oldest == self.oldest()
        self.both(
            lambda: self.attested.registry.revoke(
                self.run.id, trainer, self.policy, *depends_on, sender=STRANGER
            ),
            lambda: self.model.revoke(
                self.run.id, trainer, self.policy, depends_on, self.live_bond(trainer), cutoff
            ),
        )

    def narrow(self) -> None:
        said = CLAIMS[ATTESTERS[1]]
        who = self.random.choice((GUARDIAN, GUARDIAN, GUARDIAN, STRANGER))
        if self.random.random() < 0.3:
            floor = self.random.choice((0, 3, 4, 5, 9, 2**32 - 1, 2**32))
            self.both(
                lambda: self.attested.registry.raise_floor(self.policy, floor, sender=who),
                lambda: self.model.raise_floor(who, self.policy, floor),
            )
            return
        entry = self.random.choice(
            (said.platform, said.pck, key_entry(enclave_key(KEYS[0]).address), bytes(32), b"\1" * 32)
        )
        self.both(
            lambda: self.attested.registry.deny(self.policy, entry, sender=who),
            lambda: self.model.deny(who, self.policy, entry),
        )

    def pass_time(self) -> None:
        """Time goes on, and bonds grow or leave."""
        trainer = self.random.choice(self.run.trainers)
        if self.random.random() < 0.4:
            self.run.bond(trainer, self.random.choice((1, 65_536, BOND)))
        elif self.random.random() < 0.2 and self.live_bond(trainer):
            self.parts.vault.start_exit(self.parts.settlement.address, self.run.id, sender=trainer)
        self.attested.evm.mine(3, self.random.choice((1, 700, 1_400)))

    def compare(self) -> None:
        """All that the contract remembers is what the model remembers."""
        now = self.attested.evm.time
        for seat, trainer in enumerate(self.run.trainers):
            key, expiry = self.model.keys.get((self.run.id, trainer), ("0x0", 0))
            assert self.attested.enclave_key(seat) == (int(key, 16), expiry)
            assert self.model.counts(self.run.id, trainer, key, now) == (now < expiry)
            record = self.model.records.get((self.run.id, trainer))
            _, block = self.attested.registry.record_of(self.run.id, trainer)
            assert block == (record.block if record else 0)
        unit = bond_unit(self.policy.platform_bond)
        for attester in ATTESTERS:
            platform = CLAIMS[attester].platform
            held = self.attested.registry.platform_keys(self.run.id, platform)
            places = self.model.places[self.run.id, platform]
            assert [tuple(place) for place in held] == [
                (place.trainer, place.expiry, place.bond * unit) for place in places
            ]
        assert self.attested.registry.raised_floor(self.policy.hash()) == self.model.floors.get(
            self.policy.hash(), 0
        )


@given(st.integers(0, 2**32))
@settings(max_examples=12)
def test_lives_of_keys_go_as_in_the_reference(attested: AttestedRun, seed: int) -> None:
    with attested.evm.anchor():
        life = Life(attested, Random(seed))
        for _ in range(STEPS):
            life.step()


def test_such_lives_meet_the_refusals_that_matter(attested: AttestedRun) -> None:
    met: set[str] = set()
    for seed in range(20):
        with attested.evm.anchor():
            life = Life(attested, Random(seed))
            for _ in range(STEPS):
                life.step()
            met |= life.refusals
    assert {
        "",
        "attestation: platform is full",
        "attestation: platform bond too high",
        "attestation: no live bond",
        "attestation: platform denied",
        "attestation: challenge used",
        "attestation: workload not allowed",
        "attestation: key ends before",
        "attestation: not what was logged",
        "attestation: nothing against the key",
        "attestation: not the guardian",
    } <= met
