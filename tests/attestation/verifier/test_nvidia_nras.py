"""NVIDIA's attestation service: a token counts with its signature *and* its claims, never with one of them."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from earnest.attestation.verifier.nvidia_nras import ISSUER, MAX_TOKEN_BYTES, verify_nras_token
from earnest.attestation.verifier.verification import Verification
from tests.attestation.vectors import read
from tests.attestation.verifier.certificates import key

RECORDED = read("nvidia/nras_detached_eat_hopper.json")
RECORDED_AT = 1_749_602_000
RECORDED_NONCE = bytes.fromhex("931d8dd0add203ac3d8b4fbde75e115278eefcdceac5b87671a748f32364dfcb")

AT = 1_800_000_000
NONCE = bytes(range(32))
COMMON: dict[str, Any] = {
    "iss": ISSUER,
    "nbf": AT - 60,
    "exp": AT + 3540,
    "iat": AT - 60,
    "eat_nonce": NONCE.hex(),
}
GPU: dict[str, Any] = {
    **COMMON,
    "ueid": "1",
    "measres": "success",
    "secboot": True,
    "dbgstat": "disabled",
    "hwmodel": "GH100 A01 GSP BROM",
    "x-nvidia-gpu-driver-version": "550.90.07",
    "x-nvidia-gpu-attestation-report-nonce-match": True,
    "x-nvidia-gpu-attestation-report-signature-verified": True,
}
OVERALL: dict[str, Any] = {**COMMON, "x-nvidia-overall-att-result": True}


def sign(
    claims: dict[str, Any], signer: ec.EllipticCurvePrivateKey | None = None, kid: str = "service"
) -> str:
    return jwt.encode(claims, signer or key("service"), algorithm="ES384", headers={"kid": kid})


def token(
    overall: dict[str, Any] | None = None,
    *gpus: dict[str, Any],
    submods: dict[str, Any] | None = None,
    **how: Any,
) -> bytes:
    """A detached EAT with the given claims changed; None as a value leaves a claim out."""
    devices = {
        f"GPU-{index}": sign(_changed(GPU, change), **how) for index, change in enumerate(gpus or ({},))
    }
    digests = {
        name: ["DIGEST", ["SHA-256", sha256(raw.encode()).hexdigest()]] for name, raw in devices.items()
    }
    claims = {**_changed(OVERALL, overall or {}), "submods": submods or digests}
    return json.dumps([["JWT", sign(claims, **how)], devices]).encode()


def _changed(claims: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**claims, **change}.items() if value is not None}


def key_set(signer: ec.EllipticCurvePrivateKey | None = None, kid: str = "service") -> bytes:
    numbers = (signer or key("service")).public_key().public_numbers()
    x, y = (urlsafe_b64encode(value.to_bytes(48)).decode().rstrip("=") for value in (numbers.x, numbers.y))
    jwk = {"kty": "EC", "crv": "P-384", "kid": kid, "alg": "ES384", "x": x, "y": y}
    return json.dumps({"keys": [jwk]}).encode()


KEYS = key_set()


def verify(
    raw: bytes, keys: bytes = KEYS, at: int = AT, nonce: bytes | None = NONCE, **more: Any
) -> Verification:
    return verify_nras_token(raw, keys, at, nonce=nonce, **more)


def failed(found: Verification) -> list[str]:
    return [check.name for check in found.failed]


def test_a_good_token_passes() -> None:
    found = verify(token())
    assert (found.accepted, found.policy_accepted, found.reason) == (True, True, "")
    assert found.expires == AT + 3540
    assert any("key set is NVIDIA's" in entry for entry in found.unchecked)
    assert verify(token({}, {}, {"ueid": "2"}), gpus=2).policy_accepted


def test_a_recorded_token_without_its_key_is_refused_for_that_alone() -> None:
    found = verify(RECORDED, at=RECORDED_AT, nonce=RECORDED_NONCE)
    assert (found.accepted, failed(found)) == (False, ["overall signature", "GPU-0 signature"])
    assert "cannot be checked" in found.reason


@pytest.mark.parametrize("result", [False, None, "true", 1])
def test_a_signed_token_with_another_result_is_refused(result: Any) -> None:
    found = verify(token({"x-nvidia-overall-att-result": result}))
    assert (found.accepted, failed(found)) == (False, ["NRAS result"])


@pytest.mark.parametrize(
    "change",
    [
        {"measres": "fail"},
        {"measres": None},
        {"secboot": False},
        {"secboot": 1},
        {"dbgstat": "enabled"},
        {"x-nvidia-gpu-attestation-report-nonce-match": False},
        {"x-nvidia-gpu-attestation-report-signature-verified": None},
    ],
)
def test_each_claim_of_each_gpu_counts(change: dict[str, Any]) -> None:
    found = verify(token({}, {}, {"ueid": "2", **change}))
    assert (found.accepted, failed(found)) == (False, ["GPU-1 claims"])
    assert next(iter(change)) in found.reason


def test_who_signed_counts() -> None:
    forged = token(signer=key("stranger"))
    assert failed(verify(forged)) == ["overall signature", "GPU-0 signature"]
    assert verify(forged, key_set(key("stranger"))).accepted, "the key set is what is believed"
    assert failed(verify(token(kid="other"))) == ["overall signature", "GPU-0 signature"]


@pytest.mark.parametrize(
    "keys", [b"", b"{}", b"[]", b'{"keys": 1}', b'{"keys": [{"kty": "EC"}]}', b"x" * 70_000]
)
def test_a_key_set_that_can_not_be_read_holds_no_key(keys: bytes) -> None:
    assert failed(verify(token(), keys)) == ["overall signature", "GPU-0 signature"]


def test_a_key_of_another_curve_is_no_key() -> None:
    small = ec.derive_private_key(7, ec.SECP256R1()).public_key().public_numbers()
    x, y = (urlsafe_b64encode(value.to_bytes(32)).decode().rstrip("=") for value in (small.x, small.y))
    keys = {"keys": [{"kty": "EC", "crv": "P-256", "kid": "service", "x": x, "y": y}]}
    assert failed(verify(token(), json.dumps(keys).encode())) == ["overall signature", "GPU-0 signature"]


@pytest.mark.parametrize("algorithm", ["none", "HS384", "ES256"])
def test_another_algorithm_is_unusable(algorithm: str) -> None:
    secret: Any = {"none": None, "HS384": KEYS * 2, "ES256": ec.derive_private_key(7, ec.SECP256R1())}[
        algorithm
    ]
    raw = jwt.encode(OVERALL, secret, algorithm=algorithm, headers={"kid": "service"})
    found = verify(json.dumps([["JWT", raw], {"GPU-0": sign(GPU)}]).encode())
    assert found.unusable
    assert "not signed with ES384" in found.reason


def test_an_overall_token_names_its_gpus_tokens() -> None:
    assert failed(verify(token(submods={"GPU-0": ["DIGEST", ["SHA-256", "00" * 32]]}))) == ["GPU tokens"]
    other = json.loads(token({}, {"ueid": "2"}))
    mixed = [json.loads(token())[0], other[1]]
    assert failed(verify(json.dumps(mixed).encode())) == ["GPU tokens"]
    more = [json.loads(token())[0], {**json.loads(token())[1], "GPU-1": other[1]["GPU-0"]}]
    assert failed(verify(json.dumps(more).encode())) == ["GPU tokens"]


def test_no_gpu_can_take_the_overall_tokens_place() -> None:
    overall, devices = json.loads(token())
    found = verify(json.dumps([overall, {"overall": devices["GPU-0"]}]).encode())
    assert found.unusable
    assert "'overall' is not the name of a GPU" in found.reason


def test_times_are_those_of_every_token() -> None:
    for at, accepted in ((AT - 61, False), (AT - 60, True), (AT + 3539, True), (AT + 3540, False)):
        assert verify(token(), at=at).accepted == accepted
    assert failed(verify(token({}, {"exp": AT}))) == ["GPU-0 time"]
    assert failed(verify(token({"nbf": None}))) == ["overall time"]
    assert failed(verify(token({"exp": "soon"}))) == ["overall time"]


def test_nonce_and_issuer_are_those_of_every_token() -> None:
    assert failed(verify(token(), nonce=bytes(32))) == ["GPU nonce"]
    assert failed(verify(token({}, {"eat_nonce": "00" * 32}))) == ["GPU nonce"]
    assert failed(verify(token({"eat_nonce": None}, {"eat_nonce": None}))) == ["GPU nonce"]
    assert any("no nonce was required" in entry for entry in verify(token(), nonce=None).unchecked)
    assert failed(verify(token({"iss": "https://example.org"}))) == ["overall issuer"]
    assert failed(verify(token({}, {"iss": None}))) == ["GPU-0 issuer"]


def test_one_gpu_shown_twice_is_one() -> None:
    assert failed(verify(token({}, {}, {}))) == ["GPU identity"]


def test_count_model_and_driver_are_the_policys() -> None:
    for rules, name in (
        ({"gpus": 2}, "GPU count"),
        ({"models": ("GB100",)}, "GPU model"),
        ({"drivers": ("575.32",)}, "GPU driver"),
    ):
        found = verify(token(), **rules)
        assert (found.accepted, found.policy_accepted, failed(found)) == (True, False, [name])
    assert verify(token(), models=("GH100",), drivers=("550.90.07",)).policy_accepted


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[" * 50_000,
        b" " * (MAX_TOKEN_BYTES + 1),
        json.dumps([["JWT", sign(OVERALL)], {}]).encode(),
        json.dumps([["JWT", "a.b.c"], {"GPU-0": sign(GPU)}]).encode(),
        json.dumps([["JWT", sign(OVERALL)], {"GPU-0": 7}]).encode(),
        json.dumps([["JWT", sign(OVERALL)], {"": sign(GPU)}]).encode(),
        json.dumps([["JWT", sign(OVERALL)], {f"GPU-{i}": sign(GPU) for i in range(65)}]).encode(),
    ],
)
def test_a_malformed_token_is_unusable(raw: bytes) -> None:
    found = verify(raw)
    assert (found.accepted, found.policy_accepted, found.unusable) == (False, False, True)
