"""SIMULATED attestation, for development: a vendor, its platforms and their quotes, made by software.

NOT A TEE. Nothing here protects anything: whoever knows the seed can make any quote. Formats, signatures and collateral
are as on hardware, so the same code verifies them; only the root differs, and each registered key records its root id.

Layout of quotes: Intel TDX DCAP Quoting Library API 0.8 (A.3 and A.4) and SGX ECDSA QuoteGenReference (A.4);
of certificates: SGX PCK Certificate and CRL Profile 1.5; of collateral: PCS API v4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256, sha384, sha512
from struct import pack
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID
from eth_hash.auto import keccak

from earnest.attestation.formats.collateral import canonical_collateral
from earnest.attestation.formats.quote import parse_quote
from earnest.attestation.prover.attester import REPORT_DATA_BYTES, Quoted, check_report_data
from earnest.base.strict_json import write_json

SIMULATED = "SIMULATED - NOT A TEE"
"""The organisation in every certificate's name."""

DEFAULT_SEED = b"earnest/simulated-attester/v1"
"""Seed of the shared simulated vendor, whose root id is well known (`roots.SIMULATED_ROOT_ID`)."""

Tee = Literal["tdx", "sgx"]
QuoteKind = Literal["tdx4", "tdx5", "sgx3"]
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
MADE = 1_577_836_800  # 2020-01-01: before the embedded chain's first block
LASTS = 2_208_988_800  # 2040-01-01
DAY = 86_400

FMSPC = b"SIM\x00\x00\x01"
PCE_ID = bytes(2)
CPU_SVN = bytes((3, 3, 2, 2, 4, 1, 0, 5)) + bytes(8)
PCE_SVN = 11
TEE_TCB_SVN = bytes((5, 1, 2)) + bytes(13)
"""TDX module 1 (TDX_01) with security version 5, loader version 2."""

QE_VENDOR = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
QE_SVN = 4
QE_ATTRIBUTES = bytes.fromhex("11000000000000000000000000000000")
QE_PRODUCT = {"tdx": 2, "sgx": 1}
SEPT_VE_DISABLE = 1 << 28
DEBUG_TD = 1
DEBUG_ENCLAVE = 2
XFAM = bytes.fromhex("e702060000000000")
DICE_BYTES = 20
SGX_EXTENSION = "1.2.840.113741.1.13.1"
CODE_EVENT = "SIMULATED-code"


