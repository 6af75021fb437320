"""An enclave's signature in `reveal`: who can give one, for what, until when, and that it affects no other seat.

The registry is an account here, so that every key that it could name is tried; that the real one names no others is for
`test_attestation_registry.py` to say.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from eth_keys.datatypes import PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from earnest.protocol.hashing import keccak_abi
from earnest.protocol.manifest import Manifest, commitment
from earnest.protocol.run import Level
from tests.contracts.harness import CHAIN_ID, Evm, Reverted, System, account, keccak, system
from tests.contracts.harness import reverts as refused
from tests.contracts.rounds import SALT, STRANGER, Run, accepted, report

REGISTRY = account("registry")
POLICY = b"\x0a" * 32
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
TAG = keccak(b"earnest/round-statement/v1")
FOREVER = 2**64 - 1
enclave, other_enclave = (PrivateKey(keccak(name.encode())) for name in ("enclave", "other enclave"))


@pytest.fixture(scope="module")
def deployed() -> System:
    return system(registry=REGISTRY)


@pytest.fixture(params=[Level.ATTESTED, Level.OPTIONAL], ids=["attested", "optional"])
def run(contracts: System, request: pytest.FixtureRequest) -> Run:
    """A run that takes attestations; the first trainer's enclave has a key, and two updates are committed to."""
    return attested_run(contracts, request.param)


def attested_run(contracts: System, level: Level = Level.ATTESTED) -> Run:
    run = Run.create(contracts, verification=level, attestation_policy=POLICY)
    run.join_trainers(2)
    name_key(run, 0, enclave)
    run.enter("commit", 0)
    run.commit([0, 1], 0)
    run.enter("reveal", 0)
    return run


def name_key(run: Run, seat: int, key: PrivateKey, expiry: int = FOREVER) -> None:
    word = int(key.public_key.to_checksum_address(), 16) | expiry << 160
    run.system.runs.set_enclave_key(run.id, run.trainers[seat], word, sender=REGISTRY)


def statement(run: Run, manifest: Manifest, registry: str = REGISTRY, chain: int = CHAIN_ID) -> bytes:
    """What an enclave signs, spelled out. Protocol section 11."""
    return keccak_abi(
        ["bytes32", "uint256", "address", "uint256", "uint256", "bytes32"],
        [TAG, chain, registry, manifest.run, manifest.round, manifest.hash()],
    )


def signature(key: PrivateKey, digest: bytes, *, high_s: bool = False) -> bytes:
    """64 bytes, r and vs of EIP-2098."""
    signed = key.sign_msg_hash(digest)
    s, parity = (ORDER - signed.s, 1 - signed.v) if high_s else (signed.s, signed.v)
    return signed.r.to_bytes(32) + (parity << 255 | s).to_bytes(32)


def reveal(run: Run, seat: int, attestation: bytes, round: int = 0) -> None:
    manifest = run.manifest(seat, round)
    run.system.runs.reveal(seat, manifest, SALT, attestation, sender=run.trainers[seat])


def test_an_attested_reveal_names_the_enclave_key(run: Run) -> None:
    manifest = run.manifest(0, 0)
    reveal(run, 0, signature(enclave, statement(run, manifest)))
    (event,) = run.evm.events("AttestedReveal")
    assert event["key"] == enclave.public_key.to_address()
    assert (event["run"], event["round"], event["seat"], event["salt"]) == (run.id, 0, 0, SALT)
    assert tuple(event["manifest"])[3:] == manifest.as_tuple()[3:]
    assert run.evm.events("Revealed") == []
    assert run.system.runs.revealed(run.id, 0) == 1


def test_a_missing_attestation_blocks_no_reveal(run: Run) -> None:
    """Not with a key, not without: else whoever could not attest would be charged for not revealing."""
    for seat in (0, 1):
        reveal(run, seat, b"")
        assert len(run.evm.events("Revealed")) == 1
        assert run.evm.events("AttestedReveal") == []
    run.leave("reveal", 0)
    run.settlement.charge(run.id, 0, 1)
    assert run.evm.events("FaultCharged") == []


def test_attested_updates_are_paid_like_any(run: Run) -> None:
    run.join_validators([10**9])  # in round 0: its stake counts from round 2 on
    run.enter("commit", 2)
    run.commit([0, 1], 2)
    run.enter("reveal", 2)
    reveal(run, 0, signature(enclave, statement(run, run.manifest(0, 2))), 2)
    reveal(run, 1, b"", 2)
    run.score({0: report([accepted(65_535), accepted(65_535)])}, 2)
    run.settle(2)
    first, second = (run.idle(who) for who in run.trainers)
    assert first == second > 0


