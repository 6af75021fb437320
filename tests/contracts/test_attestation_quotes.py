"""`check_quote`: genuine and simulated evidence, forged in every signed part, against parser, verifier and contract."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from random import Random
from typing import Any

import dcap_qvl
import pytest

from earnest.attestation.formats.quote import Quote, QuoteError, claims, parse_quote, quote_calldata
from earnest.attestation.prover.simulated import QuoteKind, SimulatedAttester, raw_public, raw_signature
from earnest.protocol.attestation import Policy, QuoteParts
from tests.attestation.vectors import VECTORS, Vector, read
from tests.contracts.attested import PRECOMPILE, VENDOR, assembled, install_p256, policy_for, quote_of
from tests.contracts.harness import Contract, Evm, Reverted, account, reverts

P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
TRUSTED_AT = 1_768_089_600

ON_CHAIN = {
    "N01": "attestation: debug TD",
    "N02": "attestation: debug enclave",
    "N04": "attestation: SEPT_VE_DISABLE clear",
    "M01": "attestation: wrong quote signature",
    "M02": "attestation: wrong quote signature",
    "M03": "attestation: debug TD",
    "M04": "attestation: wrong quote signature",
    "M06": "attestation: wrong quote signature",
    "M07": "attestation: wrong quote signature",
    "M08": "attestation: wrong quote signature",
    "M10": "attestation: wrong QE signature",
    "M11": "attestation: wrong QE signature",
    "M12": "attestation: key not certified",
    "S07": "attestation: debug TD",
}
"""Vectors that the contract refuses, and why. What makes the verifier refuse any other lies in collateral or root."""


@pytest.fixture(scope="module")
def registry() -> Contract:
    evm = Evm()
    install_p256(evm)
    return evm.deploy("AttestationRegistry", account("runs"), account("settlement"), account("vault"))


def check(registry: Contract, quote: Quote, policy: Policy | None = None, /, **changes: Any) -> Any:
    """`check_quote` under the narrowest policy that fits the quote, or the one given; `changes` to the evidence."""
    policy = policy or policy_for(quote)
    return registry.check_quote(policy, replace(quote_calldata(quote, policy.pck_cas), **changes))


def verifies(raw: bytes, collateral: bytes, root: bytes, at: int) -> bool:
    """Whether dcap-qvl, a verifier of its own, takes the quote, whatever the TCB status."""
    try:
        dcap_qvl.verify_with_root_ca(raw, dcap_qvl.QuoteCollateralV3.from_json(collateral.decode()), root, at)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("vector", VECTORS.values(), ids=list(VECTORS))
def test_vectors_get_their_verdict_on_chain(registry: Contract, vector: Vector) -> None:
    original = parse_quote(VECTORS["P01"].quote if vector.name[0] in "MA" else vector.quote)
    quote = parse_quote(vector.quote)
    policy = policy_for(original, workloads=(original.workload(), quote.workload()))
    if reason := ON_CHAIN.get(vector.name):
        with reverts(reason):
            check(registry, quote, policy)
        return
    said = claims(quote)
    expected = (said.workload, said.platform, said.pck, said.quote, said.binding, said.extra)
    assert tuple(check(registry, quote, policy)) == expected


def test_the_chain_accepts_every_quote_that_the_verifier_accepts_and_no_malformed_one() -> None:
    accepted = {name for name, vector in VECTORS.items() if vector.accepted}
    assert not accepted & set(ON_CHAIN)
    forged = {name for name in VECTORS if name.startswith("M")}
    assert forged <= set(ON_CHAIN)


# Quotes that a vendor really signed, with something in them that nobody should trust.


@dataclass(frozen=True)
class Crooked(SimulatedAttester):
    """Signs bodies and quoting enclaves' reports that no honest platform makes: (position, bits to flip)."""

    body: tuple[tuple[int, int], ...] = ()
    qe: tuple[tuple[int, int], ...] = field(default=())

    def _td_report(self, report_data: bytes) -> bytes:
        return flipped(super()._td_report(report_data), self.body)

    def _enclave_report(self, report_data: bytes) -> bytes:
        return flipped(super()._enclave_report(report_data), self.body)

    def signed_again(self) -> tuple[Quote, bytes]:
        """A quote whose QE report is changed and signed with the PCK key; and its collateral."""
        quoted = self.quote(b"\x07" * 64)
        quote = parse_quote(quoted.quote)
        report = flipped(quote.qe_report, self.qe)
        signature = raw_signature(self.vendor.key(f"pck {self.platform}"), report)
        raw = quoted.quote.replace(quote.qe_report + quote.qe_signature, report + signature)
        return parse_quote(raw), quoted.collateral or b""


