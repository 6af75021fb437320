"""Is a quote genuine, fresh and good enough? Protocol section 11.

The verdict is a pure function of quote, collateral, root certificate, time and policy document, so all validators reach
the same one: the time is the block time of the registration, the collateral the one whose digest is on the record.
Signatures, revocation lists and TCB levels are checked by `dcap_qvl`, which accepts every status but Revoked; what a
run makes of the status is decided here.

A quote's bytes prove nothing about its identity: appended bytes, other lengths and the mirrored signature (n - s) all
verify. Replays are found by the report data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import dcap_qvl
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from eth_hash.auto import keccak

from earnest.attestation.evidence_file import EvidenceFile
from earnest.attestation.formats.certificate import CertificateError, pem_to_ders
from earnest.attestation.formats.collateral import CollateralError, canonical_collateral
from earnest.attestation.formats.quote import Quote, QuoteError, claims, parse_quote, pck_chain
from earnest.attestation.policy_document import PolicyDocument
from earnest.attestation.roots import PRODUCTION_ROOTS
from earnest.attestation.verifier.chain import CERTIFICATE_ERRORS, instant, load_certificate
from earnest.attestation.verifier.event_log import check_event_log
from earnest.attestation.verifier.nvidia import verify_gpus
from earnest.attestation.verifier.verification import Check, Verification, verdict
from earnest.base.strict_json import read_json
from earnest.protocol.attestation import Claims, Policy, key_binding, root_id

MAX_ROOT_BYTES = 16_384
MAX_TIME = 253_402_300_800
"""The first second of the year 10000, which no calendar here has."""

DEFAULT_DOCUMENT = PolicyDocument()

QUOTE_UNCHECKED = (
    "that the machine is where its operator says, and nobody reads its memory bus",
    "that the platform's keys were never extracted",
)

REFUSALS = (
    ("Debug mode is enabled", "debug", "others may read the memory"),
    ("SEPT_VE_DISABLE", "TD attributes", "the host can make pages vanish"),
    ("TD profiling", "TD attributes", "the host can watch it run"),
    ("TD migration", "TD attributes", "it may be moved to another machine"),
    ("SERVTD_EXT", "TD attributes", "a service TD is bound to it"),
    ("Reserved bits in TD attributes", "TD attributes", "nobody knows what they mean"),
    ("service TD", "TD attributes", "a service TD is bound to it"),
    ("No matching TCB level", "TCB level", "the platform is older than every level that Intel lists"),
    ("Revoked", "revocation", "Intel has withdrawn it"),
    ("Expired", "freshness", "collateral or a certificate has expired"),
    ("expired", "freshness", "collateral or a certificate has expired"),
    ("NotValidYet", "freshness", "collateral or a certificate is not valid yet"),
    ("in the future", "freshness", "the collateral was issued later"),
    ("Fmspc mismatch", "collateral", "it is of another processor family"),
    ("QE Identity id", "collateral", "it is of another kind of TEE"),
)
"""What the verifier's refusals contain, the check that fails, and what it means; anything else is a signature."""

GENUINE = (
    ("signatures", "root, platform, quoting enclave and quote"),
    ("freshness", "nothing has expired"),
    ("revocation", "nothing is revoked"),
    ("debug", "off, for what runs and for the quoting enclave"),
)


@dataclass(frozen=True)
class RegistrationFacts:
    """What the record says of one registration."""

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
    """The floor in force in the round that is judged: the policy's, or what its guardian has raised it to."""


@dataclass(frozen=True)
class _Inputs:
    """Evidence that could be read."""

    quote: Quote
    claims: Claims
    collateral: bytes
    root: x509.Certificate
    root_id: bytes


