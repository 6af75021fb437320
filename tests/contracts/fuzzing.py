"""Alters quotes, certificates, evidence and calldata at random, and checks parser, verifier and contract by one law.

The law: nothing is accepted that differs from what was signed in a byte, and nothing ends otherwise than by a verdict.

- The registry may accept only evidence whose signed parts (quote, attestation key, QE report, auth data, PCK
  certificate) are the original's. Signatures may take their other form, s and n - s.
- The verifier (dcap-qvl) may accept only quotes with those same parts; and what it accepts and the parser reads, the
  registry accepts too.
- Altered calldata may be accepted only if what the registry reads out of it is what it reads out of the original.
- The parser answers with a quote or a `QuoteError`, the registry with claims or a revert.
"""

from __future__ import annotations

from base64 import encodebytes
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from random import Random
from typing import Any

import dcap_qvl
from eth_hash.auto import keccak

from earnest.attestation.formats.certificate import CertificateError, parse_certificate, pem_to_ders
from earnest.attestation.formats.quote import Quote, QuoteError, parse_quote, quote_calldata
from earnest.protocol.attestation import Policy, QuoteParts
from tests.attestation.vectors import P256_ORDER, VECTORS
from tests.contracts.attested import PRECOMPILE, assembled, install_p256, policy_for
from tests.contracts.harness import Contract, Evm, Reverted, account

ORIGINALS = ("P01", "P03", "P07", "P10", "P12", "P13", "S02", "S03")
"""TDX versions 4 and 5, SGX version 3, hardware and simulated, all accepted."""

SIGNED = ("quote", "attestation_key", "qe_report", "qe_auth", "pck")
"""Fields of `QuoteParts` below a signature (the key and the auth data by their hash)."""

SIGNATURES = ("quote_signature", "qe_signature", "pck_signature")


@dataclass(frozen=True)
class Original:
    """Calldata that passes, and all that is needed to ask about what was made of it."""

    raw: bytes
    collateral: Any
    root: bytes
    now: int
    quote: Quote
    policy: Policy
    evidence: QuoteParts
    calldata: bytes
    claims: bytes
    """What the registry answers, encoded."""

    def same(self, evidence: QuoteParts) -> bool:
        """Whether every signed byte is the original's."""
        return all(getattr(evidence, name) == getattr(self.evidence, name) for name in SIGNED)


# Answers 1 to what is in its storage under keccak256(input), and nothing to all else.
TABLE = bytes.fromhex("365f5f37365f205480600d57005b5f5260205ff3")
GOOD = bytes.fromhex(
    "af2bdbe1aa9b6ec1e2ade1d694f41fc71a831d0268e9891562113d8a62add1bf"
    "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716"
    "f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8"
    "60fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6"
    "7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299"
)
"""What the registry asks to learn whether anything verifies at all. RFC 6979, A.2.5."""


