"""Verification of quotes off chain: every public vector, every rule of a policy, and hostile evidence."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from hashlib import sha256
from typing import Any

import dcap_qvl
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from earnest.attestation.evidence_file import EvidenceFile
from earnest.attestation.formats.quote import MAX_QUOTE, parse_quote
from earnest.attestation.policy_document import TCB_STATUSES, PolicyDocument, PolicyDocumentError
from earnest.attestation.policy_file import PolicyFile
from earnest.attestation.prover.simulated import DAY, SimulatedAttester, SimulatedVendor, raw_signature
from earnest.attestation.roots import INTEL_ROOT_ID, INTEL_SGX_ROOT_CA, PRODUCTION_ROOTS
from earnest.attestation.verifier.intel import verify_quote
from earnest.attestation.verifier.registration import (
    RegistrationFacts,
    verify_quote_under_policy,
    verify_registration,
)
from earnest.attestation.verifier.verification import Verification
from earnest.protocol.attestation import INTEL_ROOT_KEY, key_binding, root_id
from tests.attestation.vectors import VECTORS, Vector, mutate, read

GENUINE = VECTORS["P01"]
AGED = VECTORS["P02"]
"""The same quote under collateral of fourteen months later: OutOfDate."""

MADE = 1_767_225_600  # 2026-01-01
VENDOR = SimulatedVendor(made=MADE)
MACHINE = SimulatedAttester(VENDOR, b"honest code")
NOW = MADE + 10 * DAY


def verify(vector: Vector, document: PolicyDocument | None = None, **floor: int) -> Verification:
    return verify_quote(
        vector.quote, vector.collateral, vector.root, vector.now, document or PolicyDocument(), **floor
    )


def simulated(document: PolicyDocument | None = None, at: int = NOW, **collateral: Any) -> Verification:
    quoted = MACHINE.quote(bytes(64))
    signed = VENDOR.collateral(**collateral)
    return verify_quote(quoted.quote, signed, VENDOR.root_pem, at, document or PolicyDocument())


def check(found: Verification, name: str) -> bool:
    (passed,) = [entry.passed for entry in found.checks if entry.name == name]
    return passed


# Vectors


@pytest.mark.parametrize("name", VECTORS)
def test_every_vector_reaches_its_verdict(name: str) -> None:
    vector = VECTORS[name]
    found = verify(vector)
    assert found.accepted == vector.accepted, found.reason
    assert found.policy_accepted == (vector.accepted and vector.up_to_date_only)
    assert not found.unusable
    if vector.accepted:
        assert (found.status, found.advisories) == (vector.status, vector.advisories)
    else:
        assert vector.error in found.failed[0].reason


@pytest.mark.parametrize(("name", "failed"), [("N01", "debug"), ("S07", "debug"), ("N04", "TD attributes")])
def test_a_refusal_names_what_failed(name: str, failed: str) -> None:
    assert [entry.name for entry in verify(VECTORS[name]).failed] == [failed]


@pytest.mark.parametrize("name", [name for name, vector in VECTORS.items() if vector.accepted])
def test_the_policy_is_the_librarys_own_policy(name: str) -> None:
    """Status, grace, floor, advisories and platform flags, against dcap_qvl's policy engine on genuine quotes."""
    vector = VECTORS[name]
    collateral = dcap_qvl.QuoteCollateralV3.from_json(vector.collateral.decode())
    verifier = dcap_qvl.QuoteVerifier(vector.root)
    for seed in range(24):
        document = _some_document(random.Random(f"{name} {seed}"), vector)
        rules = dcap_qvl.QuotePolicy.strict(vector.now)
        for status in document.statuses:
            rules = rules.allow_status(status)
        rules = (
            rules.reject_advisories(list(document.denied_advisories))
            .platform_grace_period(document.grace_s)
            .qe_grace_period(document.grace_s)
            .min_tcb_eval_data_number(document.evaluation_floor)
            .allow_dynamic_platform(document.allow_dynamic_platform)
            .allow_cached_keys(document.allow_cached_keys)
            .allow_smt(document.allow_smt)
        )
        try:
            verifier.verify_with_policy(vector.quote, collateral, vector.now, rules)
            expected = True
        except ValueError:
            expected = False
        assert verify(vector, document).policy_accepted == expected, document