def verify_quote(
    quote: bytes,
    collateral: bytes,
    root: bytes,
    at: int,
    document: PolicyDocument = DEFAULT_DOCUMENT,
    *,
    evaluation_floor: int = 0,
) -> Verification:
    """Verify a TDX or SGX quote as of Unix second `at`; never raises for hostile quote, collateral or root.

    `collateral` is DCAP JSON in any layout; a certificate chain in it that would override the quote's is dropped.
    `root` is a certificate, DER or PEM. Evaluation numbers count from the higher of the document's floor and
    `evaluation_floor` up.
    """
    checks, inputs = _read(quote, collateral, root)
    if inputs is None:
        return verdict(checks, unusable=True, unchecked=QUOTE_UNCHECKED)
    facts: dict[str, Any] = {
        "tee": inputs.quote.tee,
        "root_id": inputs.root_id,
        "workload": inputs.claims.workload,
        "platform": inputs.claims.platform,
        "report_data": inputs.quote.report_data,
        "replay_key": keccak(inputs.quote.report_data),
        "unchecked": QUOTE_UNCHECKED,
    }
    found = _genuine(quote, inputs, at)
    if isinstance(found, Check):
        return verdict([*checks, found], **facts)
    checks += [Check(name, True, reason) for name, reason in GENUINE]
    expires = found["earliest_expiration_date"]
    return verdict(
        checks,
        _document_checks(found, document, at, expires, evaluation_floor),
        status=found["tcb"]["status"],
        advisories=tuple(found["tcb"]["advisory_ids"]),
        evaluation_number=found["tcb"]["eval_data_number"],
        expires=expires,
        **facts,
    )


def verify_under(
    quote: bytes,
    collateral: bytes,
    root: bytes,
    at: int,
    policy: Policy | None,
    document: PolicyDocument = DEFAULT_DOCUMENT,
    *,
    event_log: bytes | None = None,
) -> Verification:
    """`verify_quote`, and what else a run's policy says of a quote that is not registered yet.

    What only a registration has (whose key it is, GPU evidence) is not judged.
    """
    floor = 0 if policy is None else policy.evaluation_floor
    found = verify_quote(quote, collateral, root, at, document, evaluation_floor=floor)
    if found.unusable:
        return found
    parsed = parse_quote(quote)
    rules = _event_checks(event_log, parsed, document)
    if policy is not None:
        same = found.root_id == policy.root_id
        rules.insert(0, _policy_platform(parsed, policy))
        rules.insert(0, Check("run's root", same, "the policy's" if same else "the policy pins another root"))
    return replace(
        found,
        policy_accepted=found.policy_accepted and all(check.passed for check in rules),
        checks=(*found.checks, *rules),
        unchecked=(
            *found.unchecked,
            *(["GPU evidence: it comes with a registration"] if document.gpus else []),
        ),
    )


def judge_registration(
    evidence: EvidenceFile,
    registration: RegistrationFacts,
    policy: Policy,
    document: PolicyDocument,
    roots: Mapping[bytes, bytes] = PRODUCTION_ROOTS,
) -> Verification:
    """Whether a key on the record is attested as the run's policy asks; never raises for hostile evidence.

    `roots` are certificates by root id. A root that is not among them is taken from the quote's own chain, if its key
    has the id that the policy pins: the id is what is trusted, the certificate only carries the key. EvidenceFile that
    contradicts the record is not accepted.

    A verdict stands for the key's life, but no longer than to `Verification.expires`.
    """
    root = _pinned_root(evidence.quote, policy.root_id, roots)
    if root is None:
        reason = f"no certificate for root id 0x{policy.root_id.hex()}"
        return verdict([Check("root certificate", False, reason)], unchecked=QUOTE_UNCHECKED)
    floor = max(policy.evaluation_floor, registration.evaluation_floor)
    found = verify_quote(
        evidence.quote,
        evidence.collateral,
        root,
        registration.block_time,
        document,
        evaluation_floor=floor,
    )
    if found.unusable:
        return found
    quote = parse_quote(evidence.quote)
    record = _record_checks(evidence, quote, registration, found)
    rules = [_policy_platform(quote, policy), *_event_checks(evidence.event_log, quote, document)]
    unchecked = found.unchecked
    if document.gpus:
        gpu = verify_gpus(
            evidence.gpu or b"",
            registration.block_time,
            nonce=quote.report_data[:32],
            gpus=document.gpus,
            architectures=document.gpu_architectures,
        )
        rules += gpu.checks
        unchecked += gpu.unchecked
    accepted = found.accepted and all(check.passed for check in record)
    return replace(
        found,
        accepted=accepted,
        policy_accepted=accepted and found.policy_accepted and all(check.passed for check in rules),
        checks=(*found.checks, *record, *rules),
        unchecked=unchecked,
    )


