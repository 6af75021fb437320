"""Verifies tokens of NVIDIA's Remote Attestation Service (NRAS): an overall JWT and one per GPU, signed with ES384.

The service compares a GPU's measurements with NVIDIA's manifests and queries its OCSP responder, which offline
verification of GPU evidence cannot do. The result is in the claims: the service also signs tokens whose result is
*false*, so a signature alone proves nothing. Claims: docs.nvidia.com, "NRAS API", version 3.

Tokens expire after an hour and signing keys after days, so the key set (JWKS) must be kept with the token. It is
trusted as given.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.types import Options

from earnest.attestation.policy_document import MAX_GPUS
from earnest.attestation.verifier.verification import Check, Verification, conclude
from earnest.base.strict_json import read_json

MAX_TOKEN_BYTES = 1 << 18
MAX_KEYS_BYTES = 1 << 16
ISSUER = "https://nras.attestation.nvidia.com"
ALGORITHM = "ES384"
MODELS = ("GH100", "GB100")
"""Prefixes of `hwmodel` of GPUs with confidential computing."""

REQUIRED: dict[str, Any] = {
    "measres": "success",
    "secboot": True,
    "dbgstat": "disabled",
    "x-nvidia-gpu-attestation-report-nonce-match": True,
    "x-nvidia-gpu-attestation-report-signature-verified": True,
}
"""Claims that every GPU's token must have, with exactly these values."""

UNCHECKED = (
    "that the key set is NVIDIA's: it is trusted as given",
    "that the GPU is in the machine that requested it",
)
_TIMELESS: Options = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
}
"""Switches off the library's checks against the machine's clock: times are checked here, at the given one."""


@dataclass(frozen=True)
class _Token:
    raw: str
    kid: str
    claims: dict[str, Any]


def verify_nras_token(
    token: bytes,
    keys: bytes,
    at: int,
    *,
    nonce: bytes | None = None,
    gpus: int = 1,
    models: Collection[str] = MODELS,
    drivers: Collection[str] | None = None,
) -> Verification:
    """Verifies a detached EAT (`[["JWT", overall], {"GPU-0": token, ..}]`) at Unix second `at`; never raises for it.

    `keys` is the service's key set, a JWKS. All tokens must be over `nonce` (32 bytes), or over any one nonce if it is
    None. The policy checks require at least `gpus` GPUs of `models` (prefixes of `hwmodel`), and one of `drivers`
    (versions) if given.
    """
    try:
        overall, devices = _detached(token)
    except ValueError as error:
        return conclude([Check("NRAS token format", False, str(error))], unusable=True, unchecked=UNCHECKED)
    key_set = _keys(keys)
    tokens = {"overall": overall, **devices}
    checks = [Check("NRAS token format", True, f"{len(devices)} GPU{'s' * (len(devices) > 1)}")]
    for name, signed in tokens.items():
        checks += [_signature(name, signed, key_set), _times(name, signed, at), _issuer(name, signed)]
    checks += [_nonces(tokens, nonce), _digests(overall, devices), _result(overall)]
    checks += [_device(name, device) for name, device in devices.items()]
    identities = {str(device.claims.get("ueid")) for device in devices.values()}
    checks.append(Check("GPU identity", len(identities) == len(devices), f"{len(identities)} distinct"))
    names = [str(device.claims.get("hwmodel"))[:64] for device in devices.values()]
    versions = {str(device.claims.get("x-nvidia-gpu-driver-version"))[:64] for device in devices.values()}
    policy = [
        Check("GPU count", len(devices) >= gpus, f"{len(devices)} of at least {gpus}"),
        Check(
            "GPU model", all(name.startswith(tuple(models)) for name in names), ", ".join(sorted(set(names)))
        ),
        Check("GPU driver", drivers is None or versions <= set(drivers), ", ".join(sorted(versions))),
    ]
    no_nonce = () if nonce is not None else ("freshness: no nonce was required",)
    expires = min((_time(signed, "exp") or 0) for signed in tokens.values())
    return conclude(checks, policy, tee="nvidia", expires=expires, unchecked=UNCHECKED + no_nonce)