def _some_document(rng: random.Random, vector: Vector) -> PolicyDocument:
    return PolicyDocument(
        statuses=("UpToDate", *rng.sample(TCB_STATUSES[1:], rng.randrange(6))),
        grace_s=rng.choice((0, 30 * DAY, 366 * DAY)),
        evaluation_floor=rng.choice((0, 17, 18, 20, 101)),
        denied_advisories=tuple(rng.sample(vector.advisories, rng.randrange(len(vector.advisories) + 1))),
        allow_dynamic_platform=rng.random() < 0.8,
        allow_smt=rng.random() < 0.8,
        allow_cached_keys=rng.random() < 0.8,
        margin_s=0,
    )


def resigned(quote: bytes, at: int, value: int) -> bytes:
    """A simulated TDX v4 quote with one byte of its TD report changed before it was signed."""
    signed = bytearray(quote[:632])
    signed[at] = value
    return (
        bytes(signed)
        + quote[632:636]
        + raw_signature(VENDOR.key("quoting tdx 0"), bytes(signed))
        + quote[700:]
    )


def identity(collateral: bytes, old: str, new: str) -> bytes:
    """Collateral with its QE identity changed before it was signed."""
    document = json.loads(collateral)
    assert old in document["qe_identity"]
    document["qe_identity"] = document["qe_identity"].replace(old, new)
    document["qe_identity_signature"] = raw_signature(
        VENDOR.signer_key, document["qe_identity"].encode()
    ).hex()
    return json.dumps(document).encode()


# Policy


def test_only_up_to_date_counts_by_default() -> None:
    for status in TCB_STATUSES[:6]:  # the last two are concluded, not signed for a level
        found = simulated(status=status)
        assert (found.accepted, found.status) == (True, status)
        assert found.policy_accepted == (status == "UpToDate")


@pytest.mark.parametrize("status", ["SWHardeningNeeded", "ConfigurationNeeded"])
def test_a_status_counts_where_the_policy_names_it(status: str) -> None:
    assert simulated(PolicyDocument(statuses=("UpToDate", status)), status=status).policy_accepted


def test_revoked_can_not_even_be_configured() -> None:
    with pytest.raises(PolicyDocumentError, match="'Revoked' is none of"):
        PolicyDocument(statuses=("UpToDate", "Revoked"))
    assert not simulated(PolicyDocument(statuses=TCB_STATUSES), status="Revoked").accepted


def test_out_of_date_has_its_grace_and_no_longer() -> None:
    document = PolicyDocument(statuses=("UpToDate", "OutOfDate"), grace_s=10 * DAY)
    for at, passed in ((NOW - 1, True), (NOW, True), (NOW + 1, False)):
        found = simulated(document, at=at, status="OutOfDate", tcb_date=MADE)
        assert (found.policy_accepted, check(found, "grace")) == (passed, passed)
    assert not simulated(replace(document, grace_s=0), status="OutOfDate").policy_accepted
    with pytest.raises(PolicyDocumentError, match="grace_s"):
        PolicyDocument(grace_s=367 * DAY)


def test_the_older_of_platform_and_quoting_enclave_has_the_grace() -> None:
    document = PolicyDocument(statuses=("OutOfDate",), grace_s=10 * DAY)
    both = VENDOR.collateral(status="OutOfDate", qe_status="OutOfDate", tcb_date=MADE)
    older = identity(both, '2026-01-01T00:00:00Z","tcbStatus', '2025-12-31T00:00:00Z","tcbStatus')
    quote = MACHINE.quote(bytes(64)).quote
    for collateral, at, passed in (
        (both, NOW, True),
        (older, NOW - DAY, True),
        (older, NOW - DAY + 1, False),
    ):
        found = verify_quote(quote, collateral, VENDOR.root_der, at, document)
        assert (found.accepted, found.policy_accepted) == (True, passed)


