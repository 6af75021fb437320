from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.penalties import (
    BARRING,
    Bond,
    PenaltyTerms,
    below_ceiling,
    broken_round,
    charges,
    contest_amount,
    lock_amounts,
    network_failed,
    seized_amount,
    stands,
)
from earnest.protocol.verdicts import Verdict

TERMS = PenaltyTerms(100, 100, 1000, 500, 5000, 100, ceiling=10**30, ceiling_rounds=10)
BONDS = {seat: Bond(10_000) for seat in range(8)}

amounts = st.integers(0, 10**6)
bonds = st.builds(lambda total, share: Bond(total, total * share // 100), amounts, st.integers(0, 110))
held = st.one_of(st.none(), st.sampled_from([v for v in Verdict if v != Verdict.ABSTAIN]))


def lock(verdicts, terms=TERMS, broken=False, bonds=BONDS):
    return lock_amounts(terms, verdicts, broken, range(len(verdicts)), bonds)


def test_each_verdict_has_its_price():
    assert lock(list(range(8))) == {3: 100, 4: 1000, 5: 500, 6: 5000}
    assert [TERMS.bps(v) for v in (None, 0, 1, 2, 7, 255)] == [0] * 6


def test_a_verdict_that_costs_nothing_locks_nothing():
    assert lock([3, 4], replace(TERMS, malformed_bps=0)) == {1: 1000}


def test_harmful_copied_and_unfaithful_sit_out():
    assert set(BARRING) == {4, 5, 6}
    assert [TERMS.barred_until(r) for r in (0, 9, 10, 19)] == [10, 10, 20, 20]


def test_harm_on_more_than_half_of_the_bond_is_a_broken_round():
    assert not broken_round(0, 1)
    assert not broken_round(2, 4)
    assert broken_round(3, 4)
    assert lock([4, 4, 0, 0]) == {0: 1000, 1: 1000}
    assert lock([4, 4, 4, 5], broken=True) == {3: 500}


def test_a_lock_takes_at_most_what_is_left():
    assert lock([6], bonds={0: Bond(10_000, 9_000)}) == {0: 1_000}
    assert lock([6], bonds={0: Bond(10_000, 10_000)}) == {0: 0}
    assert lock([6], bonds={0: Bond(0)}) == {0: 0}
    assert lock([6], bonds={0: Bond(5, 9)}) == {0: 0}


def test_shares_round_in_the_accounts_favour():
    assert lock([3], bonds={0: Bond(199)}) == {0: 1}
    assert lock([3], bonds={0: Bond(99)}) == {0: 0}


def test_the_ceiling_caps_what_is_seized_from_an_account_in_a_window():
    terms = replace(TERMS, ceiling=1_700)
    assert below_ceiling(terms, 1_000, used=0) == 1_000
    assert below_ceiling(terms, 1_000, used=1_000) == 700
    assert below_ceiling(terms, 1_000, used=1_700) == below_ceiling(terms, 1_000, used=9_999) == 0


def test_ceiling_takes_neither_a_contest_nor_unfaithful_work_in():
    terms = replace(TERMS, ceiling=0)
    assert seized_amount(terms, Verdict.COPIED, 500, 100, used=0) == 100
    assert seized_amount(terms, Verdict.UNFAITHFUL, 5_000, 100, used=0) == 5_100


@given(st.lists(held, max_size=8), st.lists(bonds, min_size=8, max_size=8), amounts, amounts)
def test_penalties_never_exceed_bond_or_ceiling(verdicts, bonds, ceiling, used):
    terms = replace(TERMS, ceiling=ceiling)
    for seat, amount in lock(verdicts, terms, bonds=dict(enumerate(bonds))).items():
        assert 0 <= amount <= bonds[seat].free
        assert amount <= bonds[seat].total * TERMS.bps(verdicts[seat]) // 10_000
        seized = seized_amount(terms, verdicts[seat], amount, 0, used)
        assert seized <= amount
        assert verdicts[seat] == Verdict.UNFAITHFUL or seized <= max(0, ceiling - used)


@given(st.permutations(range(8)), st.lists(held, min_size=8, max_size=8))
def test_the_order_of_locks_changes_no_amount(order, verdicts):
    assert lock_amounts(TERMS, verdicts, False, order, BONDS) == lock(verdicts)


def test_committed_but_not_revealed_is_charged():
    assert charges(TERMS, {0, 1, 2, 5}, {0, 1, 7}, BONDS, {}) == {2: 100, 5: 100}


def test_charges_stop_at_each_accounts_ceiling():
    terms = replace(TERMS, ceiling=150)
    assert charges(terms, {0, 1, 2, 3}, {2, 0}, BONDS, {1: 100}) == {1: 50, 3: 100}
    assert charges(terms, {0, 1, 2}, {2, 0}, BONDS, {1: 999}) == {1: 0}


def test_a_failed_network_is_nobodys_fault():
    assert not network_failed(4, 2)
    assert network_failed(5, 2)
    assert not network_failed(0, 0)
    assert charges(TERMS, {0, 1, 2}, {0, 6, 7}, BONDS, {}) == {}


@given(
    st.frozensets(st.integers(0, 7)),
    st.frozensets(st.integers(0, 7)),
    st.lists(bonds, min_size=8, max_size=8),
    amounts,
)
def test_charges_take_only_from_the_silent(committed, revealed, bonds, ceiling):
    taken = charges(replace(TERMS, ceiling=ceiling), committed, revealed, dict(enumerate(bonds)), {})
    assert set(taken) <= committed - revealed
    assert all(0 <= amount <= min(bonds[seat].free, ceiling) for seat, amount in taken.items())


def test_contesting_puts_more_of_the_same_bond_at_stake():
    assert contest_amount(TERMS, Bond(10_000, 1_000)) == 100
    assert contest_amount(TERMS, Bond(10_000, 9_950)) == 50


@pytest.mark.parametrize(("upheld", "stand"), [(50, False), (51, True), (0, False), (100, True)])
def test_a_penalty_stands_above_half_of_the_stake(upheld, stand):
    assert stands(upheld, 100) is stand