def test_an_attestation_cannot_be_revealed_twice(run: Run) -> None:
    signed = signature(enclave, statement(run, run.manifest(0, 0)))
    reveal(run, 0, signed)
    with refused("runs: already revealed"):
        reveal(run, 0, signed)


def test_a_run_of_level_0_takes_none(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(1)
    name_key(run, 0, enclave)
    run.enter("commit", 0)
    run.commit([0], 0)
    run.enter("reveal", 0)
    for attestation in (b"\1", signature(enclave, statement(run, run.manifest(0, 0)))):
        with refused("runs: attestation not taken"):
            reveal(run, 0, attestation)
    reveal(run, 0, b"")


def test_who_registered_no_key_cannot_attest(run: Run) -> None:
    with refused("runs: no live enclave key"):
        reveal(run, 1, signature(enclave, statement(run, run.manifest(1, 0))))


def test_another_trainers_enclave_does_not_count(run: Run) -> None:
    name_key(run, 1, other_enclave)
    with refused("runs: wrong enclave signature"):
        reveal(run, 1, signature(enclave, statement(run, run.manifest(1, 0))))
    reveal(run, 1, signature(other_enclave, statement(run, run.manifest(1, 0))))


def test_the_newest_key_is_the_one_that_signs(run: Run) -> None:
    name_key(run, 0, other_enclave)
    with refused("runs: wrong enclave signature"):
        reveal(run, 0, signature(enclave, statement(run, run.manifest(0, 0))))
    reveal(run, 0, signature(other_enclave, statement(run, run.manifest(0, 0))))


@pytest.mark.parametrize(("late", "counts"), [(-1, False), (0, False), (1, True)])
def test_the_key_must_outlive_the_rounds_opening(run: Run, late: int, counts: bool) -> None:
    opened = run.params.schedule().opens(0)
    name_key(run, 0, enclave, opened + late)
    signed = signature(enclave, statement(run, run.manifest(0, 0)))
    if counts:
        reveal(run, 0, signed)
    else:
        with refused("runs: no live enclave key"):
            reveal(run, 0, signed)


def test_a_key_that_expires_inside_a_round_serves_it_and_no_later(run: Run) -> None:
    name_key(run, 0, enclave, run.params.schedule().opens(1))
    reveal(run, 0, signature(enclave, statement(run, run.manifest(0, 0))))
    run.enter("commit", 1)
    run.commit([0], 1)
    run.enter("reveal", 1)
    with refused("runs: no live enclave key"):
        reveal(run, 0, signature(enclave, statement(run, run.manifest(0, 1))), 1)


def test_an_erased_key_signs_nothing(run: Run) -> None:
    run.system.runs.set_enclave_key(run.id, run.trainers[0], 0, sender=REGISTRY)
    assert run.system.runs.enclave_key(run.id, run.trainers[0]) == 0
    with refused("runs: no live enclave key"):
        reveal(run, 0, signature(enclave, statement(run, run.manifest(0, 0))))


def test_a_signature_over_anything_else_is_refused(run: Run) -> None:
    manifest = run.manifest(0, 0)
    others = [
        statement(run, replace(manifest, update=b"\x09" * 32)),
        statement(run, replace(manifest, round=1)),
        statement(run, replace(manifest, run=run.id + 1)),
        statement(run, manifest, registry=run.system.runs.address),
        statement(run, manifest, chain=CHAIN_ID + 1),
        manifest.hash(),
        bytes(32),
    ]
    for digest in others:
        with refused("runs: wrong enclave signature"):
            reveal(run, 0, signature(enclave, digest))


def test_high_s_and_other_shapes_are_refused(run: Run) -> None:
    digest = statement(run, run.manifest(0, 0))
    good = signature(enclave, digest)
    v = 27 + (good[32] >> 7)
    for shape in (good + bytes([v]), good + b"\0", good[:63], good[:32], b"\1"):
        with refused("runs: attestation not 64 bytes"):
            reveal(run, 0, shape)
    shapes = [
        signature(enclave, digest, high_s=True),
        good[:32] + (int.from_bytes(good[32:]) ^ 1 << 255).to_bytes(32),
        bytes(64),
        b"\xff" * 64,
        ORDER.to_bytes(32) + good[32:],
        good[:32] + bytes(32),
    ]
    for shape in shapes:
        with refused("runs: wrong enclave signature"):
            reveal(run, 0, shape)
    reveal(run, 0, good)


def test_high_s_is_refused_even_where_the_compact_form_could_hold_it(run: Run) -> None:
    """A key made to measure: its signature has the lowest s that is high, below the bit of the parity."""
    digest, nonce, s = statement(run, run.manifest(0, 0)), PrivateKey((7).to_bytes(32)), ORDER // 2 + 1
    r, y = (int.from_bytes(nonce.public_key.to_bytes()[at : at + 32]) for at in (0, 32))
    secret = (s * 7 - int.from_bytes(digest)) * pow(r, -1, ORDER) % ORDER
    name_key(run, 0, PrivateKey(secret.to_bytes(32)))
    with refused("runs: wrong enclave signature"):
        reveal(run, 0, r.to_bytes(32) + ((y & 1) << 255 | s).to_bytes(32))
    reveal(run, 0, r.to_bytes(32) + ((1 - (y & 1)) << 255 | ORDER - s).to_bytes(32))


def test_the_signature_replaces_no_other_check(run: Run) -> None:
    manifest, runs = run.manifest(0, 0), run.system.runs
    changed = replace(manifest, steps=99)
    with refused("runs: not what was committed"):
        runs.reveal(0, changed, SALT, signature(enclave, statement(run, changed)), sender=run.trainers[0])
    with refused("runs: not the operator"):
        runs.reveal(0, manifest, SALT, signature(enclave, statement(run, manifest)), sender=STRANGER)


def test_only_the_registry_names_keys(run: Run) -> None:
    for sender in (run.trainers[0], STRANGER, account("sponsor"), account("deployer")):
        with refused("runs: not the registry"):
            run.system.runs.set_enclave_key(run.id, run.trainers[0], 1, sender=sender)


def test_an_operator_reveals_with_the_owners_enclave(contracts: System) -> None:
    """The key belongs to the seat's owner, whom the manifest names, whoever sends the transaction."""
    run, operator = attested_run(contracts), account("operator")
    contracts.runs.set_operator(run.id, 1, 0, operator, sender=run.trainers[0])
    run.enter("commit", 1)
    manifest = run.manifest(0, 1)
    with pytest.raises(Reverted):
        run.commit([0], 1)
    sealed = commitment(CHAIN_ID, contracts.runs.address, run.id, 1, run.trainers[0], manifest.hash(), SALT)
    contracts.runs.commit(run.id, run.open_round, 0, sealed, sender=operator)
    run.enter("reveal", 1)
    signed = signature(enclave, statement(run, manifest))
    contracts.runs.reveal(0, manifest, SALT, signed, sender=operator)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 511))