def _read(quote: bytes, collateral: bytes, root: bytes) -> tuple[list[Check], _Inputs | None]:
    """The inputs taken apart, and what that found; None if one of them cannot be read."""
    checks: list[Check] = []
    parsed = read = canonical = None
    try:
        parsed = parse_quote(quote)
        read = claims(parsed)
        checks.append(Check("quote format", True, f"{parsed.tee.upper()} version {parsed.version}"))
    except QuoteError as error:
        checks.append(Check("quote format", False, str(error)))
    try:
        canonical = canonical_collateral(collateral)
        checks.append(Check("collateral format", True, f"SHA-256 {sha256(canonical).hexdigest()}"))
    except CollateralError as error:
        checks.append(Check("collateral format", False, str(error)))
    try:
        certificate = _root(root)
        identity = root_id(_p256(certificate))
        checks.append(Check("root certificate", True, f"id 0x{identity.hex()}"))
    except CERTIFICATE_ERRORS as error:
        checks.append(Check("root certificate", False, str(error)))
        return checks, None
    if parsed is None or read is None or canonical is None:
        return checks, None
    return checks, _Inputs(parsed, read, canonical, certificate, identity)


def _root(root: bytes) -> x509.Certificate:
    """The root, signed by itself: with any other the verifier's path builder ends the process rather than refuse."""
    if len(root) > MAX_ROOT_BYTES:
        raise ValueError(f"larger than {MAX_ROOT_BYTES} bytes")
    certificate = load_certificate(root)
    try:
        certificate.verify_directly_issued_by(certificate)
    except InvalidSignature as error:
        raise ValueError("it is not signed by itself") from error
    return certificate


def _p256(certificate: x509.Certificate) -> bytes:
    """x || y of the certificate's key, 64 bytes. Raises ValueError for any other kind."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("its key is not on P-256")
    numbers = key.public_numbers()
    return numbers.x.to_bytes(32) + numbers.y.to_bytes(32)


def _genuine(quote: bytes, inputs: _Inputs, at: int) -> dict[str, Any] | Check:
    """The verifier's claims about a genuine quote, or the check that it fails."""
    if not 0 <= at < MAX_TIME:
        return Check("freshness", False, f"{at} is no Unix time in seconds")
    if not inputs.root.not_valid_before_utc <= instant(at) <= inputs.root.not_valid_after_utc:
        return Check("freshness", False, f"the root is not valid at {instant(at):%Y-%m-%d %H:%M:%S} UTC")
    root = inputs.root.public_bytes(Encoding.DER)
    try:
        collateral = dcap_qvl.QuoteCollateralV3.from_json(inputs.collateral.decode())
    except ValueError as error:
        return Check("collateral", False, str(error)[:400])
    policy = dcap_qvl.QuotePolicy.claims_only(at)
    try:
        found = dcap_qvl.QuoteVerifier(root).verify_with_policy(quote, collateral, at, policy)
    except ValueError as error:
        return _refusal(quote, collateral, root, at, str(error))
    return read_json(found.to_json())


def _refusal(
    quote: bytes, collateral: dcap_qvl.QuoteCollateralV3, root: bytes, at: int, message: str
) -> Check:
    """The check that a refused quote fails. Only the verifier's other entry also tells the cause of its `message`."""
    try:
        dcap_qvl.verify_with_root_ca(quote, collateral, root, at)
    except ValueError as error:
        message = str(error)
    message = message.removeprefix("Verification failed: ").replace("Caused by:", "/")
    message = " ".join(message.split())[:400]
    for part, name, meaning in REFUSALS:
        if part in message:
            return Check(name, False, f"{meaning} ({message})")
    return Check("signatures", False, message)


def _document_checks(
    found: dict[str, Any], document: PolicyDocument, at: int, expires: int, floor: int
) -> list[Check]:
    """What the policy document makes of genuine evidence, every rule whether or not it passes."""
    tcb, pck = found["tcb"], found["platform"]["pck"]
    denied = sorted(set(tcb["advisory_ids"]) & set(document.denied_advisories))
    family = bytes(pck["fmspc"]).hex().upper()
    number, floor = tcb["eval_data_number"], max(floor, document.evaluation_floor)
    left = expires - at
    return [
        Check("TCB status", tcb["status"] in document.statuses, tcb["status"]),
        _grace(found, document, at),
        Check("evaluation number", number >= floor, f"{number}, at least {floor} asked for"),
        Check("advisories", not denied, ", ".join(denied) or "none that is denied"),
        Check("processor family", family not in document.denied_families, family),
        _flag("dynamic platform", pck["dynamic_platform"], document.allow_dynamic_platform),
        _flag("hyper-threading", pck["smt_enabled"], document.allow_smt),
        _flag("cached keys", pck["cached_keys"], document.allow_cached_keys),
        Check(
            "collateral lifetime",
            left >= document.margin_s,
            f"{left} s left of at least {document.margin_s} s",
        ),
    ]


