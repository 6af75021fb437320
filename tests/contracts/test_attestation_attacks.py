"""Attacks on attested runs, each of which must fail: on keys, on platforms' limits, by guardians, by sponsors."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pyrevm
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from earnest.attestation.formats.certificate import parse_certificate, pem_to_ders
from earnest.attestation.formats.quote import quote_calldata
from earnest.attestation.prover.simulated import QuoteKind, SimulatedAttester, raw_public
from earnest.attestation.verifier.registration import verify_quote_under_policy
from earnest.protocol.attestation import Policy, key_entry, round_statement
from earnest.protocol.verdicts import Verdict
from tests.contracts.attested import (
    GUARDIAN,
    VENDOR,
    AttestedRun,
    assembled,
    claims_of,
    enclave_key,
    policy_for,
    quote_of,
)
from tests.contracts.harness import Reverted, account, reverts
from tests.contracts.rounds import SALT, STRANGER, Run, accepted, report, verdict
from tests.contracts.test_attestation_quotes import TRUSTED_AT, Crooked

PLATFORM_2 = SimulatedAttester(VENDOR, platform=2)
OVERLAP = {"commit_s": 2_000, "overlap": True}


@pytest.fixture(scope="module")
def deployed() -> AttestedRun:
    return AttestedRun.create(trainers=4, run={"full_seats": 4})


@pytest.fixture
def attested(deployed: AttestedRun) -> Iterator[AttestedRun]:
    """Four seated trainers in an attested run before its start; two keys a platform, no limit to bonds."""
    run = deployed.run
    with deployed.evm.anchor():
        yield replace(deployed, run=replace(run, trainers=[*run.trainers], validators=[], reports={}))


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
    made = AttestedRun.create(trainers=2, run=OVERLAP if overlap else {}, platform_keys=1, ttl_s=400)
    made.run.enter("commit", 0, 100)
    made.register(0, key="first")
    made.run.commit([0, 1], 0)
    made.run.enter("reveal", 0)
    assert made.enclave_key(0)[1] < made.evm.time
    reveal(made, 0, signed(made, 0, "first", 0))
    with reverts("attestation: platform is full"):
        made.register(1, key="second")
    made.run.leave("reveal", 0)
    made.run.enter("commit", 2 if overlap else 1)
    made.register(1, key="second")


def test_a_key_that_expired_before_the_run_takes_no_place() -> None:
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
    with reverts("attestation: no live bond"):
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


def test_a_key_that_expires_as_it_is_registered_holds_its_place() -> None:
    """It counts in the round under way, which opened before: else a policy of no life had no limit."""
    made = AttestedRun.create(trainers=0)
    policy = unchecked(made.policy, ttl_s=0, platform_keys=1)
    run = Run.create(made.run.system, verification=2, attestation_policy=policy.hash())
    run.join_trainers(2)
    made = replace(made, run=run, policy=policy)
    run.enter("commit", 0, 1)
    made.register(0, key="first")
    with reverts("attestation: platform is full"):
        made.register(1, key="second")
    run.commit([0])
    run.enter("reveal")
    reveal(made, 0, signed(made, 0, "first", 0))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("terms", [{}, OVERLAP], ids=["rounds apart", "rounds overlap"])
def test_no_order_of_registrations_signs_more_in_a_round_than_there_are_places(
    terms: dict[str, Any], seed: int
) -> None:
    """Four trainers on one machine with two places register and reveal whenever they can."""
    random, rounds, trainers = Random(seed), 3, range(4)
    made = AttestedRun.create(4, run={"rounds": rounds, **terms}, ttl_s=random.choice((1, 400)))
    run, counted = made.run, [set[int]() for _ in range(rounds)]
    schedule, committed = run.params.schedule(), set[int]()
    newest = dict.fromkeys(trainers, "")
    made.evm.travel(schedule.start)
    while schedule.round_at(made.evm.time) <= rounds:
        now, current = made.evm.time, schedule.round_at(made.evm.time)
        if current < rounds and current not in committed and schedule.commit(current).contains(now):
            committed.add(current)
            run.commit(trainers, current)
        for trainer in random.sample(trainers, 2):
            try:
                made.register(trainer, key=f"{trainer} {now}")
                newest[trainer] = f"{trainer} {now}"
            except Reverted as refusal:
                assert refusal.reason == "attestation: platform is full"
        for trainer in trainers:
            for round in {max(current - 1, 0), min(current, rounds - 1)} & committed:
                try:
                    reveal(made, trainer, signed(made, trainer, newest[trainer], round), round)
                    counted[round].add(trainer)
                except (Reverted, ValueError):
                    continue
        made.evm.mine(seconds=random.choice((150, 400)))
    assert max(map(len, counted)) == 2


# Nobody's bond, nobody's pay.


@pytest.mark.parametrize("terms", [{}, OVERLAP], ids=["rounds apart", "rounds overlap"])
def test_a_denial_hits_no_round_that_is_under_way_or_next(terms: dict[str, Any]) -> None:
    """Denied and revoked in round 1, with round 0 still open to reveals where they overlap."""
    made = AttestedRun.create(trainers=2, run={"rounds": 5, **terms})
    made.register(0)
    run, overlap = made.run, bool(terms)
    said = claims_of(SimulatedAttester(VENDOR))
    for round in range(4):
        run.enter("commit", round)
        run.commit([0, 1], round)
        if round == 1:
            made.registry.deny(made.policy, said.platform, sender=GUARDIAN)
            made.registry.deny(made.policy, said.workload, sender=GUARDIAN)
            made.registry.revoke(
                run.id, run.trainers[0], made.policy, said.workload, said.platform, said.pck, sender=STRANGER
            )
            with reverts("attestation: workload denied"):
                made.register(0, key="another")
        last = round - 1 if overlap else round
        if last < 0:
            continue
        run.enter("reveal", last)
        if last > 2:
            with reverts("runs: no live enclave key"):
                reveal(made, 0, signed(made, 0, "key", last), last)
            reveal(made, 0, b"", last)
        else:
            reveal(made, 0, signed(made, 0, "key", last), last)
        reveal(made, 1, b"", last)
        run.leave("reveal", last)
        run.settlement.charge(run.id, last, 1)
        assert run.evm.events("FaultCharged") == []
    assert run.bond_of(run.trainers[0]) == 10**9


def test_a_key_that_expires_between_commit_and_reveal_still_signs() -> None:
    made = AttestedRun.create(trainers=1, ttl_s=400)
    made.run.enter("commit")
    made.register(0)
    made.run.commit([0])
    made.run.enter("reveal")
    assert made.enclave_key()[1] < made.evm.time
    reveal(made, 0, signed(made, 0, "key", 0))


def test_whoever_cannot_attest_any_more_reveals_without_and_keeps_its_bond() -> None:
    """Its key replaced after the commitment, all validators against it: no pay, no fault, no penalty, no bar."""
    made = AttestedRun.create(trainers=3)
    run = made.run
    run.join_validators([10**9])
    made.register(0)
    run.enter("commit")
    run.commit(range(3))
    made.register(0, key="new")
    run.enter("reveal")
    with reverts("runs: wrong enclave signature"):
        reveal(made, 0, signed(made, 0, "key", 0))
    run.reveal(range(3))
    run.score({0: report([verdict(Verdict.NOT_COUNTED), accepted(60_000), accepted(60_000)])})
    run.settle()
    with reverts("settlement: nothing to lock"):
        run.lock([0, 1, 2])
    run.settlement.charge(run.id, 0, 1)
    assert run.evm.events("FaultCharged") == []
    assert run.bond_of(run.trainers[0]) == 10**9
    assert run.idle(run.trainers[0]) == 0


def test_a_refusal_raises_nobodys_pay(attested: AttestedRun) -> None:
    """Whether a seat is counted, refused, or refused for want of attestation: the others get the same."""
    run = attested.run
    run.join_validators([10**9])
    paid: list[int] = []
    for vote in (accepted(65_535), verdict(Verdict.NOT_COUNTED)):
        with run.evm.anchor():
            run.reports.clear()
            run.play({0: report([accepted(40_000), accepted(20_000), vote, vote])})
            run.settle()
            paid.append(run.idle(run.trainers[0]))
    assert paid[0] == paid[1] > 0


def unchecked(policy: Policy, **changes: Any) -> Policy:
    """A policy that `Policy` refuses to be, and a sponsor may still name."""
    made = copy.copy(policy)
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


ODD: dict[str, dict[str, Any]] = {
    "keys of no life": {"ttl_s": 0},
    "keys of endless life": {"ttl_s": 2**32 - 1},
    "no place on any platform": {"platform_keys": 0},
    "more places than there are": {"platform_keys": 2**16 - 1},
    "no room for a bond": {"platform_bond": 1},
    "no CA": {"pck_cas": ()},
    "more CAs than fit": {"pck_cas": (VENDOR.ca_public,) * 5},
    "a CA that is no point": {"pck_cas": (bytes(64),)},
    "no workload": {"workloads": ()},
    "more workloads than fit": {"workloads": (bytes(32),) * 17},
    "no guardian": {"guardian": "0x" + "00" * 20},
    "an unreachable floor": {"evaluation_floor": 2**32 - 1},
}


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
def test_no_policy_keeps_a_run_from_being_played(attested: AttestedRun, changes: dict[str, Any]) -> None:
    """Nobody may be able to attest; then updates are revealed without, and neither bonds nor the budget are stuck."""
    policy = unchecked(attested.policy, **changes)
    run = Run.create(attested.run.system, verification=2, attestation_policy=policy.hash())
    run.join_trainers(2)
    run.join_validators([10**9])
    made = replace(attested, run=run, policy=policy)
    run.evm.mine()
    registration, evidence = replace(made, policy=attested.policy).attempt(0)
    try:
        made.send(registration, evidence)
        holds = "ttl_s" in changes or "guardian" in changes or "evaluation_floor" in changes
        assert holds or changes.get("platform_keys", 0) > 16
    except Reverted:
        assert made.enclave_key() == (0, 0)
    run.play({0: report([verdict(Verdict.NOT_COUNTED)] * 2)})
    run.settle()
    run.settlement.charge(run.id, 0, 1)
    assert run.evm.events("FaultCharged") == []
    vault, settlement = run.system.vault, run.settlement
    for who in run.trainers:
        vault.start_exit(settlement.address, run.id, sender=who)
    run.evm.mine(seconds=run.params.exit_delay)
    for who in run.trainers:
        vault.finish_exit(settlement.address, run.id, sender=who)
        assert run.idle(who) == 10**9


def test_as_many_keys_as_a_policy_could_ever_list_fit_a_platform() -> None:
    """No policy makes the list so long that registering, or revoking, cannot be paid for."""
    made = AttestedRun.create(trainers=0)
    policy = unchecked(made.policy, platform_keys=2**16 - 1, platform_bond=10**24)
    run = Run.create(made.run.system, verification=2, attestation_policy=policy.hash())
    run.join_trainers(17)
    made = replace(made, run=run, policy=policy)
    used: list[int] = []
    for trainer in range(16):
        made.register(trainer, key=f"{trainer}")
        used.append(made.evm.gas_used)
    assert used[-1] - used[0] < 60_000
    with reverts("attestation: platform is full"):
        made.register(16, key="17th")


# Guardians.


def test_a_guardian_gives_no_key_life(attested: AttestedRun) -> None:
    """Whatever it does, and in whatever order: a key that has ended has ended."""
    registry, policy, run = attested.registry, attested.policy, attested.run
    attested.register(0)
    said = claims_of(SimulatedAttester(VENDOR))
    depends_on = (said.workload, said.platform, said.pck)
    ends = [attested.enclave_key()[1]]
    for number, entry in enumerate((said.pck, said.platform, key_entry(enclave_key("key").address))):
        registry.deny(policy, entry, sender=GUARDIAN)
        registry.raise_floor(policy, number + 1, sender=GUARDIAN)
        try:
            registry.revoke(run.id, run.trainers[0], policy, *depends_on, sender=GUARDIAN)
        except Reverted as refusal:
            assert refusal.reason == "attestation: key ends before"
        ends.append(attested.enclave_key()[1])
        run.enter("commit", number)
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] == ends[1] < ends[0]


def test_a_guardian_registers_nothing_and_touches_no_other_policy(attested: AttestedRun) -> None:
    said = claims_of(SimulatedAttester(VENDOR))
    registration, evidence = attested.attempt(0)
    with reverts("attestation: not the trainer"):
        attested.send(registration, evidence, GUARDIAN)
    own = replace(attested.policy, guardian=STRANGER)
    attested.registry.deny(own, said.workload, sender=STRANGER)
    attested.register(0)
    for policy in (own, attested.policy):
        with pytest.raises(Reverted) as refusal:
            attested.registry.revoke(
                attested.run.id,
                attested.run.trainers[0],
                policy,
                said.workload,
                said.platform,
                said.pck,
                sender=STRANGER,
            )
        assert refusal.value.reason in (
            "attestation: not what was logged",
            "attestation: nothing against the key",
        )


# Somebody else's key.


def test_another_registry_of_the_same_code_names_no_keys(attested: AttestedRun) -> None:
    """Whoever deploys it; so nothing that it logs stands on a run's record."""
    parts = attested.run.system
    rogue = parts.evm.deploy(
        "AttestationRegistry", parts.runs.address, parts.settlement.address, parts.vault.address
    )
    with reverts("runs: not the registry"):
        replace(attested, registry=rogue).register(0)
    assert attested.enclave_key() == (0, 0)