def test_no_changed_bit_is_accepted(contracts: System, position: int) -> None:
    with contracts.evm.anchor():
        run = attested_run(contracts)
        good = int.from_bytes(signature(enclave, statement(run, run.manifest(0, 0))))
        with refused("runs: wrong enclave signature"):
            reveal(run, 0, (good ^ 1 << position).to_bytes(64))


# What the registry reads.


@pytest.mark.parametrize("level", Level)
def test_the_registry_reads_policy_and_the_second_next_round(contracts: System, level: Level) -> None:
    if level == Level.AUDITED:
        pytest.skip("reserved")
    policy = POLICY if level.uses_attestation else bytes(32)
    run = Run.create(contracts, rounds=9, verification=level, attestation_policy=policy)
    schedule = run.params.schedule()
    assert contracts.runs.attestation(run.id) == (policy, schedule.opens(1), schedule.opens(0))
    for offset, second in ((-1, 1), (0, 2), (schedule.period - 1, 2), (schedule.period, 3)):
        run.enter("commit", 0, offset)
        now = run.evm.time
        assert schedule.opens(schedule.next_round(now) + 1) == schedule.opens(second)
        oldest = schedule.opens(schedule.oldest_open(now))
        assert contracts.runs.attestation(run.id) == (policy, schedule.opens(second), oldest)


@pytest.mark.parametrize("level", [Level.INCENTIVE, Level.ATTESTED, Level.OPTIONAL])
def test_level_and_policy_read_back_and_change_no_other_parameter(contracts: System, level: Level) -> None:
    policy = POLICY if level.uses_attestation else bytes(32)
    run = Run.create(contracts, verification=level, attestation_policy=policy)
    assert contracts.runs.run_params(run.id) == run.params.as_tuple()
    assert contracts.runs.round_facts(run.id, 0).params == run.params.as_tuple()


def test_an_attested_reveal_costs_at_most_9000_gas_more() -> None:
    """Warm storage here; `benchmarks/gas.py` measures it cold: this catches a detour through another contract."""
    contracts = system(Evm(), registry=REGISTRY)
    run = attested_run(contracts)
    reveal(run, 1, b"")
    plain = run.evm.gas_used
    reveal(run, 0, signature(enclave, statement(run, run.manifest(0, 0))))
    assert run.evm.gas_used - plain < 9_000
