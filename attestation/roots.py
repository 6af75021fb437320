"""Vendors' root certificates, their ids and names. A run's policy says which root it accepts."""

from __future__ import annotations

from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from earnest.base.errors import EarnestError
from earnest.protocol import attestation
from earnest.protocol.attestation import INTEL_ROOT_KEY

INTEL_ROOT_ID = attestation.root_id(INTEL_ROOT_KEY)
"""Id of Intel's SGX Root CA, which certifies SGX and TDX."""

SIMULATED_ROOT_ID = bytes.fromhex("2fae80e6e58640e6aeab6aa7c48437ef1f0cacf23e240e1a6a6c298979af9c5f")
"""Id of the shared simulated vendor's root (`simulated.DEFAULT_SEED`)."""

INTEL_NAME = "Intel SGX Root CA"
SIMULATED_NAME = "SIMULATED - NOT A TEE"
UNKNOWN_NAME = "unknown root, not Intel's"
NAMES = {INTEL_ROOT_ID: INTEL_NAME, SIMULATED_ROOT_ID: SIMULATED_NAME}


INTEL_SGX_ROOT_CA: Final = b"""\
-----BEGIN CERTIFICATE-----
MIICjzCCAjSgAwIBAgIUImUM1lqdNInzg7SVUr9QGzknBqwwCgYIKoZIzj0EAwIw
aDEaMBgGA1UEAwwRSW50ZWwgU0dYIFJvb3QgQ0ExGjAYBgNVBAoMEUludGVsIENv
cnBvcmF0aW9uMRQwEgYDVQQHDAtTYW50YSBDbGFyYTELMAkGA1UECAwCQ0ExCzAJ
BgNVBAYTAlVTMB4XDTE4MDUyMTEwNDUxMFoXDTQ5MTIzMTIzNTk1OVowaDEaMBgG
A1UEAwwRSW50ZWwgU0dYIFJvb3QgQ0ExGjAYBgNVBAoMEUludGVsIENvcnBvcmF0
aW9uMRQwEgYDVQQHDAtTYW50YSBDbGFyYTELMAkGA1UECAwCQ0ExCzAJBgNVBAYT
AlVTMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEC6nEwMDIYZOj/iPWsCzaEKi7
1OiOSLRFhWGjbnBVJfVnkY4u3IjkDYYL0MxO4mqsyYjlBalTVYxFP2sJBK5zlKOB
uzCBuDAfBgNVHSMEGDAWgBQiZQzWWp00ifODtJVSv1AbOScGrDBSBgNVHR8ESzBJ
MEegRaBDhkFodHRwczovL2NlcnRpZmljYXRlcy50cnVzdGVkc2VydmljZXMuaW50
ZWwuY29tL0ludGVsU0dYUm9vdENBLmRlcjAdBgNVHQ4EFgQUImUM1lqdNInzg7SV
Ur9QGzknBqwwDgYDVR0PAQH/BAQDAgEGMBIGA1UdEwEB/wQIMAYBAf8CAQEwCgYI
KoZIzj0EAwIDSQAwRgIhAOW/5QkR+S9CiSDcNoowLuPRLsWGf/Yi7GSX94BgwTwg
AiEA4J0lrHoMs+Xo5o/sX6O9QWxHRAvZUGOdRQ7cvqRXaqI=
-----END CERTIFICATE-----
"""

NVIDIA_DEVICE_IDENTITY_CA: Final = b"""\
-----BEGIN CERTIFICATE-----
MIICCzCCAZCgAwIBAgIQLTZwscoQBBHB/sDoKgZbVDAKBggqhkjOPQQDAzA1MSIw
IAYDVQQDDBlOVklESUEgRGV2aWNlIElkZW50aXR5IENBMQ8wDQYDVQQKDAZOVklE
SUEwIBcNMjExMTA1MDAwMDAwWhgPOTk5OTEyMzEyMzU5NTlaMDUxIjAgBgNVBAMM
GU5WSURJQSBEZXZpY2UgSWRlbnRpdHkgQ0ExDzANBgNVBAoMBk5WSURJQTB2MBAG
ByqGSM49AgEGBSuBBAAiA2IABA5MFKM7+KViZljbQSlgfky/RRnEQScW9NDZF8SX
gAW96r6u/Ve8ZggtcYpPi2BS4VFu6KfEIrhN6FcHG7WP05W+oM+hxj7nyA1r1jkB
2Ry70YfThX3Ba1zOryOP+MJ9vaNjMGEwDwYDVR0TAQH/BAUwAwEB/zAOBgNVHQ8B
Af8EBAMCAQYwHQYDVR0OBBYEFFeF/4PyY8xlfWi3Olv0jUrL+0lfMB8GA1UdIwQY
MBaAFFeF/4PyY8xlfWi3Olv0jUrL+0lfMAoGCCqGSM49BAMDA2kAMGYCMQCPeFM3
TASsKQVaT+8S0sO9u97PVGCpE9d/I42IT7k3UUOLSR/qvJynVOD1vQKVXf0CMQC+
EY55WYoDBvs2wPAH1Gw4LbcwUN8QCff8bFmV4ZxjCRr4WXTLFHBKjbfneGSBWwA=
-----END CERTIFICATE-----
"""