def test_a_key_that_two_trainers_share_signs_for_each_its_own(attested: AttestedRun) -> None:
    """Who gets an enclave to name another's key gains nothing: the manifest names the trainer."""
    attested.register(0)
    attested.register(1, attester=PLATFORM_2)
    attested.run.enter("commit")
    attested.run.commit([0, 1])
    attested.run.enter("reveal")
    theirs, own = (signed(attested, seat, "key", 0) for seat in (0, 1))
    with reverts("runs: wrong enclave signature"):
        reveal(attested, 1, theirs)
    reveal(attested, 1, own)


def test_a_key_of_one_run_signs_nothing_in_another(attested: AttestedRun) -> None:
    attested.register(0)
    other = Run.create(attested.run.system, verification=2, attestation_policy=attested.policy.hash())
    other.join_trainers(1)
    elsewhere = replace(attested, run=other)
    other.enter("commit")
    other.commit([0])
    other.enter("reveal")
    with reverts("runs: no live enclave key"):
        reveal(elsewhere, 0, signed(elsewhere, 0, "key", 0))


# Fresh to nobody.


def test_a_chain_without_block_hashes_gives_no_challenge(attested: AttestedRun) -> None:
    """A challenge that anyone can foresee would let quotes be made years ahead, on a machine borrowed for a day."""
    registration, evidence = attested.attempt(0)
    revm, address = attested.evm.revm, attested.registry.address
    code = bytes(revm.get_code(address) or b"")
    revm.insert_account_info(address, pyrevm.AccountInfo(nonce=1, code=blind(code)))
    try:
        with reverts("attestation: no block hash"):
            attested.registry.challenge(registration.run, registration.trainer)
        with reverts("attestation: no block hash"):
            attested.send(registration, evidence)
    finally:
        revm.insert_account_info(address, pyrevm.AccountInfo(nonce=1, code=code))


