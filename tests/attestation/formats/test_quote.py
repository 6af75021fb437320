"""Parsing of quotes: every genuine one by Intel's layout; every hostile one is refused with a reason."""

from dataclasses import replace

import dcap_qvl
import pytest
from eth_hash.auto import keccak
from hypothesis import given
from hypothesis import strategies as st

from earnest.attestation.formats.quote import MAX_QUOTE, Quote, QuoteError, parse_quote
from tests.attestation.vectors import VECTORS, Vector, read

TDX4 = read("quotes/tdx4-b0c06f-phala.bin")
TDX5 = read("quotes/tdx5-90c06f-gotdx.bin")
SGX3 = read("quotes/sgx3-00a06711-phala.bin")
TDX10_IN_5 = TDX5[:48] + bytes.fromhex("020048020000") + TDX5[54:638] + TDX5[702:]


@pytest.mark.parametrize("vector", VECTORS.values(), ids=list(VECTORS))
def test_measurements_are_those_that_the_verifier_reads(vector: Vector) -> None:
    quote = parse_quote(vector.quote)
    theirs = dcap_qvl.parse_quote(vector.quote).report
    fields = quote.measurements()
    if quote.tee == "sgx":
        names = {"mrenclave": "mr_enclave", "mrsigner": "mr_signer"}
    else:
        names = {"mrtd": "mr_td", "rtmr0": "rt_mr0", "rtmr3": "rt_mr3", "mr_config_id": "mr_config_id"}
        names |= {"td_attributes": "td_attributes", "xfam": "xfam", "mr_seam": "mr_seam"}
    for ours, name in names.items():
        assert fields[ours] == getattr(theirs, name)
    assert quote.report_data == theirs.report_data


def test_a_quotes_parts_lie_where_the_layout_says() -> None:
    quote = parse_quote(TDX4)
    assert (quote.version, quote.tee) == (4, "tdx")
    assert quote.signed == TDX4[:632]
    assert quote.signature == TDX4[636:700]
    assert quote.attestation_key == TDX4[700:764]
    assert quote.qe_report == TDX4[770:1154]
    assert quote.qe_signature == TDX4[1154:1218]
    assert quote.qe_auth == TDX4[1220:1252]
    assert quote.chain.startswith(b"-----BEGIN CERTIFICATE-----")
    assert quote.trailing == b""
    assert len(parse_quote(TDX5).signed) == 702
    assert parse_quote(TDX10_IN_5).signed == TDX10_IN_5[:638]
    assert len(parse_quote(SGX3).signed) == 432


def test_the_quoting_enclave_is_read_from_its_report() -> None:
    qe = parse_quote(TDX4).qe
    assert (qe.product, qe.svn, qe.debug) == (2, 6, False)
    assert qe.report_data[32:] == bytes(32)
    debug = bytearray(qe.raw)
    debug[48] |= 2
    assert replace(qe, raw=bytes(debug)).debug


def test_the_workload_id_is_a_hash_of_what_the_protocol_names() -> None:
    quote, m = parse_quote(TDX4), parse_quote(TDX4).measurements()
    names = ("td_attributes", "xfam", "mrtd", "mr_config_id", "rtmr0", "rtmr1", "rtmr2")
    assert quote.workload() == keccak(bytes.fromhex("81000000") + b"".join(m[name] for name in names))
    quote, m = parse_quote(SGX3), parse_quote(SGX3).measurements()
    names = ("attributes", "mrenclave", "mrsigner", "product", "svn")
    assert quote.workload() == keccak(bytes(4) + b"".join(m[name] for name in names))


IN_THE_ID = {
    "tdx": set(range(120, 232)) | set(range(328, 472)),
    "sgx": set(range(48, 96)) | set(range(128, 160)) | set(range(256, 260)),
}


@pytest.mark.parametrize("raw", [TDX4, read("simulated/sim-tdx5-ok.bin"), SGX3], ids=["v4", "v5", "v3"])
def test_each_measured_byte_and_no_other_makes_another_workload(raw: bytes) -> None:
    quote = parse_quote(raw)
    for at in range(len(quote.body)):
        body = bytearray(quote.body)
        body[at] ^= 1
        changed = replace(quote, body=bytes(body))
        assert (changed.workload() != quote.workload()) == (at in IN_THE_ID[quote.tee]), at


def test_the_same_code_has_one_id_in_versions_4_and_5() -> None:
    four, five = (parse_quote(read(f"simulated/sim-tdx{v}-ok.bin")) for v in (4, 5))
    assert four.workload() == five.workload()


