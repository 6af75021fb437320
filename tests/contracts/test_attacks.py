"""Attacks on the contracts, each of which must fail. `docs/pitfalls.md` says which known pitfall each one plays."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from earnest.protocol.constants import NO_SEAT
from earnest.protocol.manifest import commitment
from earnest.protocol.merkle import admission_proof
from earnest.protocol.report import read_report, report_commitment, words_hash
from earnest.protocol.run import Role
from tests.contracts.harness import CHAIN_ID, CONTRACTS, System, account, compiled, reverts
from tests.contracts.rounds import (
    ADMITTED,
    BASE,
    EVIDENCE,
    NEWEST,
    SALT,
    SPONSOR,
    STRANGER,
    TERMS,
    TRAINERS,
    VALIDATORS,
    Run,
    accepted,
    fund,
    payment,
    report,
    verdict,
)

BOND = 10**9
KEY, OTHER_KEY = account("key"), account("other key")


def start_exit(run: Run, who: str) -> None:
    run.system.vault.start_exit(run.settlement.address, run.id, sender=who)


def finish_exit(run: Run, who: str) -> None:
    run.system.vault.finish_exit(run.settlement.address, run.id, sender=who)


def take(run: Run, who: str, bond: int, seat: int) -> None:
    run.bond(who, bond)
    run.system.runs.join(run.id, Role.TRAINER, who, "", [], seat, sender=who)


def name(run: Run, role: Role, seat: int, key: str, owner: str) -> None:
    run.system.runs.set_operator(run.id, role, seat, key, sender=owner)


# Somebody else's money.


def test_stranger_cannot_spend_a_sponsors_allowance(contracts: System) -> None:
    fund(contracts, SPONSOR, 10**20)
    contracts.vault.allow(contracts.settlement.address, 10**20, sender=SPONSOR)
    params = Run.create(contracts).params
    contracts.vault.allow(contracts.settlement.address, 10**20, sender=SPONSOR)
    with reverts("vault: allowance too small"):
        contracts.terms.create_run(params, "", sender=STRANGER)
    with reverts("settlement: only TrainingRuns"):
        contracts.settlement.open(99, SPONSOR, 1, TERMS.exit_delay, sender=STRANGER)
    with reverts("vault: allowance too small"):
        contracts.vault.open_run(99, SPONSOR, 1, TERMS.exit_delay, sender=STRANGER)


def test_allowance_pays_for_one_run_not_two(contracts: System) -> None:
    run = Run.create(contracts)
    fund(contracts, SPONSOR, run.params.budget)
    with reverts("vault: allowance too small"):
        contracts.terms.create_run(run.params, "", sender=SPONSOR)


def test_stranger_as_manager_reaches_no_bond_and_no_escrow(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(1)
    contracts.vault.open_run(
        run.id, SPONSOR, 0, TERMS.exit_delay, sender=STRANGER
    )  # the same id, its own ledger
    assert contracts.vault.seize(run.id, TRAINERS[0], BOND, "malice", sender=STRANGER) == 0
    for act in (
        lambda: contracts.vault.pay(run.id, [payment(STRANGER, 1)], sender=STRANGER),
        lambda: contracts.vault.refund(run.id, 1, sender=STRANGER),
        lambda: contracts.vault.burn_escrow(run.id, 1, sender=STRANGER),
    ):
        with reverts("vault: escrow too small"):
            act()
    assert run.bond_of(TRAINERS[0]) == BOND
    assert run.escrow() == run.params.budget


# Cheating with nothing at stake.


@pytest.mark.parametrize(("minimum", "floor"), [(1, 1), (3, 1), (4, 2), (10**6, 2**18), (2**96 - 1, 2**94)])
def test_trainer_that_left_cannot_work_on_a_few_wei(contracts: System, minimum: int, floor: int) -> None:
    run = Run.create(contracts, rounds=200, trainer_min_bond=minimum)
    run.join_trainers(1, bond=minimum)
    start_exit(run, TRAINERS[0])
    run.evm.travel(run.evm.time + run.params.exit_delay)
    finish_exit(run, TRAINERS[0])
    run.bond(TRAINERS[0], floor - 1)
    round = run.params.schedule().next_round(run.evm.time)
    run.enter("commit", round)
    with reverts("runs: no live bond"):
        run.commit([0], round)
    run.bond(TRAINERS[0], 1)
    run.commit([0], round)
    assert run.params.commit_bond == floor


def test_anyone_ends_the_votes_of_a_validator_that_left(contracts: System) -> None:
    run = Run.create(contracts, rounds=200)
    run.join_validators([10**9, 10**6])
    start_exit(run, VALIDATORS[0])
    run.evm.travel(run.evm.time + run.params.exit_delay)
    finish_exit(run, VALIDATORS[0])
    contracts.runs.sync(run.id, Role.VALIDATOR, 0, sender=STRANGER)
    now = run.params.schedule().round_at(run.evm.time)
    assert contracts.runs.seat_at(run.id, Role.VALIDATOR, 0, now + 1).stake == 10**9
    assert contracts.runs.seat_at(run.id, Role.VALIDATOR, 0, now + 2).stake == 0


def test_validator_that_leaves_votes_no_more(contracts: System) -> None:
    run = Run.create(contracts, rounds=9)
    run.join_trainers(1)
    run.join_validators([10**9, 10**6])
    said = {v: report([accepted(9)]) for v in range(2)}
    run.play(said)
    start_exit(run, VALIDATORS[0])  # and no sync by anyone
    run.enter("report_commit", 1)
    run.seed(1)
    run.seal({1: said[1]}, 1)
    assert contracts.runs.round_facts(run.id, 1).active_stake == 10**6
    with reverts("runs: inactive seat"):
        run.seal({0: said[0]}, 1)


@pytest.mark.parametrize("overlap", [False, True])
def test_stake_bonded_in_a_rounds_last_second_decides_no_round_without_notice(
    contracts: System, overlap: bool
) -> None:
    """A validator that outweighs the others by surprise, and leaves in the same breath, counts in no round."""
    run = Run.create(contracts, rounds=9, overlap=overlap, commit_s=2_000)
    run.join_trainers(1)
    run.join_validators([10**9] * 3)
    said = {v: report([accepted(9)]) for v in range(3)}
    run.play(said)
    schedule = run.params.schedule()
    edge = schedule.opens(2) - 1  # the last second before a round opens
    run.evm.travel(edge)
    run.bond(VALIDATORS[2], 4 * 10**9)
    contracts.runs.sync(run.id, Role.VALIDATOR, 2)
    assert run.evm.events("StakeSynced")[0]["from_round"] == 3
    stakes = [contracts.runs.seat_at(run.id, Role.VALIDATOR, 2, round).stake for round in (1, 2, 3)]
    assert stakes == [10**9, 10**9, 5 * 10**9]


def test_validator_that_joins_gives_a_full_rounds_notice(contracts: System) -> None:
    run = Run.create(contracts, rounds=9)
    run.join_trainers(1)
    run.join_validators([10**9])
    said = {v: report([accepted(9)]) for v in range(2)}
    run.enter("commit", 1, -1)
    run.join_validators([10**12])
    run.play({0: said[0]}, 1)
    assert contracts.runs.round_facts(run.id, 1).active_stake == 10**9
    with reverts("runs: inactive seat"):
        run.enter("report_commit", 1)
        run.seal({1: said[1]}, 1)
    run.play(said, 2)
    assert contracts.runs.round_facts(run.id, 2).active_stake == 10**9 + 10**12


def test_seat_that_changes_hands_does_not_vote_with_the_new_owners_bond(contracts: System) -> None:
    """The old owner is leaving, and still operates the seat in the round; nothing of its own is at stake."""
    run = Run.create(contracts, rounds=9, validator_limit=2)
    run.join_trainers(1)
    run.join_validators([10**9] * 2)
    run.enter("commit", 1)
    start_exit(run, VALIDATORS[1])
    run.bond(VALIDATORS[2], 10**9)
    proof = admission_proof(ADMITTED, VALIDATORS[2], Role.VALIDATOR)
    contracts.runs.join(run.id, Role.VALIDATOR, VALIDATORS[2], "", proof, 1, sender=VALIDATORS[2])
    run.play({0: report([accepted(9)])}, 1)
    assert tuple(contracts.runs.round_facts(run.id, 1).stakes[:2]) == (10**9, 0)


def test_same_money_votes_for_one_seat_only(contracts: System) -> None:
    """Joined, left and taken back before the start, then bonded for a second seat; nobody syncs."""
    run = Run.create(contracts, start=contracts.evm.time + 5 * 86_400, exit_delay=2 * 86_400)
    run.join_trainers(1)
    run.join_validators([10**9, 2 * 10**9])
    start_exit(run, VALIDATORS[1])
    run.evm.travel(run.evm.time + 2 * 86_400)
    finish_exit(run, VALIDATORS[1])
    contracts.vault.withdraw(2 * 10**9, sender=VALIDATORS[1])
    run.join_validators([2 * 10**9])
    run.play({v: report([accepted(9)]) for v in (0, 2)})
    facts = contracts.runs.round_facts(run.id, 0)
    assert tuple(facts.stakes[:3]) == (10**9, 0, 2 * 10**9)


def test_stake_of_a_validator_counts_up_to_the_cap(contracts: System) -> None:
    run = Run.create(contracts, validator_max_stake=10**6)
    run.join_trainers(1)
    run.join_validators([10**6, 10**6, 10**9])
    run.play({v: report([accepted(9)]) for v in range(3)})
    facts = contracts.runs.round_facts(run.id, 0)
    assert tuple(facts.stakes[:3]) == (10**6,) * 3
    assert facts.active_stake == 3 * 10**6


def test_one_rich_validator_takes_no_round(contracts: System) -> None:
    """It bonds four times the others' stake in the last second before the round, and leaves in the same breath."""
    run = Run.create(contracts, rounds=4, full_seats=5, validator_max_stake=BOND)
    run.join_trainers(3)
    run.join_trainers(2, bond=10**6)  # its own seats, without work
    run.join_validators([BOND] * 5)
    rich = VALIDATORS[4]
    honest = report([accepted(60_000)] * 3 + [verdict(7)] * 2)
    lies = report([verdict(5)] * 3 + [accepted(65_535)] * 2)
    run.evm.travel(run.params.schedule().commit(1).start - 1)
    run.bond(rich, 4 * BOND)
    contracts.runs.sync(run.id, Role.VALIDATOR, 4, sender=rich)
    run.play({**dict.fromkeys(range(4), honest), 4: lies}, 1)
    run.settle(1)
    full = run.params.trainer_pool * 60_000 // (5 * 65_535)
    assert [run.idle(who) for who in run.trainers] == [full] * 3 + [0] * 2
    assert run.idle(rich) == 0
    with reverts("settlement: nothing to lock"):
        run.lock([0, 1, 2], 1)