def _detached(token: bytes) -> tuple[_Token, dict[str, _Token]]:
    match read_json(token, max_bytes=MAX_TOKEN_BYTES):
        case [["JWT", str(overall)], dict(devices)] if 1 <= len(devices) <= MAX_GPUS:
            odd = [name for name in devices if not re.fullmatch(r"GPU-\d{1,3}", name)]
            if odd:
                raise ValueError(f"{odd[0][:32]!r} is not the name of a GPU")
            return _token(overall), {name: _token(raw) for name, raw in devices.items()}
    raise ValueError(f"not an overall token and those of 1 to {MAX_GPUS} GPUs")


def _token(raw: Any) -> _Token:
    """Parses a token without checking its signature. Raises ValueError."""
    if not isinstance(raw, str) or not raw.isascii():
        raise ValueError("a token is not ASCII text")
    for part in raw.split(".")[:2]:
        read_json(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    try:
        read = jwt.decode_complete(raw, options={"verify_signature": False})
    except jwt.PyJWTError as error:
        raise ValueError(f"not a token: {error}") from error
    kid = read["header"].get("kid")
    if read["header"].get("alg") != ALGORITHM or not isinstance(kid, str):
        raise ValueError(f"a token is not signed with {ALGORITHM} by a named key")
    return _Token(raw, kid, read["payload"])


def _keys(keys: bytes) -> dict[str, ec.EllipticCurvePublicKey]:
    """Returns the P-384 keys of a key set by name; none if the set cannot be read."""
    try:
        read = jwt.PyJWKSet.from_dict(read_json(keys, max_bytes=MAX_KEYS_BYTES)).keys
    except (ValueError, TypeError, AttributeError, KeyError, jwt.PyJWTError):
        return {}
    by_name = {str(key.key_id): key.key for key in read}
    return {
        name: key
        for name, key in by_name.items()
        if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)
    }


def _signature(name: str, token: _Token, keys: dict[str, ec.EllipticCurvePublicKey]) -> Check:
    check = f"{name} signature"
    if token.kid not in keys:
        return Check(check, False, f"cannot be checked: key {token.kid[:80]!r} is not in the key set")
    try:
        jwt.decode(token.raw, keys[token.kid], algorithms=[ALGORITHM], options=_TIMELESS)
    except jwt.PyJWTError as error:
        return Check(check, False, str(error) or type(error).__name__)
    return Check(check, True, f"by {token.kid[:80]}")


def _time(token: _Token, claim: str) -> int | None:
    value = token.claims.get(claim)
    return value if type(value) is int and 0 <= value < 2**40 else None


def _times(name: str, token: _Token, at: int) -> Check:
    begins, ends = _time(token, "nbf"), _time(token, "exp")
    if begins is None or ends is None:
        return Check(f"{name} time", False, "lacks the time from or until which it is valid")
    return Check(f"{name} time", begins <= at < ends, f"valid from {begins} until {ends}, verified at {at}")


def _issuer(name: str, token: _Token) -> Check:
    issuer = token.claims.get("iss")
    return Check(f"{name} issuer", issuer == ISSUER, str(issuer)[:80])


def _nonces(tokens: dict[str, _Token], nonce: bytes | None) -> Check:
    nonces = {str(token.claims.get("eat_nonce")).lower() for token in tokens.values()}
    if len(nonces) > 1 or "none" in nonces:
        return Check("GPU nonce", False, "the tokens are over different nonces, or none")
    if nonce is not None and nonces != {nonce.hex()}:
        return Check("GPU nonce", False, "the tokens are over another nonce")
    return Check("GPU nonce", True, "the same in all tokens" if nonce is None else "as required")


def _digests(overall: _Token, devices: dict[str, _Token]) -> Check:
    """Checks that the overall token names exactly these GPUs' tokens, by their SHA-256."""
    expected = {
        name: ["DIGEST", ["SHA-256", sha256(device.raw.encode()).hexdigest()]]
        for name, device in devices.items()
    }
    named = overall.claims.get("submods")
    passed = named == expected
    return Check(
        "GPU tokens",
        passed,
        "as named by the overall token" if passed else "not those that the overall token names",
    )


def _result(overall: _Token) -> Check:
    result = overall.claims.get("x-nvidia-overall-att-result")
    return Check("NRAS result", result is True, f"{result}")


def _device(name: str, token: _Token) -> Check:
    wrong = [
        f"{claim} is {str(token.claims.get(claim))[:32]}"
        for claim, value in REQUIRED.items()
        if type(token.claims.get(claim)) is not type(value) or token.claims[claim] != value
    ]
    return Check(f"{name} claims", not wrong, "; ".join(wrong) or "measured, secure boot, no debugging")