def test_a_chain_without_block_hashes_gets_no_run(attested: AttestedRun) -> None:
    """Its seeds could be foreseen: which data a trainer is judged on, before it commits."""
    parts = attested.run.system
    revm, address = parts.evm.revm, parts.terms.address
    code = bytes(revm.get_code(address) or b"")
    revm.insert_account_info(address, pyrevm.AccountInfo(nonce=1, code=blind(code)))
    try:
        with reverts("runs: no block hash"):
            Run.create(parts)
    finally:
        revm.insert_account_info(address, pyrevm.AccountInfo(nonce=1, code=code))
    Run.create(parts)


def blind(code: bytes) -> bytes:
    """The same code on a chain whose BLOCKHASH is zero: ISZERO, of a block's number, in its place."""
    changed, at = bytearray(code), 0
    while at < len(code):
        if code[at] == 0x40:
            changed[at] = 0x15
        at += 1 + max(code[at] - 0x5F, 0) if 0x60 <= code[at] <= 0x7F else 1
    return bytes(changed)


# What a CA signs besides PCK certificates, and what a quote says besides its workload.


def test_a_revocation_list_is_no_certificate(attested: AttestedRun) -> None:
    """The same CA signs it, so only what lies before key and PPID tells them apart."""
    crl = x509.load_der_x509_crl(
        bytes.fromhex(json.loads(VENDOR.collateral(revoked_platforms=[0]))["pck_crl"])
    )
    signature = b"".join(number.to_bytes(32) for number in decode_dss_signature(crl.signature))
    _, evidence = attested.attempt(0)
    tbs = crl.tbs_certlist_bytes
    for at in range(0, len(tbs) + 70, 3):
        forged = replace(evidence, pck=tbs, pck_signature=signature, key_at=at, ppid_at=at)
        with pytest.raises(Reverted) as refusal:
            attested.registry.check_quote(attested.policy, forged)
        assert refusal.value.reason in ("attestation: PCK key outside", "attestation: no PCK key there")


