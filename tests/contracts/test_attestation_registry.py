"""Registering, limiting and ending enclave keys, on the real contracts with a simulated vendor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from earnest.attestation.formats.quote import claims, quote_calldata
from earnest.attestation.prover.simulated import SimulatedAttester, SimulatedVendor
from earnest.protocol.attestation import CHALLENGE_BLOCKS, challenge, key_binding, key_entry
from earnest.protocol.registry import bond_unit
from tests.contracts.attested import (
    DAY,
    GUARDIAN,
    VENDOR,
    AttestedRun,
    claims_of,
    deploy_registry,
    enclave_key,
    install_p256,
    policy_for,
    quote_of,
)
from tests.contracts.harness import CHAIN_ID, Reverted, account, reverts, system
from tests.contracts.rounds import STRANGER, Run

KEY_LIFE_S = 3_000
"""More than a round and less than two."""

PLATFORM_2 = SimulatedAttester(VENDOR, platform=2)


@pytest.fixture(scope="module")
def deployed() -> AttestedRun:
    return AttestedRun.create(trainers=4)


@pytest.fixture
def attested(deployed: AttestedRun) -> Iterator[AttestedRun]:
    """Four seated trainers in an attested run before its start; two keys a platform, no limit to bonds."""
    with deployed.evm.anchor():
        yield deployed


@pytest.fixture
def capped() -> AttestedRun:
    """The bonds of one platform's keys may be 3 * 10**18 - 1 wei together."""
    made = AttestedRun.create(trainers=0, platform_bond=3 * 10**18 - 1, platform_keys=4, ttl_s=5_000)
    made.run.join_trainers(4, bond=10**18)
    made.run.enter("commit", 0)
    return made


def revoke(attested: AttestedRun, trainer: int = 0, **changes: Any) -> None:
    """Anyone ends a trainer's key; what was logged is what the default attester claims."""
    said = replace(claims_of(SimulatedAttester(VENDOR)), **changes)
    attested.registry.revoke(
        attested.run.id,
        attested.run.trainers[trainer],
        attested.policy,
        said.workload,
        said.platform,
        said.pck,
        sender=STRANGER,
    )


# Registering.


def test_a_registered_key_is_on_record_and_counts_until_its_ttl_is_over(attested: AttestedRun) -> None:
    registration = attested.register()
    key, expiry = attested.enclave_key()
    assert key == int(registration.key, 16)
    assert expiry == attested.evm.time + attested.policy.ttl_s
    said = claims(quote_of(SimulatedAttester(VENDOR), attested.binding(registration) + bytes(32)))
    assert attested.evm.events("KeyRegistered") == [
        {
            "run": attested.run.id,
            "trainer": attested.run.trainers[0],
            "key": registration.key.lower(),
            "policy": attested.policy.hash(),
            "workload": said.workload,
            "root_id": VENDOR.root_id,
            "platform": said.platform,
            "pck": said.pck,
            "quote": said.quote,
            "expiry": expiry,
            "challenge_block": registration.challenge_block,
            "evidence_root": registration.evidence_root,
            "collateral_digest": registration.collateral_digest,
        }
    ]
    basis, block = attested.registry.record_of(attested.run.id, attested.run.trainers[0])
    assert basis != bytes(32)
    assert block == registration.challenge_block


def test_the_policy_hash_is_that_of_the_protocol(attested: AttestedRun) -> None:
    assert attested.registry.policy_hash(attested.policy) == attested.policy.hash()
    other = policy_for(
        quote_of(PLATFORM_2, bytes(64)),
        pck_cas=(VENDOR.ca_public, bytes(64), b"\xff" * 64),
        workloads=tuple(bytes([i]) * 32 for i in range(16)),
        platform_bond=2**128 - 1,
        evaluation_floor=2**32 - 1,
        document=b"\x0d" * 32,
    )
    assert attested.registry.policy_hash(other) == other.hash()


def test_the_challenge_is_that_of_the_protocol(attested: AttestedRun) -> None:
    trainer = attested.run.trainers[0]
    block, drawn = attested.registry.challenge(attested.run.id, trainer)
    assert block == attested.evm.number - 1
    block_hash = attested.evm.block_hash(block)
    address = attested.registry.address
    assert drawn == challenge(CHAIN_ID, address, attested.run.id, trainer, block, block_hash)


