import pytest
from eth_abi.abi import encode
from eth_hash.auto import keccak
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.report import (
    ABSENT,
    MAX_WORDS,
    Report,
    ReportError,
    SeatVote,
    decode_report,
    read_report,
    report_commitment,
    words_hash,
)
from earnest.protocol.verdicts import Verdict

roots = st.binary(min_size=32, max_size=32)
faults = st.sampled_from([v for v in Verdict if v != Verdict.ACCEPTED])
votes = st.one_of(
    st.builds(SeatVote, st.integers(0, 65_535), st.just(0)), st.builds(SeatVote, st.just(0), faults)
)
reports = st.builds(Report, roots, roots, roots, st.lists(votes, max_size=256).map(tuple))
HEAD = [b"\1" * 32, b"\2" * 32, b"\3" * 32]


def report_of(votes: tuple[SeatVote, ...]) -> Report:
    return Report(HEAD[0], HEAD[1], HEAD[2], votes)


@given(reports)
def test_an_encoded_report_decodes_to_itself(report):
    assert decode_report(report.words(), len(report.votes)) == report
    assert len(report.words()) <= MAX_WORDS == 29


@given(reports)
def test_hash_is_keccak_of_the_abi_encoded_words(report):
    assert report.hash() == keccak(encode(["bytes32[]"], [report.words()])) == words_hash(report.words())


def test_seat_0_is_the_most_significant_and_the_top_16_bits_are_zero():
    report = report_of((SeatVote(0xABCD, 0), SeatVote(0, 4)))
    assert report.words() == [*HEAD, bytes.fromhex("0000" + "abcd00" + "000004" + "000001" * 8)]


def test_trailing_absent_words_are_omitted():
    accepted = SeatVote(9, 0)
    assert report_of(()).words() == HEAD
    assert report_of((ABSENT,) * 256).words() == HEAD
    assert len(report_of((accepted, *(ABSENT,) * 255)).words()) == 4
    assert len(report_of((ABSENT,) * 10 + (accepted,)).words()) == 5


def test_seats_beyond_the_report_are_absent():
    report = report_of((SeatVote(9, 0),))
    assert report.vote(1) == report.vote(255) == ABSENT
    assert decode_report(report.words(), 12).votes == (SeatVote(9, 0), *(ABSENT,) * 11)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (HEAD[:2], "at least 3 words"),
        ([*HEAD, bytes.fromhex("0000" + "000001" * 10)], "canonical"),
        ([*HEAD, bytes.fromhex("0001" + "000100" + "000001" * 9)], "canonical"),
        ([*HEAD, bytes.fromhex("0000" + "000001" * 9 + "000100")], "canonical"),
        ([*HEAD, bytes.fromhex("0000" + "000008" + "000001" * 9)], "unknown verdict 8"),
        ([*HEAD, bytes.fromhex("0000" + "000104" + "000001" * 9)], "other than accepted"),
    ],
    ids=["short", "absent-word", "top-bits", "seat-beyond", "unknown-verdict", "weight-under-fault"],
)
def test_only_the_canonical_encoding_decodes(words, reason):
    with pytest.raises(ReportError, match=reason):
        decode_report(words, 9)


@given(st.lists(roots, min_size=3, max_size=29), st.integers(0, 256))
def test_any_revealed_words_can_be_read_as_the_contract_does(words, seats):
    report = read_report(words, seats)
    assert report
    assert len(report.votes) == seats
    for seat, vote in enumerate(report.votes):
        entry = words[3 + seat // 10] if 3 + seat // 10 < len(words) else b"\0\0" + b"\0\0\1" * 10
        at = 2 + 3 * (seat % 10)
        assert (vote.weight, vote.verdict) == (int.from_bytes(entry[at : at + 2], "big"), entry[at + 2])


@pytest.mark.parametrize("words", [[], HEAD[:1], HEAD[:2]])
def test_a_report_without_roots_counts_as_none(words):
    assert read_report(words, 5) is None


@given(st.integers(0, 65_535), st.integers(0, 255))
def test_a_weight_counts_only_under_verdict_0(weight, verdict):
    assert SeatVote(weight, verdict).counted_weight == (weight if verdict == 0 else 0)


@pytest.mark.parametrize("vote", [SeatVote(65_536, 0), SeatVote(-1, 0), SeatVote(0, 256)])
def test_votes_that_do_not_fit_are_not_packed(vote):
    with pytest.raises(ReportError, match="24 bits"):
        report_of((vote,)).words()


def test_commitment_binds_validator_and_salt():
    args = (1337, "0x" + "22" * 20, 1, 2, "0x" + "11" * 20, b"\4" * 32, b"\5" * 32)
    sealed = report_commitment(*args)
    assert sealed == keccak(
        encode(["uint256", "address", "uint256", "uint256", "address", "bytes32", "bytes32"], args)
    )
    assert report_commitment(*args[:4], "0x" + "33" * 20, *args[5:]) != sealed
    assert report_commitment(*args[:6], b"\6" * 32) != sealed