def test_a_verdict_expires_with_its_first_expiring_input() -> None:
    quote = MACHINE.quote(bytes(64)).quote
    signed = VENDOR.collateral(expires=NOW + 20 * DAY)
    early = identity(signed, "2026-01-31T00:00:00Z", "2026-01-25T00:00:00Z")
    assert verify_quote(quote, signed, VENDOR.root_der, NOW).expires == NOW + 20 * DAY
    found = verify_quote(quote, early, VENDOR.root_der, NOW)
    assert (found.accepted, found.expires) == (True, MADE + 24 * DAY)
    brief = SimulatedVendor(made=MADE, lasts=NOW + 5 * DAY)
    quoted = SimulatedAttester(brief).quote(bytes(64))
    found = verify_quote(quoted.quote, brief.collateral(expires=NOW + 20 * DAY), brief.root_der, NOW)
    assert (found.accepted, found.expires) == (True, NOW + 5 * DAY)


@pytest.mark.parametrize(("bit", "failed"), [(1, "debug"), (2, "TD attributes"), (0x80, "TD attributes")])
def test_no_bit_that_opens_a_td_is_accepted(bit: int, failed: str) -> None:
    quoted = MACHINE.quote(bytes(64))
    assert quoted.collateral is not None
    found = verify_quote(resigned(quoted.quote, 168, bit), quoted.collateral, VENDOR.root_der, NOW)
    assert (found.accepted, [entry.name for entry in found.failed]) == (False, [failed])
    same = resigned(quoted.quote, 168, 0)
    assert verify_quote(same, quoted.collateral, VENDOR.root_der, NOW).accepted


def test_a_quoting_enclave_in_debug_mode_is_refused_whatever_its_identity_allows() -> None:
    quote = MACHINE.quote(bytes(64)).quote
    report = bytearray(quote[770:1154])
    report[48] |= 2
    signature = raw_signature(VENDOR.key("pck 0"), bytes(report))
    opened = quote[:770] + bytes(report) + signature + quote[1218:]
    lenient = identity(VENDOR.collateral(), "FBFFFFFFFFFFFFFF", "F9FFFFFFFFFFFFFF")
    found = verify_quote(opened, lenient, VENDOR.root_der, NOW)
    assert (found.accepted, found.failed[0].name) == (False, "debug")


def test_grace_alone_accepts_nothing() -> None:
    assert not simulated(PolicyDocument(grace_s=366 * DAY), status="OutOfDate").policy_accepted


def test_an_old_evaluation_number_is_refused() -> None:
    stale = VECTORS["S18"]
    assert verify(stale, PolicyDocument(evaluation_floor=99)).policy_accepted
    assert not verify(stale, PolicyDocument(evaluation_floor=100)).policy_accepted
    assert not verify(stale, evaluation_floor=100).policy_accepted, "the chain's floor counts too"
    assert verify(VECTORS["S01"], PolicyDocument(evaluation_floor=99), evaluation_floor=100).policy_accepted


def test_a_denied_advisory_refuses_whoever_is_exposed() -> None:
    document = PolicyDocument(statuses=("UpToDate", "SWHardeningNeeded"))
    exposed: dict[str, Any] = {"status": "SWHardeningNeeded", "advisories": ["INTEL-SA-00615"]}
    assert simulated(document, **exposed).policy_accepted
    denied = replace(document, denied_advisories=("INTEL-SA-00615",))
    found = simulated(denied, **exposed)
    assert (found.accepted, found.policy_accepted) == (True, False)
    assert found.reason == "advisories: INTEL-SA-00615"
    assert simulated(replace(document, denied_advisories=("INTEL-SA-00001",)), **exposed).policy_accepted