def test_the_seats_operator_may_register_and_nobody_else(attested: AttestedRun) -> None:
    trainer, operator = attested.run.trainers[0], account("operator")
    registration, evidence = attested.attempt()
    for sender in (STRANGER, operator, attested.run.trainers[1]):
        with reverts("attestation: not the trainer"):
            attested.send(registration, evidence, sender)
    attested.run.system.runs.set_operator(attested.run.id, 1, 0, operator, sender=trainer)
    attested.send(registration, evidence, operator)
    assert attested.enclave_key()[0] == int(registration.key, 16)


def test_nobody_registers_for_an_account_without_a_seat(attested: AttestedRun) -> None:
    registration, evidence = attested.attempt(trainer=0)
    for other in (STRANGER, account("nobody"), "0x" + "00" * 20):
        with reverts("attestation: no trainer seat"):
            attested.send(replace(registration, trainer=other), evidence, attested.run.trainers[0])


def test_an_operator_registers_for_its_own_owner_only(attested: AttestedRun) -> None:
    """Also not for a validator, whose seat has the same index."""
    operator = account("operator")
    attested.run.system.runs.set_operator(attested.run.id, 1, 0, operator, sender=attested.run.trainers[0])
    with attested.evm.anchor():
        attested.run.join_validators([10**9])
        registration, evidence = attested.attempt()
        for other, reason in (
            (attested.run.validators[0], "no trainer seat"),
            (attested.run.trainers[1], "not the trainer"),
            (STRANGER, "no trainer seat"),
        ):
            with reverts(f"attestation: {reason}"):
                attested.send(replace(registration, trainer=other), evidence, operator)
        attested.send(registration, evidence, operator)


def test_a_run_without_attestation_takes_no_key() -> None:
    parts = system()
    install_p256(parts.evm)
    registry = deploy_registry(parts)
    run = Run.create(parts)
    run.join_trainers(1)
    attested = AttestedRun(run, registry, policy_for(quote_of(SimulatedAttester(VENDOR), bytes(64))))
    with reverts("attestation: run takes none"):
        attested.register()
    attested.run.id = 7
    with reverts("runs: no such run"):
        attested.register()


def test_a_policy_that_is_not_the_runs_is_refused_in_every_field(attested: AttestedRun) -> None:
    registration, evidence = attested.attempt()
    changes: dict[str, Any] = {
        "root_id": b"\1" * 32,
        "pck_cas": (VENDOR.ca_public, VENDOR.ca_public),
        "qe_signer": b"\1" * 32,
        "qe_product": 3,
        "qe_min_svn": 0,
        "workloads": (*attested.policy.workloads, b"\1" * 32),
        "ttl_s": 8 * DAY,
        "platform_keys": 3,
        "platform_bond": 1,
        "evaluation_floor": 1,
        "guardian": STRANGER,
        "document": b"\1" * 32,
    }
    assert set(changes) == set(type(attested.policy).__dataclass_fields__)
    for field, value in changes.items():
        policy = replace(attested.policy, **{field: value})
        with reverts("attestation: not the run's policy"):
            attested.registry.register(registration, policy, evidence, sender=registration.trainer)


# What a quote is bound to.


def test_a_quote_serves_one_key_one_trainer_and_one_run(attested: AttestedRun) -> None:
    registration, evidence = attested.attempt()
    other_run = Run.create(attested.run.system, verification=2, attestation_policy=attested.policy.hash())
    other_run.join_trainers(2)
    for change in (
        {"key": enclave_key("another").address},
        {"trainer": attested.run.trainers[1]},
        {"run": other_run.id},
        {"challenge_block": registration.challenge_block - 1},
    ):
        with reverts("attestation: not bound to this key"):
            attested.send(replace(registration, **change), evidence)
    attested.send(registration, evidence)