def _grace(found: dict[str, Any], document: PolicyDocument, at: int) -> Check:
    """An out-of-date machine counts for `grace_s` after the date of its TCB level (the older of platform and QE)."""
    if not found["tcb"]["status"].startswith("OutOfDate"):
        return Check("grace", True, "not needed")
    levels = [found["platform"]["tcb_level"], found["qe"]["tcb_level"]]
    dates = [_date(level["tcbDate"]) for level in levels if level["tcbStatus"].startswith("OutOfDate")]
    since = min(dates or [_date(levels[0]["tcbDate"])])
    passed = at <= since + document.grace_s
    return Check("grace", passed, f"TCB level of {_day(since)}, {document.grace_s} s granted")


def _flag(name: str, value: str, allowed: bool) -> Check:
    return Check(name, allowed or value != "True", f"{value.lower()}, {'' if allowed else 'not '}allowed")


def _date(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def _day(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def _pinned_root(quote: bytes, pinned: bytes, roots: Mapping[bytes, bytes]) -> bytes | None:
    """The certificate of the pinned root: a known one, or the last of the quote's own chain if its key fits."""
    if pinned in roots:
        return roots[pinned]
    try:
        carried = pem_to_ders(parse_quote(quote).chain)[-1]
        return carried if root_id(_p256(x509.load_der_x509_certificate(carried))) == pinned else None
    except (QuoteError, CertificateError, *CERTIFICATE_ERRORS):
        return None


def _record_checks(
    evidence: EvidenceFile, quote: Quote, registration: RegistrationFacts, found: Verification
) -> list[Check]:
    """Whether the evidence is that of the registration on the record."""
    digest = sha256(canonical_collateral(evidence.collateral)).digest()
    binding = key_binding(
        registration.chain_id,
        registration.registry,
        registration.trainer,
        registration.key,
        registration.run,
        registration.challenge,
    )
    extra = evidence.gpu_digest()
    return [
        _same(
            "key binding", quote.report_data[:32], binding, "the quote is of another key, run or challenge"
        ),
        _same("GPU evidence hash", quote.report_data[32:], extra, "the quote is for other GPU evidence"),
        _same(
            "collateral digest", digest, registration.collateral_digest, "not the collateral on the record"
        ),
        _same("root on record", found.root_id, registration.root_id, "the record names another root"),
        _same(
            "workload on record", found.workload, registration.workload, "the record names another workload"
        ),
        _same(
            "platform on record", found.platform, registration.platform, "the record names another platform"
        ),
    ]


def _same(name: str, found: bytes | None, expected: bytes, otherwise: str) -> Check:
    return Check(name, found == expected, "as on the record" if found == expected else otherwise)


def _policy_platform(quote: Quote, policy: Policy) -> Check:
    """What the registry checks too: workload, platform CA and quoting enclave are the policy's."""
    faults = [
        reason
        for passed, reason in (
            (quote.workload() in policy.workloads, "the workload is not allowed"),
            (not any(quote.unmeasured), "its host gave it a configuration that the workload id leaves out"),
            (_certified(quote, policy.pck_cas), "no pinned CA signed the platform's certificate"),
            (quote.qe.mrsigner == policy.qe_signer, "another signer's quoting enclave"),
            (quote.qe.product == policy.qe_product, "another quoting enclave"),
            (quote.qe.svn >= policy.qe_min_svn, "the quoting enclave is too old"),
        )
        if not passed
    ]
    return Check("run's policy", not faults, "; ".join(faults) or "workload, platform CA and quoting enclave")


def _certified(quote: Quote, cas: Sequence[bytes]) -> bool:
    """Whether the certificate behind the platform's is of a pinned CA, and signed the platform's."""
    try:
        pck, issuer = (x509.load_der_x509_certificate(found.der) for found in pck_chain(quote))
        pck.verify_directly_issued_by(issuer)
        return _p256(issuer) in cas
    except CERTIFICATE_ERRORS:
        return False


def _event_checks(event_log: bytes | None, quote: Quote, document: PolicyDocument) -> list[Check]:
    if event_log is None and not document.events:
        return []
    if event_log is None:
        return [Check("event log", False, "the policy asks for events, and there is no log")]
    if quote.tee != "tdx":
        return [Check("event log", False, "only a TDX quote has registers to replay it to")]
    measured = quote.measurements()
    registers = [measured[f"rtmr{index}"] for index in range(4)]
    return check_event_log(event_log, registers, dict(document.events))
