"""Parses quotes of Intel TDX (versions 4 and 5) and SGX (version 3). Protocol section 11.

Layouts are those of Intel's DCAP quote library. Numbers are little endian. The signature covers the header and the
body (version 5: and the six bytes between them that name the body), nothing after it. Anyone can alter appended bytes,
the stated lengths and the outer certification type, so a quote must never be identified by the hash of its file.

```
header 48 | [v5: body type 2, body size 4] | body 384 (SGX), 584 (TDX 1.0), 648 (TDX 1.5) | length 4 |
signature 64 | attestation key 64 | [v4, v5: type 2, size 4] | QE report 384 | QE signature 64 |
auth size 2 | auth | certification type 2 | size 4 | PEM chain
```

Nothing here checks a signature: `attestation.verifier` and the registry do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

from eth_hash.auto import keccak

from earnest.attestation.formats.certificate import (
    Certificate,
    CertificateError,
    parse_certificate,
    pem_to_ders,
)
from earnest.protocol.attestation import KEY, Claims, QuoteParts, pck_hash, platform_hash

HEADER: Final = 48
SGX_BODY: Final = 384
"""Bytes of an SGX report body, and of a quoting enclave's report."""

TDX10_BODY: Final = 584
TDX15_BODY: Final = 648
MAX_PCK: Final = 1536
"""The registry's limit for a PCK certificate's signed part, in bytes; genuine ones have 1,080 to 1,180."""

MAX_QE_AUTH: Final = 128
"""The registry's limit for a quoting enclave's auth data, in bytes; Intel's has 32."""

SGX_TEE: Final = bytes.fromhex("00000000")
TDX_TEE: Final = bytes.fromhex("81000000")
ECDSA_P256: Final = 2
INTEL_QE: Final = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
PCK_CHAIN: Final = 5
"""Type of certification data: the PEM chain of the PCK certificate."""

MAX_QUOTE: Final = 1 << 16
"""Limit of a quote, in bytes. Genuine quotes have 4 to 5 KB."""

Tee = Literal["tdx", "sgx"]


class QuoteError(ValueError):
    """Bytes that are not a quote of a supported format, with the reason."""