@pytest.mark.parametrize("foreign", ["chain", "registry"])
def test_a_quote_made_for_another_chain_or_registry_is_refused(attested: AttestedRun, foreign: str) -> None:
    registration, _ = attested.attempt()
    chain = CHAIN_ID + 1 if foreign == "chain" else CHAIN_ID
    registry = STRANGER if foreign == "registry" else attested.registry.address
    block = registration.challenge_block
    drawn = challenge(
        chain, registry, registration.run, registration.trainer, block, attested.evm.block_hash(block)
    )
    binding = key_binding(chain, registry, registration.trainer, registration.key, registration.run, drawn)
    quote = quote_of(SimulatedAttester(VENDOR), binding + bytes(32))
    with reverts("attestation: not bound to this key"):
        attested.send(registration, quote_calldata(quote, attested.policy.pck_cas))


def test_the_second_half_of_the_report_data_is_free(attested: AttestedRun) -> None:
    registration, _ = attested.attempt()
    quote = quote_of(SimulatedAttester(VENDOR), attested.binding(registration) + b"\xab" * 32)
    attested.send(registration, quote_calldata(quote, attested.policy.pck_cas))


def test_zero_report_data_binds_nothing(attested: AttestedRun) -> None:
    registration, _ = attested.attempt()
    quote = quote_of(SimulatedAttester(VENDOR), bytes(64))
    with reverts("attestation: not bound to this key"):
        attested.send(registration, quote_calldata(quote, attested.policy.pck_cas))


def test_the_empty_key_is_refused(attested: AttestedRun) -> None:
    registration, _ = attested.attempt(key="key")
    registration = replace(registration, key="0x" + "00" * 20)
    quote = quote_of(SimulatedAttester(VENDOR), attested.binding(registration) + bytes(32))
    with reverts("attestation: no key"):
        attested.send(registration, quote_calldata(quote, attested.policy.pck_cas))


def test_a_challenge_serves_once(attested: AttestedRun) -> None:
    attested.evm.mine(5)
    registration, evidence = attested.attempt()
    attested.send(registration, evidence)
    with reverts("attestation: challenge used"):
        attested.send(registration, evidence)
    earlier, evidence = attested.attempt(challenge_block=registration.challenge_block - 1, key="other")
    with reverts("attestation: challenge used"):
        attested.send(earlier, evidence)
    same, evidence = attested.attempt(key="other")
    with reverts("attestation: challenge used"):
        attested.send(same, evidence)
    attested.evm.mine()
    attested.send(*attested.attempt(key="other"))
    assert attested.enclave_key()[0] == int(enclave_key("other").address, 16)


def test_a_challenge_lives_for_256_blocks(attested: AttestedRun) -> None:
    registration, evidence = attested.attempt()
    with attested.evm.anchor():
        attested.evm.mine(CHALLENGE_BLOCKS - 1)
        attested.send(registration, evidence)
    attested.evm.mine(CHALLENGE_BLOCKS)
    with reverts("attestation: challenge expired"):
        attested.send(registration, evidence)


def test_nobody_can_know_a_challenge_before_its_block(attested: AttestedRun) -> None:
    registration, evidence = attested.attempt()
    for block in (attested.evm.number, attested.evm.number + 1, 2**256 - 1):
        with reverts("attestation: challenge expired"):
            attested.send(replace(registration, challenge_block=block), evidence)


def test_swapped_code_cannot_register(attested: AttestedRun) -> None:
    with reverts("attestation: workload not allowed"):
        attested.register(attester=SimulatedAttester(VENDOR, code=b"cheaper"))


def test_a_quote_of_another_vendor_cannot_register(attested: AttestedRun) -> None:
    """It may say whatever it likes about its quoting enclave and its workload."""
    other = SimulatedVendor(b"another")
    registration, _ = attested.attempt()
    quote = quote_of(SimulatedAttester(other), attested.binding(registration) + bytes(32))
    with reverts("attestation: wrong QE signer"):
        attested.send(registration, quote_calldata(quote, (other.ca_public,)))


# One platform, many keys.


def test_a_platform_holds_as_many_keys_as_the_policy_allows(attested: AttestedRun) -> None:
    attested.register(0)
    attested.register(1, key="second")
    with reverts("attestation: platform is full"):
        attested.register(2, key="third")
    attested.register(2, key="third", attester=PLATFORM_2)
    attested.register(0, key="renewed")  # takes its own place
    with reverts("attestation: platform is full"):
        attested.register(3, key="fourth")


