from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.consensus import (
    Ballot,
    hint_words,
    median_weight,
    settle,
)
from earnest.protocol.pay import agrees, burned_pay, shares, trainer_pay, validator_pay
from earnest.protocol.report import Report, SeatVote
from earnest.protocol.verdicts import Verdict

BASE, NEWEST, OTHER = b"\1" * 32, b"\2" * 32, b"\3" * 32
P, Q = 10**18, 3 * 10**17

near = st.sampled_from([0, 1, 49, 50, 51, 1000, 1020, 1021, 65_534, 65_535])
votes = st.one_of(
    st.builds(SeatVote, near, st.just(0)),
    st.builds(SeatVote, st.integers(0, 65_535), st.sampled_from([*range(8), 9, 255])),
)


@st.composite
def ballots(draw):
    seats, validators = draw(st.integers(0, 12)), draw(st.integers(0, 16))
    stakes = draw(
        st.lists(st.sampled_from([0, 1, 2, 3, 10**18, 2**96 - 1]), min_size=validators, max_size=validators)
    )
    report = st.builds(
        Report,
        st.sampled_from([BASE, BASE, BASE, OTHER]),
        st.just(NEWEST),
        st.just(bytes(32)),
        st.lists(votes, max_size=seats).map(tuple),
    )
    reports = draw(st.lists(st.one_of(report, report, st.none()), min_size=validators, max_size=validators))
    revealed = draw(st.frozensets(st.integers(0, seats - 1))) if seats else frozenset()
    return Ballot(tuple(stakes), sum(stakes), tuple(reports), revealed, seats)


def stake_where(ballot: Ballot, holds) -> int:
    return sum(
        stake
        for stake, report in zip(ballot.stakes, ballot.reports, strict=True)
        if report is not None and holds(report)
    )