def test_a_denied_family_is_refused() -> None:
    assert not verify(GENUINE, PolicyDocument(denied_families=("B0C06F000000",))).policy_accepted
    assert verify(GENUINE, PolicyDocument(denied_families=("90C06F000000",))).policy_accepted


@pytest.mark.parametrize("rule", ["allow_dynamic_platform", "allow_smt", "allow_cached_keys"])
def test_platform_flags_are_refused_where_the_policy_says_so(rule: str) -> None:
    strict = PolicyDocument(**{rule: False})  # type: ignore[arg-type]
    assert not verify(GENUINE, strict).policy_accepted
    assert verify(VECTORS["S01"], strict).policy_accepted, "a platform that has none of the three"


def test_collateral_about_to_end_is_refused() -> None:
    expires = NOW + DAY
    for margin, passed in ((DAY, True), (DAY + 1, False)):
        found = simulated(PolicyDocument(margin_s=margin), expires=expires)
        assert (found.accepted, found.policy_accepted, found.expires) == (True, passed, expires)


@pytest.mark.parametrize(("late", "accepted"), [(-1, True), (0, False)])
def test_collateral_ends_at_its_second(late: int, accepted: bool) -> None:
    expires = NOW + DAY
    assert simulated(PolicyDocument(), at=expires + late, expires=expires).accepted is accepted


def test_a_root_other_than_the_pinned_one_is_refused() -> None:
    quoted = MACHINE.quote(bytes(64))
    assert quoted.collateral is not None
    for root in (INTEL_SGX_ROOT_CA, SimulatedVendor(b"someone else").root_der):
        found = verify_quote(quoted.quote, quoted.collateral, root, NOW)
        assert not found.accepted
        assert [entry.name for entry in found.failed] == ["signatures"]


def test_the_production_root_is_intels() -> None:
    assert root_id(INTEL_ROOT_KEY) == INTEL_ROOT_ID
    pinned = x509.load_pem_x509_certificate(PRODUCTION_ROOTS[INTEL_ROOT_ID])
    assert pinned.public_bytes(Encoding.DER) == read("roots/intel_sgx_root_ca.der")
    assert verify(GENUINE).root_id == INTEL_ROOT_ID


def under(
    policy: PolicyFile | None, event_log: bytes | None = None, attester: SimulatedAttester = MACHINE
) -> Verification:
    """A quote that nobody has registered yet, under a run's policy."""
    quoted = attester.quote(bytes(64))
    collateral = VENDOR.collateral(evaluation=100)
    document = PolicyDocument() if policy is None else policy.document
    run = None if policy is None else policy.policy
    return verify_quote_under_policy(
        quoted.quote, collateral, VENDOR.root_der, NOW, run, document, event_log=event_log
    )


def test_a_quote_is_tried_under_a_runs_policy_before_it_is_registered() -> None:
    assert under(None).policy_accepted
    assert under(rules()).policy_accepted
    assert under(
        rules(), SimulatedAttester(VENDOR, b"honest code").quote(bytes(64)).event_log
    ).policy_accepted
    assert under(rules(), b"[]").reason.startswith("event log: does not replay")
    other = SimulatedAttester(VENDOR, b"other code")
    assert under(rules(), attester=other).reason == "run's policy: the workload is not allowed"
    for change, failed in (
        ({"root_id": INTEL_ROOT_ID}, "run's root"),
        ({"evaluation_floor": 101}, "evaluation number"),
    ):
        policy = replace(rules().policy, **change)
        found = under(PolicyFile(policy, rules().document))
        assert (found.accepted, found.policy_accepted) == (True, False)
        assert [entry.name for entry in found.failed] == [failed]


# Malleability


@pytest.mark.parametrize("name", ["A01", "A03", "A04"])
def test_an_altered_copy_has_the_originals_replay_key(name: str) -> None:
    copy = verify(VECTORS[name])
    assert VECTORS[name].quote != GENUINE.quote
    assert copy.accepted
    assert copy.replay_key == verify(GENUINE).replay_key
    assert sha256(VECTORS[name].quote).digest() != sha256(GENUINE.quote).digest()