def test_a_place_is_free_from_the_round_that_opens_when_its_key_has_expired() -> None:
    attested = AttestedRun.create(trainers=3, ttl_s=KEY_LIFE_S)
    attested.run.enter("commit", 0)
    attested.register(0)
    attested.register(1, key="second")
    attested.run.enter("commit", 2, -1)
    assert attested.enclave_key(1)[1] < attested.evm.time
    with reverts("attestation: platform is full"):
        attested.send(*attested.attempt(2, key="third"))
    attested.run.enter("commit", 2)
    attested.send(*attested.attempt(2, key="third"))
    platform = claims_of(SimulatedAttester(VENDOR)).platform
    held = attested.registry.platform_keys(attested.run.id, platform)
    assert [place.trainer for place in held] == [attested.run.trainers[2], attested.run.trainers[1]]
    assert held[0].expiry == attested.enclave_key(2)[1]


def test_a_trainer_keeps_to_one_place_on_a_platform() -> None:
    """Its own place comes before one that expired earlier in the list."""
    attested = AttestedRun.create(trainers=3, ttl_s=KEY_LIFE_S)
    attested.run.enter("commit", 0)
    attested.register(0)
    attested.run.enter("commit", 1)
    attested.register(1, key="second")
    attested.run.enter("commit", 2)
    attested.register(1, key="again")
    platform = claims_of(SimulatedAttester(VENDOR)).platform
    held = attested.registry.platform_keys(attested.run.id, platform)
    assert [place.trainer for place in held] == attested.run.trainers[:2]


def test_platforms_of_one_run_do_not_count_in_another(attested: AttestedRun) -> None:
    attested.register(0)
    attested.register(1, key="second")
    other = Run.create(attested.run.system, verification=2, attestation_policy=attested.policy.hash())
    other.join_trainers(1)
    replace(attested, run=other).register(0)


def test_the_bonds_of_a_platforms_keys_are_limited_together(capped: AttestedRun) -> None:
    capped.register(0)
    capped.register(1, key="second")
    with reverts("attestation: platform bond too high"):
        capped.register(2, key="third")
    capped.register(2, key="third", attester=PLATFORM_2)
    capped.run.enter("commit", 3)
    capped.register(2, key="third again")


