"""Certificate chains made for a test, device first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

START = 1_700_000_000
END = 1_900_000_000
NOW = 1_800_000_000


@cache
def key(label: str) -> ec.EllipticCurvePrivateKey:
    """The P-384 key with this label."""
    return ec.derive_private_key(int.from_bytes(label.encode() * 3) % 2**380 + 1, ec.SECP384R1())


@cache
def rsa_key(label: str) -> rsa.RSAPrivateKey:
    """An RSA key, made anew in each run; `label` tells several apart."""
    return rsa.generate_private_key(65537, 2048)


def raw_signature(signer: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """r || s over SHA-384, 96 bytes."""
    algorithm = ec.ECDSA(hashes.SHA384(), deterministic_signing=True)
    r, s = utils.decode_dss_signature(signer.sign(message, algorithm))
    return r.to_bytes(48) + s.to_bytes(48)


@dataclass(frozen=True)
class Issued:
    """What a certificate says; the defaults are those of a proper authority."""

    name: str
    authority: bool = True
    path_length: int | None = None
    key_cert_sign: bool = True
    begins: int = START
    ends: int = END
    extensions: Sequence[tuple[str, bytes, bool]] = field(default=())
    """(OID, value, critical)."""


def issue(subject: Issued, issuer: str, holder: Any = None, signer: Any = None) -> x509.Certificate:
    """A certificate for `holder` (default: the key of the subject's name), by `signer` (of the issuer's)."""
    holder, signer = holder or key(subject.name), signer or key(issuer)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject.name))
        .issuer_name(_name(issuer))
        .public_key(holder.public_key())
        .serial_number(int.from_bytes(subject.name.encode()[:16]) | 1)
        .not_valid_before(datetime.fromtimestamp(subject.begins, UTC))
        .not_valid_after(datetime.fromtimestamp(subject.ends, UTC))
        .add_extension(x509.BasicConstraints(subject.authority, subject.path_length), critical=True)
        .add_extension(_usage(subject.key_cert_sign and subject.authority), critical=True)
    )
    for oid, value, critical in subject.extensions:
        builder = builder.add_extension(
            x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), value), critical=critical
        )
    if isinstance(signer, rsa.RSAPrivateKey):
        pss = padding.PSS(padding.MGF1(hashes.SHA384()), 48)
        return builder.sign(signer, hashes.SHA384(), rsa_padding=pss)
    return builder.sign(signer, hashes.SHA384(), ecdsa_deterministic=True)


def chain(*path: Issued) -> list[x509.Certificate]:
    """Certificates of `path`, device first; the last signs itself."""
    issuers = [*path[1:], path[-1]]
    return [issue(subject, issuer.name) for subject, issuer in zip(path, issuers, strict=True)]


def pem(certificates: Sequence[x509.Certificate]) -> bytes:
    """A PEM chain."""
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(signs: bool) -> x509.KeyUsage:
    names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    rest = dict.fromkeys((*names, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **rest)
