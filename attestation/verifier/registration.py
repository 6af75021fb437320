"""A quote under a run's policy, and a registered key under its record. Protocol section 11.

All validators reach the same answer, because all inputs are fixed: the time is the block time of the registration,
the collateral is the one whose digest is on the record, the policy is the run's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from cryptography import x509

from earnest.attestation.evidence_file import EvidenceFile
from earnest.attestation.formats.certificate import CertificateError, pem_to_ders
from earnest.attestation.formats.collateral import canonical_collateral
from earnest.attestation.formats.quote import Quote, QuoteError, parse_quote, pck_chain
from earnest.attestation.policy_document import PolicyDocument
from earnest.attestation.roots import PRODUCTION_ROOTS
from earnest.attestation.verifier.certificate_chain import CERTIFICATE_ERRORS, p256_key
from earnest.attestation.verifier.event_log import check_event_log
from earnest.attestation.verifier.intel import DEFAULT_DOCUMENT, QUOTE_UNCHECKED, verify_quote
from earnest.attestation.verifier.nvidia import verify_gpu_evidence
from earnest.attestation.verifier.verification import Check, Verification, conclude
from earnest.protocol.attestation import Policy, key_binding, root_id


@dataclass(frozen=True)
class RegistrationFacts:
    """One registration as the chain records it."""

    chain_id: int
    registry: str
    run: int
    trainer: str
    key: str
    challenge: bytes
    workload: bytes
    root_id: bytes
    platform: bytes
    collateral_digest: bytes
    block_time: int
    """Unix seconds of the block that holds the registration."""

    evaluation_floor: int = 0
    """The floor in force in the judged round: the policy's, or a higher one that its guardian has set."""


def verify_quote_under_policy(
    quote: bytes,
    collateral: bytes,
    root: bytes,
    at: int,
    policy: Policy | None,
    document: PolicyDocument = DEFAULT_DOCUMENT,
    *,
    event_log: bytes | None = None,
) -> Verification:
    """Verifies a quote that is not registered yet, as `verify_quote` does, and checks it against a run's policy.

    Key binding and GPU evidence come with a registration and are not checked.
    """
    floor = 0 if policy is None else policy.evaluation_floor
    verified = verify_quote(quote, collateral, root, at, document, evaluation_floor=floor)
    if verified.unusable:
        return verified
    parsed = parse_quote(quote)
    rules = _event_checks(event_log, parsed, document)
    if policy is not None:
        same = verified.root_id == policy.root_id
        root_check = Check("run's root", same, "the policy's" if same else "the policy pins another root")
        rules = [root_check, _policy_check(parsed, policy), *rules]
    gpus = ("GPU evidence: it comes with a registration",) if document.gpus else ()
    return replace(
        verified,
        policy_accepted=verified.policy_accepted and all(check.passed for check in rules),
        checks=(*verified.checks, *rules),
        unchecked=(*verified.unchecked, *gpus),
    )


def verify_registration(
    evidence: EvidenceFile,
    registration: RegistrationFacts,
    policy: Policy,
    document: PolicyDocument,
    roots: Mapping[bytes, bytes] = PRODUCTION_ROOTS,
) -> Verification:
    """Verifies the evidence file of a registered key against its record and the run's policy.

    Never raises for a hostile file; one that contradicts the record is not accepted. `roots` are certificates by root
    id. A root that is not among them is taken from the quote's own chain if its key has the id that the policy pins:
    the id is trusted, the certificate only carries the key.

    The answer holds for the key's life, but no longer than to `Verification.expires`.
    """
    root = _pinned_root(evidence.quote, policy.root_id, roots)
    if root is None:
        reason = f"no certificate for root id 0x{policy.root_id.hex()}"
        return conclude([Check("root certificate", False, reason)], unchecked=QUOTE_UNCHECKED)
    verified = verify_quote(
        evidence.quote,
        evidence.collateral,
        root,
        registration.block_time,
        document,
        evaluation_floor=max(policy.evaluation_floor, registration.evaluation_floor),
    )
    if verified.unusable:
        return verified
    quote = parse_quote(evidence.quote)
    record = _record_checks(evidence, quote, registration, verified)
    rules = [_policy_check(quote, policy), *_event_checks(evidence.event_log, quote, document)]
    unchecked = verified.unchecked
    if document.gpus:
        gpu = verify_gpu_evidence(
            evidence.gpu or b"",
            registration.block_time,
            nonce=quote.report_data[:32],
            gpus=document.gpus,
            architectures=document.gpu_architectures,
        )
        rules += gpu.checks
        unchecked += gpu.unchecked
    accepted = verified.accepted and all(check.passed for check in record)
    return replace(
        verified,
        accepted=accepted,
        policy_accepted=accepted and verified.policy_accepted and all(check.passed for check in rules),
        checks=(*verified.checks, *record, *rules),
        unchecked=unchecked,
    )


