from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.penalties import (
    BARRING,
    Bond,
    PenaltyTerms,
    broken_round,
    charges,
    contest_amount,
    lock_amounts,
    network_failed,
    stands,
)
from earnest.protocol.verdicts import Verdict

TERMS = PenaltyTerms(100, 100, 1000, 500, 5000, 100, ceiling=10**30, ceiling_rounds=10)
BONDS = {seat: Bond(10_000) for seat in range(8)}

amounts = st.integers(0, 10**6)
bonds = st.builds(lambda total, share: Bond(total, total * share // 100), amounts, st.integers(0, 110))
held = st.one_of(st.none(), st.sampled_from([v for v in Verdict if v != Verdict.ABSTAIN]))


def lock(verdicts, terms=TERMS, revealed=8, bonds=BONDS, used=0):
    return lock_amounts(terms, verdicts, revealed, range(len(verdicts)), bonds, used)


def test_each_verdict_has_its_price():
    assert lock(list(range(8))).amounts == {3: 100, 4: 1000, 5: 500, 6: 5000}
    assert [TERMS.bps(v) for v in (None, 0, 1, 2, 7, 255)] == [0] * 6


def test_a_verdict_that_costs_nothing_locks_nothing():
    assert lock([3, 4], replace(TERMS, malformed_bps=0)).amounts == {1: 1000}


def test_harmful_copied_and_unfaithful_sit_out():
    assert set(BARRING) == {4, 5, 6}
    assert [TERMS.barred_until(r) for r in (0, 9, 10, 19)] == [10, 10, 20, 20]


def test_a_crowd_of_harmful_verdicts_is_a_broken_round():
    assert not broken_round(0, 1)
    assert not broken_round(2, 4)
    assert broken_round(3, 4)
    assert lock([4, 4, 0, 0], revealed=4).amounts == {0: 1000, 1: 1000}
    assert lock([4, 4, 4, 5], revealed=4).amounts == {3: 500}


def test_the_guard_sees_the_whole_round_not_the_page():
    taken = lock_amounts(TERMS, [4, 4, 4, 0], 4, [0], BONDS, 0)
    assert taken.amounts == {}


def test_a_lock_takes_at_most_what_is_left():
    assert lock([6], bonds={0: Bond(10_000, 9_000)}).amounts == {0: 1_000}
    assert lock([6], bonds={0: Bond(10_000, 10_000)}).amounts == {0: 0}
    assert lock([6], bonds={0: Bond(0)}).amounts == {0: 0}
    assert lock([6], bonds={0: Bond(5, 9)}).amounts == {0: 0}


def test_shares_round_in_the_accounts_favour():
    assert lock([3], bonds={0: Bond(199)}).amounts == {0: 1}
    assert lock([3], bonds={0: Bond(99)}).amounts == {0: 0}


def test_the_ceiling_caps_a_windows_sum():
    terms = replace(TERMS, ceiling=1_700)
    taken = lock([4, 4, 0, 0], terms, used=0)
    assert (taken.amounts, taken.used) == ({0: 1000, 1: 700}, 1_700)
    assert lock([4], terms, used=1_700).amounts == {0: 0}
    assert lock([4], terms, used=9_999).amounts == {0: 0}


def test_unfaithful_work_ignores_the_ceiling():
    taken = lock([6, 3], replace(TERMS, ceiling=0))
    assert (taken.amounts, taken.used) == ({0: 5000, 1: 0}, 0)


@given(st.lists(held, max_size=8), st.lists(bonds, min_size=8, max_size=8), amounts, amounts)
def test_locks_never_exceed_bond_or_ceiling(verdicts, bonds, ceiling, used):
    taken = lock(verdicts, replace(TERMS, ceiling=ceiling), bonds=dict(enumerate(bonds)), used=used)
    for seat, amount in taken.amounts.items():
        assert 0 <= amount <= bonds[seat].free
        assert amount <= bonds[seat].total * TERMS.bps(verdicts[seat]) // 10_000
    capped = sum(amount for seat, amount in taken.amounts.items() if verdicts[seat] != Verdict.UNFAITHFUL)
    assert taken.used == used + capped
    assert capped <= max(0, ceiling - used)


def test_committed_but_not_revealed_is_charged():
    taken = charges(TERMS, {0, 1, 2, 5}, {0, 1, 7}, BONDS, 0)
    assert (taken.amounts, taken.used) == ({2: 100, 5: 100}, 200)


def test_charges_stop_at_the_ceiling():
    terms = replace(TERMS, ceiling=150)
    assert charges(terms, {0, 1, 2}, {2, 0}, BONDS, 100).amounts == {1: 50}
    assert charges(terms, {0, 1, 2}, {2, 0}, BONDS, 150).amounts == {1: 0}
    assert charges(terms, {0, 1, 2}, {2, 0}, BONDS, 999).amounts == {1: 0}


def test_a_failed_network_is_nobodys_fault():
    assert not network_failed(4, 2)
    assert network_failed(5, 2)
    assert not network_failed(0, 0)
    assert charges(TERMS, {0, 1, 2}, {0}, BONDS, 7).amounts == {}
    assert charges(TERMS, {0, 1, 2}, {0, 6, 7}, BONDS, 7).used == 7


@given(
    st.frozensets(st.integers(0, 7)),
    st.frozensets(st.integers(0, 7)),
    st.lists(bonds, min_size=8, max_size=8),
    amounts,
)
def test_charges_take_only_from_the_silent(committed, revealed, bonds, ceiling):
    taken = charges(replace(TERMS, ceiling=ceiling), committed, revealed, dict(enumerate(bonds)), 0)
    assert set(taken.amounts) <= committed - revealed
    assert all(0 <= amount <= bonds[seat].free for seat, amount in taken.amounts.items())
    assert taken.used == sum(taken.amounts.values()) <= ceiling


def test_contesting_puts_more_of_the_same_bond_at_stake():
    assert contest_amount(TERMS, Bond(10_000, 1_000)) == 100
    assert contest_amount(TERMS, Bond(10_000, 9_950)) == 50


@pytest.mark.parametrize(("upheld", "stand"), [(50, False), (51, True), (0, False), (100, True)])
def test_a_penalty_stands_above_half_of_the_stake(upheld, stand):
    assert stands(upheld, 100) is stand