def test_asking_back_does_not_end_a_silence(contracts: System) -> None:
    run = Run.create(contracts, rounds=20, validator_limit=2)
    run.join_validators([10**6, 10**6])
    newcomer = VALIDATORS[5]
    run.bond(newcomer, 10**6)
    proof = admission_proof(ADMITTED, newcomer, Role.VALIDATOR)
    take = run.id, Role.VALIDATOR, newcomer, "", proof, 1
    run.enter("commit", 7)
    contracts.runs.ask_back(run.id, 1, sender=VALIDATORS[1])
    with reverts("runs: validator is not silent"):
        contracts.runs.join(*take, sender=newcomer)
    run.enter("commit", 8)
    contracts.runs.join(*take, sender=newcomer)


def test_exit_started_right_after_a_commit_still_loses_its_bond(contracts: System) -> None:
    """The shortest exit delay that a run can have."""
    terms = Run.create(contracts).params
    delay = 86_400 + terms.schedule().period + terms.settle_s + terms.contest_s
    run = Run.create(contracts, exit_delay=delay)
    run.join_trainers(3)
    run.join_validators([10**6])
    run.enter("commit")
    run.commit(range(3))
    start_exit(run, TRAINERS[0])
    run.enter("reveal")
    run.reveal(range(3))
    run.score({0: report([verdict(5), accepted(9), accepted(9)])})
    run.settle()
    run.lock([0])
    run.leave("contest")
    run.settlement.settle_penalty(run.penalty_id(0), sender=STRANGER)
    assert run.bond_of(TRAINERS[0]) == BOND - BOND // 20
    with reverts("vault: exit not over"):
        finish_exit(run, TRAINERS[0])