def _pinned_root(quote: bytes, pinned: bytes, roots: Mapping[bytes, bytes]) -> bytes | None:
    """Returns the certificate of the pinned root: a known one, or the last of the quote's chain if its key fits."""
    if pinned in roots:
        return roots[pinned]
    try:
        carried = pem_to_ders(parse_quote(quote).chain)[-1]
        return carried if root_id(p256_key(x509.load_der_x509_certificate(carried))) == pinned else None
    except (QuoteError, CertificateError, *CERTIFICATE_ERRORS):
        return None


def _record_checks(
    evidence: EvidenceFile, quote: Quote, registration: RegistrationFacts, verified: Verification
) -> list[Check]:
    """Compares the evidence file with the registration on the record."""
    digest = sha256(canonical_collateral(evidence.collateral)).digest()
    binding = key_binding(
        registration.chain_id,
        registration.registry,
        registration.trainer,
        registration.key,
        registration.run,
        registration.challenge,
    )
    compared = (
        ("key binding", quote.report_data[:32], binding, "the quote is for another key, run or challenge"),
        (
            "GPU evidence hash",
            quote.report_data[32:],
            evidence.gpu_digest(),
            "the quote is for other GPU evidence",
        ),
        (
            "collateral digest",
            digest,
            registration.collateral_digest,
            "not the collateral on the record",
        ),
        ("root on record", verified.root_id, registration.root_id, "the record names another root"),
        (
            "workload on record",
            verified.workload,
            registration.workload,
            "the record names another workload",
        ),
        (
            "platform on record",
            verified.platform,
            registration.platform,
            "the record names another platform",
        ),
    )
    return [
        Check(name, actual == expected, "as on the record" if actual == expected else otherwise)
        for name, actual, expected, otherwise in compared
    ]


def _policy_check(quote: Quote, policy: Policy) -> Check:
    """Repeats the registry's checks: workload, platform CA and quoting enclave are the policy's."""
    faults = [
        reason
        for passed, reason in (
            (quote.workload() in policy.workloads, "the workload is not allowed"),
            (not any(quote.unmeasured), "its host set a configuration that the workload id leaves out"),
            (_certified(quote, policy.pck_cas), "no pinned CA signed the platform's certificate"),
            (quote.qe.mrsigner == policy.qe_signer, "the quoting enclave has another signer"),
            (quote.qe.product == policy.qe_product, "the quoting enclave is another product"),
            (quote.qe.svn >= policy.qe_min_svn, "the quoting enclave is too old"),
        )
        if not passed
    ]
    return Check("run's policy", not faults, "; ".join(faults) or "workload, platform CA and quoting enclave")


def _certified(quote: Quote, cas: Sequence[bytes]) -> bool:
    """Returns True if a pinned CA signed the platform's certificate."""
    try:
        pck, issuer = (x509.load_der_x509_certificate(part.der) for part in pck_chain(quote))
        pck.verify_directly_issued_by(issuer)
        return p256_key(issuer) in cas
    except CERTIFICATE_ERRORS:
        return False


def _event_checks(event_log: bytes | None, quote: Quote, document: PolicyDocument) -> list[Check]:
    if event_log is None and not document.events:
        return []
    if event_log is None:
        return [Check("event log", False, "the policy requires events, and there is no log")]
    if quote.tee != "tdx":
        return [Check("event log", False, "only a TDX quote has registers to replay it to")]
    measured = quote.measurements()
    registers = [measured[f"rtmr{index}"] for index in range(4)]
    return check_event_log(event_log, registers, dict(document.events))
