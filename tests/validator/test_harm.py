"""Harm is decided over rounds, by trainer, on both kinds of data."""

import numpy as np

from earnest.protocol.harm import HarmTerms, threshold
from earnest.validator.harm import HarmBook

TERMS = HarmTerms()
LIMIT = threshold(TERMS, rounds=6, trainer_limit=4)
GOOD, BAD = np.full(512, 0.02), np.full(512, -0.1)


def play(book: HarmBook, rounds: range, fresh: np.ndarray, own: np.ndarray, trainer: str = "cheat"):
    found = {}
    for round_ in rounds:
        book, found = book.after(round_, {trainer: (fresh, own)}, TERMS, LIMIT)
    return book, found.get(trainer)


def test_round_zero_is_skipped():
    book, finding = play(HarmBook(), range(1), BAD, BAD)
    assert book == HarmBook()
    assert finding is None


def test_steady_harm_on_both_kinds_of_data_is_harmful_in_the_third_round():
    _, second = play(HarmBook(), range(3), BAD, BAD)
    _, third = play(HarmBook(), range(4), BAD, BAD)
    assert second is not None
    assert third is not None
    assert not second.harmful
    assert third.harmful


def test_odd_data_that_hurts_others_but_helps_itself_is_not_harmful():
    _, finding = play(HarmBook(), range(9), BAD, GOOD)
    assert finding is not None
    assert finding.held_out > LIMIT
    assert not finding.harmful


def test_hurting_only_its_own_data_is_not_harmful():
    _, finding = play(HarmBook(), range(9), GOOD, BAD)
    assert finding is not None
    assert not finding.harmful


def test_after_a_verdict_both_processes_start_again():
    book, finding = play(HarmBook(), range(4), BAD, BAD)
    assert finding is not None
    assert finding.harmful
    assert book.tests["cheat"].e_value == 1
    _, next_one = play(book, range(4, 5), BAD, BAD)
    assert next_one is not None
    assert not next_one.harmful


def test_a_harm_test_is_the_trainers_and_not_the_seats():
    book, _ = play(HarmBook(), range(3), BAD, BAD)
    book, finding = play(book, range(3, 4), BAD, BAD, trainer="successor")
    assert finding is not None
    assert not finding.harmful
    assert book.tests["cheat"].e_value > 1


def test_a_saved_book_is_read_back_to_the_last_bit():
    book, _ = play(HarmBook(), range(3), BAD * 0.37, BAD * 0.11)
    assert HarmBook.from_json(book.as_json()) == book
