"""Verifies TDX and SGX quotes: signatures, revocation, dates, TCB status. Protocol section 11.

The verification is a pure function of quote, collateral, root certificate, time and policy document. Signatures,
revocation lists and TCB levels are checked by `dcap_qvl`, which accepts every status but Revoked; which statuses count
is decided here, by the policy document.

A quote's bytes do not identify it: with bytes appended, other lengths or the mirrored signature (n - s) it still
verifies. Replays are recognised by the report data.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import dcap_qvl
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding
from eth_hash.auto import keccak

from earnest.attestation.formats.collateral import CollateralError, canonical_collateral
from earnest.attestation.formats.quote import Quote, QuoteError, claims, parse_quote
from earnest.attestation.policy_document import PolicyDocument
from earnest.attestation.verifier.certificate_chain import (
    CERTIFICATE_ERRORS,
    instant,
    load_certificate,
    p256_key,
)
from earnest.attestation.verifier.verification import Check, Verification, conclude
from earnest.base.strict_json import read_json
from earnest.protocol.attestation import Claims, root_id

MAX_ROOT_BYTES = 16_384
MAX_TIME = 253_402_300_800
"""The first second of the year 10000, which `datetime` cannot hold."""

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
    ("Reserved bits in TD attributes", "TD attributes", "reserved bits are set"),
    ("service TD", "TD attributes", "a service TD is bound to it"),
    ("No matching TCB level", "TCB level", "the platform is older than every level that Intel lists"),
    ("Revoked", "revocation", "Intel has revoked it"),
    ("Expired", "freshness", "collateral or a certificate has expired"),
    ("expired", "freshness", "collateral or a certificate has expired"),
    ("NotValidYet", "freshness", "collateral or a certificate is not valid yet"),
    ("in the future", "freshness", "the collateral was issued later"),
    ("Fmspc mismatch", "collateral", "it is of another processor family"),
    ("QE Identity id", "collateral", "it is of another kind of TEE"),
)
"""Part of a message of `dcap_qvl`, the check that fails, and its meaning. Any other message is about a signature."""

GENUINE = (
    ("signatures", "root, platform, quoting enclave and quote"),
    ("freshness", "nothing has expired"),
    ("revocation", "nothing is revoked"),
    ("debug", "off, for what runs and for the quoting enclave"),
)


@dataclass(frozen=True)
class _Inputs:
    """Inputs of a verification, parsed."""

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
    """Verifies a TDX or SGX quote at Unix second `at`; never raises for a hostile quote, collateral or root.

    `collateral` is DCAP JSON in any layout; a certificate chain in it that would override the quote's is dropped.
    `root` is a certificate, DER or PEM. The TCB evaluation number must be at least the higher of the document's floor
    and `evaluation_floor`.
    """
    checks, inputs = _read(quote, collateral, root)
    if inputs is None:
        return conclude(checks, unusable=True, unchecked=QUOTE_UNCHECKED)
    facts: dict[str, Any] = {
        "tee": inputs.quote.tee,
        "root_id": inputs.root_id,
        "workload": inputs.claims.workload,
        "platform": inputs.claims.platform,
        "report_data": inputs.quote.report_data,
        "replay_key": keccak(inputs.quote.report_data),
        "unchecked": QUOTE_UNCHECKED,
    }
    report = _signed_report(quote, inputs, at)
    if isinstance(report, Check):
        return conclude([*checks, report], **facts)
    checks += [Check(name, True, reason) for name, reason in GENUINE]
    expires = report["earliest_expiration_date"]
    return conclude(
        checks,
        _document_checks(report, document, at, expires, evaluation_floor),
        status=report["tcb"]["status"],
        advisories=tuple(report["tcb"]["advisory_ids"]),
        evaluation_number=report["tcb"]["eval_data_number"],
        expires=expires,
        **facts,
    )


def _read(quote: bytes, collateral: bytes, root: bytes) -> tuple[list[Check], _Inputs | None]:
    """Parses the inputs. Returns a check for each, and None if one of them cannot be read."""
    checks: list[Check] = []
    parsed = quote_claims = canonical = None
    try:
        parsed = parse_quote(quote)
        quote_claims = claims(parsed)
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
        identity = root_id(p256_key(certificate))
        checks.append(Check("root certificate", True, f"id 0x{identity.hex()}"))
    except CERTIFICATE_ERRORS as error:
        checks.append(Check("root certificate", False, str(error)))
        return checks, None
    if parsed is None or quote_claims is None or canonical is None:
        return checks, None
    return checks, _Inputs(parsed, quote_claims, canonical, certificate, identity)


def _root(root: bytes) -> x509.Certificate:
    """Loads a root that signed itself: for any other, the path builder of `dcap_qvl` ends the process."""
    if len(root) > MAX_ROOT_BYTES:
        raise ValueError(f"larger than {MAX_ROOT_BYTES} bytes")
    certificate = load_certificate(root)
    try:
        certificate.verify_directly_issued_by(certificate)
    except InvalidSignature as error:
        raise ValueError("it is not signed by itself") from error
    return certificate


def _signed_report(quote: bytes, inputs: _Inputs, at: int) -> dict[str, Any] | Check:
    """Returns the report of `dcap_qvl` on a genuine quote, or the check that the quote fails."""
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
        report = dcap_qvl.QuoteVerifier(root).verify_with_policy(quote, collateral, at, policy)
    except ValueError as error:
        return _refusal(quote, collateral, root, at, str(error))
    return read_json(report.to_json())


def _refusal(
    quote: bytes, collateral: dcap_qvl.QuoteCollateralV3, root: bytes, at: int, message: str
) -> Check:
    """Returns the check that a refused quote fails.

    Only `verify_with_root_ca` reports the cause behind the verifier's `message`.
    """
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
    report: dict[str, Any], document: PolicyDocument, at: int, expires: int, floor: int
) -> list[Check]:
    """Checks a genuine quote against every rule of the policy document."""
    tcb, pck = report["tcb"], report["platform"]["pck"]
    denied = sorted(set(tcb["advisory_ids"]) & set(document.denied_advisories))
    family = bytes(pck["fmspc"]).hex().upper()
    number = tcb["eval_data_number"]
    lowest = max(floor, document.evaluation_floor)
    left = expires - at
    return [
        Check("TCB status", tcb["status"] in document.statuses, tcb["status"]),
        _grace(report, document, at),
        Check("evaluation number", number >= lowest, f"{number}, at least {lowest} required"),
        Check("advisories", not denied, ", ".join(denied) or "none is denied"),
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


def _grace(report: dict[str, Any], document: PolicyDocument, at: int) -> Check:
    """Accepts an out-of-date machine for `grace_s` after the date of its TCB level (the older of platform and QE)."""
    if not report["tcb"]["status"].startswith("OutOfDate"):
        return Check("grace", True, "not needed")
    levels = [report["platform"]["tcb_level"], report["qe"]["tcb_level"]]
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
