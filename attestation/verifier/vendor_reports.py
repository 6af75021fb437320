"""Recognises reports of vendors other than Intel, and verifies them. No policy accepts one as a key's quote yet.

They are for reading by hand (`earnest attest verify`). GPU evidence also stands in a key's evidence file, where the
policy document judges it. To add a format: CONTRIBUTING.md, "A platform that makes quotes".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from earnest.attestation.roots import AWS_NITRO_ENCLAVES_ROOT_G1, NVIDIA_DEVICE_IDENTITY_CA
from earnest.attestation.verifier.amd_snp import REPORT_BYTES, verify_snp_report
from earnest.attestation.verifier.aws_nitro import COSE_SIGN1, verify_nitro_document
from earnest.attestation.verifier.nvidia import verify_gpu_evidence
from earnest.attestation.verifier.nvidia_nras import verify_nras_token
from earnest.attestation.verifier.verification import Verification
from earnest.base.strict_json import JsonError, read_json

Format = Literal["quote", "snp", "nitro", "gpu", "nras"]
NAMES: Final[dict[Format, str]] = {
    "quote": "quote",
    "snp": "AMD SEV-SNP report",
    "nitro": "AWS Nitro document",
    "gpu": "NVIDIA GPU evidence",
    "nras": "NVIDIA NRAS token",
}
COLLATERAL: Final[dict[Format, str]] = {
    "quote": "Intel's collateral, JSON as dcap-qvl writes it",
    "snp": "the certificates VCEK, ASK and ARK, PEM, in this order",
    "nras": "NVIDIA's key set (JWKS)",
}
"""Extra input that a format needs; formats not named here carry all that they need."""

PINNED_ROOTS: Final[dict[Format, bytes]] = {
    "nitro": AWS_NITRO_ENCLAVES_ROOT_G1,
    "gpu": NVIDIA_DEVICE_IDENTITY_CA,
}

_ARRAY_OF_FOUR: Final = b"\x84"
_PEM_END: Final = b"-----END CERTIFICATE-----"


def recognise(content: bytes) -> Format:
    """Returns the format that `content` looks like; a quote if it looks like no other."""
    if len(content) == REPORT_BYTES:
        return "snp"
    if content.removeprefix(COSE_SIGN1).startswith(_ARRAY_OF_FOUR):
        return "nitro"
    if not content.lstrip().startswith(b"["):
        return "quote"
    try:
        document = read_json(content)
    except JsonError:
        return "gpu"
    return "nras" if document and isinstance(document[0], list) else "gpu"


def verify_vendor_report(
    format: Format, content: bytes, at: int, *, collateral: bytes = b"", root: bytes | None = None
) -> Verification:
    """Verifies a report of any format but a quote at Unix second `at`; never raises for a hostile one.

    `collateral` is as in COLLATERAL. `root` replaces the pinned root of a format in PINNED_ROOTS. The answer is never
    `policy_accepted`: its last checks are those of the vendor's defaults.
    """
    pinned = root or PINNED_ROOTS.get(format, b"")
    match format:
        case "snp":
            chip, end, issuers = collateral.partition(_PEM_END)
            verified = verify_snp_report(content, chip + end, issuers.lstrip(), at)
        case "nitro":
            verified = verify_nitro_document(content, at, root=pinned)
        case "gpu":
            verified = verify_gpu_evidence(content, at, root=pinned)
        case "nras":
            verified = verify_nras_token(content, collateral, at)
        case "quote":
            raise ValueError("a quote is verified by verify_quote")
    return replace(verified, policy_accepted=False)
