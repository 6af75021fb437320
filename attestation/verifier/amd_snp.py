"""Verifies AMD SEV-SNP reports: signed with P-384 by the chip's VCEK, which AMD's ASK and ARK certify with RSA-PSS.

Layout: AMD publication 56860, "SEV Secure Nested Paging Firmware ABI", table "ATTESTATION_REPORT".
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ObjectIdentifier
from eth_hash.auto import keccak

from earnest.attestation.roots import AMD_ROOTS
from earnest.attestation.verifier.certificate_chain import (
    CERTIFICATE_ERRORS,
    chain_fault,
    load_certificate,
    signature_holds,
)
from earnest.attestation.verifier.verification import Check, Verification, conclude

REPORT_BYTES = 1184
SIGNED_BYTES = 0x2A0
MAX_CHAIN_BYTES = 16_384
VERSIONS = range(2, 6)
ECDSA_P384_SHA384 = 1
POLICY_DEBUG = 1 << 19
POLICY_MIGRATION = 1 << 18

ACCEPTED_GENERATIONS = ("Genoa", "Turin")
"""Processor generations. Milan is not accepted: software can read its root seed (BadFuse, MilanLaunchy, 2026)."""

CHIP_ID = ObjectIdentifier("1.3.6.1.4.1.3704.1.4")
TCB_COMPONENTS = {
    "boot loader": ObjectIdentifier("1.3.6.1.4.1.3704.1.3.1"),
    "TEE": ObjectIdentifier("1.3.6.1.4.1.3704.1.3.2"),
    "SNP": ObjectIdentifier("1.3.6.1.4.1.3704.1.3.3"),
    "microcode": ObjectIdentifier("1.3.6.1.4.1.3704.1.3.8"),
    "FMC": ObjectIdentifier("1.3.6.1.4.1.3704.1.3.9"),
}
TCB_BYTES = {
    "Milan": {"boot loader": 0, "TEE": 1, "SNP": 6, "microcode": 7},
    "Genoa": {"boot loader": 0, "TEE": 1, "SNP": 6, "microcode": 7},
    "Turin": {"FMC": 0, "boot loader": 1, "TEE": 2, "SNP": 3, "microcode": 7},
}
"""Index of each component's number in the 8 bytes of a TCB version."""

UNCHECKED = ("revocation of the chip's key (AMD's CRL)", "that the chip is in the machine that requested it")


@dataclass(frozen=True)
class SnpReport:
    """The fields of a report that are checked."""

    version: int
    policy: int
    vmpl: int
    algorithm: int
    report_data: bytes
    measurement: bytes
    reported_tcb: bytes
    chip_id: bytes
    signed: bytes
    signature: bytes
    """r || s, 96 bytes, big endian (the report has them little endian, 72 bytes each)."""


def parse_snp_report(data: bytes) -> SnpReport:
    """Parses a report. Raises ValueError."""
    if len(data) != REPORT_BYTES:
        raise ValueError(f"{len(data)} bytes are no SNP report, which has {REPORT_BYTES}")
    version, _, policy = struct.unpack_from("<IIQ", data, 0)
    vmpl, algorithm = struct.unpack_from("<II", data, 0x30)
    if version not in VERSIONS:
        raise ValueError(f"report version {version} is unknown")
    r, s = data[0x2A0:0x2E8][::-1], data[0x2E8:0x330][::-1]
    if any(r[:24]) or any(s[:24]) or any(data[0x330:]):
        raise ValueError("the signature is longer than 384 bits")
    return SnpReport(
        version=version,
        policy=policy,
        vmpl=vmpl,
        algorithm=algorithm,
        report_data=data[0x50:0x90],
        measurement=data[0x90:0xC0],
        reported_tcb=data[0x180:0x188],
        chip_id=data[0x1A0:0x1E0],
        signed=data[:SIGNED_BYTES],
        signature=r[24:] + s[24:],
    )


