"""A straight chain of certificates from a device to a pinned root.

Vendors' device certificates are not web certificates (no server names, validity of decades), so the path rules of
RFC 5280 that apply to them are checked here; names and signatures are checked by `cryptography`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.x509.oid import ExtensionOID

MAX_CHAIN = 8
KNOWN_EXTENSIONS = {ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE}
"""Critical extensions that are understood; any other makes a certificate unusable (RFC 5280, section 4.2)."""

CERTIFICATE_ERRORS = (
    ValueError,
    TypeError,
    OverflowError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""Exceptions that `cryptography` raises for hostile certificates."""


class ChainFault(ValueError):
    """A chain that does not lead to its root, with the reason."""


def instant(at: int) -> datetime:
    """Converts a Unix second to a datetime in UTC. Raises ValueError for a time that datetime cannot hold."""
    try:
        return datetime.fromtimestamp(at, UTC)
    except (OverflowError, OSError) as error:
        raise ValueError(f"no such time: {at}") from error


def load_certificate(data: bytes) -> x509.Certificate:
    """Loads one certificate, DER or PEM. Raises one of CERTIFICATE_ERRORS."""
    if data.lstrip().startswith(b"-----BEGIN"):
        return x509.load_pem_x509_certificate(data)
    return x509.load_der_x509_certificate(data)


def chain_fault(chain: Sequence[x509.Certificate], root: x509.Certificate, at: int) -> str:
    """Returns the fault of `chain` (device first, root optional) against `root` at Unix second `at`; '' if none."""
    try:
        _check_chain(chain, root, instant(at))
    except ChainFault as fault:
        return str(fault)
    except CERTIFICATE_ERRORS as error:
        return f"a certificate cannot be checked: {type(error).__name__}: {error}"
    return ""


def signature_holds(key: object, signature: bytes, message: bytes) -> bool:
    """Returns True if `signature` (r || s, 96 bytes, big endian) is this P-384 key's over SHA-384 of `message`."""
    if (
        not isinstance(key, ec.EllipticCurvePublicKey)
        or not isinstance(key.curve, ec.SECP384R1)
        or len(signature) != 96
    ):
        return False
    r, s = int.from_bytes(signature[:48]), int.from_bytes(signature[48:])
    try:
        key.verify(utils.encode_dss_signature(r, s), message, ec.ECDSA(SHA384()))
    except InvalidSignature:
        return False
    return True


def p256_key(certificate: x509.Certificate) -> bytes:
    """Returns x || y of the certificate's key, 64 bytes. Raises ValueError for a key that is not on P-256."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("its key is not on P-256")
    numbers = key.public_numbers()
    return numbers.x.to_bytes(32) + numbers.y.to_bytes(32)


def _check_chain(chain: Sequence[x509.Certificate], root: x509.Certificate, moment: datetime) -> None:
    if not 1 <= len(chain) <= MAX_CHAIN:
        raise ChainFault(f"{len(chain)} certificates are no chain")
    below = chain[:-1] if chain[-1] == root else chain
    if not below or root in below:
        raise ChainFault("the pinned root is not at the end of the chain, or occurs twice")
    for depth, (subject, issuer) in enumerate(zip(below, [*below[1:], root], strict=True)):
        _check_link(subject, issuer, depth)
    for certificate in (*below, root):
        if not certificate.not_valid_before_utc <= moment <= certificate.not_valid_after_utc:
            raise ChainFault(f"{_name(certificate)} is not valid at {moment:%Y-%m-%d %H:%M:%S} UTC")


def _check_link(subject: x509.Certificate, issuer: x509.Certificate, depth: int) -> None:
    """Raises ChainFault unless `issuer` may sign, and did sign, `subject`, with `depth` certificates below it."""
    for certificate in (subject, issuer):
        if any(e.critical and e.oid not in KNOWN_EXTENSIONS for e in certificate.extensions):
            raise ChainFault(f"{_name(certificate)} has an unknown critical extension")
    constraints = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value
    usage = issuer.extensions.get_extension_for_class(x509.KeyUsage).value
    if not constraints.ca or not usage.key_cert_sign:
        raise ChainFault(f"{_name(issuer)} may not sign certificates")
    if constraints.path_length is not None and constraints.path_length < depth:
        raise ChainFault(f"{_name(issuer)} may not sign for so long a chain")
    try:
        subject.verify_directly_issued_by(issuer)
    except InvalidSignature as error:
        raise ChainFault(f"{_name(subject)} is not signed by {_name(issuer)}") from error
    except ValueError as error:
        raise ChainFault(f"{_name(subject)} does not name {_name(issuer)} as its issuer") from error


def _name(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string()[:80]