def test_exiting_bond_opens_no_seat_and_takes_none_over(contracts: System) -> None:
    run = Run.create(contracts, trainer_limit=1, rounds=20)
    run.join_trainers(1)
    run.bond(TRAINERS[1], 2 * BOND)
    start_exit(run, TRAINERS[1])
    run.enter("commit", 3)
    with reverts("runs: bond too small"):
        contracts.runs.join(run.id, Role.TRAINER, TRAINERS[1], "", [], 0, sender=TRAINERS[1])


# Commitments.


def test_empty_commitment_is_no_commitment(contracts: System) -> None:
    """In round 0 its slot would read as free: logged, never charged, and committed over at will."""
    run = Run.create(contracts)
    run.join_trainers(1)
    run.enter("commit")
    with reverts("runs: empty commitment"):
        contracts.runs.commit(run.id, run.open_round, 0, bytes(28) + b"\1" * 4, sender=TRAINERS[0])
    run.enter("commit", 1)
    contracts.runs.commit(run.id, run.open_round, 0, bytes(32), sender=TRAINERS[0])
    with reverts("runs: already committed"):
        contracts.runs.commit(run.id, run.open_round, 0, bytes(32), sender=TRAINERS[0])


def test_commit_cannot_be_repeated_to_erase_a_fault(contracts: System) -> None:
    run = Run.create(contracts, rounds=9)
    run.join_trainers(2)
    run.enter("commit")
    run.commit([0, 1])
    run.enter("reveal")
    run.reveal([1])
    for round in (1, 2):  # the slot is free again only once the settle window has closed
        run.enter("commit", round)
        if round == 1:
            run.settlement.charge(run.id, 0, Role.TRAINER)
        run.commit([0, 1], round)
    assert run.bond_of(TRAINERS[0]) == BOND - BOND // 100
    with reverts("settlement: too late"):
        run.settlement.charge(run.id, 0, Role.TRAINER)