def test_another_length_field_changes_neither_verdict_nor_replay_key() -> None:
    raw = bytearray(GENUINE.quote)
    raw[632:636] = (int.from_bytes(raw[632:636], "little") + 7).to_bytes(4, "little")
    copy = verify(replace(GENUINE, quote=bytes(raw) + bytes(7)))
    assert copy.replay_key == verify(GENUINE).replay_key


def test_a_chain_in_the_collateral_can_not_replace_the_quotes() -> None:
    chain = parse_quote(VECTORS["P03"].quote).chain.decode()
    overriding = json.dumps({**json.loads(GENUINE.collateral), "pck_certificate_chain": chain}).encode()
    with pytest.raises(ValueError, match="Verification failed"):
        dcap_qvl.verify(GENUINE.quote, dcap_qvl.QuoteCollateralV3.from_json(overriding.decode()), GENUINE.now)
    assert verify(replace(GENUINE, collateral=overriding)) == verify(GENUINE)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(GENUINE.quote) - 1), st.integers(1, 255))
def test_nothing_that_differs_in_a_signed_byte_is_accepted(offset: int, mask: int) -> None:
    changed = mutate(GENUINE.quote, {"xor": [[offset, mask]]})
    found = verify(replace(GENUINE, quote=changed))
    original = parse_quote(GENUINE.quote)
    if found.accepted:
        copy = parse_quote(changed)
        assert (copy.signed, copy.qe_report, copy.attestation_key, copy.qe_auth) == (
            original.signed,
            original.qe_report,
            original.attestation_key,
            original.qe_auth,
        )


# Hostile input


@pytest.mark.parametrize(
    ("quote", "reason"),
    [
        (b"", "the header needs 48 bytes"),
        (b"\0" * 5000, "version 0 is not supported"),
        (GENUINE.quote[:700], "needs"),
        (b"\xff" * (MAX_QUOTE + 1), "exceed a quote's limit"),
        (GENUINE.quote[: GENUINE.quote.index(b"-----BEGIN")], "the certificate chain needs"),
        (GENUINE.quote.replace(b"-----BEGIN", b"-----XXXXX"), "no certificate at byte 0"),
    ],
)
def test_a_malformed_quote_is_unusable_with_a_reason(quote: bytes, reason: str) -> None:
    found = verify(replace(GENUINE, quote=quote))
    assert (found.accepted, found.policy_accepted, found.unusable) == (False, False, True)
    assert found.reason.startswith("quote format: ")
    assert reason in found.reason


@pytest.mark.parametrize(
    ("collateral", "reason"),
    [
        (b"", "not JSON"),
        (b"[]", "not an object"),
        (b"{}", "missing field 'pck_crl'"),
        (b"[" * 100_000, "nested deeper"),
        (b" " * (1 << 18) + b"{}", "larger than"),
        (b'{"pck_crl": 1, "pck_crl": 2}', "a key occurs twice"),
    ],
)
def test_malformed_collateral_is_unusable_with_a_reason(collateral: bytes, reason: str) -> None:
    found = verify(replace(GENUINE, collateral=collateral))
    assert (found.accepted, found.unusable) == (False, True)
    assert found.reason.startswith("collateral format: ")
    assert reason in found.reason


SIGNED = [name for name in json.loads(GENUINE.collateral) if not name.endswith("issuer_chain")]


@pytest.mark.parametrize("name", SIGNED)
def test_no_signed_field_of_the_collateral_can_be_altered(name: str) -> None:
    document = json.loads(GENUINE.collateral)
    for value in ("", "{}", document[name][:-8] + "00000000", document[name].replace("1", "2", 1)):
        found = verify(replace(GENUINE, collateral=json.dumps({**document, name: value}).encode()))
        assert (found.accepted, found.unusable) == (False, False), value


