"""Root certificates by id, and what to call them: nobody reads 32 bytes."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from earnest.base.errors import EarnestError
from earnest.protocol import attestation
from earnest.protocol.attestation import INTEL_ROOT_KEY

INTEL_ROOT_ID = attestation.root_id(INTEL_ROOT_KEY)
"""Of Intel's SGX Root CA, which certifies SGX and TDX."""

SIMULATED_ROOT_ID = bytes.fromhex("2fae80e6e58640e6aeab6aa7c48437ef1f0cacf23e240e1a6a6c298979af9c5f")
"""Of the simulated vendor that everyone shares (`simulated.DEFAULT_SEED`)."""

INTEL_NAME = "Intel SGX Root CA"
SIMULATED_NAME = "SIMULATED - NOT A TEE"
UNKNOWN_NAME = "unknown root, not Intel's"
NAMES = {INTEL_ROOT_ID: INTEL_NAME, SIMULATED_ROOT_ID: SIMULATED_NAME}


class RootError(EarnestError):
    """A file that is not one root certificate."""


def root_name(root_id: bytes) -> str:
    """What to show for a root id. Any root that is neither Intel's nor the shared simulated one is unknown."""
    return NAMES.get(root_id, UNKNOWN_NAME)


def root_id(certificate: bytes) -> bytes:
    """The id of a root certificate, PEM or DER: keccak256 of its P-256 public key, x then y. Raises RootError."""
    try:
        loaded = (
            x509.load_pem_x509_certificate(certificate)
            if b"-----BEGIN" in certificate
            else x509.load_der_x509_certificate(certificate)
        )
        key = loaded.public_key()
    except ValueError as error:
        raise RootError("that is not a certificate", "give one root certificate, PEM or DER") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RootError("the root's key is not on P-256", "give the root that certifies the platform")
    return attestation.root_id(key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)[1:])