def flipped(raw: bytes, bits: tuple[tuple[int, int], ...]) -> bytes:
    changed = bytearray(raw)
    for at, mask in bits:
        changed[at] ^= mask
    return bytes(changed)


SIGNED_FORGERIES: dict[str, tuple[QuoteKind, dict[str, Any], str]] = {
    "TDX module of another signer": ("tdx4", {"body": ((64, 1),)}, "attestation: not Intel's TDX module"),
    "its last byte": ("tdx4", {"body": ((111, 1),)}, "attestation: not Intel's TDX module"),
    "debug TDX module": ("tdx4", {"body": ((112, 1),)}, "attestation: not Intel's TDX module"),
    "its last attribute": ("tdx4", {"body": ((119, 0x80),)}, "attestation: not Intel's TDX module"),
    "debug TD": ("tdx4", {"body": ((120, 1),)}, "attestation: debug TD"),
    "profiled TD": ("tdx5", {"body": ((120, 0x10),)}, "attestation: debug TD"),
    "migratable TD": ("tdx4", {"body": ((123, 0x20),)}, "attestation: TD attribute refused"),
    "reserved attribute": ("tdx5", {"body": ((127, 0x20),)}, "attestation: TD attribute refused"),
    "host may take pages away": ("tdx5", {"body": ((123, 0x10),)}, "attestation: SEPT_VE_DISABLE clear"),
    "debug enclave": ("sgx3", {"body": ((48, 2),)}, "attestation: debug enclave"),
    "debug QE": ("tdx4", {"qe": ((48, 2),)}, "attestation: debug QE"),
    "QE of another signer": ("tdx4", {"qe": ((159, 1),)}, "attestation: wrong QE signer"),
    "another enclave of the QE's signer": ("sgx3", {"qe": ((257, 1),)}, "attestation: wrong QE product"),
    "old QE": ("tdx4", {"qe": ((258, 4),)}, "attestation: QE too old"),
}


@pytest.mark.parametrize("what", SIGNED_FORGERIES)
def test_a_signed_quote_is_not_yet_trusted(registry: Contract, what: str) -> None:
    kind, changes, reason = SIGNED_FORGERIES[what]
    quote, collateral = Crooked(VENDOR, format=kind, **changes).signed_again()
    honest = quote_of(SimulatedAttester(VENDOR, format=kind), bytes(64))
    policy = replace(policy_for(honest), workloads=(quote.workload(),))
    with reverts(reason):
        check(registry, quote, policy)
    raw = assembled(quote)
    assert not verifies(raw, collateral, VENDOR.root_der, TRUSTED_AT)


def test_a_bound_service_td_is_refused_to_its_last_byte(registry: Contract) -> None:
    quote = quote_of(SimulatedAttester(VENDOR, format="tdx5"), bytes(64))
    assert verifies(assembled(quote), VENDOR.collateral("tdx"), VENDOR.root_der, TRUSTED_AT)
    for at in (600, 631, 632, 647):
        body = flipped(quote.body, ((at, 1),))
        signed = quote.signed[:54] + body
        signature = raw_signature(VENDOR.key("quoting tdx 0"), signed)
        bound = replace(quote, body=body, signed=signed, signature=signature)
        with reverts("attestation: service TD bound"):
            check(registry, bound)
        assert not verifies(assembled(bound), VENDOR.collateral("tdx"), VENDOR.root_der, TRUSTED_AT)