class SimulatedVendor:
    """A simulated vendor: root, platform CA, TCB signer, all derived from `seed`. Equal seeds give equal bytes.

    Its certificates are valid from `made` - 30 days to `lasts` (Unix seconds).
    """

    def __init__(self, seed: bytes = DEFAULT_SEED, *, made: int = MADE, lasts: int = LASTS) -> None:
        self.seed, self.made, self.lasts = seed, made, lasts
        self.root_key, self.ca_key = self.key("root"), self.key("pck platform ca")
        self.signer_key = self.key("tcb signing")
        self.root = self._certify("root", "SIMULATED Root CA", self.root_key, path_length=1)
        self.ca = self._certify("ca", "SIMULATED PCK Platform CA", self.ca_key, path_length=0)
        self.signer = self._certify("signer", "SIMULATED TCB Signing", self.signer_key)

    @property
    def root_id(self) -> bytes:
        """keccak256 of the root's public key, x then y."""
        return keccak(raw_public(self.root_key))

    @property
    def root_der(self) -> bytes:
        return self.root.public_bytes(Encoding.DER)

    @property
    def root_pem(self) -> bytes:
        return self.root.public_bytes(Encoding.PEM)

    @property
    def ca_public(self) -> bytes:
        """Public key of the CA that certifies platforms: x then y, 64 bytes."""
        return raw_public(self.ca_key)

    @property
    def qe_signer(self) -> bytes:
        """MRSIGNER of the quoting enclave."""
        return sha256(b"SIMULATED qe signer" + self.seed).digest()

    def key(self, label: str) -> ec.EllipticCurvePrivateKey:
        """Returns the P-256 key with this label."""
        number = int.from_bytes(sha512(f"SIMULATED {label}".encode() + b"\0" + self.seed).digest())
        return ec.derive_private_key(number % (P256_ORDER - 1) + 1, ec.SECP256R1())

    def platform_certificate(self, platform: int) -> x509.Certificate:
        """Returns the PCK certificate of one platform, with Intel's SGX extension."""
        extension = x509.UnrecognizedExtension(
            x509.ObjectIdentifier(SGX_EXTENSION), _sgx_extension(self.ppid(platform))
        )
        key = self.key(f"pck {platform}")
        return self._certify(f"pck {platform}", "SIMULATED PCK Certificate", key, extra=extension)

    def ppid(self, platform: int) -> bytes:
        """Returns the platform's provisioning id, 16 bytes."""
        return sha256(b"SIMULATED ppid %d" % platform + self.seed).digest()[:16]

    def collateral(
        self,
        tee: Tee = "tdx",
        *,
        status: str = "UpToDate",
        qe_status: str = "UpToDate",
        advisories: Sequence[str] = (),
        evaluation: int = 100,
        issued: int | None = None,
        expires: int | None = None,
        tcb_date: int | None = None,
        least_svn: int = CPU_SVN[0],
        revoked_platforms: Sequence[int] = (),
        revoke_signer: bool = False,
    ) -> bytes:
        """Returns signed collateral for this vendor's quotes, in canonical form.

        `least_svn` is the SVN of the first CPU component that the only TCB level requires: with one above the
        platforms' own, no level matches. Times are Unix seconds.
        """
        issued, expires = self.made if issued is None else issued, self.lasts if expires is None else expires
        window = {"issueDate": _iso(issued), "nextUpdate": _iso(expires)}
        tcb_date = self.made if tcb_date is None else tcb_date
        tcb_info = _compact(_tcb_info(tee, window, evaluation, status, advisories, tcb_date, least_svn))
        identity = _compact(_qe_identity(tee, window, evaluation, qe_status, tcb_date, self.qe_signer))
        signers = _pem([self.signer, self.root])
        pcks = [self.platform_certificate(platform) for platform in revoked_platforms]
        return canonical_collateral(
            write_json(
                {
                    "pck_crl_issuer_chain": _pem([self.ca, self.root]),
                    "root_ca_crl": self._crl(
                        self.root, self.root_key, issued, expires, [self.signer] * revoke_signer
                    ),
                    "pck_crl": self._crl(self.ca, self.ca_key, issued, expires, pcks),
                    "tcb_info_issuer_chain": signers,
                    "tcb_info": tcb_info,
                    "tcb_info_signature": raw_signature(self.signer_key, tcb_info.encode()).hex(),
                    "qe_identity_issuer_chain": signers,
                    "qe_identity": identity,
                    "qe_identity_signature": raw_signature(self.signer_key, identity.encode()).hex(),
                }
            )
        )

    def _certify(
        self,
        label: str,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        *,
        path_length: int | None = None,
        extra: x509.UnrecognizedExtension | None = None,
    ) -> x509.Certificate:
        issuer, issuer_key = _name("SIMULATED Root CA"), self.root_key
        if extra is not None:
            issuer, issuer_key = _name("SIMULATED PCK Platform CA"), self.ca_key
        is_ca = path_length is not None
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(int.from_bytes(sha256(label.encode() + self.seed).digest()[:19]) | 1)
            .not_valid_before(_time(self.made - 30 * DAY))
            .not_valid_after(_time(self.lasts))
            .add_extension(x509.BasicConstraints(is_ca, path_length), critical=True)
            .add_extension(_usage(is_ca), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
            )
        )
        if extra is not None:
            builder = builder.add_extension(extra, critical=False)
        return builder.sign(issuer_key, hashes.SHA256(), ecdsa_deterministic=True)

    def _crl(
        self,
        issuer: x509.Certificate,
        key: ec.EllipticCurvePrivateKey,
        issued: int,
        expires: int,
        revoked: Sequence[x509.Certificate],
    ) -> str:
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(issuer.subject)
            .last_update(_time(issued))
            .next_update(_time(expires))
            .add_extension(x509.CRLNumber(1), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
            )
        )
        for certificate in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(_time(issued)).build())
        crl = builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True)
        return crl.public_bytes(Encoding.DER).hex()