def verify_snp_report(
    report: bytes,
    vcek: bytes,
    issuers: bytes,
    at: int,
    *,
    report_data: bytes | None = None,
    generations: Collection[str] = ACCEPTED_GENERATIONS,
    vmpl: int = 0,
    roots: Mapping[bytes, str] = AMD_ROOTS,
) -> Verification:
    """Verifies a report (1184 bytes) at Unix second `at`; never raises for hostile input.

    `vcek` is the chip's certificate, DER or PEM, and `issuers` AMD's ASK and ARK, PEM; the ARK must be one of `roots`
    (generations by SHA-256 of the certificate). The report must contain `report_data` (64 bytes) unless it is None.
    `vmpl` is the highest accepted number of a privilege level; 0 is the guest's most privileged.
    """
    try:
        parsed = parse_snp_report(report)
        if len(vcek) > MAX_CHAIN_BYTES or len(issuers) > MAX_CHAIN_BYTES:
            raise ValueError("a certificate is too large")
        chip = load_certificate(vcek)
        ask, ark = x509.load_pem_x509_certificates(issuers)
        generation = roots.get(sha256(ark.public_bytes(Encoding.DER)).digest())
        key = chip.public_key()
    except CERTIFICATE_ERRORS as error:
        return conclude([Check("SNP report format", False, str(error))], unusable=True, unchecked=UNCHECKED)
    fault = "the root is none of AMD's" if generation is None else chain_fault([chip, ask, ark], ark, at)
    signed = parsed.algorithm == ECDSA_P384_SHA384 and signature_holds(key, parsed.signature, parsed.signed)
    genuine = [
        Check("SNP report format", True, f"version {parsed.version}"),
        Check("SNP chain", not fault, fault or f"leads to AMD's root for {generation}"),
        Check("SNP signature", signed, "by the chip's key" if signed else "not signed by this chip"),
        Check("SNP chip", *_chip(parsed, chip)),
        Check("SNP TCB", *_tcb(parsed, chip, generation)),
        Check("SNP debug", *_off(parsed.policy & POLICY_DEBUG, "the host may read the guest's memory")),
    ]
    if report_data is not None:
        same = parsed.report_data == report_data
        genuine.append(Check("SNP report data", same, "as required" if same else "another challenge"))
    policy = [
        Check("SNP generation", generation in generations, str(generation)),
        Check("SNP privilege level", parsed.vmpl <= vmpl, f"VMPL {parsed.vmpl}, at most {vmpl} accepted"),
        Check(
            "SNP migration", *_off(parsed.policy & POLICY_MIGRATION, "a migration agent may move the guest")
        ),
    ]
    return conclude(
        genuine,
        policy,
        tee="snp",
        report_data=parsed.report_data,
        replay_key=keccak(parsed.report_data),
        platform=keccak(parsed.chip_id),
        workload=keccak(parsed.measurement + parsed.policy.to_bytes(8, "little")),
        unchecked=UNCHECKED,
    )


def _off(bit: int, meaning: str) -> tuple[bool, str]:
    return not bit, meaning if bit else "off"


def _chip(report: SnpReport, certificate: x509.Certificate) -> tuple[bool, str]:
    """Checks that the certificate is of the chip that the report names (Turin's ids are shorter, zeros follow)."""
    certified = _extension(certificate, CHIP_ID)
    passed = bool(certified) and report.chip_id == certified.ljust(64, b"\0")
    return passed, "as certified" if passed else "the certificate is of another chip"


def _tcb(report: SnpReport, certificate: x509.Certificate, generation: str | None) -> tuple[bool, str]:
    """Checks that the key was derived for the TCB that the report states."""
    for component, index in TCB_BYTES.get(generation or "", {}).items():
        encoded = _extension(certificate, TCB_COMPONENTS[component])
        if (
            len(encoded) < 3
            or encoded[:1] != b"\x02"
            or int.from_bytes(encoded[2:]) != report.reported_tcb[index]
        ):
            return False, f"the {component} version differs from the certificate's"
    return generation is not None, "as certified"


def _extension(certificate: x509.Certificate, oid: ObjectIdentifier) -> bytes:
    """Returns the raw value of a vendor extension, empty if it is missing."""
    try:
        value = certificate.extensions.get_extension_for_oid(oid).value
    except CERTIFICATE_ERRORS:
        return b""
    return value.value if isinstance(value, x509.UnrecognizedExtension) else b""