def test_debug_and_service_td_are_seen() -> None:
    assert parse_quote(read("quotes/neg-tdx4-debug-50806f.bin")).debug
    assert parse_quote(read("quotes/neg-sgx3-debug-00a06711.bin")).debug
    assert not any(parse_quote(raw).debug for raw in (TDX4, TDX5, SGX3))
    assert not parse_quote(read("quotes/neg-tdx4-septve-00806f05.bin")).sept_ve_disabled
    assert all(parse_quote(raw).sept_ve_disabled for raw in (TDX4, TDX5, SGX3))
    five = parse_quote(read("simulated/sim-tdx5-ok.bin"))
    assert five.service_td == bytes(48)
    assert replace(five, body=five.body[:647] + b"\1").service_td == bytes(47) + b"\1"


# Hostile bytes.


def patched(raw: bytes, at: int, value: bytes) -> bytes:
    return raw[:at] + value + raw[at + len(value) :]


REFUSED = {
    "empty": (b"", "header needs 48 bytes at 0, 0 are left"),
    "header cut": (TDX4[:47], "header needs 48 bytes"),
    "body cut": (TDX4[:631], "TD report needs 584 bytes at 48, 583 are left"),
    "version 2": (patched(TDX4, 0, b"\2"), "version 2 is not supported"),
    "version 6": (patched(TDX4, 0, b"\6"), "version 6 is not supported"),
    "version 260": (patched(TDX4, 1, b"\1"), "version 260 is not supported"),
    "key type": (patched(TDX4, 2, b"\3"), "key type 3 is not ECDSA P-256"),
    "vendor": (patched(TDX4, 12, b"\0"), "vendor is not Intel"),
    "SGX in version 4": (patched(TDX4, 4, b"\0"), "TEE type 00000000 in version 4"),
    "TDX in version 3": (patched(SGX3, 4, b"\x81"), "TEE type 81000000 in version 3"),
    "unknown TEE": (patched(TDX4, 4, b"\x82"), "TEE type 82000000"),
    "unknown body": (patched(TDX5, 48, b"\1"), "body of type 1 and 648 bytes"),
    "body of another size": (patched(TDX5, 50, b"\x48"), "body of type 3 and 584 bytes"),
    "huge body": (patched(TDX5, 50, b"\xff" * 4), "body of type 3 and 4294967295 bytes"),
    "auth beyond the end": (patched(TDX4, 1218, b"\xff\xff"), "auth data needs 65535 bytes"),
    "chain beyond the end": (patched(TDX4, 1254, b"\xff" * 4), "chain needs 4294967295 bytes"),
    "no chain": (patched(TDX4, 1252, b"\1"), "certification data of type 1"),
    "too long": (TDX4 + bytes(MAX_QUOTE), "exceed a quote's limit of 65536"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_malformed_quote_is_refused_with_a_reason(what: str) -> None:
    raw, reason = REFUSED[what]
    with pytest.raises(QuoteError, match=reason):
        parse_quote(raw)


def test_every_prefix_of_a_quote_is_refused() -> None:
    for end in range(len(TDX4)):
        with pytest.raises(QuoteError):
            parse_quote(TDX4[:end])


def test_unsigned_bytes_may_have_any_value_and_change_nothing_else() -> None:
    quote = parse_quote(TDX4)
    assert parse_quote(TDX4 + b"tail") == replace(quote, trailing=b"tail")
    assert parse_quote(patched(TDX4, 632, b"\xff" * 4)) == quote
    assert parse_quote(patched(TDX4, 764, b"\xff" * 6)) == quote


@given(st.binary(max_size=6_000))
def test_no_bytes_do_anything_but_parse_or_be_refused(raw: bytes) -> None:
    _parses_or_is_refused(raw)


@given(
    st.sampled_from([TDX4, TDX5, SGX3]),
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 255)), max_size=8),
    st.integers(0, 5_100),
)
def test_no_altered_quote_does_anything_but_parse_or_be_refused(
    raw: bytes, changes: list[tuple[int, int]], end: int
) -> None:
    altered = bytearray(raw)
    for at, value in changes:
        altered[at % len(raw)] = value
    _parses_or_is_refused(bytes(altered[:end]))


def _parses_or_is_refused(raw: bytes) -> None:
    try:
        quote = parse_quote(raw)
    except QuoteError:
        return
    assert isinstance(quote, Quote)
    assert quote.signed == raw[: len(quote.signed)]
    assert len(quote.report_data) == 64
    assert len(quote.workload()) == 32