def test_a_ca_that_stands_below_a_pinned_one_is_no_platform(attested: AttestedRun) -> None:
    """Where a sponsor pins the root by mistake: the platform CA's own certificate has a key and no PPID."""
    quote = quote_of(SimulatedAttester(VENDOR), bytes(64))
    issuer = parse_certificate(pem_to_ders(quote.chain)[1])
    policy = replace(attested.policy, pck_cas=(raw_public(VENDOR.root_key),))
    _, evidence = attested.attempt(0)
    for at in range(0, len(issuer.tbs) + 20):
        forged = replace(
            evidence,
            pck=issuer.tbs,
            pck_signature=issuer.signature_bytes,
            key_at=issuer.key_at,
            ppid_at=at,
        )
        with pytest.raises(Reverted) as refusal:
            attested.registry.check_quote(policy, forged)
        assert refusal.value.reason in ("attestation: PPID outside", "attestation: no PPID there")


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("tdx4", range(232, 328), "attestation: TD has an owner"),
        ("tdx5", range(232, 328), "attestation: TD has an owner"),
        ("sgx3", [*range(192, 256), 260, 261], "attestation: enclave is configured"),
    ],
)
def test_a_host_cannot_configure_what_the_workload_id_leaves_out(
    attested: AttestedRun, kind: QuoteKind, fields: range | list[int], reason: str
) -> None:
    """The allowed code under orders of its host's would pass for the allowed code."""
    honest = quote_of(SimulatedAttester(VENDOR, format=kind), bytes(64))
    policy = policy_for(honest)
    for at in fields:
        quote, _ = Crooked(VENDOR, format=kind, body=((at, 1),)).signed_again()
        assert quote.workload() == honest.workload() and any(quote.unmeasured)
        with reverts(reason):
            attested.registry.check_quote(policy, quote_calldata(quote, policy.pck_cas))
    quote, collateral = Crooked(VENDOR, format=kind, body=((fields[-1], 1),)).signed_again()
    judged = verify_quote_under_policy(assembled(quote), collateral, VENDOR.root_der, TRUSTED_AT, policy)
    assert judged.accepted and not judged.policy_accepted
    assert "the workload id leaves out" in judged.reason
    raw, collateral = assembled(honest), VENDOR.collateral("sgx" if kind == "sgx3" else "tdx")
    assert verify_quote_under_policy(raw, collateral, VENDOR.root_der, TRUSTED_AT, policy).policy_accepted
