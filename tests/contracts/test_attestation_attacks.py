"""Attacks on attested runs, each of which must fail: on keys, on platforms' limits, by guardians, by sponsors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from earnest.client.attestation.simulated import SimulatedAttester
from earnest.protocol.attestation import round_statement
from tests.contracts.attested import (
    VENDOR,
    AttestedRun,
    claims_of,
    enclave_key,
)
from tests.contracts.harness import account, reverts
from tests.contracts.rounds import SALT, STRANGER

PLATFORM_2 = SimulatedAttester(VENDOR, platform=2)
HOUR = 3_600


@pytest.fixture(scope="module")
def deployed() -> AttestedRun:
    return AttestedRun.create(trainers=4)


@pytest.fixture
def attested(deployed: AttestedRun) -> Iterator[AttestedRun]:
    """Four seated trainers in an attested run before its start; two keys a platform, no limit to bonds."""
    with deployed.evm.anchor():
        yield deployed


def signed(attested: AttestedRun, seat: int, key: str, round: int) -> bytes:
    """The attestation of a seat's manifest by an enclave's key."""
    digest = round_statement(
        attested.chain_id,
        attested.registry.address,
        attested.run.id,
        round,
        attested.run.manifest(seat, round).hash(),
    )
    return enclave_key(key).sign(digest)


def reveal(attested: AttestedRun, seat: int, attestation: bytes, round: int = 0) -> None:
    run = attested.run
    run.system.runs.reveal(seat, run.manifest(seat, round), SALT, attestation, sender=run.trainers[seat])


# One platform in many places.


@pytest.mark.parametrize("overlap", [False, True], ids=["rounds apart", "rounds overlap"])
def test_keys_registered_one_after_another_do_not_share_a_place_in_one_round(overlap: bool) -> None:
    """A key that expires inside a round signs for it to the end: its place is taken for as long."""
    windows = {"commit_s": 2_000, "overlap": True} if overlap else {}
    made = AttestedRun.create(trainers=2, run=windows, platform_keys=1, ttl_s=400)
    made.run.enter("commit", 0, 100)
    made.register(0, key="first")
    made.run.commit([0, 1], 0)
    made.run.enter("reveal", 0)
    assert made.enclave_key(0)[1] < made.evm.time
    reveal(made, 0, signed(made, 0, "first", 0))
    with reverts("attestation: platform is full"):
        made.register(1, key="second")
    made.run.leave("reveal", 0)
    if not overlap:
        made.run.enter("commit", 1)
    else:
        made.run.enter("commit", 2)
    made.register(1, key="second")


def test_a_place_is_not_held_by_a_key_that_no_round_is_left_for() -> None:
    made = AttestedRun.create(trainers=2, platform_keys=1, ttl_s=60)
    made.register(0, key="first")
    made.register(1, key="second")  # both expire before the run starts
    made.run.enter("commit", 0)
    made.register(0, key="first again")
    with reverts("attestation: platform is full"):
        made.register(1, key="second again")


def test_who_has_no_seat_takes_no_place_on_a_platform(attested: AttestedRun) -> None:
    """Or a neighbour on a cloud's machine fills its places for nothing."""
    for i in range(2):
        attested.run.trainers[3] = account(f"neighbour {i}")
        with reverts("attestation: no trainer seat"):
            attested.register(3, key=f"neighbour {i}")
    attested.register(0)
    attested.register(1, key="second")


def test_a_validators_seat_is_no_trainers(attested: AttestedRun) -> None:
    attested.run.join_validators([10**9])
    attested.run.trainers[3] = attested.run.validators[0]
    with reverts("attestation: no trainer seat"):
        attested.register(3)


def test_who_has_left_takes_no_place_on_a_platform(attested: AttestedRun) -> None:
    """Nor does a bond that leaves count as none, to be made whole after the registration."""
    run = attested.run
    run.system.vault.start_exit(run.settlement.address, run.id, sender=run.trainers[0])
    with reverts("attestation: no standing bond"):
        attested.register(0)


def test_who_lost_its_seat_takes_no_place_on_a_platform() -> None:
    made = AttestedRun.create(trainers=1, run={"trainer_limit": 1})
    run, newcomer = made.run, account("newcomer")
    run.enter("commit", 1)
    run.bond(newcomer, 2 * 10**9)
    run.system.runs.join(run.id, 1, newcomer, "", [], 0, sender=newcomer)
    with reverts("attestation: no trainer seat"):
        made.register(0)
    run.trainers[0] = newcomer
    made.register(0)


@pytest.mark.parametrize("unit", [1, 10**6, 10**18])
def test_bonds_of_a_platform_are_limited_in_any_token(unit: int) -> None:
    """Whatever the decimals of the token: to the limit, not beyond, and no unnoticed growth."""
    made = AttestedRun.create(trainers=0, platform_bond=3_000_000 * unit, platform_keys=4)
    made.run.join_trainers(3, bond=1_000_000 * unit)
    made.run.join_trainers(1, bond=1_000_000)
    for trainer in range(3):
        made.register(trainer, key=f"{trainer}")
    if unit == 1:
        with reverts("attestation: platform bond too high"):
            made.register(3, key="one too many")
    said = claims_of(SimulatedAttester(VENDOR))
    who = made.run.trainers[0]
    grown = max(unit // 1000, 1)
    made.run.bond(who, grown)
    with reverts("attestation: platform bond too high"):
        made.register(0, key="more")
    made.registry.revoke(
        made.run.id, who, made.policy, said.workload, said.platform, said.pck, sender=STRANGER
    )