@given(ballots(), st.integers(1, 12))
def test_settlement_follows_the_definitions(ballot, full_seats):
    """Every line of section 8, by brute force."""
    settled, t = settle(ballot, P, Q, full_seats), ballot.active_stake
    pairs = {
        (r.base_root, r.newest_root): stake_where(
            ballot, lambda o, r=r: (o.base_root, o.newest_root) == (r.base_root, r.newest_root)
        )
        for r in ballot.reports
        if r is not None
    }
    winning = [pair for pair, stake in pairs.items() if stake * 2 > t]
    void = stake_where(ballot, lambda _: True) * 2 <= t or not winning
    assert settled.void == void
    if void:
        assert not any((*settled.consensus, *settled.trainer_pay, *settled.validator_pay, settled.judged))
        assert settled.verdicts == (None,) * ballot.seats
        assert (settled.pair, settled.majority, settled.burned) == (None, -1, 0)
        return
    assert [settled.pair] == winning
    first = ballot.reports[settled.majority]
    assert first is not None
    assert (first.base_root, first.newest_root) == settled.pair
    agreeing = tuple(
        r if r is not None and (r.base_root, r.newest_root) == settled.pair else None for r in ballot.reports
    )
    assert settled.agreeing == {v for v, r in enumerate(agreeing) if r is not None}
    ballot = replace(ballot, reports=agreeing)
    _follows_by_seat(ballot, settled)
    doubt = sum(65_535 - settled.consensus[seat] for seat in settled.doubtful)
    d = max(sum(settled.consensus) + doubt, 65_535 * full_seats)
    assert settled.trainer_pay == tuple(P * c // d for c in settled.consensus)
    assert settled.burned == P * doubt // d
    positive = [seat for seat, c in enumerate(settled.consensus) if c > 0]
    judged = {*positive, *settled.doubtful}
    assert settled.judged == len(judged)
    for stake, report, matched, pay in zip(
        ballot.stakes, ballot.reports, settled.matches, settled.validator_pay, strict=True
    ):
        found = [
            seat
            for seat in positive
            if report and abs(weight(report, seat) - settled.consensus[seat]) * 50 <= settled.consensus[seat]
        ]
        assert matched == len(set(found) - settled.doubtful)
        assert pay == (Q * stake * matched // (t * len(judged)) if judged else 0)


def _follows_by_seat(ballot, settled):
    t = ballot.active_stake
    for seat, c in enumerate(settled.consensus):
        if seat not in ballot.revealed:
            assert (c, settled.verdicts[seat], seat in settled.doubtful) == (0, None, False)
            continue
        weights = {0, *(r.vote(seat).counted_weight for r in ballot.reports if r is not None)}
        reached = [
            w for w in weights if stake_where(ballot, lambda r, w=w, s=seat: weight(r, s) >= w) * 2 > t
        ]
        assert c == max(reached, default=0)
        no_more = stake_where(
            ballot, lambda r, c=c, s=seat: r.vote(s).verdict != 255 and (weight(r, s) - c) * 50 <= c
        )
        assert (seat in settled.doubtful) == (no_more * 2 <= t)
        held = [
            k for k in range(8) if stake_where(ballot, lambda r, k=k, s=seat: r.vote(s).verdict == k) * 2 > t
        ]
        assert settled.verdicts[seat] == (held[0] if held else None)


def weight(report: Report, seat: int) -> int:
    vote = report.vote(seat)
    return vote.weight if vote.verdict == 0 else 0


@given(ballots())
def test_pay_never_exceeds_the_pools(ballot):
    settled = settle(ballot, P, Q)
    assert sum(settled.trainer_pay) + settled.burned <= P
    assert sum(settled.validator_pay) <= Q


@given(ballots())
def test_hints_pass_the_contracts_check_and_no_other_does(ballot):
    settled, t = settle(ballot, P, Q), ballot.active_stake
    if settled.void:
        return
    voting = tuple(r if v in settled.agreeing else None for v, r in enumerate(ballot.reports))
    ballot = replace(ballot, reports=voting)
    for seat in ballot.revealed:
        for hint in {0, 1, 65_535, settled.consensus[seat]}:
            at_least = stake_where(ballot, lambda r, h=hint, s=seat: weight(r, s) >= h)
            above = stake_where(ballot, lambda r, h=hint, s=seat: weight(r, s) > h)
            passes = above * 2 <= t and (hint == 0 or at_least * 2 > t)
            assert passes == (hint == settled.consensus[seat])


def ballot_of(*weights: list[int], stakes: tuple[int, ...] | None = None) -> Ballot:
    """One report per validator, all trainers revealed and accepted."""
    reports = tuple(Report(BASE, NEWEST, bytes(32), tuple(SeatVote(w, 0) for w in row)) for row in weights)
    stakes = stakes or (1,) * len(weights)
    return Ballot(stakes, sum(stakes), reports, frozenset(range(len(weights[0]))), len(weights[0]))


def test_three_equal_validators_overrule_a_liar():
    settled = settle(ballot_of([1000, 30_000], [1010, 30_100], [65_535, 0]), P, Q)
    assert settled.consensus == (1010, 30_000)
    assert settled.matches == (2, 2, 0)
    assert settled.validator_pay == (Q // 3, Q // 3, 0)


def test_half_of_the_stake_decides_nothing():
    assert median_weight([(1, 9), (1, 5)], 2) == 5
    assert median_weight([(1, 9)], 2) == 0
    assert median_weight([(2, 9), (1, 5)], 3) == 9
    assert settle(ballot_of([9], stakes=(1,)), P, Q).consensus == (9,)
    assert settle(replace(ballot_of([9], stakes=(1,)), active_stake=2), P, Q).void


def test_split_roots_void_the_round():
    ballot = ballot_of([9], [9])
    first, second = ballot.reports
    assert first and second
    assert settle(replace(ballot, reports=(first, replace(second, base_root=OTHER))), P, Q).void
    assert settle(replace(ballot, reports=(first, replace(second, newest_root=OTHER))), P, Q).void


def test_no_reports_or_no_stake_is_void():
    assert settle(Ballot((), 0, (), frozenset(), 0), P, Q).void
    assert settle(Ballot((5,), 5, (None,), frozenset({0}), 1), P, Q).void
    assert settle(replace(ballot_of([9]), stakes=(0,), active_stake=0), P, Q).void


def test_a_round_without_reveals_pays_nobody():
    settled = settle(replace(ballot_of([9, 9]), revealed=frozenset()), P, Q)
    assert not settled.void
    assert settled.consensus == settled.trainer_pay == (0, 0)
    assert settled.validator_pay == (0,)


def test_an_unrevealed_seat_never_counts():
    settled = settle(replace(ballot_of([9, 65_535]), revealed=frozenset({1})), P, Q)
    assert settled.consensus == (0, 65_535)
    assert settled.verdicts == (None, 0)
    assert settled.trainer_pay == (0, P)


@pytest.mark.parametrize("verdict", [v for v in Verdict if v != Verdict.ACCEPTED])
def test_a_weight_under_another_verdict_counts_as_0(verdict):
    report = Report(BASE, NEWEST, bytes(32), (SeatVote(65_535, verdict),))
    settled = settle(Ballot((1,), 1, (report,), frozenset({0}), 1), P, Q)
    assert settled.consensus == (0,)
    assert settled.verdicts == (None if verdict == Verdict.ABSTAIN else verdict,)


def test_agreement_is_within_two_percent():
    assert [agrees(w, 1000) for w in (979, 980, 1020, 1021)] == [False, True, True, False]
    assert [agrees(w, 49) for w in (48, 49, 50)] == [False, True, False]
    assert agrees(1, 1)
    assert not agrees(0, 0)


def test_a_verdict_needs_more_than_half():
    votes = (SeatVote(0, Verdict.HARMFUL),), (SeatVote(0, Verdict.COPIED),)
    reports = tuple(Report(BASE, NEWEST, bytes(32), vote) for vote in votes)
    assert settle(Ballot((1, 1), 2, reports, frozenset({0}), 1), P, Q).verdicts == (None,)
    assert settle(Ballot((2, 1), 3, reports, frozenset({0}), 1), P, Q).verdicts == (Verdict.HARMFUL,)


def test_pay_is_rounded_down():
    assert trainer_pay(100, 65_535, shares(3 * 65_535, 0, 1)) == 33
    assert burned_pay(100, 65_535, shares(2 * 65_535, 65_535, 1)) == 33
    assert validator_pay(100, 1, 1, 3, 1) == 33
    assert validator_pay(100, 1, 0, 1, 0) == 0


@given(st.lists(st.integers(0, 65_535), max_size=256))
def test_hints_are_sixteen_to_a_word_first_on_top(consensus):
    hints = hint_words(consensus)
    assert len(hints) == -(-len(consensus) // 16)
    assert [hints[i // 16] >> (240 - 16 * (i % 16)) & 0xFFFF for i in range(len(consensus))] == consensus
    assert all(hint < 2**256 for hint in hints)
    if len(consensus) % 16:
        assert hints[-1] << 16 * (len(consensus) % 16) & 2**256 - 1 == 0


# Pay by weight.

weights = st.lists(st.integers(0, 65_535), min_size=1, max_size=12)


@given(weights, weights, st.integers(1, 12), st.integers(0, 20))
def test_seats_without_weight_change_nobodys_pay(own, others, full_seats, junk):
    def pays(extra):
        rows = [own + others + [0] * extra] * 3
        return settle(ballot_of(*rows), P, Q, full_seats).trainer_pay[: len(own + others)]

    assert pays(junk) == pays(0)


@given(st.integers(1, 65_535), weights, st.integers(1, 12), st.data())
def test_work_split_over_seats_earns_no_more_than_its_weights_sum_to(whole, others, full_seats, data):
    """However many seats share a weight: pay depends on the sum, so a split must raise the sum to pay."""
    cuts = sorted(data.draw(st.lists(st.integers(0, whole), max_size=7)))
    parts = [b - a for a, b in zip([0, *cuts], [*cuts, whole], strict=True)]
    rest = sum(others)

    def earned(mine):
        return sum(trainer_pay(P, c, shares(sum(mine) + rest, 0, full_seats)) for c in mine)

    assert earned(parts) <= earned([whole])


@given(weights, st.integers(0, 11), st.integers(1, 12))
def test_lie_that_puts_a_rival_in_doubt_raises_nobodys_pay(honest, rival, full_seats):
    """One validator is missing, so that another alone can zero a seat."""
    seat = rival % len(honest)
    lie = [0 if i == seat else w for i, w in enumerate(honest)]
    stakes = (1, 1, 1)
    told = ballot_of(honest, honest, honest, stakes=stakes)
    told = replace(told, reports=(*told.reports[:2], None))
    lied = ballot_of(honest, lie, honest, stakes=stakes)
    lied = replace(lied, reports=(*lied.reports[:2], None))
    before, after = (settle(ballot, P, Q, full_seats) for ballot in (told, lied))
    assert all(b <= a for a, b in zip(before.trainer_pay, after.trainer_pay, strict=True))
    assert after.validator_pay[1] <= before.validator_pay[1]
    if honest[seat]:
        assert seat in after.doubtful
        assert after.validator_pay[1] < before.validator_pay[1]