def test_one_account_cannot_reveal_for_another(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(2)
    run.enter("commit")
    run.commit([0, 1])
    run.enter("reveal")
    stolen = run.manifest(0, 0)
    with reverts("runs: not the trainer"):
        contracts.runs.reveal(1, stolen, SALT, b"", sender=TRAINERS[1])
    with reverts("runs: not the operator"):
        contracts.runs.reveal(0, stolen, SALT, b"", sender=TRAINERS[1])


# Seats that change hands while a round is open.


def test_outbidding_in_the_reveal_window_takes_no_reveal_and_no_pay(contracts: System) -> None:
    run = Run.create(contracts, trainer_limit=2, rounds=9)
    run.join_trainers(2)
    run.join_validators([10**6])
    run.enter("commit", 2)
    run.commit([0, 1], 2)
    run.enter("reveal", 2)
    take(run, TRAINERS[2], 2 * BOND, 0)
    run.reveal([0, 1], 2)
    run.score({0: report([accepted(60_000)] * 2)}, 2)
    run.settle(2)
    assert run.idle(TRAINERS[0]) == run.expected(2).trainer_pay[0] > 0
    assert run.idle(TRAINERS[2]) == 0


def test_outbidding_after_a_key_change_locks_no_key_out(contracts: System) -> None:
    """With overlap, round 1 is revealed in round 2: with the key of round 1, whoever has the seat from round 3."""
    run = Run.create(contracts, overlap=True, commit_s=2_000, trainer_limit=2, rounds=9)
    run.join_trainers(2)
    run.enter("commit", 1)
    run.commit([0], 1)
    name(run, Role.TRAINER, 0, KEY, TRAINERS[0])
    run.enter("reveal", 1)
    take(run, TRAINERS[2], 2 * BOND, 0)
    name(run, Role.TRAINER, 0, OTHER_KEY, TRAINERS[2])
    run.reveal([0], 1)


def test_key_changed_in_two_rounds_running_keeps_the_open_round(contracts: System) -> None:
    run = Run.create(contracts, overlap=True, commit_s=2_000, rounds=9)
    run.join_trainers(1)
    for round, key in ((1, KEY), (2, OTHER_KEY)):
        run.enter("commit", round)
        if round == 1:
            run.commit([0], 1)
        name(run, Role.TRAINER, 0, key, TRAINERS[0])
    run.enter("reveal", 1)
    run.reveal([0], 1)
    operators = [contracts.runs.seat_at(run.id, Role.TRAINER, 0, r).operator for r in (1, 2, 3)]
    assert operators == [TRAINERS[0], KEY, OTHER_KEY]


def test_leaked_key_stops_with_the_round_it_was_replaced_in(contracts: System) -> None:
    run = Run.create(contracts, rounds=9)
    run.join_trainers(1)
    name(run, Role.TRAINER, 0, KEY, TRAINERS[0])
    run.enter("commit", 1)
    name(run, Role.TRAINER, 0, OTHER_KEY, TRAINERS[0])
    run.enter("commit", 2)
    for act in (
        lambda: contracts.runs.commit(run.id, run.open_round, 0, SALT, sender=KEY),
        lambda: contracts.runs.commit(run.id, run.open_round, 0, SALT, sender=TRAINERS[0]),
    ):
        with reverts("runs: not the operator"):
            act()
    with reverts("runs: not the owner"):
        name(run, Role.TRAINER, 0, KEY, KEY)


def test_seat_cannot_be_passed_on_to_hide_a_fault(contracts: System) -> None:
    """Two takeovers in a row would push the cheat's tenure out of the records: the second is refused."""
    run = Run.create(contracts, trainer_limit=1, rounds=20)
    run.join_trainers(1)
    run.join_validators([10**6])
    run.play({0: report([verdict(5)])}, 2)  # the settle window of round 2 lies in round 3
    take(run, TRAINERS[1], 2 * BOND, 0)
    run.bond(TRAINERS[2], 9 * BOND)
    with reverts("runs: seat taken too recently"):
        contracts.runs.join(run.id, Role.TRAINER, TRAINERS[2], "", [], 0, sender=TRAINERS[2])
    run.settle(2)
    run.lock([0], 2)
    assert run.penalty(0, 2).account == TRAINERS[0]
    assert run.system.runs.seat_at(run.id, Role.TRAINER, 0, 4).barred_until == 0


# Votes and reports.


def test_naming_a_validator_as_operator_does_not_take_its_vote(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(1)
    run.join_validators([10**6, 3 * 10**6])
    name(run, Role.VALIDATOR, 0, VALIDATORS[1], VALIDATORS[0])
    run.play({1: report([verdict(5)])})
    run.settle()
    run.lock([0])
    assert run.penalty(0).upheld == 3 * 10**6
    run.settlement.vote(run.penalty_id(0), False, sender=VALIDATORS[1])
    assert run.penalty(0).upheld == 0


def odd(entries: Sequence[int], top: int = 0, words: int = 0) -> list[bytes]:
    """A report of raw 24-bit entries, with the unused top bits set to `top`, padded to so many words of seats."""
    pages = [entries[i : i + 10] for i in range(0, len(entries), 10)]
    packed = [sum(e << 24 * (9 - i) for i, e in enumerate(page)) | top << 240 for page in pages]
    packed += [(1 << 256) - 1] * (words - len(packed))
    return [BASE, NEWEST, EVIDENCE, *(word.to_bytes(32, "big") for word in packed)]


ODD = {
    "top bits": odd([60_000 << 8], top=0xFFFF),
    "weight under a verdict": odd([60_000 << 8 | 5]),
    "unknown verdict": odd([60_000 << 8 | 200]),
    "votes beyond the seats": odd([60_000 << 8] * 10),
    "longest, all bits set": odd([60_000 << 8], words=26),
    "trailing absent words": [*odd([60_000 << 8]), *[bytes(2) + b"\0\0\1" * 10] * 3],
    "no seats": [BASE, NEWEST, EVIDENCE],
}


@pytest.mark.parametrize("words", ODD.values(), ids=ODD.keys())
def test_odd_report_is_read_alike_and_blocks_nobody(contracts: System, words: list[bytes]) -> None:
    run = Run.create(contracts)
    run.join_trainers(2)
    run.join_validators([10**6, 10**6, 10**6])
    plain = report([accepted(60_000), accepted(100)])
    run.enter("commit")
    run.commit([0, 1])
    run.enter("reveal")
    run.reveal([0, 1])
    run.enter("report_commit")
    run.seed()
    run.seal({1: plain, 2: plain})
    place = CHAIN_ID, contracts.runs.address, run.id, 0
    sealed = report_commitment(*place, VALIDATORS[0], words_hash(words), SALT)
    contracts.runs.report_commit(run.id, 0, 0, sealed, sender=VALIDATORS[0])
    run.enter("report_reveal")
    contracts.runs.report_reveal(run.id, 0, 0, words, SALT, sender=VALIDATORS[0])
    run.unseal({1: plain, 2: plain})
    run.enter("settle")
    read = read_report(words, 2)
    assert read is not None
    run.reports[0][0] = read
    expected = run.expected()
    passed = [words, plain.words(), plain.words()]
    hints = [expected.consensus[0] << 240 | expected.consensus[1] << 224]
    run.settlement.settle(run.id, 0, hints, passed, 1)
    assert expected.consensus == (60_000, 100)
    assert [run.idle(v) for v in run.validators] == list(expected.validator_pay[:3])


def test_report_longer_than_all_seats_is_refused(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_validators([10**6])
    run.enter("report_reveal")
    with reverts(""):
        contracts.runs.report_reveal(run.id, 0, 0, [BASE] * 30, SALT, sender=VALIDATORS[0])


def test_hints_can_neither_raise_nor_lower_nor_invent_pay(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(2)
    run.join_validators([10**6, 10**6, 10**6])
    said = {v: report([accepted(w), accepted(0)]) for v, w in enumerate((100, 200, 300))}
    run.play(said)
    for hint, reason in (
        (201 << 240, "settlement: hint too high"),
        (199 << 240, "settlement: hint too low"),
        (0, "settlement: hint too low"),
        (200 << 240 | 1 << 224, "settlement: hint too high"),
        (200 << 240 | 1 << 208, "settlement: hint beyond seats"),
    ):
        with reverts(reason):
            run.settlement.settle(run.id, 0, [hint], run.words(), 0, sender=STRANGER)


def test_round_cannot_be_paid_twice(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(2)
    run.join_validators([10**6])
    run.play({0: report([accepted(9), accepted(9)])})
    run.settle(sender=STRANGER)
    paid = run.idle(TRAINERS[0])
    with reverts("settlement: already settled"):
        run.settle()
    with reverts("settlement: round is not void"):
        run.settlement.void(run.id, 0, run.words())
    assert run.idle(TRAINERS[0]) == paid


def test_stake_bonded_in_the_report_commit_window_votes_on_nothing(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(1)
    run.join_validators([10**6, 2 * 10**6])
    run.enter("commit")
    run.commit([0])
    run.enter("reveal")
    run.reveal([0])
    run.enter("report_commit")
    run.bond(VALIDATORS[0], 10**12)
    contracts.runs.sync(run.id, Role.VALIDATOR, 0)
    proof = admission_proof(ADMITTED, VALIDATORS[2], Role.VALIDATOR)
    run.bond(VALIDATORS[2], 10**12)
    contracts.runs.join(run.id, Role.VALIDATOR, VALIDATORS[2], "", proof, NO_SEAT, sender=VALIDATORS[2])
    run.score({0: report([accepted(9)]), 1: report([accepted(100)])})
    assert contracts.runs.round_facts(run.id, 0).active_stake == 3 * 10**6
    assert run.expected().consensus == (100,)
    run.settle()


# Ending, refunds, the rounds after the end.


def test_sponsor_that_ends_at_once_owes_round_0(contracts: System) -> None:
    run = Run.create(contracts, rounds=5)
    run.join_trainers(1)
    run.join_validators([10**6])
    contracts.runs.end(run.id, sender=SPONSOR)
    assert contracts.runs.run_rounds(run.id) == 1
    a_round = run.params.trainer_pool + run.params.validator_pool
    run.settlement.refund(run.id)
    with reverts("settlement: nothing to refund"):
        run.settlement.refund(run.id)
    assert run.escrow() == a_round
    run.play({0: report([accepted(65_535)])})
    with reverts("settlement: nothing to refund"):
        run.settlement.refund(run.id)
    run.settle()
    assert run.idle(TRAINERS[0]) == run.params.trainer_pool


def test_sponsor_cannot_take_the_rounds_in_play(contracts: System) -> None:
    """With overlap, ended in round 2 while round 1 is scored: rounds 1 to 3 stay funded to their last window."""
    run = Run.create(contracts, rounds=9, overlap=True, commit_s=2_000)
    run.join_trainers(1)
    run.join_validators([10**6])
    run.enter("commit", 1)
    run.commit([0], 1)
    run.enter("reveal", 1)
    run.reveal([0], 1)
    contracts.runs.end(run.id, sender=SPONSOR)
    with reverts("runs: no round left to end"):
        contracts.runs.end(run.id, sender=SPONSOR)
    run.settlement.refund(run.id)
    a_round = run.params.trainer_pool + run.params.validator_pool
    assert run.escrow() == 4 * a_round
    run.score({0: report([accepted(65_535)])}, 1)
    run.settle(1)
    assert run.escrow() == 3 * a_round


def test_refund_in_the_last_settle_window_waits(contracts: System) -> None:
    run = Run.create(contracts, rounds=1, full_seats=2)
    run.join_trainers(1)
    run.join_validators([10**6])
    run.play({0: report([accepted(65_535)])})
    run.leave("settle", 0, -1)
    with reverts("settlement: nothing to refund"):
        run.settlement.refund(run.id)
    run.settle()
    run.leave("settle")
    run.settlement.refund(run.id)
    assert run.escrow() == 0


def test_unopened_report_on_the_last_state_is_charged(contracts: System) -> None:
    run = Run.create(contracts, rounds=1)
    run.join_validators([10**6, 10**6])
    last = {v: report([]) for v in range(2)}
    run.enter("report_commit", 1)
    run.seed(1)
    run.seal(last, 1)
    run.enter("report_reveal", 1)
    run.unseal({0: last[0]}, 1)
    run.enter("settle", 1)
    run.settlement.charge(run.id, 1, Role.TRAINER)
    run.settlement.charge(run.id, 1, Role.VALIDATOR)
    assert [run.bond_of(v) for v in run.validators] == [10**6, 990_000]
    with reverts("settlement: no majority"):
        run.settle(1)
    with reverts("settlement: no such round"):
        run.settlement.charge(run.id, 2, Role.VALIDATOR)


# Penalties.


def test_penalties_of_all_kinds_together_take_no_more_than_the_bond(contracts: System) -> None:
    run = Run.create(contracts, rounds=9, copied_bps=5_000, contest_bps=5_000)
    run.join_trainers(1)
    run.join_validators([10**6])
    run.play({0: report([verdict(5)])})
    run.settle()
    run.lock([0])
    run.settlement.contest(run.penalty_id(0), sender=TRAINERS[0])
    assert run.settlement.locked(run.id, TRAINERS[0]) == BOND
    run.leave("contest")
    run.settlement.settle_penalty(run.penalty_id(0))
    assert run.bond_of(TRAINERS[0]) == 0
    with reverts("settlement: penalty is settled"):
        run.settlement.settle_penalty(run.penalty_id(0))


def test_contest_without_a_bond_left_is_heard_and_frees_nothing(contracts: System) -> None:
    run = Run.create(contracts, malformed_bps=5_000)
    run.join_trainers(1)
    run.join_validators([10**6])
    for round in (0, 1):
        run.play({0: report([verdict(3)])}, round)
        run.settle(round)
        run.lock([0], round)
    run.settlement.contest(run.penalty_id(0, 1), sender=TRAINERS[0])
    assert run.penalty(0, 1).contest_amount == 0
    run.leave("contest", 1)
    for round in (0, 1):
        run.settlement.settle_penalty(run.penalty_id(0, round))
    assert run.settlement.locked(run.id, TRAINERS[0]) == run.bond_of(TRAINERS[0]) == 0


def test_list_of_seats_full_of_junk_delays_no_lock(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(2)
    run.join_validators([10**6])
    run.play({0: report([verdict(5), accepted(9)])})
    run.settle()
    run.settlement.lock(run.id, 0, [2**256 - 1, 255, 1, 0, 0, *range(27)], run.words(), sender=STRANGER)
    assert run.settlement.locked(run.id, TRAINERS[0]) == BOND // 20
    with reverts("settlement: nothing to lock"):
        run.lock([0, 1])


def test_bar_cannot_be_shaken_off_by_moving(contracts: System) -> None:
    run = Run.create(contracts, rounds=30, trainer_limit=2, ceiling_rounds=10)
    run.join_trainers(2)
    run.join_validators([10**6])
    run.play({0: report([verdict(5), accepted(9)])}, 2)
    take(run, TRAINERS[2], 2 * BOND, 0)
    start_exit(run, TRAINERS[1])
    take(run, TRAINERS[0], 10 * BOND, 1)  # before the lock: by now it holds the other seat
    run.settle(2)
    run.lock([0], 2)
    run.enter("commit", 4)
    with reverts("runs: seat is barred"):
        contracts.runs.commit(run.id, run.open_round, 1, SALT, sender=TRAINERS[0])
    contracts.runs.commit(run.id, run.open_round, 0, SALT, sender=TRAINERS[2])


# Views and seeds.


def test_no_page_of_seats_is_too_far_or_too_long(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(1)
    far = 2**256 - 1
    assert contracts.runs.owners_at(run.id, Role.TRAINER, 0, 0, far) == (TRAINERS[0],)
    assert contracts.runs.owners_at(run.id, Role.TRAINER, 0, far, far) == ()


def test_seed_is_asked_for_once_and_nobody_can_ask_again_for_another(contracts: System) -> None:
    run = Run.create(contracts)
    run.join_trainers(1)
    run.enter("report_commit")
    contracts.runs.seed(run.id, 0, sender=STRANGER)
    asked = contracts.runs.seed_of(run.id, 0)[0]
    for _ in range(3):
        with reverts("runs: too early to draw the seed"):
            contracts.runs.seed(run.id, 0, sender=STRANGER)
        run.evm.mine(1, seconds=0)
    with reverts("runs: too early to draw the seed"):
        contracts.runs.seed(run.id, 0, sender=STRANGER)
    run.evm.mine(1, seconds=0)
    contracts.runs.seed(run.id, 0, sender=STRANGER)
    assert contracts.runs.seed_of(run.id, 0)[0] == asked
    with reverts("runs: seed already drawn"):
        contracts.runs.seed(run.id, 0, sender=STRANGER)


# Replays, and what nobody can do at all.


def test_commitment_opens_in_no_other_run_and_on_no_other_contract(contracts: System) -> None:
    runs = [Run.create(contracts), Run.create(contracts)]
    for run in runs:
        run.join_trainers(1)
    first, second = runs
    second.enter("commit")
    digest = first.manifest(0, 0).hash()
    place = CHAIN_ID, contracts.runs.address, first.id, 0, TRAINERS[0], digest, SALT
    contracts.runs.commit(second.id, second.open_round, 0, commitment(*place), sender=TRAINERS[0])
    second.enter("reveal")
    for run in runs:  # they have the same windows
        with reverts("runs: not what was committed"):
            contracts.runs.reveal(0, run.manifest(0, 0), SALT, b"", sender=TRAINERS[0])


def test_fault_of_one_run_touches_no_bond_of_another(contracts: System) -> None:
    runs = [Run.create(contracts), Run.create(contracts)]
    for run in runs:
        run.join_trainers(2)
    guilty, other = runs
    guilty.enter("commit")
    guilty.commit([0, 1])
    guilty.enter("reveal")
    guilty.reveal([1])
    guilty.leave("reveal")
    guilty.settlement.charge(guilty.id, 0, Role.TRAINER)
    assert guilty.bond_of(TRAINERS[0]) == BOND - BOND // 100
    assert other.bond_of(TRAINERS[0]) == BOND


DUTIES = {
    "StakeVault": "allow bond burn_escrow deposit finish_exit flush open_run pay refund release seize start_exit "
    "withdraw withdraw_to",
    "TrainingRuns": "ask_back commit end join open_run report_commit report_reveal reveal seed "
    "set_bar set_enclave_key set_operator set_uri sync",
    "Settlement": "charge contest lock open refund release_bonds settle settle_penalty void vote",
    "RunTerms": "create_run",
    "BondPool": "add ask_back ask_exit cancel_exit claim close collect contest finish join set_operator set_uri",
    "AttestationRegistry": "deny raise_floor register revoke",
}


@pytest.mark.parametrize("name", DUTIES)
def test_no_function_changes_anything_but_these(name: str) -> None:
    """No owner, pause, upgrade, rescue or renounce, and no coin is taken."""
    functions = [entry for entry in compiled(name).abi if entry["type"] == "function"]
    assert all(entry["stateMutability"] != "payable" for entry in functions)
    changing = sorted(e["name"] for e in functions if e["stateMutability"] == "nonpayable")
    assert changing == DUTIES[name].split()


def test_the_page_on_security_says_who_may_call_each_function() -> None:
    page = (CONTRACTS.parent / "docs" / "security.md").read_text()
    table = page.split("## Who may call what")[1].split("\n## ")[0]
    contract, found = "", {name: list[str]() for name in DUTIES}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and "`" in cells[1]:
            contract = cells[0].strip("`") or contract
            found[contract] += re.findall(r"`(\w+)`", cells[1])
    assert {name: sorted(functions) for name, functions in found.items()} == {
        name: sorted(functions.split()) for name, functions in DUTIES.items()
    }


def test_sources_use_no_dangerous_feature() -> None:
    for path in sorted(CONTRACTS.rglob("*.vy")):
        source = path.read_text()
        if path.parent.name == "testing":
            continue
        assert source.startswith("# pragma version 0.4.3\n# pragma evm-version cancun\n")
        assert "# pragma nonreentrancy on\n" in source
        if path.name == "blocks.vy":  # randomness is for seeds alone
            assert source.count("raw_call") == source.count("is_static_call=True") == 1
            source = source.replace("raw_call", "")
        if path.name == "TrainingRuns.vy":
            assert source.count("prevrandao") == 1
            source = source.replace("prevrandao", "")
        if (
            path.name == "p256.vy"
        ):  # there is no interface to a precompile: it is asked, and cannot change a thing
            assert source.count("raw_call") == source.count("is_static_call=True") == 1
            source = source.replace("raw_call", "")
        for feature in (
            "raw_call",
            "send(",
            "delegatecall",
            "selfdestruct",
            "create_",
            "prevrandao",
            "tx.origin",
        ):
            assert not re.search(rf"(?<![\w.`]){re.escape(feature)}(?!run)", source), (path.name, feature)


def test_only_three_functions_can_be_entered_during_a_transfer() -> None:
    found = {
        function
        for path in CONTRACTS.glob("*.vy")
        for function in re.findall(r"@reentrant\ndef (\w+)", path.read_text())
    }
    assert found == {"commit", "reveal", "live_bond"}
