"""Attestation in the record: keys, attested reveals, denials and revocations, from the chain's events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

import pytest

from earnest.attestation.evidence_file import EvidenceFile
from earnest.attestation.formats.certificate import parse_certificate, pem_to_ders
from earnest.attestation.formats.quote import claims, parse_quote, quote_calldata
from earnest.attestation.prover.simulated import SimulatedAttester
from earnest.base.errors import Reverted
from earnest.client.run.record import RunRecord
from earnest.protocol.attestation import pck_hash, platform_hash
from tests.client.attested_town import SIGNERS, VENDOR, Town, enclave_key, open_town

trainer, other = SIGNERS["trainer"].address, SIGNERS["other trainer"].address


@pytest.fixture(scope="module", params=["embedded", "anvil"])
def town(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """Round 0: one attests, one does not. Then the other registers, and the first's platform is denied and revoked."""
    with open_town(request.param, tmp_path_factory.mktemp("town")) as town:
        town.open_run()
        schedule = town.params.schedule()
        town.register()
        town.travel(schedule.commit(0).start)
        for name, seat in (("trainer", 0), ("other trainer", 1)):
            town.commit(name, seat, 0)
        town.travel(schedule.reveal(0).start)
        town.reveal("trainer", 0, 0, "key")
        town.reveal("other trainer", 1, 0)

        town.travel(schedule.commit(1).start)
        town.register("other trainer", key="other key", attester=SimulatedAttester(VENDOR, platform=1))
        town.commit("trainer", 0, 1)
        town.commit("other trainer", 1, 1)
        deny(town)
        town.travel(schedule.reveal(1).start)
        town.reveal("trainer", 0, 1, "key")  # revoked, but only from round 3 on
        town.reveal("other trainer", 1, 1, "other key")
        yield town


def deny(town: Town) -> None:
    """The guardian denies the first trainer's platform and raises the floor; somebody revokes the key."""
    registry, policy = town.contracts.registry, town.policy.policy
    platform = platform_hash(VENDOR.ppid(0))
    town.send("guardian", registry.deny(policy, platform))
    town.send("guardian", registry.raise_floor(policy, 7))
    key = town.record().newest_key(trainer)
    assert key is not None
    town.send("sponsor", registry.revoke(town.run, trainer, policy, key.workload, key.platform, key.pck))


def test_a_registration_is_recorded_with_the_values_that_it_depends_on(town: Town) -> None:
    registered = town.record().newest_key(trainer)
    assert registered is not None
    assert (registered.trainer, registered.key) == (trainer, enclave_key("key").address)
    assert registered.policy == town.policy.hash
    assert (registered.workload,) == town.policy.policy.workloads
    assert registered.root_id == VENDOR.root_id
    assert registered.platform == platform_hash(VENDOR.ppid(0))
    evidence = EvidenceFile.read(town.evidence[registered.evidence_root])
    assert registered.collateral_digest == evidence.collateral_digest()
    assert registered.quote == sha256(parse_quote(evidence.quote).signed).digest()
    (event,) = (e for e in town.record().events if e.name == "KeyRegistered" and e.args["trainer"] == trainer)
    assert registered.expiry == town.chain.block(event.block).time + town.policy.policy.ttl_s


def test_an_attested_reveal_names_the_registration_that_stood_then(town: Town) -> None:
    record = town.record()
    assert set(record.round(0).manifests) == {0, 1}
    assert {seat: key.key for seat, key in record.round(0).attested.items()} == {
        0: enclave_key("key").address
    }
    attested = record.round(1).attested
    assert attested[1].key == enclave_key("other key").address
    assert record.round(0).attested[0].revoked is None
    assert attested[0].revoked is not None


def test_a_revoked_key_ends_with_the_second_next_round(town: Town) -> None:
    schedule, key = town.params.schedule(), town.record().newest_key(trainer)
    assert key is not None
    assert key.ends == schedule.opens(3) < key.expiry
    on_chain = town.contracts.runs.enclave_key(town.run, trainer, at=town.chain.head())
    assert on_chain is not None
    assert (on_chain.address, on_chain.expiry) == (key.key, key.ends)