@pytest.mark.parametrize("name", ["tcb_info_issuer_chain", "qe_identity_issuer_chain"])
def test_collateral_without_its_signers_is_refused(name: str) -> None:
    document = {**json.loads(GENUINE.collateral), name: json.loads(VENDOR.collateral())[name]}
    assert not verify(replace(GENUINE, collateral=json.dumps(document).encode())).accepted


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        (b"", ""),
        (b"-----BEGIN CERTIFICATE-----", ""),
        (b"\x30" * 20_000, "larger than"),
        (read("roots/nvidia_device_identity_ca.pem"), "not on P-256"),
    ],
)
def test_a_malformed_root_is_unusable(root: bytes, reason: str) -> None:
    found = verify(replace(GENUINE, root=root))
    assert (found.accepted, found.unusable) == (False, True)
    assert found.failed[-1].name == "root certificate"
    assert reason in found.failed[-1].reason


@pytest.mark.parametrize("at", [-1, 2**63, 1_500_000_000])
def test_a_time_outside_the_roots_life_is_refused(at: int) -> None:
    found = verify(replace(GENUINE, now=at))
    assert (found.accepted, found.unusable) == (False, False)
    assert found.failed[0].name == "freshness"


@pytest.mark.parametrize("junk", [b"AAAA", b"MAA="])
def test_a_broken_certificate_behind_the_chain_changes_nothing(junk: bytes) -> None:
    quoted = MACHINE.quote(bytes(64))
    assert quoted.collateral is not None
    more = b"-----BEGIN CERTIFICATE-----\n" + junk + b"\n-----END CERTIFICATE-----\n"
    altered = bytearray(quoted.quote + more)
    chain = parse_quote(quoted.quote).chain
    for at in (632, 766, quoted.quote.index(chain) - 4):
        altered[at : at + 4] = (int.from_bytes(altered[at : at + 4], "little") + len(more)).to_bytes(
            4, "little"
        )
    assert parse_quote(bytes(altered)).chain == chain + more
    original = verify_quote(quoted.quote, quoted.collateral, VENDOR.root_der, NOW)
    assert original.accepted
    assert verify_quote(bytes(altered), quoted.collateral, VENDOR.root_der, NOW) == original


def test_the_verdict_as_json_is_plain() -> None:
    shown = json.loads(json.dumps(verify(AGED).as_json()))
    assert (shown["accepted"], shown["status"], shown["policy_accepted"]) == (True, "OutOfDate", False)
    assert {"name": "TCB status", "passed": False, "reason": "OutOfDate"} in shown["checks"]
    assert shown["root_id"] == f"0x{INTEL_ROOT_ID.hex()}"
    assert any("keys were never extracted" in entry for entry in shown["unchecked"])


# Registrations


REGISTRY, TRAINER, KEY = (f"0x{digit * 40}" for digit in "abc")


def register(
    attester: SimulatedAttester = MACHINE, gpu: bytes | None = None, **collateral: Any
) -> tuple[EvidenceFile, RegistrationFacts]:
    """A key registered as it should be, with its evidence."""
    challenge = sha256(b"challenge").digest()
    binding = key_binding(31337, REGISTRY, TRAINER, KEY, 1, challenge)
    quoted = attester.quote(binding + (sha256(gpu).digest() if gpu else bytes(32)))
    evidence = EvidenceFile(
        quoted.quote, attester.vendor.collateral(attester.tee, **collateral), quoted.event_log, gpu
    )
    found = verify_quote(evidence.quote, evidence.collateral, attester.vendor.root_der, NOW)
    assert found.workload is not None and found.root_id is not None and found.platform is not None
    facts = RegistrationFacts(
        chain_id=31337,
        registry=REGISTRY,
        run=1,
        trainer=TRAINER,
        key=KEY,
        challenge=challenge,
        workload=found.workload,
        root_id=found.root_id,
        platform=found.platform,
        collateral_digest=evidence.collateral_digest(),
        block_time=NOW,
    )
    return evidence, facts