class _Reader:
    """Reads a buffer from front to end, never beyond it."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, size: int, what: str) -> bytes:
        left = len(self.raw) - self.at
        if size > left:
            raise QuoteError(f"{what} needs {size} bytes at {self.at}, {left} are left")
        self.at += size
        return self.raw[self.at - size : self.at]

    def number(self, size: int, what: str) -> int:
        return int.from_bytes(self.take(size, what), "little")


@dataclass(frozen=True)
class QeReport:
    """The report of the enclave that certified the attestation key: an SGX report body, 384 bytes."""

    raw: bytes

    @property
    def attributes(self) -> bytes:
        """Flags 8 bytes, XFRM 8 bytes."""
        return self.raw[48:64]

    @property
    def debug(self) -> bool:
        return bool(self.raw[48] & 2)

    @property
    def mrenclave(self) -> bytes:
        return self.raw[64:96]

    @property
    def mrsigner(self) -> bytes:
        return self.raw[128:160]

    @property
    def product(self) -> int:
        return int.from_bytes(self.raw[256:258], "little")

    @property
    def svn(self) -> int:
        return int.from_bytes(self.raw[258:260], "little")

    @property
    def report_data(self) -> bytes:
        """64 bytes: SHA-256 of attestation key and auth data, then 32 zero bytes."""
        return self.raw[320:384]


@dataclass(frozen=True)
class Quote:
    """The parts of a quote, unverified."""

    version: int
    tee: Tee
    header: bytes
    """48 bytes."""

    body: bytes
    """TD report (584 or 648 bytes) or SGX report (384)."""

    signed: bytes
    """The part that the attestation key signs: header and body (version 5: and the six bytes between them)."""

    signature: bytes
    """r, s over `signed`."""

    attestation_key: bytes
    """x, y."""

    qe_report: bytes
    qe_signature: bytes
    """r, s over `qe_report`, by the PCK key."""

    qe_auth: bytes
    chain: bytes
    """PEM: PCK certificate, its CA, the root; all three unauthenticated until they are checked."""

    trailing: bytes
    """Bytes after the chain; they mean nothing."""

    @property
    def qe(self) -> QeReport:
        return QeReport(self.qe_report)

    @property
    def report_data(self) -> bytes:
        """64 bytes chosen by the enclave."""
        return self.body[320:384] if self.tee == "sgx" else self.body[520:584]

    @property
    def attributes(self) -> bytes:
        """TD attributes (8 bytes), or the enclave's flags and XFRM (16)."""
        return self.body[48:64] if self.tee == "sgx" else self.body[120:128]

    @property
    def debug(self) -> bool:
        """True if others may read the memory: any bit of a TD's TUD group, or the enclave's DEBUG flag."""
        return bool(self.attributes[0] & 2) if self.tee == "sgx" else self.attributes[0] != 0

    @property
    def sept_ve_disabled(self) -> bool:
        """Bit 28 of the TD attributes, without which the host can remove a TD's pages; True for SGX."""
        return self.tee == "sgx" or bool(self.attributes[3] & 0x10)

    @property
    def service_td(self) -> bytes:
        """Measurement of a bound service TD, 48 bytes; zero if the format has none."""
        return self.body[600:648] if len(self.body) == TDX15_BODY else bytes(48)

    @property
    def unmeasured(self) -> bytes:
        """Fields set by the host and left out of the workload id: MROWNER and MROWNERCONFIG, or CONFIGID and CONFIGSVN.

        Code could take its configuration from there, so the registry accepts only zero.
        """
        return self.body[192:256] + self.body[260:262] if self.tee == "sgx" else self.body[232:328]

    def measurements(self) -> dict[str, bytes]:
        """Returns every measured field by name, including those outside the workload id."""
        fields = _SGX_FIELDS if self.tee == "sgx" else _TDX_FIELDS
        values = {name: self.body[at : at + size] for name, (at, size) in fields.items()}
        if len(self.body) == TDX15_BODY:
            values |= {"tee_tcb_svn_2": self.body[584:600], "mr_service_td": self.service_td}
        return values

    def workload(self) -> bytes:
        """Returns the id of the code that runs, 32 bytes.

        keccak256 of the TEE type and, for TDX, TD attributes, XFAM, MRTD, config id, RTMR0, RTMR1, RTMR2; for SGX,
        attributes, MRENCLAVE, MRSIGNER, product, SVN; all as in the body. RTMR3 is checked by the event log.
        """
        body = self.body
        if self.tee == "sgx":
            return keccak(SGX_TEE + body[48:64] + body[64:96] + body[128:160] + body[256:260])
        return keccak(TDX_TEE + body[120:232] + body[328:472])


_TDX_FIELDS: Final = {
    "tee_tcb_svn": (0, 16),
    "mr_seam": (16, 48),
    "mr_signer_seam": (64, 48),
    "seam_attributes": (112, 8),
    "td_attributes": (120, 8),
    "xfam": (128, 8),
    "mrtd": (136, 48),
    "mr_config_id": (184, 48),
    "mr_owner": (232, 48),
    "mr_owner_config": (280, 48),
    "rtmr0": (328, 48),
    "rtmr1": (376, 48),
    "rtmr2": (424, 48),
    "rtmr3": (472, 48),
}

_SGX_FIELDS: Final = {
    "cpu_svn": (0, 16),
    "attributes": (48, 16),
    "mrenclave": (64, 32),
    "mrsigner": (128, 32),
    "config_id": (192, 64),
    "product": (256, 2),
    "svn": (258, 2),
    "config_svn": (260, 2),
}


def parse_quote(raw: bytes) -> Quote:
    """Parses a quote. Raises QuoteError for anything but a TDX v4, TDX v5 or SGX v3 quote with a PCK chain."""
    if len(raw) > MAX_QUOTE:
        raise QuoteError(f"{len(raw)} bytes exceed a quote's limit of {MAX_QUOTE}")
    reader = _Reader(raw)
    header = reader.take(HEADER, "the header")
    version, tee = _kind(header)
    body = _body(reader, version, tee)
    signed = raw[: reader.at]
    reader.take(4, "the signature's length")  # not signed, so not used
    signature = reader.take(KEY, "the signature")
    attestation_key = reader.take(KEY, "the attestation key")
    if version != 3:
        reader.take(6, "the certification data's type and size")  # not signed either
    qe_report = reader.take(SGX_BODY, "the QE report")
    qe_signature = reader.take(KEY, "the QE signature")
    qe_auth = reader.take(reader.number(2, "the auth data's size"), "the auth data")
    if (kind := reader.number(2, "the certification type")) != PCK_CHAIN:
        raise QuoteError(
            f"certification data of type {kind}: only {PCK_CHAIN} carries the PCK certificate chain"
        )
    chain = reader.take(reader.number(4, "the chain's size"), "the certificate chain")
    return Quote(
        version=version,
        tee=tee,
        header=header,
        body=body,
        signed=signed,
        signature=signature,
        attestation_key=attestation_key,
        qe_report=qe_report,
        qe_signature=qe_signature,
        qe_auth=qe_auth,
        chain=chain.rstrip(b"\0"),
        trailing=raw[reader.at :],
    )