def test_bonds_are_counted_to_what_fits_beside_the_key() -> None:
    """In units of 2**16 wei where the limit has 60 bits, rounded down: what the limit allows is never refused."""
    made = AttestedRun.create(trainers=0, platform_bond=10**18 + 65_535, platform_keys=4)
    bonds = [10**18 - 10**6, 10**6 + 65_535]
    for bond in bonds:
        made.run.join_trainers(1, bond=bond)
    made.register(0)
    made.register(1, key="second")
    platform = claims_of(SimulatedAttester(VENDOR)).platform
    held = made.registry.platform_keys(made.run.id, platform)
    assert [place.bond for place in held] == [bond // 65_536 * 65_536 for bond in bonds]


@pytest.mark.parametrize("limit", [2**48 - 1, 2**48, 2**49 - 1, 2**64 - 1, 2**64, 2**96 - 1, 2**128 - 1])
def test_every_limit_fits_its_field(limit: int) -> None:
    made = AttestedRun.create(trainers=0, platform_bond=limit)
    bond = min(limit, 2**96 - 1)
    made.run.join_trainers(1, bond=bond)
    made.register()
    (place,) = made.registry.platform_keys(made.run.id, claims_of(SimulatedAttester(VENDOR)).platform)
    assert place.bond == bond - bond % bond_unit(limit)
    assert (place.trainer, place.expiry) == (made.run.trainers[0], made.enclave_key()[1])


def test_the_largest_bond_there_is_fits_its_field() -> None:
    made = AttestedRun.create(trainers=0, platform_bond=2**97)
    made.run.join_trainers(1, bond=2**96 - 1)
    made.register()
    platform = claims_of(SimulatedAttester(VENDOR)).platform
    (place,) = made.registry.platform_keys(made.run.id, platform)
    assert place.bond == 2**96 - 2**64
    with reverts("attestation: nothing against the key"):
        revoke(made)


def test_a_bond_that_grew_beyond_what_was_counted_ends_the_key(capped: AttestedRun) -> None:
    capped.register(0)
    with reverts("attestation: nothing against the key"):
        revoke(capped)
    capped.run.bond(capped.run.trainers[0], 2**16)
    revoke(capped)
    (log,) = capped.evm.events("KeyRevoked")
    assert log["entry"] == bytes(32)
    capped.register(0, key="renewed")  # counted anew, it fits
    with reverts("attestation: nothing against the key"):
        revoke(capped)


def test_a_bond_may_grow_where_the_policy_sets_no_limit(attested: AttestedRun) -> None:
    attested.register()
    attested.run.bond(attested.run.trainers[0], 10**18)
    with reverts("attestation: nothing against the key"):
        revoke(attested)


# Narrowing.


def entries() -> dict[str, bytes]:
    said = claims_of(SimulatedAttester(VENDOR))
    return {
        "workload": said.workload,
        "platform": said.platform,
        "PCK key": said.pck,
        "root": VENDOR.root_id,
        "key": key_entry(enclave_key("key").address),
    }


@pytest.mark.parametrize("what", ["workload", "platform", "PCK key", "root", "key"])
def test_a_denied_entry_registers_no_more_keys_and_ends_live_ones(attested: AttestedRun, what: str) -> None:
    attested.register()
    entry = entries()[what]
    assert not attested.registry.denied(attested.policy.hash(), entry)
    attested.registry.deny(attested.policy, entry, sender=GUARDIAN)
    assert attested.evm.events("Denied") == [
        {"policy": attested.policy.hash(), "entry": entry, "time": attested.evm.time}
    ]
    assert attested.registry.denied(attested.policy.hash(), entry)
    with reverts(f"attestation: {what} denied"):
        attested.register()
    if what != "key":
        with reverts(f"attestation: {what} denied"):
            attested.registry.check_quote(attested.policy, attested.attempt()[1])
    cutoff = attested.run.system.runs.attestation(attested.run.id)[1]
    revoke(attested)
    assert attested.evm.events("KeyRevoked") == [
        {
            "run": attested.run.id,
            "trainer": attested.run.trainers[0],
            "key": enclave_key("key").address.lower(),
            "expiry": cutoff,
            "entry": entry,
        }
    ]
    assert attested.enclave_key() == (int(enclave_key("key").address, 16), cutoff)
    with reverts("attestation: key ends before"):
        revoke(attested)


def test_other_entries_of_the_filters_bit_are_not_denied(attested: AttestedRun) -> None:
    """One word tells what is certainly not denied; what it cannot tell is looked up."""
    for what, entry in entries().items():
        neighbour = ((int.from_bytes(entry, "big") + 224) % 2**256).to_bytes(32, "big")
        attested.registry.deny(attested.policy, neighbour, sender=GUARDIAN)
        assert attested.registry.denied(attested.policy.hash(), neighbour), what
    attested.register()


def test_a_platform_is_denied_under_its_policy_only(attested: AttestedRun) -> None:
    other = replace(attested.policy, ttl_s=60)
    attested.registry.deny(other, entries()["platform"], sender=GUARDIAN)
    attested.register()


def test_only_the_policys_guardian_narrows_it(attested: AttestedRun) -> None:
    nobody = replace(attested.policy, guardian="0x" + "00" * 20)
    for policy in (attested.policy, nobody):
        with reverts("attestation: not the guardian"):
            attested.registry.deny(policy, b"\1" * 32, sender=STRANGER)
        with reverts("attestation: not the guardian"):
            attested.registry.raise_floor(policy, 5, sender=STRANGER)
    mine = replace(attested.policy, guardian=STRANGER)
    attested.registry.deny(mine, b"\1" * 32, sender=STRANGER)
    assert not attested.registry.denied(attested.policy.hash(), b"\1" * 32)


def test_an_entry_is_denied_once_and_never_allowed_again(attested: AttestedRun) -> None:
    attested.registry.deny(attested.policy, b"\1" * 32, sender=GUARDIAN)
    with reverts("attestation: already denied"):
        attested.registry.deny(attested.policy, b"\1" * 32, sender=GUARDIAN)
    with reverts("attestation: nothing to deny"):
        attested.registry.deny(attested.policy, bytes(32), sender=GUARDIAN)


def test_the_floor_only_rises(attested: AttestedRun) -> None:
    policy = replace(attested.policy, evaluation_floor=17)
    for low in (0, 17):
        with reverts("attestation: floor not higher"):
            attested.registry.raise_floor(policy, low, sender=GUARDIAN)
    attested.registry.raise_floor(policy, 18, sender=GUARDIAN)
    assert attested.evm.events("FloorRaised") == [
        {"policy": policy.hash(), "floor": 18, "time": attested.evm.time}
    ]
    with reverts("attestation: floor not higher"):
        attested.registry.raise_floor(policy, 18, sender=GUARDIAN)
    attested.registry.deny(policy, b"\xff" * 32, sender=GUARDIAN)
    assert attested.registry.raised_floor(policy.hash()) == 18
    attested.registry.raise_floor(policy, 2**32 - 1, sender=GUARDIAN)
    assert attested.registry.raised_floor(policy.hash()) == 2**32 - 1
    assert attested.registry.denied(policy.hash(), b"\xff" * 32)
    with reverts("attestation: floor not higher"):
        attested.registry.raise_floor(policy, 2**32, sender=GUARDIAN)


def test_a_raised_floor_leaves_the_deny_list_as_it_was(attested: AttestedRun) -> None:
    attested.registry.deny(attested.policy, entries()["platform"], sender=GUARDIAN)
    attested.registry.raise_floor(attested.policy, 5, sender=GUARDIAN)
    with reverts("attestation: platform denied"):
        attested.register()


def test_a_key_with_nothing_against_it_stays(attested: AttestedRun) -> None:
    with reverts("attestation: nothing registered"):
        revoke(attested)
    attested.register()
    with reverts("attestation: nothing against the key"):
        revoke(attested)


def test_a_key_ends_only_by_the_values_that_it_depends_on(attested: AttestedRun) -> None:
    attested.register()
    attested.registry.deny(attested.policy, b"\1" * 32, sender=GUARDIAN)
    for field in ("workload", "platform", "pck"):
        with reverts("attestation: not what was logged"):
            revoke(attested, 0, **{field: b"\1" * 32})
    other = replace(attested, policy=replace(attested.policy, guardian=STRANGER))
    attested.registry.deny(other.policy, entries()["platform"], sender=STRANGER)
    with reverts("attestation: not what was logged"):
        revoke(other)


def test_a_key_that_was_renewed_elsewhere_is_not_ended_by_its_old_platform(attested: AttestedRun) -> None:
    attested.register()
    attested.register(attester=PLATFORM_2, key="moved")
    attested.registry.deny(attested.policy, entries()["platform"], sender=GUARDIAN)
    with reverts("attestation: not what was logged"):
        revoke(attested)


def test_a_key_ends_from_the_second_next_round(attested: AttestedRun) -> None:
    attested.register()
    attested.registry.deny(attested.policy, entries()["platform"], sender=GUARDIAN)
    attested.run.enter("commit", 0)
    revoke(attested)
    assert attested.enclave_key()[1] == attested.run.params.schedule().commit(2).start


def test_a_key_that_expires_before_is_left_alone() -> None:
    made = AttestedRun.create(trainers=1, ttl_s=60)
    made.register()
    made.registry.deny(made.policy, entries()["platform"], sender=GUARDIAN)
    with reverts("attestation: key ends before"):
        revoke(made)


# Deployment.


def test_bad_wiring_is_refused(attested: AttestedRun) -> None:
    good = [account(name) for name in ("runs", "settlement", "vault")]
    for i in range(3):
        bad = [*good[:i], "0x" + "00" * 20, *good[i + 1 :]]
        with pytest.raises(Reverted) as refusal:
            attested.evm.deploy("AttestationRegistry", *bad)
        assert refusal.value.reason == "attestation: bad wiring"


def test_the_wiring_is_on_record(attested: AttestedRun) -> None:
    parts = attested.run.system
    assert attested.registry.RUNS() == parts.runs.address.lower()
    assert attested.registry.SETTLEMENT() == parts.settlement.address.lower()
    assert attested.registry.VAULT() == parts.vault.address.lower()