@dataclass(frozen=True)
class SimulatedAttester:
    """One simulated platform of `vendor` that runs `code`: any bytes, measured as if they were the image.

    Another `code` gives another workload id, another `platform` another platform id. `collateral` is returned with
    each quote (default: the vendor's for an up-to-date platform).
    """

    vendor: SimulatedVendor = field(default_factory=SimulatedVendor)
    code: bytes = b""
    platform: int = 0
    format: QuoteKind = "tdx4"
    debug: bool = False
    collateral: bytes | None = None

    @property
    def kind(self) -> str:
        return "simulated"

    @property
    def root_id(self) -> bytes:
        return self.vendor.root_id

    @property
    def tee(self) -> Tee:
        return "sgx" if self.format == "sgx3" else "tdx"

    @property
    def workload(self) -> bytes:
        """Workload id of the code."""
        return parse_quote(self._quote(bytes(REPORT_DATA_BYTES))).workload()

    def quote(self, report_data: bytes) -> Quoted:
        """Returns a SIMULATED quote over 64 bytes, its collateral and, for TDX, an event log that replays."""
        check_report_data(report_data)
        event_log = None if self.tee == "sgx" else write_json(self._events())
        return Quoted(
            self._quote(report_data), event_log, self.collateral or self.vendor.collateral(self.tee)
        )

    # The quote

    def _quote(self, report_data: bytes) -> bytes:
        if self.tee == "sgx":
            header = pack("<HHIHH", 3, 2, 0, QE_SVN, PCE_SVN) + QE_VENDOR + bytes(DICE_BYTES)
            signed = header + self._enclave_report(report_data)
            return signed + _with_length(self._signature(signed) + self._certification)
        version = 5 if self.format == "tdx5" else 4
        header = pack("<HHIHH", version, 2, 0x81, 0, 0) + QE_VENDOR + bytes(DICE_BYTES)
        body = self._td_report(report_data)
        if version == 5:
            body += TEE_TCB_SVN + bytes(48)  # TD report 1.5: a second TCB SVN, MRSERVICETD
            header += pack("<HI", 3, len(body))
        signed = header + body
        return signed + _with_length(
            self._signature(signed) + pack("<H", 6) + _with_length(self._certification)
        )

    def _signature(self, signed: bytes) -> bytes:
        key = self._quoting_key
        return raw_signature(key, signed) + raw_public(key)

    @cached_property
    def _quoting_key(self) -> ec.EllipticCurvePrivateKey:
        return self.vendor.key(f"quoting {self.tee} {self.platform}")

    @cached_property
    def _certification(self) -> bytes:
        """Returns the quoting enclave's report over the quoting key, the PCK key's signature over it, and the chain."""
        authentication = bytes(range(32))
        report_data = sha256(raw_public(self._quoting_key) + authentication).digest() + bytes(32)
        report = _report(
            QE_ATTRIBUTES,
            bytes(32),
            self.vendor.qe_signer,
            QE_PRODUCT[self.tee],
            QE_SVN,
            report_data=report_data,
        )
        signature = raw_signature(self.vendor.key(f"pck {self.platform}"), report)
        chain = _pem(
            [self.vendor.platform_certificate(self.platform), self.vendor.ca, self.vendor.root]
        ).encode()
        return (
            report
            + signature
            + pack("<H", len(authentication))
            + authentication
            + pack("<H", 5)
            + _with_length(chain)
        )

    # Measurements

    def _td_report(self, report_data: bytes) -> bytes:
        attributes = SEPT_VE_DISABLE | (DEBUG_TD if self.debug else 0)
        zero = bytes(48)
        return b"".join(
            (
                TEE_TCB_SVN,
                zero,  # MRSEAM: the TDX module; not checked if its signer is Intel's, which is zero
                zero,  # MRSIGNERSEAM
                bytes(8),  # SEAM attributes
                pack("<Q", attributes),
                XFAM,
                sha384(b"SIMULATED mrtd" + self.code).digest(),
                zero,  # MRCONFIGID
                zero,  # MROWNER
                zero,  # MROWNERCONFIG
                *self._registers(),
                report_data,
            )
        )

    def _enclave_report(self, report_data: bytes) -> bytes:
        attributes = pack("<QQ", 5 | (DEBUG_ENCLAVE if self.debug else 0), 0xE7)
        measurement = sha256(b"SIMULATED mrenclave" + self.code).digest()
        signer = sha256(b"SIMULATED mrsigner").digest()
        return _report(attributes, measurement, signer, 0, 0, report_data=report_data)

    def _events(self) -> list[dict[str, object]]:
        """Returns one event per register; the last one measures the code."""
        payloads = (b"firmware", b"kernel", b"system", self.code)
        return [
            {
                "imr": index,
                "event_type": RUNTIME_EVENT,
                "digest": sha384(
                    pack("<I", RUNTIME_EVENT) + b":" + CODE_EVENT.encode() + b":" + payload
                ).hexdigest(),
                "event": CODE_EVENT,
                "event_payload": payload.hex(),
            }
            for index, payload in enumerate(payloads)
        ]

    def _registers(self) -> list[bytes]:
        return [sha384(bytes(48) + bytes.fromhex(str(event["digest"]))).digest() for event in self._events()]


RUNTIME_EVENT = 0x08000001
"""Type of events measured after boot, as in dstack."""