AWS_NITRO_ENCLAVES_ROOT_G1: Final = b"""\
-----BEGIN CERTIFICATE-----
MIICETCCAZagAwIBAgIRAPkxdWgbkK/hHUbMtOTn+FYwCgYIKoZIzj0EAwMwSTEL
MAkGA1UEBhMCVVMxDzANBgNVBAoMBkFtYXpvbjEMMAoGA1UECwwDQVdTMRswGQYD
VQQDDBJhd3Mubml0cm8tZW5jbGF2ZXMwHhcNMTkxMDI4MTMyODA1WhcNNDkxMDI4
MTQyODA1WjBJMQswCQYDVQQGEwJVUzEPMA0GA1UECgwGQW1hem9uMQwwCgYDVQQL
DANBV1MxGzAZBgNVBAMMEmF3cy5uaXRyby1lbmNsYXZlczB2MBAGByqGSM49AgEG
BSuBBAAiA2IABPwCVOumCMHzaHDimtqQvkY4MpJzbolL//Zy2YlES1BR5TSksfbb
48C8WBoyt7F2Bw7eEtaaP+ohG2bnUs990d0JX28TcPQXCEPZ3BABIeTPYwEoCWZE
h8l5YoQwTcU/9KNCMEAwDwYDVR0TAQH/BAUwAwEB/zAdBgNVHQ4EFgQUkCW1DdkF
R+eWw5b6cp3PmanfS5YwDgYDVR0PAQH/BAQDAgGGMAoGCCqGSM49BAMDA2kAMGYC
MQCjfy+Rocm9Xue4YnwWmNJVA44fA0P5W2OpYow9OYCVRaEevL8uO1XYru5xtMPW
rfMCMQCi85sWBbJwKKXdS6BptQFuZbT73o/gBh1qUxl/nNr12UO8Yfwr6wPLb+6N
IwLz3/Y=
-----END CERTIFICATE-----
"""

AMD_ROOTS: Final = {
    bytes.fromhex("69d063b45344d26a2e94e1f4210de49ef555308287d4c174445c95639a540bcd"): "Milan",
    bytes.fromhex("4c6598d19c18719c5dfd4a7d335f674e5bfe1d8f800cea2cf270c10d103db2f1"): "Genoa",
    bytes.fromhex("1f084161a44bb6d93778a904877d4819cafa5d05ef4193b2ded9dd9c73dd3f6a"): "Turin",
}
"""Processor generation by SHA-256 of AMD's root certificate for it (ARK, DER)."""

PRODUCTION_ROOTS: Final = {INTEL_ROOT_ID: INTEL_SGX_ROOT_CA}
"""Root certificates of real hardware by root id. A run that pins another root shows its id on chain."""

SIMULATED_WARNING = "SIMULATED: software made this. It is NOT A TEE and proves nothing about any machine."


class RootError(EarnestError):
    """A file that is not exactly one root certificate."""


def root_name(root_id: bytes) -> str:
    """Returns the name to show for a root id: Intel's, the shared simulated one, or unknown."""
    return NAMES.get(root_id, UNKNOWN_NAME)


def root_id(certificate: bytes) -> bytes:
    """Returns the id of a root certificate, PEM or DER: keccak256 of its P-256 key, x then y. Raises RootError."""
    try:
        loaded = (
            x509.load_pem_x509_certificate(certificate)
            if b"-----BEGIN" in certificate
            else x509.load_der_x509_certificate(certificate)
        )
        key = loaded.public_key()
    except ValueError as error:
        raise RootError("the file is not a certificate", "give one root certificate, PEM or DER") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RootError("the root's key is not on P-256", "give the root that certifies the platform")
    return attestation.root_id(key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)[1:])
