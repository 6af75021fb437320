"""Verifies NVIDIA GPU evidence: one SPDM exchange and certificate chain per GPU, all under one nonce.

The format is that of NVIDIA's SDKs (github.com/NVIDIA/attestation-sdk): a JSON list with `arch`, `certificate`
(PEM chain, device first), `evidence` (SPDM 1.1 GET_MEASUREMENTS request and response) and `nonce` for every GPU.

Signature, chain and nonce are checked offline. Measurements need NVIDIA's signed manifests, and revocation needs its
OCSP responder: both are always reported as not checked.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID, ObjectIdentifier

from earnest.attestation.policy_document import GPU_ARCHITECTURES, MAX_GPUS
from earnest.attestation.roots import NVIDIA_DEVICE_IDENTITY_CA
from earnest.attestation.verifier.certificate_chain import (
    CERTIFICATE_ERRORS,
    chain_fault,
    load_certificate,
    signature_holds,
)
from earnest.attestation.verifier.verification import Check, Verification, conclude
from earnest.base.strict_json import read_json

MAX_EVIDENCE_BYTES = 1 << 20
MAX_REPORT_BYTES = 16_384
MAX_CHAIN_BYTES = 16_384

REQUEST_BYTES = 37
SIGNATURE_BYTES = 96
GET_MEASUREMENTS = bytes((0x11, 0xE0, 0x01, 0xFF))
"""The SPDM 1.1 request for all measurements, signed."""

MEASUREMENTS = bytes((0x11, 0x60))
DRIVER_VERSION, VBIOS_VERSION, FIRMWARE_ID = 3, 6, 20
"""Fields of the response's opaque data."""

DICE_EXTENSIONS = (ObjectIdentifier("2.23.133.5.4.1"), ObjectIdentifier("2.23.133.5.4.1.1"))
"""TCG DICE extensions, in which Hopper and Blackwell certificates name the device's firmware."""

SHA384_DIGEST = bytes.fromhex("06096086480165030402020430")
"""DER of the algorithm's id and of the header of a 48-byte string."""

CHIPS = {"GH": "HOPPER", "GB": "BLACKWELL"}
"""Architecture by the first letters of a device certificate's name."""

UNCHECKED = (
    "GPU firmware and driver measurements against NVIDIA's signed manifests (RIM)",
    "revocation of the GPU's certificates (OCSP)",
    "that the GPU is in the machine that requested it",
)


@dataclass(frozen=True)
class GpuReport:
    """A parsed SPDM exchange. `signed` is the part that the signature covers."""

    nonce: bytes
    measurements: tuple[bytes, ...]
    opaque: dict[int, bytes]
    signed: bytes
    signature: bytes


def parse_gpu_report(data: bytes) -> GpuReport:
    """Parses a report; leaves no byte unread. Raises ValueError."""
    if not REQUEST_BYTES + SIGNATURE_BYTES < len(data) <= MAX_REPORT_BYTES:
        raise ValueError(f"{len(data)} bytes are no GPU report")
    request, response = _Reader(data[:REQUEST_BYTES]), _Reader(data[REQUEST_BYTES:-SIGNATURE_BYTES])
    if request.take(4) != GET_MEASUREMENTS:
        raise ValueError("not a request for all measurements, signed")
    nonce = request.take(32)
    if response.take(2) != MEASUREMENTS:
        raise ValueError("not a measurements response")
    response.take(2)
    count, length = response.number(1), response.number(3)
    record = _Reader(response.take(length))
    measurements = []
    for index in range(1, count + 1):
        if record.number(1) != index:
            raise ValueError("measurements are not in order")
        record.take(1)
        measurements.append(record.take(record.number(2)))
    record.end()
    response.take(32)
    opaque = _Reader(response.take(response.number(2)))
    response.end()
    fields: dict[int, bytes] = {}
    while opaque.left:
        kind = opaque.number(2)
        if kind in fields:
            raise ValueError(f"opaque field {kind} occurs twice")
        fields[kind] = opaque.take(opaque.number(2))
    return GpuReport(nonce, tuple(measurements), fields, data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:])


def verify_gpu_evidence(
    evidence: bytes,
    at: int,
    *,
    nonce: bytes | None = None,
    root: bytes = NVIDIA_DEVICE_IDENTITY_CA,
    gpus: int = 1,
    architectures: Collection[str] = GPU_ARCHITECTURES,
) -> Verification:
    """Verifies the evidence of all GPUs at Unix second `at`; never raises for hostile input.

    All reports must be over `nonce` (32 bytes), or over any one nonce if it is None. `root` is DER or PEM. The policy
    checks require at least `gpus` distinct GPUs of `architectures`.
    """
    try:
        entries = _entries(evidence)
        pinned = load_certificate(root)
    except CERTIFICATE_ERRORS as error:
        return conclude([Check("GPU evidence format", False, str(error))], unusable=True, unchecked=UNCHECKED)
    checks = [Check("GPU evidence format", True, f"{len(entries)} GPU{'s' * (len(entries) > 1)}")]
    for index, entry in enumerate(entries):
        checks += _device_checks(entry, f"GPU {index}", pinned, at)
    checks += [_one_nonce(entries, nonce), _distinct(entries)]
    present = sorted({_architecture(entry.chain[0]) for entry in entries})
    policy = [
        Check("GPU count", len(entries) >= gpus, f"{len(entries)} of at least {gpus}"),
        Check("GPU architecture", set(present) <= set(architectures), ", ".join(present)),
    ]
    no_nonce = () if nonce is not None else ("freshness: no nonce was required",)
    return conclude(checks, policy, tee="nvidia", unchecked=UNCHECKED + no_nonce)