def test_every_td_attribute_gets_the_verifiers_verdict(registry: Contract) -> None:
    """Bit 28 (clear) is refused too: what `flipped` does to it."""
    refused: list[int] = []
    for bit in range(64):
        quote, collateral = Crooked(VENDOR, body=((120 + bit // 8, 1 << bit % 8),)).signed_again()
        try:
            check(registry, quote)
            on_chain = True
        except Reverted:
            on_chain = False
            refused.append(bit)
        assert on_chain == verifies(assembled(quote), collateral, VENDOR.root_der, TRUSTED_AT), bit
    assert refused == [*range(16), 17, 23, 24, 25, 26, 28, 29, *range(32, 62)]


def test_a_quoting_enclave_says_nothing_but_the_hash(registry: Contract) -> None:
    """Stricter than the verifier: Intel's enclave leaves the second half of its report data zero."""
    for at in (352, 383):
        quote, _ = Crooked(VENDOR, qe=((at, 1),)).signed_again()
        with reverts("attestation: key not certified"):
            check(registry, quote)


@pytest.mark.parametrize("kind", ["tdx4", "tdx5", "sgx3"])
def test_every_field_is_read_from_where_the_parser_reads_it(registry: Contract, kind: QuoteKind) -> None:
    """Bodies of random bytes, but for those that must be zero."""
    quote = quote_of(SimulatedAttester(VENDOR, format=kind), bytes(64))
    key = VENDOR.key("quoting sgx 0" if kind == "sgx3" else "quoting tdx 0")
    for seed in range(20):
        body = bytearray(Random(seed).randbytes(len(quote.body)))
        if quote.tee == "sgx":
            body[48] &= ~2
            body[192:256], body[260:262] = bytes(64), bytes(2)
        else:
            body[64:120], body[120:128] = bytes(56), quote.attributes
            body[232:328] = bytes(96)
            body[600:] = bytes(len(body[600:]))
        signed = quote.signed[: -len(body)] + bytes(body)
        made = replace(quote, body=bytes(body), signed=signed, signature=raw_signature(key, signed))
        said = claims(made)
        expected = (said.workload, said.platform, said.pck, said.quote, said.binding, said.extra)
        assert tuple(check(registry, made)) == expected


# Calldata that was put together wrongly.


@pytest.fixture
def genuine() -> Quote:
    return parse_quote(read("quotes/tdx4-b0c06f-phala.bin"))


def test_the_key_must_stand_where_the_certificate_has_it(registry: Contract, genuine: Quote) -> None:
    evidence = quote_calldata(genuine, policy_for(genuine).pck_cas)
    for at in (evidence.key_at - 1, evidence.key_at + 1, 27, len(evidence.pck) - 64):
        with reverts("attestation: no PCK key there"):
            check(registry, genuine, key_at=at)
    for at in (0, 26, len(evidence.pck) - 63, len(evidence.pck), 2**256 - 64, 2**256 - 1):
        with reverts("attestation: PCK key outside"):
            check(registry, genuine, key_at=at)


def test_the_ppid_must_stand_where_the_certificate_has_it(registry: Contract, genuine: Quote) -> None:
    evidence = quote_calldata(genuine, policy_for(genuine).pck_cas)
    for at in (evidence.ppid_at - 1, evidence.ppid_at + 1, 16, len(evidence.pck) - 16):
        with reverts("attestation: no PPID there"):
            check(registry, genuine, ppid_at=at)
    for at in (0, 15, len(evidence.pck) - 15, len(evidence.pck), 2**256 - 16, 2**256 - 1):
        with reverts("attestation: PPID outside"):
            check(registry, genuine, ppid_at=at)


def test_a_key_put_into_the_certificate_breaks_the_cas_signature(registry: Contract, genuine: Quote) -> None:
    """A forger writes its own key, header and all, where the contract looks, and signs the QE report with it."""
    key = VENDOR.key("forger")
    evidence = quote_calldata(genuine, policy_for(genuine).pck_cas)
    header = evidence.pck[evidence.key_at - 27 : evidence.key_at]
    forged = evidence.pck[:40] + header + raw_public(key) + evidence.pck[131:]
    with reverts("attestation: wrong PCK signature"):
        check(registry, genuine, pck=forged, key_at=67, qe_signature=raw_signature(key, evidence.qe_report))


def test_the_certificate_must_be_signed_by_the_ca_that_the_policy_pins(
    registry: Contract, genuine: Quote
) -> None:
    policy = policy_for(genuine)
    both = replace(policy, pck_cas=(VENDOR.ca_public, *policy.pck_cas))
    assert check(registry, genuine, both).platform == claims(genuine).platform
    with reverts("attestation: wrong PCK signature"):
        check(registry, genuine, both, ca=0)
    for ca in (2, 2**256 - 1):
        with reverts("attestation: no such CA"):
            check(registry, genuine, both, ca=ca)


def test_a_simulated_quote_fails_under_a_policy_for_hardware(registry: Contract, genuine: Quote) -> None:
    simulated = quote_of(SimulatedAttester(VENDOR), bytes(64))
    intel = policy_for(genuine)
    with pytest.raises(QuoteError, match="not one of the policy's"):
        quote_calldata(simulated, intel.pck_cas)
    evidence = quote_calldata(simulated, (VENDOR.ca_public,))
    with reverts("attestation: workload not allowed"):
        registry.check_quote(intel, evidence)
    lenient = replace(intel, workloads=(simulated.workload(),))
    with reverts("attestation: wrong QE signer"):
        registry.check_quote(lenient, evidence)
    with reverts("attestation: wrong PCK signature"):
        registry.check_quote(replace(lenient, qe_signer=VENDOR.qe_signer, qe_min_svn=0), evidence)


def test_a_quote_of_another_workload_is_refused(registry: Contract, genuine: Quote) -> None:
    allowed = tuple(bytes([i]) * 32 for i in range(15))
    with reverts("attestation: workload not allowed"):
        check(registry, genuine, policy_for(genuine, workloads=allowed))
    check(registry, genuine, policy_for(genuine, workloads=(*allowed, genuine.workload())))


def test_the_qe_may_be_newer_than_the_policy_wants_and_not_older(registry: Contract, genuine: Quote) -> None:
    svn = genuine.qe.svn
    check(registry, genuine, policy_for(genuine, qe_min_svn=svn - 1))
    with reverts("attestation: QE too old"):
        check(registry, genuine, policy_for(genuine, qe_min_svn=svn + 1))
    with reverts("attestation: QE too old"):
        check(registry, genuine, policy_for(genuine, qe_min_svn=2**16 - 1))


def test_a_key_that_another_enclave_certified_is_refused(registry: Contract, genuine: Quote) -> None:
    other = parse_quote(read("quotes/tdx4-20a06f-phala.bin"))
    with reverts("attestation: key not certified"):
        check(registry, genuine, attestation_key=other.attestation_key)
    with reverts("attestation: key not certified"):
        check(registry, genuine, qe_auth=genuine.qe_auth + b"\0")
    with reverts("attestation: key not certified"):
        check(registry, genuine, qe_auth=b"")


def test_bytes_cannot_move_between_key_and_auth_data(registry: Contract) -> None:
    """The hash is over both without a border; the key's length is fixed, so there is only one way to cut."""
    quote = quote_of(SimulatedAttester(VENDOR), bytes(64))
    assert quote.qe.report_data[:32] == sha256(quote.attestation_key + quote.qe_auth).digest()
    with reverts("attestation: key not certified"):
        check(registry, quote, qe_auth=quote.attestation_key[32:] + quote.qe_auth)


def test_both_forms_of_each_signature_pass(registry: Contract, genuine: Quote) -> None:
    """Half of all genuine signatures have a high s, so neither form may be refused."""
    evidence = quote_calldata(genuine, policy_for(genuine).pck_cas)
    for name in ("pck_signature", "qe_signature", "quote_signature"):
        signature: bytes = getattr(evidence, name)
        s = int.from_bytes(signature[32:], "big")
        other = signature[:32] + (P256_ORDER - s).to_bytes(32, "big")
        assert check(registry, genuine, **{name: other}) == check(registry, genuine)


def test_signatures_out_of_range_are_refused(registry: Contract, genuine: Quote) -> None:
    signature = quote_calldata(genuine, policy_for(genuine).pck_cas).pck_signature
    order = P256_ORDER.to_bytes(32, "big")
    for forged in (
        bytes(64),
        bytes(32) + signature[32:],
        signature[:32] + bytes(32),
        order + signature[32:],
        signature[:32] + order,
    ):
        with reverts("attestation: wrong PCK signature"):
            check(registry, genuine, pck_signature=forged)


def test_formats_that_are_not_supported_are_refused(registry: Contract, genuine: Quote) -> None:
    signed = genuine.signed
    for head in ("0300020081000000", "0400020000000000", "0400030081000000", "0600020081000000"):
        with reverts("attestation: unknown quote format"):
            check(registry, genuine, quote=bytes.fromhex(head) + signed[8:])
    with reverts("attestation: QE vendor not Intel"):
        check(registry, genuine, quote=flipped(signed, ((27, 1),)))
    with reverts("attestation: quote too short"):
        check(registry, genuine, quote=signed[:431])
    for quote in (signed + b"\0", signed[:-1], signed[:432]):
        with reverts("attestation: wrong quote length"):
            check(registry, genuine, quote=quote)


def test_a_version_5_quote_has_the_length_of_its_body(registry: Contract) -> None:
    quote = quote_of(SimulatedAttester(VENDOR, format="tdx5"), bytes(64))
    assert len(quote.signed) == 702
    with reverts("attestation: wrong quote length"):
        check(registry, quote, quote=quote.signed[:48] + bytes.fromhex("020048020000") + quote.signed[54:])
    with reverts("attestation: wrong quote length"):
        check(registry, quote, quote=quote.signed[:638])
    with reverts("attestation: unknown TD report"):
        check(registry, quote, quote=quote.signed[:48] + bytes.fromhex("030048020000") + quote.signed[54:])
    short = quote.signed[:48] + bytes.fromhex("020048020000") + quote.signed[54:638]
    with reverts("attestation: wrong quote signature"):
        check(registry, quote, quote=short)
    signature = raw_signature(VENDOR.key("quoting tdx 0"), short)
    assert check(registry, quote, quote=short, quote_signature=signature).workload == quote.workload()


# The precompile.


@pytest.fixture
def evm() -> Iterator[Evm]:
    yield Evm()


ADDRESSES = tuple(account(name) for name in ("runs", "settlement", "vault"))


def test_without_the_precompile_the_registry_deploys_and_refuses(evm: Evm, genuine: Quote) -> None:
    registry = evm.deploy("AttestationRegistry", *ADDRESSES)
    with reverts("attestation: no P-256 precompile"):
        check(registry, genuine)
    install_p256(evm)  # a later fork brings it
    check(registry, genuine)


# What else could answer at 0x100: code that returns a word of 1, the word and more, a byte, 2, or reverts.
ONE = bytes.fromhex("600160005260206000f3")
ONE_AND_MORE = bytes.fromhex("600160005260406000f3")
ONE_BYTE = bytes.fromhex("6001600053600160 00f3".replace(" ", ""))
TWO = bytes.fromhex("600260005260206000f3")
REVERTS = bytes.fromhex("60006000fd")
REVERTS_WITH_ONE = bytes.fromhex("600160005260206000fd")


def test_a_chain_on_which_every_signature_passes_is_refused(evm: Evm, genuine: Quote) -> None:
    install_p256(evm, ONE)
    registry = evm.deploy("AttestationRegistry", *ADDRESSES)
    with reverts("attestation: P-256 takes anything"):
        check(registry, genuine)


@pytest.mark.parametrize("code", [ONE_AND_MORE, ONE_BYTE, TWO, REVERTS, REVERTS_WITH_ONE])
def test_only_one_word_of_one_is_a_yes(evm: Evm, genuine: Quote, code: bytes) -> None:
    install_p256(evm, code)
    registry = evm.deploy("AttestationRegistry", *ADDRESSES)
    with reverts("attestation: no P-256 precompile"):
        check(registry, genuine)


def test_the_address_is_that_of_the_standard() -> None:
    assert int(PRECOMPILE, 16) == 0x100


def test_evidence_and_claims_have_the_contracts_fields(registry: Contract) -> None:
    inputs = registry.functions["check_quote"]["inputs"]
    assert [part["name"] for part in inputs[0]["components"]] == list(Policy.__dataclass_fields__)
    assert [part["name"] for part in inputs[1]["components"]] == list(QuoteParts.__dataclass_fields__)