def rules(document: PolicyDocument | None = None, attester: SimulatedAttester = MACHINE) -> PolicyFile:
    return PolicyFile.from_quotes([parse_quote(attester.quote(bytes(64)).quote)], document)


def judge(evidence: EvidenceFile, facts: RegistrationFacts, policy: PolicyFile | None = None) -> Verification:
    policy = policy or rules()
    return verify_registration(evidence, facts, policy.policy, policy.document)


def test_a_key_registered_as_it_should_be_is_attested() -> None:
    found = judge(*register())
    assert (found.accepted, found.policy_accepted, found.reason) == (True, True, "")
    assert found.root_id == VENDOR.root_id


@pytest.mark.parametrize(
    ("changed", "failed"),
    [
        ({"chain_id": 1}, "key binding"),
        ({"registry": TRAINER}, "key binding"),
        ({"run": 2}, "key binding"),
        ({"trainer": KEY}, "key binding"),
        ({"key": TRAINER}, "key binding"),
        ({"challenge": bytes(32)}, "key binding"),
        ({"collateral_digest": bytes(32)}, "collateral digest"),
        ({"workload": bytes(32)}, "workload on record"),
        ({"root_id": INTEL_ROOT_ID}, "root on record"),
        ({"platform": bytes(32)}, "platform on record"),
    ],
)
def test_evidence_of_another_registration_is_refused(changed: dict[str, Any], failed: str) -> None:
    evidence, facts = register()
    found = judge(evidence, replace(facts, **changed))
    assert (found.accepted, found.policy_accepted) == (False, False)
    assert [entry.name for entry in found.failed] == [failed]


def test_the_verdict_is_of_the_registrations_block() -> None:
    evidence, facts = register(expires=NOW + 2 * DAY)
    assert judge(evidence, facts).policy_accepted
    assert not judge(evidence, replace(facts, block_time=NOW + DAY + 1)).policy_accepted
    assert not judge(evidence, replace(facts, block_time=NOW + 2 * DAY)).accepted


def test_a_floor_raised_on_chain_counts() -> None:
    evidence, facts = register(evaluation=100)
    assert judge(evidence, replace(facts, evaluation_floor=100)).policy_accepted
    assert not judge(evidence, replace(facts, evaluation_floor=101)).policy_accepted
    raised = replace(rules().policy, evaluation_floor=101)
    assert not verify_registration(evidence, facts, raised, PolicyDocument()).policy_accepted


def test_a_run_pinned_to_intel_takes_no_simulated_machine() -> None:
    evidence, facts = register()
    pinned = replace(rules().policy, root_id=INTEL_ROOT_ID)
    found = verify_registration(evidence, replace(facts, root_id=INTEL_ROOT_ID), pinned, PolicyDocument())
    assert not found.accepted
    assert found.failed[0].name == "signatures"


def test_a_root_that_nobody_shows_is_a_plain_refusal() -> None:
    evidence, facts = register()
    found = verify_registration(evidence, facts, replace(rules().policy, root_id=bytes(32)), PolicyDocument())
    assert (found.accepted, found.failed[0].name) == (False, "root certificate")


def test_code_that_the_run_does_not_know_is_refused_by_policy() -> None:
    swapped = SimulatedAttester(VENDOR, b"other code")
    found = judge(*register(swapped))
    assert (found.accepted, found.policy_accepted) == (True, False)
    assert found.reason == "run's policy: the workload is not allowed"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"pck_cas": (bytes(64),)}, "no pinned CA signed the platform's certificate"),
        ({"qe_signer": bytes(32)}, "the quoting enclave has another signer"),
        ({"qe_product": 9}, "the quoting enclave is another product"),
        ({"qe_min_svn": 5}, "the quoting enclave is too old"),
    ],
)
def test_validators_repeat_what_the_registry_checks(changed: dict[str, Any], reason: str) -> None:
    evidence, facts = register()
    found = verify_registration(evidence, facts, replace(rules().policy, **changed), PolicyDocument())
    assert (found.policy_accepted, found.reason) == (False, f"run's policy: {reason}")