def test_denials_and_floors_of_the_runs_policy_are_on_its_record(town: Town) -> None:
    record, registry = town.record(), town.contracts.registry
    platform = platform_hash(VENDOR.ppid(0))
    assert record.denied == (platform,)
    assert registry.denied(town.policy.hash, platform, at=town.chain.head())
    assert registry.raised_floor(town.policy.hash, at=town.chain.head()) == 7
    assert [record.evaluation_floor(round) for round in range(6)] == [0, 0, 0, 7, 7, 7]


def test_an_older_narrowing_counts_for_a_run_that_chooses_the_policy_later(town: Town) -> None:
    first = town.run
    try:
        town.open_run()
        assert town.record().denied == (platform_hash(VENDOR.ppid(0)),)
        assert town.record().evaluation_floor(1) == 7
        town.travel(town.chain.head().time + 2)
        registration, parts = town.attempt()
        with pytest.raises(Reverted) as refused:
            town.send("trainer", town.contracts.registry.register(registration, town.policy.policy, parts))
        assert refused.value.reason == "attestation: platform denied"
    finally:
        town.run = first
    events = town.record().events
    assert {event.args["policy"] for event in events if "policy" in event.args} == {town.policy.hash}


def test_events_of_other_policies_are_not_recorded(town: Town) -> None:
    """Anyone is the guardian of policies that it makes up, and pays only gas for denying under them."""
    record = town.record()
    denied = next(event for event in record.events if event.name == "Denied")
    known = len(record._events)
    record.apply([replace(denied, args={**denied.args, "policy": bytes([i]) * 32}) for i in range(9)])
    assert len(record._events) == known
    younger = RunRecord(town.run)
    younger.apply([denied])
    younger.apply(event for event in town.record().events if event.name == "RunCreated")
    assert younger.denied == (denied.args["entry"],)


def test_forgotten_blocks_take_keys_denials_and_attestations_with_them(town: Town) -> None:
    events = list(town.record().events)
    record = RunRecord(town.run)
    record.apply(events)
    reveal = next(event for event in events if event.name == "AttestedReveal")
    record.rewind(reveal.block - 1)
    assert record.round(0).attested == record.round(0).manifests == {}
    assert record.newest_key(trainer) is not None
    record.apply([event for event in events if event.block >= reveal.block])
    assert record.round(1).attested == town.record().round(1).attested
    assert record.denied == town.record().denied

    denied = next(event for event in events if event.name == "Denied")
    record.rewind(denied.block - 1)
    assert record.denied == ()
    assert record.evaluation_floor(5) == 0
    kept = record.newest_key(trainer)
    assert kept is not None and kept.revoked is None
    registered = next(event for event in events if event.name == "KeyRegistered")
    record.rewind(registered.block - 1)
    assert record.newest_key(trainer) is None


def test_the_wrapper_reads_the_registrys_storage(town: Town) -> None:
    registry, policy, head = town.contracts.registry, town.policy.policy, town.chain.head()
    quote = parse_quote(SimulatedAttester(VENDOR, platform=1).quote(b"\7" * 64).quote)
    said = registry.check_quote(policy, quote_calldata(quote, policy.pck_cas), at=head)
    assert said == claims(quote)
    assert registry.policy_hash(policy, at=head) == town.policy.hash
    _, block = registry.record_of(town.run, other, at=head)
    key = town.record().newest_key(other)
    assert key is not None and key.challenge_block == block
    assert key.pck == said.pck == pck_hash(raw_key(quote.chain))
    (listed,) = registry.platform_keys(town.run, said.platform, at=head)
    assert listed.trainer == other
    assert registry.runs(head) == town.contracts.runs.address
    assert registry.vault(head) == town.contracts.vault.address
    assert registry.settlement(head) == town.contracts.settlement.address


def raw_key(chain: bytes) -> bytes:
    return parse_certificate(pem_to_ders(chain)[0]).public_key