def raw_public(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns the public key: x then y, 64 bytes."""
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)[1:]


def raw_signature(key: ec.EllipticCurvePrivateKey, content: bytes) -> bytes:
    """Signs with ECDSA over SHA-256, deterministically (RFC 6979). Returns r then s, 64 bytes; s may be high."""
    r, s = decode_dss_signature(key.sign(content, ec.ECDSA(hashes.SHA256(), deterministic_signing=True)))
    return r.to_bytes(32) + s.to_bytes(32)


def _report(
    attributes: bytes, measurement: bytes, signer: bytes, product: int, svn: int, *, report_data: bytes
) -> bytes:
    """Returns an SGX report body, 384 bytes."""
    return b"".join(
        (
            CPU_SVN,
            bytes(4 + 28),  # MISCSELECT, reserved
            attributes,
            measurement,
            bytes(32),
            signer,
            bytes(96),
            pack("<HH", product, svn),
            bytes(60),
            report_data,
        )
    )


def _tcb_info(
    tee: Tee,
    window: dict[str, str],
    evaluation: int,
    status: str,
    advisories: Sequence[str],
    tcb_date: int,
    least_svn: int,
) -> dict[str, object]:
    level = {"tcbDate": _iso(tcb_date), "tcbStatus": status}
    if advisories:
        level["advisoryIDs"] = list(advisories)  # type: ignore[assignment]
    components = [{"svn": svn} for svn in (least_svn, *CPU_SVN[1:])]
    tcb: dict[str, object] = {"sgxtcbcomponents": components, "pcesvn": PCE_SVN}
    info: dict[str, object] = {
        "id": "TDX" if tee == "tdx" else "SGX",
        "version": 3,
        **window,
        "fmspc": FMSPC.hex().upper(),
        "pceId": PCE_ID.hex(),
        "tcbType": 0,
        "tcbEvaluationDataNumber": evaluation,
    }
    if tee == "tdx":
        # The module's version is checked by its identity, so the level requires zero there.
        tcb["tdxtcbcomponents"] = [{"svn": svn} for svn in (TEE_TCB_SVN[0], 0, *TEE_TCB_SVN[2:])]
        module = {"mrsigner": "00" * 48, "attributes": "00" * 8, "attributesMask": "FF" * 8}
        own = {"tcb": {"isvsvn": TEE_TCB_SVN[0]}, "tcbDate": _iso(tcb_date), "tcbStatus": "UpToDate"}
        info["tdxModule"] = module
        info["tdxModuleIdentities"] = [{"id": "TDX_01", **module, "tcbLevels": [own]}]
    info["tcbLevels"] = [{"tcb": tcb, **level}]
    return info


def _qe_identity(
    tee: Tee, window: dict[str, str], evaluation: int, status: str, tcb_date: int, signer: bytes
) -> dict[str, object]:
    return {
        "id": "TD_QE" if tee == "tdx" else "QE",
        "version": 2,
        **window,
        "tcbEvaluationDataNumber": evaluation,
        "miscselect": "00000000",
        "miscselectMask": "FFFFFFFF",
        "attributes": QE_ATTRIBUTES.hex().upper(),
        "attributesMask": "FBFFFFFFFFFFFFFF0000000000000000",
        "mrsigner": signer.hex().upper(),
        "isvprodid": QE_PRODUCT[tee],
        "tcbLevels": [{"tcb": {"isvsvn": QE_SVN}, "tcbDate": _iso(tcb_date), "tcbStatus": status}],
    }


# DER, only what the SGX extension needs


def _sgx_extension(ppid: bytes) -> bytes:
    """Encodes PPID, TCB, PCE id, family, type and configuration of a platform, as in a PCK certificate."""

    def entry(path: Sequence[int], value: bytes) -> bytes:
        # 1.2.840.113741.1.13.1 in DER, then the path below it.
        oid = bytes.fromhex("2a864886f84d010d01") + bytes(path)
        return _der(0x30, _der(0x06, oid) + value)

    def number(value: int) -> bytes:
        return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1))

    svns = [entry((2, i + 1), number(svn)) for i, svn in enumerate(CPU_SVN)]
    tcb = b"".join((*svns, entry((2, 17), number(PCE_SVN)), entry((2, 18), _der(0x04, CPU_SVN))))
    yes = _der(0x01, b"\xff")  # dynamic platform, cached keys, SMT: true on every TDX machine
    return _der(
        0x30,
        b"".join(
            (
                entry((1,), _der(0x04, ppid)),
                entry((2,), _der(0x30, tcb)),
                entry((3,), _der(0x04, PCE_ID)),
                entry((4,), _der(0x04, FMSPC)),
                entry((5,), _der(0x0A, b"\x01")),
                entry((6,), _der(0x04, sha256(b"SIMULATED instance" + ppid).digest()[:16])),
                entry((7,), _der(0x30, b"".join(entry((7, i), yes) for i in (1, 2, 3)))),
            )
        ),
    )


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(length))) + length + content


def _with_length(content: bytes) -> bytes:
    return pack("<I", len(content)) + content


def _name(common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, common),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, SIMULATED),
        ]
    )


def _usage(is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=not is_ca,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificates: Sequence[x509.Certificate]) -> str:
    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)


def _compact(document: dict[str, object]) -> str:
    return write_json(document).decode()


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _iso(seconds: int) -> str:
    return _time(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")