def test_a_pinned_ca_beside_the_one_that_signed_does_not_count() -> None:
    """A pinned CA's certificate is public: it may stand in any chain."""
    evidence, facts = register()
    chain = parse_quote(evidence.quote).chain
    head, tail = chain.split(b"-----END CERTIFICATE-----\n", 1)
    pinned = SimulatedVendor(b"pinned", made=MADE)
    longer = head + b"-----END CERTIFICATE-----\n" + pinned.ca.public_bytes(Encoding.PEM) + tail
    raw = bytearray(evidence.quote.replace(chain, longer))
    for at in (632, 766, raw.index(longer) - 4):
        size = int.from_bytes(raw[at : at + 4], "little") + len(longer) - len(chain)
        raw[at : at + 4] = size.to_bytes(4, "little")
    policy = replace(rules().policy, pck_cas=(pinned.ca_public,))
    found = verify_registration(replace(evidence, quote=bytes(raw)), facts, policy, PolicyDocument())
    assert not found.policy_accepted
    assert found.reason == "run's policy: no pinned CA signed the platform's certificate"


def test_required_events_are_looked_up_in_a_log_that_replays() -> None:
    evidence, facts = register()
    assert evidence.event_log is not None
    (event,) = [entry for entry in json.loads(evidence.event_log) if entry["imr"] == 3][:1]
    wanted = PolicyDocument(events=((event["event"], event["event_payload"]),))
    assert judge(evidence, facts, rules(wanted)).policy_accepted
    other = PolicyDocument(events=((event["event"], "00"),))
    assert not judge(evidence, facts, rules(other)).policy_accepted
    missing = replace(evidence, event_log=None)
    assert judge(missing, facts, rules(wanted)).reason == (
        "event log: the policy requires events, and there is no log"
    )
    assert judge(missing, facts).policy_accepted
    assert not judge(replace(evidence, event_log=b"[]"), facts).policy_accepted


def test_an_enclave_has_no_event_log() -> None:
    enclave = SimulatedAttester(VENDOR, b"honest code", format="sgx3")
    evidence, facts = register(enclave)
    assert judge(evidence, facts, rules(attester=enclave)).policy_accepted
    found = judge(replace(evidence, event_log=b"[]"), facts, rules(attester=enclave))
    assert found.reason == "event log: only a TDX quote has registers to replay it to"


def test_gpu_evidence_is_the_quotes_own_and_answers_its_challenge() -> None:
    gpu = read("nvidia/hopper_evidence.json")
    evidence, facts = register(gpu=gpu)
    assert judge(evidence, facts).policy_accepted, "not judged where the policy asks for none"
    assert judge(replace(evidence, gpu=None), facts).failed[0].name == "GPU evidence hash"
    assert judge(replace(evidence, gpu=gpu + b" "), facts).failed[0].name == "GPU evidence hash"
    found = judge(evidence, facts, rules(PolicyDocument(gpus=1)))
    assert (found.accepted, found.policy_accepted) == (True, False)
    assert [entry.name for entry in found.failed] == ["GPU nonce"], (
        "a recorded report answers another challenge"
    )
    assert any("RIM" in entry for entry in found.unchecked)


def test_a_policy_that_asks_for_gpus_needs_their_evidence() -> None:
    found = judge(*register(), rules(PolicyDocument(gpus=1)))
    assert (found.accepted, found.policy_accepted) == (True, False)
    assert found.failed[0].name == "GPU evidence format"


def test_hostile_evidence_is_a_verdict_and_no_crash() -> None:
    evidence, facts = register()
    rng = random.Random(7)
    for _ in range(200):
        quote = bytearray(evidence.quote)
        for _ in range(rng.randrange(1, 6)):
            quote[rng.randrange(len(quote))] = rng.randrange(256)
        judge(
            replace(evidence, quote=bytes(quote)[: rng.choice((len(quote), rng.randrange(1, len(quote))))]),
            facts,
        )