def _kind(header: bytes) -> tuple[int, Tee]:
    version = int.from_bytes(header[:2], "little")
    key_type = int.from_bytes(header[2:4], "little")
    if version not in (3, 4, 5):
        raise QuoteError(f"version {version} is not supported")
    if key_type != ECDSA_P256:
        raise QuoteError(f"attestation key type {key_type} is not ECDSA P-256")
    if header[12:28] != INTEL_QE:
        raise QuoteError("the quoting enclave's vendor is not Intel")
    tee = header[4:8]
    if version == 3 and tee == SGX_TEE:
        return version, "sgx"
    if version in (4, 5) and tee == TDX_TEE:
        return version, "tdx"
    raise QuoteError(f"TEE type {tee.hex()} in version {version} is not supported")


def _body(reader: _Reader, version: int, tee: Tee) -> bytes:
    if tee == "sgx":
        return reader.take(SGX_BODY, "the SGX report")
    if version == 4:
        return reader.take(TDX10_BODY, "the TD report")
    kind, size = reader.number(2, "the body's type"), reader.number(4, "the body's size")
    if (kind, size) not in ((2, TDX10_BODY), (3, TDX15_BODY)):
        raise QuoteError(f"body of type {kind} and {size} bytes is no TD report")
    return reader.take(size, "the TD report")


def claims(quote: Quote) -> Claims:
    """Returns the claims that the registry reads from the quote. Raises QuoteError without a usable PCK certificate."""
    pck, _ = pck_chain(quote)
    assert pck.ppid is not None
    return Claims(
        workload=quote.workload(),
        platform=platform_hash(pck.ppid),
        pck=pck_hash(pck.public_key),
        quote=sha256(quote.signed).digest(),
        binding=quote.report_data[:32],
        extra=quote.report_data[32:],
    )


def pck_chain(quote: Quote) -> tuple[Certificate, Certificate]:
    """Returns the PCK certificate of a quote and that of its CA. Raises QuoteError if they are not usable."""
    try:
        ders = pem_to_ders(quote.chain)
        if len(ders) < 2:
            raise CertificateError("the CA's certificate is missing")
        pck, issuer = parse_certificate(ders[0]), parse_certificate(ders[1])
    except CertificateError as error:
        raise QuoteError(f"PCK certificate chain: {error}") from error
    if pck.ppid is None:
        raise QuoteError("PCK certificate chain: the first certificate has no PPID")
    return pck, issuer


def quote_calldata(quote: Quote, pck_cas: Sequence[bytes]) -> QuoteParts:
    """Returns a quote as calldata of `register` and `check_quote`. `pck_cas` are the policy's. Raises QuoteError."""
    pck, issuer = pck_chain(quote)
    if issuer.public_key not in pck_cas:
        raise QuoteError("the CA of the PCK certificate is not one of the policy's")
    if len(pck.tbs) > MAX_PCK or len(quote.qe_auth) > MAX_QE_AUTH:
        raise QuoteError(
            f"the registry accepts at most {MAX_PCK} bytes of a PCK certificate, {MAX_QE_AUTH} of auth data"
        )
    return QuoteParts(
        ca=list(pck_cas).index(issuer.public_key),
        key_at=pck.key_at,
        ppid_at=pck.ppid_at,
        pck=pck.tbs,
        pck_signature=pck.signature_bytes,
        qe_report=quote.qe_report,
        qe_signature=quote.qe_signature,
        qe_auth=quote.qe_auth,
        attestation_key=quote.attestation_key,
        quote=quote.signed,
        quote_signature=quote.signature,
    )