class Fuzzer:
    """One chain with one registry, and the originals.

    `table`: signatures are not computed but looked up: at 0x100 stands a list of those of the originals, in both
    forms. That takes for granted that no alteration makes a signature valid, and is many times faster.
    """

    def __init__(self, names: Sequence[str] = ORIGINALS, *, table: bool = False) -> None:
        self.evm = Evm()
        install_p256(self.evm)
        self.registry = self.evm.deploy(
            "AttestationRegistry", account("runs"), account("settlement"), account("vault")
        )
        self.originals = [original(self.registry, name) for name in names]
        if table:
            self._install_table()
        self.kinds: list[Callable[[Random, Original], str]] = [
            self.alter_quote,
            self.alter_certificate,
            self.alter_evidence,
            self.alter_calldata,
        ]

    def _install_table(self) -> None:
        install_p256(self.evm, TABLE)
        for entry in (GOOD, *(entry for made in self.originals for entry in signatures(made))):
            self.evm.revm.insert_account_storage(PRECOMPILE, int.from_bytes(keccak(entry), "big"), 1)

    def run(self, cases: int, seed: int = 0, told: Callable[[int], None] = lambda done: None) -> Counter[str]:
        """How often each outcome came, by "kind: outcome". AssertionError when the law is broken; replays exactly."""
        outcomes: Counter[str] = Counter()
        for case in range(cases):
            random = Random(f"{seed}/{case}")
            kind = self.kinds[case % len(self.kinds)]
            try:
                outcome = kind(random, random.choice(self.originals))
            except AssertionError as broken:
                raise AssertionError(f"case {seed}/{case}, {kind.__name__}") from broken
            outcomes[f"{kind.__name__}: {outcome}"] += 1
            told(case)
        return outcomes

    # One case each; returns the outcome as text.

    def alter_quote(self, random: Random, original: Original) -> str:
        """A quote's file with bytes flipped, cut, put in, taken from another quote, or numbers overwritten."""
        return self._judge(original, altered(random, original.raw, random.choice(self.originals).raw))

    def alter_certificate(self, random: Random, original: Original) -> str:
        """A quote whose PCK certificate's DER was altered and written as PEM again."""
        ders = pem_to_ders(original.quote.chain)
        other = pem_to_ders(random.choice(self.originals).quote.chain)[0]
        ders[0] = altered(random, ders[0], other)
        try:
            assert len(parse_certificate(ders[0]).public_key) == 64
        except CertificateError:
            return "parser refused"
        return self._judge(original, assembled(replace(original.quote, chain=pem(ders))))

    def alter_evidence(self, random: Random, original: Original) -> str:
        """Calldata with fields altered, moved from another quote, or positions overwritten."""
        evidence = original.evidence
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            evidence = self._with_a_change(random, evidence)
        accepted = self._accepts(self.registry.calldata("check_quote", original.policy, evidence)) is not None
        assert not accepted or original.same(evidence), evidence
        return "accepted, signed bytes untouched" if accepted else "registry refused"

    def alter_calldata(self, random: Random, original: Original) -> str:
        """Calldata with bytes flipped or words (offsets and lengths too) overwritten."""
        data = bytearray(original.calldata)
        if random.random() < 0.5:
            at = 4 + 32 * random.randrange((len(data) - 4) // 32)
            data[at : at + 32] = random.choice(
                (
                    random.randrange(0, len(data), 32),
                    random.getrandbits(16),
                    random.getrandbits(256),
                    2**256 - 1,
                )
            ).to_bytes(32, "big")
        else:
            for _ in range(random.choice((1, 1, 2, 4))):
                data[random.randrange(4, len(data))] ^= 1 << random.randrange(8)
        if random.random() < 0.1:
            del data[random.randrange(4, len(data)) :]
        claims = self._accepts(bytes(data))
        assert claims is None or claims == original.claims, data.hex()
        return "registry refused" if claims is None else "accepted, same claims"

    def _with_a_change(self, random: Random, evidence: QuoteParts) -> QuoteParts:
        name = random.choice((*SIGNED, *SIGNATURES, "ca", "key_at", "ppid_at"))
        value = getattr(evidence, name)
        if isinstance(value, int):
            near = value + random.randrange(-40, 40)
            return replace(evidence, **{name: max(0, random.choice((near, near, random.getrandbits(256))))})
        other: bytes = getattr(random.choice(self.originals).evidence, name)
        if name in SIGNATURES and random.random() < 0.3:
            s = P256_ORDER - int.from_bytes(value[32:], "big")
            return replace(evidence, **{name: value[:32] + s.to_bytes(32, "big")})
        if name in ("quote", "pck", "qe_auth"):
            limit = {"quote": 702, "pck": 1536, "qe_auth": 128}[name]
            return replace(evidence, **{name: altered(random, value, other)[:limit]})
        return replace(evidence, **{name: flipped(random, value) if random.random() < 0.7 else other})

    def _judge(self, original: Original, raw: bytes) -> str:
        """The verdicts of parser, verifier and registry on a quote's file."""
        verified = verifies(original, raw)
        try:
            evidence = quote_calldata(parse_quote(raw), original.policy.pck_cas)
        except QuoteError:
            # The verifier is more lenient with what is not signed: then all that is signed is still there.
            assert not verified or all(
                part in raw for part in (original.evidence.quote, original.quote.qe_report)
            )
            return "verified, parser refused" if verified else "parser refused"
        accepted = self._accepts(self.registry.calldata("check_quote", original.policy, evidence)) is not None
        assert not (accepted or verified) or original.same(evidence), raw.hex()
        assert accepted or not verified, raw.hex()
        if verified:
            return "accepted and verified, signed bytes untouched"
        return "accepted, outer chain broken" if accepted else "registry refused"

    def _accepts(self, calldata: bytes) -> bytes | None:
        """Returns the registry's answer; None if it reverts, with a reason or, for malformed calldata, without one."""
        try:
            return self.evm.call(self.registry.address, calldata, account("stranger"), static=True)
        except Reverted as refusal:
            assert refusal.reason == "" or refusal.reason.startswith("attestation: "), refusal.reason
            return None


def original(registry: Contract, name: str) -> Original:
    vector = VECTORS[name]
    quote = parse_quote(vector.quote)
    policy = policy_for(quote)
    evidence = quote_calldata(quote, policy.pck_cas)
    calldata = registry.calldata("check_quote", policy, evidence)
    claims = registry.evm.call(registry.address, calldata, account("stranger"), static=True)
    collateral = dcap_qvl.QuoteCollateralV3.from_json(vector.collateral.decode())
    return Original(
        vector.quote, collateral, vector.root, vector.now, quote, policy, evidence, calldata, claims
    )


def signatures(original: Original) -> Iterator[bytes]:
    """What the precompile is asked of the original: digest, r, s, x, y; and the same with n - s."""
    e = original.evidence
    ca, pck = original.policy.pck_cas[e.ca], e.pck[e.key_at : e.key_at + 64]
    for signed, signature, key in (
        (e.pck, e.pck_signature, ca),
        (e.qe_report, e.qe_signature, pck),
        (e.quote, e.quote_signature, e.attestation_key),
    ):
        other = (P256_ORDER - int.from_bytes(signature[32:], "big")).to_bytes(32, "big")
        for s in (signature[32:], other):
            yield sha256(signed).digest() + signature[:32] + s + key


def verifies(original: Original, raw: bytes) -> bool:
    try:
        dcap_qvl.verify_with_root_ca(raw, original.collateral, original.root, original.now)
    except ValueError:
        return False
    return True


def pem(ders: Sequence[bytes]) -> bytes:
    return b"".join(
        b"-----BEGIN CERTIFICATE-----\n" + encodebytes(der) + b"-----END CERTIFICATE-----\n" for der in ders
    )


def altered(random: Random, raw: bytes, other: bytes) -> bytes:
    """One to three changes, mostly one."""
    for _ in range(random.choice((1, 1, 1, 1, 2, 3))):
        raw = random.choice(CHANGES)(random, raw, other)
    return raw


def flipped(random: Random, raw: bytes, _: bytes = b"") -> bytes:
    changed = bytearray(raw)
    if changed:
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _overwritten(random: Random, raw: bytes, _: bytes) -> bytes:
    at, size = random.randrange(len(raw) + 1), random.choice((1, 2, 4, 32))
    value = random.choice((bytes(size), b"\xff" * size, random.randbytes(size)))
    return raw[:at] + value + raw[at + size :]


def _cut(random: Random, raw: bytes, _: bytes) -> bytes:
    at = random.randrange(len(raw) + 1)
    return raw[:at] if random.random() < 0.5 else raw[:at] + raw[at + random.choice((1, 2, 16, 64)) :]


def _longer(random: Random, raw: bytes, _: bytes) -> bytes:
    at = random.choice((len(raw), random.randrange(len(raw) + 1)))
    return raw[:at] + random.randbytes(random.choice((1, 2, 16, 64))) + raw[at:]


def _spliced(random: Random, raw: bytes, other: bytes) -> bytes:
    at, size = random.randrange(len(raw) + 1), random.choice((8, 48, 64, 384, len(raw)))
    return raw[:at] + other[at : at + size] + raw[at + size :]


CHANGES = (flipped, flipped, flipped, _overwritten, _cut, _longer, _spliced)