@dataclass(frozen=True)
class _Entry:
    claimed: str
    nonce: bytes
    chain: tuple[x509.Certificate, ...]
    report: GpuReport


def _entries(evidence: bytes) -> list[_Entry]:
    document = read_json(evidence, max_bytes=MAX_EVIDENCE_BYTES)
    if not isinstance(document, list) or not 1 <= len(document) <= MAX_GPUS:
        raise ValueError(f"not a list of 1 to {MAX_GPUS} GPUs")
    return [_entry(entry) for entry in document]


def _entry(entry: Any) -> _Entry:
    names = ("arch", "certificate", "evidence", "nonce")
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in names):
        raise ValueError(f"a GPU's entry lacks one of the texts {', '.join(names)}")
    if len(entry["certificate"]) > 2 * MAX_CHAIN_BYTES or len(entry["evidence"]) > 2 * MAX_REPORT_BYTES:
        raise ValueError("a GPU's entry is too large")
    try:
        chain = x509.load_pem_x509_certificates(b64decode(entry["certificate"], validate=True))
        report = parse_gpu_report(b64decode(entry["evidence"], validate=True))
        nonce = bytes.fromhex(entry["nonce"])
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
    return _Entry(entry["arch"], nonce, tuple(chain), report)


def _device_checks(entry: _Entry, name: str, root: x509.Certificate, at: int) -> list[Check]:
    device, report = entry.chain[0], entry.report
    fault = chain_fault(entry.chain, root, at)
    chip = f"{_common_name(device)}, driver {_text(report, DRIVER_VERSION)}, VBIOS {_vbios(report)}"
    signed = signature_holds(_public_key(device), report.signature, report.signed)
    certified = _certified_firmware(device)
    measured = report.opaque.get(FIRMWARE_ID)
    return [
        Check(f"{name} chain", not fault, fault or "leads to the pinned root"),
        Check(f"{name} signature", signed, chip if signed else "the report is not signed by this GPU"),
        Check(
            f"{name} firmware id",
            measured is not None and measured == certified,
            "as certified" if measured == certified else "differs from the certificate's",
        ),
        Check(f"{name} claims", *_claims(entry)),
    ]


def _claims(entry: _Entry) -> tuple[bool, str]:
    """Checks that the unsigned fields of the file agree with the signed report."""
    if entry.nonce != entry.report.nonce:
        return False, "the file's nonce is not the report's"
    if (actual := _architecture(entry.chain[0])) != entry.claimed:
        return False, f"the file says {entry.claimed[:16]!r}, the certificate {actual}"
    return True, actual


def _one_nonce(entries: list[_Entry], nonce: bytes | None) -> Check:
    nonces = {entry.report.nonce for entry in entries}
    if len(nonces) > 1:
        return Check("GPU nonce", False, "the reports are over different nonces")
    if nonce is not None and nonces != {nonce}:
        return Check("GPU nonce", False, "the reports are over another nonce")
    return Check("GPU nonce", True, "the same in all reports" if nonce is None else "as required")


def _distinct(entries: list[_Entry]) -> Check:
    keys = {_key_bytes(entry.chain[0]) for entry in entries}
    passed = len(keys) == len(entries)
    return Check("GPU identity", passed, "all distinct" if passed else "a GPU occurs twice")


def _public_key(certificate: x509.Certificate) -> object:
    try:
        return certificate.public_key()
    except CERTIFICATE_ERRORS:
        return None


def _key_bytes(certificate: x509.Certificate) -> bytes:
    try:
        return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except CERTIFICATE_ERRORS:
        return b""


def _certified_firmware(device: x509.Certificate) -> bytes | None:
    """Returns the first firmware id (a SHA-384) in the device certificate's DICE extension."""
    for oid in DICE_EXTENSIONS:
        try:
            value = device.extensions.get_extension_for_oid(oid).value
        except CERTIFICATE_ERRORS:
            continue
        raw = value.value if isinstance(value, x509.UnrecognizedExtension) else b""
        _, header, after = raw.partition(SHA384_DIGEST)
        if header and len(after) >= 48:
            return after[:48]
    return None


def _common_name(certificate: x509.Certificate) -> str:
    try:
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except CERTIFICATE_ERRORS:
        return ""
    return str(names[0].value)[:64] if names else ""


def _architecture(certificate: x509.Certificate) -> str:
    return CHIPS.get(_common_name(certificate)[:2], "unknown")


def _text(report: GpuReport, field: int) -> str:
    return report.opaque.get(field, b"unknown").rstrip(b"\0").decode("ascii", "replace")[:32]


def _vbios(report: GpuReport) -> str:
    raw = report.opaque.get(VBIOS_VERSION, b"")
    if len(raw) != 8:
        return "unknown"
    high, low = raw[:4][::-1], raw[4]
    return ".".join(f"{byte:02X}" for byte in (*high, low))


class _Reader:
    """Reads little-endian numbers and bytes from front to end; raises ValueError beyond the end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise ValueError("the report ends early")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def end(self) -> None:
        if self.left:
            raise ValueError("the report has more bytes than its fields")
