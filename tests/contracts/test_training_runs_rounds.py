"""The calls of a round: commit, reveal, seed, reports. Protocol sections 4 to 7."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyrevm
import pytest
from eth_hash.auto import keccak

from earnest.protocol.manifest import Manifest, commitment
from earnest.protocol.report import report_commitment
from earnest.protocol.run import Role
from earnest.protocol.seed import SEED_DELAY, round_seed
from tests.contracts.harness import CHAIN_ID, Reverted, System, account
from tests.contracts.rounds import SALT, SPONSOR, STRANGER, TRAINERS, VALIDATORS, Run, accepted, report

BOND = 10**9
OPERATOR = account("operator")
TRAINER, VALIDATOR = Role.TRAINER, Role.VALIDATOR
REPORT = report([accepted(100), accepted(200)])


def refused(reason: str) -> Any:
    return pytest.raises(Reverted, match=f"^{reason}$")


@pytest.fixture(params=[False, True], ids=["serial", "overlap"])
def run(contracts: System, request: pytest.FixtureRequest) -> Run:
    """Two trainers, three validators, twenty rounds, with and without overlap."""
    run = Run.create(contracts, rounds=20, overlap=request.param, commit_s=2_000)
    run.join_trainers(2)
    run.join_validators([BOND, BOND, BOND])
    return run


def sealed(run: Run, seat: int, round: int) -> bytes:
    """Commitment of the trainer's manifest for that round."""
    digest = run.manifest(seat, round).hash()
    who = run.trainers[seat]
    return commitment(CHAIN_ID, run.system.runs.address, run.id, round, who, digest, SALT)


def kept(commitment_: bytes) -> bytes:
    """What the chain stores of a commitment."""
    return commitment_[:28] + bytes(4)


def commitment_of(run: Run, seat: int, round: int, role: Role = TRAINER) -> bytes:
    return run.system.runs.commitment_of(run.id, role, seat, round)


def to_seed(run: Run, round: int) -> None:
    """Both updates of the round lie open; the seed's window has begun."""
    run.enter("commit", round)
    run.commit([0, 1], round)
    run.enter("reveal", round)
    run.reveal([0, 1], round)
    run.enter("report_commit", round)


# Windows: half-open, at t-1, t and t+1 of both ends.


@pytest.mark.parametrize("round", [0, 3, 19])
def test_commits_are_taken_in_their_window_only(run: Run, round: int) -> None:
    window = run.params.schedule().commit(round)
    for time, open_ in ((-1, False), (0, True), (1, True)):
        with run.evm.anchor():
            run.evm.travel(window.start + time)
            attempt(lambda: run.commit([0], round), open_)
    for time, open_ in ((-1, True), (0, False), (1, False)):
        with run.evm.anchor():
            run.evm.travel(window.end + time)
            attempt(lambda: run.commit([0], round), open_)


def attempt(call: Any, allowed: bool, reason: str = "runs: not in commit window") -> None:
    if allowed:
        call()
    else:
        with refused(reason):
            call()


@pytest.mark.parametrize("round", [0, 3])
def test_reveals_are_taken_in_their_window_only(run: Run, round: int) -> None:
    window = run.params.schedule().reveal(round)
    run.enter("commit", round)
    run.commit([0], round)
    for time in (
        window.start - 1,
        window.start,
        window.start + 1,
        window.end - 1,
        window.end,
        window.end + 1,
    ):
        with run.evm.anchor():
            run.evm.travel(time)
            attempt(lambda: run.reveal([0], round), window.contains(time), "runs: not in reveal window")


@pytest.mark.parametrize("round", [0, 3, 20])
def test_seeds_are_drawn_in_the_report_commit_window_only(run: Run, round: int) -> None:
    window = run.params.schedule().report_commit(round)
    for time in (
        window.start - 1,
        window.start,
        window.start + 1,
        window.end - 1,
        window.end,
        window.end + 1,
    ):
        with run.evm.anchor():
            run.evm.travel(time)
            attempt(
                lambda: run.system.runs.seed(run.id, round),
                window.contains(time),
                "runs: not in report-commit window",
            )


def test_reports_are_committed_and_revealed_in_their_windows_only(run: Run) -> None:
    schedule = run.params.schedule()
    to_seed(run, 2)
    run.seed(2)
    drawn = run.evm.time
    window = schedule.report_commit(2)
    for time in (window.start - 1, drawn, window.end - 1, window.end, window.end + 1):
        with run.evm.anchor():
            run.evm.travel(time)
            open_, reason = window.contains(time), "runs: not in report-commit window"
            attempt(lambda: run.seal({0: REPORT}, 2), open_, reason)
    run.seal({0: REPORT}, 2)
    window = schedule.report_reveal(2)
    for time in (
        window.start - 1,
        window.start,
        window.start + 1,
        window.end - 1,
        window.end,
        window.end + 1,
    ):
        with run.evm.anchor():
            run.evm.travel(time)
            open_, reason = window.contains(time), "runs: not in report-reveal window"
            attempt(lambda: run.unseal({0: REPORT}, 2), open_, reason)


@pytest.mark.parametrize("round", [21, 2**16, 2**32, 2**255])
def test_rounds_beyond_the_report_only_one_have_no_windows(run: Run, round: int) -> None:
    runs = run.system.runs
    run.enter("report_commit", min(round, 30))
    with refused("runs: not in report-commit window"):
        runs.seed(run.id, round)
    with refused("runs: not in report-commit window"):
        runs.report_commit(run.id, round, 0, bytes(32))
    with refused("runs: not in report-reveal window"):
        runs.report_reveal(run.id, round, 0, [], bytes(32))


@pytest.mark.parametrize("round", [2**24, 2**32 + 1, 2**255])
def test_records_of_impossible_rounds_are_refused(run: Run, round: int) -> None:
    """Their keys would run into those of another run."""
    runs = run.system.runs
    for view in (
        lambda: runs.revealed(run.id, round),
        lambda: runs.seed_of(run.id, round),
        lambda: runs.round_facts(run.id, round),
        lambda: runs.unrevealed(run.id, TRAINER, round),
    ):
        with refused("runs: no such round"):
            view()
    assert commitment_of(run, 0, round) == bytes(32)


# Commitments.


def test_a_commitment_is_logged_whole_and_stored_with_its_round(run: Run) -> None:
    run.enter("commit", 2)
    run.commit([1], 2)
    digest = sealed(run, 1, 2)
    assert run.evm.events("Committed") == [{"run": run.id, "round": 2, "seat": 1, "commitment": digest}]
    assert commitment_of(run, 1, 2) == kept(digest)
    assert commitment_of(run, 1, 0) == commitment_of(run, 0, 2) == bytes(32)
    assert run.system.runs.unrevealed(run.id, TRAINER, 2) == (0b10, 0)


def test_a_seat_commits_once_a_round(run: Run) -> None:
    for round in (0, 1):
        run.enter("commit", round)
        run.commit([0], round)
        with refused("runs: already committed"):
            run.commit([0], round)


def test_the_next_commit_never_erases_the_last_ones_evidence(run: Run) -> None:
    for round in (0, 1):
        run.enter("commit", round)
        run.commit([0], round)
    assert commitment_of(run, 0, 0) == kept(sealed(run, 0, 0))
    assert commitment_of(run, 0, 1) == kept(sealed(run, 0, 1))
    run.enter("commit", 2)
    run.commit([0], 2)
    assert commitment_of(run, 0, 0) == bytes(32)
    assert commitment_of(run, 0, 1) == kept(sealed(run, 0, 1))
    assert run.system.runs.unrevealed(run.id, TRAINER, 0) == (0, 0)


def test_only_the_operator_commits_and_reveals(run: Run) -> None:
    runs, owner = run.system.runs, run.trainers[0]
    runs.set_operator(run.id, TRAINER, 0, OPERATOR, sender=owner)
    run.enter("commit", 1)
    for who in (owner, STRANGER, run.trainers[1]):
        with refused("runs: not the operator"):
            runs.commit(run.id, run.open_round, 0, sealed(run, 0, 1), sender=who)
    runs.commit(run.id, run.open_round, 0, sealed(run, 0, 1), sender=OPERATOR)
    run.enter("reveal", 1)
    for who in (owner, STRANGER):
        with refused("runs: not the operator"):
            runs.reveal(0, run.manifest(0, 1), SALT, b"", sender=who)
    runs.reveal(0, run.manifest(0, 1), SALT, b"", sender=OPERATOR)


def test_nobody_commits_from_an_empty_seat(run: Run) -> None:
    run.enter("commit", 0)
    with refused("runs: not the operator"):
        run.system.runs.commit(run.id, run.open_round, 2, bytes(32), sender=STRANGER)


# Reveals.


def test_a_reveal_logs_the_manifest_and_sets_the_seats_bit(run: Run) -> None:
    run.enter("commit", 2)
    run.commit([0, 1], 2)
    run.enter("reveal", 2)
    run.reveal([1], 2)
    event = run.evm.events("Revealed")[0]
    assert (event["run"], event["round"], event["seat"], event["salt"]) == (run.id, 2, 1, SALT)
    assert tuple(event["manifest"]) == run.manifest(1, 2).as_tuple()
    assert run.system.runs.revealed(run.id, 2) == 0b10
    assert run.system.runs.unrevealed(run.id, TRAINER, 2) == (0b11, 0b10)
    with refused("runs: already revealed"):
        run.reveal([1], 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"base_state": b"\1" * 31 + b"\2"},
        {"update": bytes(32)},
        {"samples": b"\1" * 32},
        {"trace": b"\1" * 32},
        {"steps": 2},
        {"tokens": 2**64 - 1},
        {"size": 0},
    ],
)
def test_every_field_of_the_manifest_is_bound(run: Run, changes: dict[str, Any]) -> None:
    run.enter("commit", 0)
    run.commit([0], 0)
    run.enter("reveal", 0)
    manifest = replace(run.manifest(0, 0), **changes)
    with refused("runs: not what was committed"):
        run.system.runs.reveal(0, manifest, SALT, b"", sender=run.trainers[0])


def test_the_salt_and_the_seat_are_bound(run: Run) -> None:
    run.enter("commit", 0)
    run.commit([0], 0)
    run.enter("reveal", 0)
    runs, who = run.system.runs, run.trainers[0]
    with refused("runs: not what was committed"):
        runs.reveal(0, run.manifest(0, 0), bytes(32), b"", sender=who)
    with refused("runs: not the operator"):
        runs.reveal(1, run.manifest(0, 0), SALT, b"", sender=who)


def test_a_copied_commitment_opens_to_nothing(run: Run) -> None:
    """A thief commits what it saw; it can open it neither as its own nor as the author's."""
    runs, thief = run.system.runs, run.trainers[1]
    run.enter("commit", 0)
    run.commit([0], 0)
    runs.commit(run.id, run.open_round, 1, sealed(run, 0, 0), sender=thief)
    run.enter("reveal", 0)
    with refused("runs: not the trainer"):
        runs.reveal(1, run.manifest(0, 0), SALT, b"", sender=thief)
    with refused("runs: not what was committed"):
        runs.reveal(1, replace(run.manifest(0, 0), trainer=thief), SALT, b"", sender=thief)
    run.reveal([0], 0)


def test_a_commitment_opens_in_no_other_round_of_its_parity(run: Run) -> None:
    runs = run.system.runs
    run.enter("commit", 0)
    run.commit([0], 0)
    run.enter("reveal", 2)
    for round in (0, 2):
        manifest: Manifest = run.manifest(0, round)
        with pytest.raises(Reverted):
            runs.reveal(0, manifest, SALT, b"", sender=run.trainers[0])


# Seeds.


def test_the_seed_mixes_a_block_and_randomness_nobody_knew_when_it_was_asked_for(run: Run) -> None:
    runs = run.system.runs
    to_seed(run, 0)
    assert runs.seed_of(run.id, 0) == (0, bytes(32))
    runs.seed(run.id, 0)
    asked = run.evm.number
    assert run.evm.events("SeedRequested") == [{"run": run.id, "round": 0, "block_number": asked}]
    for _ in range(SEED_DELAY + 1):
        with refused("runs: too early to draw the seed"):
            runs.seed(run.id, 0)
        run.evm.mine(1, seconds=0)
    runs.seed(run.id, 0, sender=STRANGER)
    seed = round_seed(run.evm.block_hash(asked + 1), run.evm.randomness(), run.id, 0)
    assert run.evm.events("SeedStored") == [{"run": run.id, "round": 0, "seed": seed}]
    assert runs.seed_of(run.id, 0) == (asked, seed)
    run.evm.mine(1, seconds=0)
    with refused("runs: seed already drawn"):
        runs.seed(run.id, 0)


def test_who_builds_the_hashed_block_cannot_compute_the_seed(run: Run) -> None:
    """One hash gives another seed in each block that may draw it, so trying headers until one suits is no use."""
    to_seed(run, 0)
    run.system.runs.seed(run.id, 0)
    seeds: set[bytes] = set()
    for block in range(4, 20):
        with run.evm.anchor():
            run.evm.mine(block, seconds=0)
            run.system.runs.seed(run.id, 0)
            seeds.add(run.system.runs.seed_of(run.id, 0)[1])
    assert len(seeds) == 16


@pytest.mark.parametrize(("blocks", "event"), [(257, "SeedStored"), (258, "SeedRequested")])
def test_a_seed_is_asked_for_anew_once_its_block_is_out_of_reach(run: Run, blocks: int, event: str) -> None:
    to_seed(run, 0)
    run.system.runs.seed(run.id, 0)
    asked = run.evm.number
    run.evm.mine(blocks, seconds=0)
    run.system.runs.seed(run.id, 0)
    assert [log.name for log in run.evm.logs] == [event]
    if event == "SeedRequested":
        assert run.system.runs.seed_of(run.id, 0) == (asked + 258, bytes(32))
        run.evm.mine(4, seconds=0)
        run.system.runs.seed(run.id, 0)
        seed = round_seed(run.evm.block_hash(asked + 259), run.evm.randomness(), run.id, 0)
        assert run.system.runs.seed_of(run.id, 0) == (asked + 258, seed)


HISTORY = "0x0000F90827F1C53a10cb7A02335B175320002935"
ECHO = bytes.fromhex("5f355f5260205ff3")  # answers its calldata: as hash of a block, the block's number


@pytest.mark.parametrize(
    ("blocks", "code", "event"),
    [
        (8192, ECHO, "SeedStored"),
        (8193, ECHO, "SeedRequested"),
        (8192, b"\x5f\x5f\xfd", "SeedRequested"),
        (8192, bytes.fromhex("5f5ff3"), "SeedRequested"),
        (8192, bytes.fromhex("60205ff3"), "SeedRequested"),
    ],
    ids=["kept", "too old", "reverts", "no answer", "zero"],
)
def test_the_history_contract_knows_a_hash_that_the_opcode_does_not(
    run: Run, blocks: int, code: bytes, event: str
) -> None:
    to_seed(run, 0)
    run.system.runs.seed(run.id, 0)
    asked = run.evm.number
    run.evm.mine(blocks, seconds=0)
    run.evm.revm.insert_account_info(HISTORY, pyrevm.AccountInfo(code=code))
    try:
        run.system.runs.seed(run.id, 0)
    finally:
        run.evm.revm.insert_account_info(HISTORY, pyrevm.AccountInfo(code=b""))
    assert [log.name for log in run.evm.logs] == [event]
    if event == "SeedStored":
        seed = round_seed((asked + 1).to_bytes(32, "big"), run.evm.randomness(), run.id, 0)
        assert run.system.runs.seed_of(run.id, 0) == (asked, seed)


def test_no_report_is_committed_without_a_seed(run: Run) -> None:
    to_seed(run, 0)
    with refused("runs: no seed yet"):
        run.seal({0: REPORT})
    run.system.runs.seed(run.id, 0)
    with refused("runs: no seed yet"):
        run.seal({0: REPORT})


def test_a_report_is_committed_and_revealed_once_and_its_hash_stored(run: Run) -> None:
    runs, who = run.system.runs, run.validators[1]
    to_seed(run, 0)
    run.seed(0)
    run.seal({1: REPORT})
    digest = report_commitment(CHAIN_ID, runs.address, run.id, 0, who, REPORT.hash(), SALT)
    event = {"run": run.id, "round": 0, "seat": 1, "commitment": digest}
    assert run.evm.events("ReportCommitted") == [event]
    assert commitment_of(run, 1, 0, VALIDATOR) == kept(digest)
    with refused("runs: already committed"):
        run.seal({1: REPORT})
    assert runs.unrevealed(run.id, VALIDATOR, 0) == (0b10, 0)

    run.enter("report_reveal")
    assert runs.round_facts(run.id, 0).report_hashes[1] == bytes(32)
    run.unseal({1: REPORT})
    opened = run.evm.events("ReportRevealed")[0]
    assert (opened["seat"], opened["salt"]) == (1, SALT)
    assert list(opened["report"]) == REPORT.words()
    assert runs.round_facts(run.id, 0).report_hashes[1] == REPORT.hash()
    assert runs.round_facts(run.id, 0).report_hashes[0] == bytes(32)
    assert runs.unrevealed(run.id, VALIDATOR, 0) == (0b10, 0b10)
    with refused("runs: report already revealed"):
        run.unseal({1: REPORT})


def test_only_the_committed_report_can_be_revealed_and_only_by_the_operator(run: Run) -> None:
    runs, who = run.system.runs, run.validators[0]
    to_seed(run, 0)
    run.seed(0)
    run.seal({0: REPORT})
    run.enter("report_reveal")
    with refused("runs: not the committed report"):
        run.unseal({0: report([accepted(101)])})
    with refused("runs: not the committed report"):
        runs.report_reveal(run.id, 0, 0, REPORT.words(), bytes(32), sender=who)
    with refused("runs: not the committed report"):
        run.unseal({1: REPORT})
    with refused("runs: not the operator"):
        runs.report_reveal(run.id, 0, 0, REPORT.words(), SALT, sender=STRANGER)


def test_the_largest_report_fits_and_a_larger_does_not(run: Run) -> None:
    runs, who = run.system.runs, run.validators[0]
    largest = [bytes([i]) * 32 for i in range(29)]
    encoded = (32).to_bytes(32, "big") + (29).to_bytes(32, "big") + b"".join(largest)
    digest = report_commitment(CHAIN_ID, runs.address, run.id, 0, who, keccak(encoded), SALT)
    to_seed(run, 0)
    run.seed(0)
    runs.report_commit(run.id, 0, 0, digest, sender=who)
    run.enter("report_reveal")
    with pytest.raises(Reverted):
        runs.report_reveal(run.id, 0, 0, [*largest, bytes(32)], SALT, sender=who)
    runs.report_reveal(run.id, 0, 0, largest, SALT, sender=who)
    assert runs.round_facts(run.id, 0).report_hashes[0] == keccak(encoded)


def test_report_hashes_are_kept_until_the_round_after_next_is_scored(run: Run) -> None:
    runs = run.system.runs
    to_seed(run, 0)
    run.score({0: REPORT})
    for round in (1, 2):
        run.enter("report_commit", round, -1)
        assert runs.round_facts(run.id, 0).report_hashes[0] == REPORT.hash()
    run.enter("report_commit", 2)
    assert runs.round_facts(run.id, 0).report_hashes[0] == bytes(32)


# T, the active stake.


def stakes(run: Run, round: int) -> list[int]:
    return list(run.system.runs.round_facts(run.id, round).stakes[:4])


def score(run: Run, round: int, seats: list[int]) -> None:
    run.enter("report_commit", round)
    run.seed(round)
    run.seal(dict.fromkeys(seats, REPORT), round)
    run.enter("report_reveal", round)
    run.unseal(dict.fromkeys(seats, REPORT), round)


def test_the_first_committed_report_fixes_the_voters_and_their_stakes(run: Run) -> None:
    runs = run.system.runs
    to_seed(run, 0)
    run.seed(0)
    assert runs.round_facts(run.id, 0).active_stake == 0
    run.seal({1: REPORT})
    assert runs.round_facts(run.id, 0).active_stake == 3 * BOND
    assert stakes(run, 0) == [BOND, BOND, BOND, 0]
    facts = runs.round_facts(run.id, 0)
    assert (facts.trainer_count, facts.revealed, facts.rounds) == (2, 0b11, 20)
    assert tuple(facts.params) == run.params.as_tuple()


def test_no_bond_added_or_seat_joined_inside_a_round_changes_its_votes(run: Run) -> None:
    runs, vault = run.system.runs, run.system.vault
    run.enter("commit", 1)
    run.bond(run.validators[0], 5 * BOND)
    runs.sync(run.id, VALIDATOR, 0)
    run.join_validators([7 * BOND])
    run.enter("report_commit", 1)
    run.seed(1)
    run.bond(run.validators[2], 9 * BOND)
    runs.sync(run.id, VALIDATOR, 2)
    run.seal({0: REPORT, 1: REPORT}, 1)
    run.bond(run.validators[0], BOND)
    vault.start_exit(run.settlement.address, run.id, sender=run.validators[1])  # after T was fixed
    for seat in (0, 1):
        runs.sync(run.id, VALIDATOR, seat)
    assert stakes(run, 1) == [BOND, BOND, BOND, 0]
    assert runs.round_facts(run.id, 1).active_stake == 3 * BOND
    with refused("runs: not the operator"):  # the newcomer's seat is still empty in round 1
        run.seal({3: REPORT}, 1)


def test_changed_stakes_count_in_the_next_round_and_old_rounds_keep_theirs(run: Run) -> None:
    score(run, 0, [0, 1, 2])
    score(run, 1, [0, 1, 2])
    run.bond(run.validators[0], 5 * BOND)
    run.system.runs.sync(run.id, VALIDATOR, 0)
    first = run.evm.events("StakeSynced")[0]["from_round"]
    for round in range(2, first + 2):
        score(run, round, [0, 1, 2])
    run.enter("commit", 15)
    for round in range(first + 2):
        assert stakes(run, round) == [6 * BOND if round >= first else BOND, BOND, BOND, 0]


def test_two_rounds_without_a_report_make_a_seat_inactive_until_it_asks_back(run: Run) -> None:
    runs, who = run.system.runs, run.validators[2]
    for round in range(3):
        score(run, round, [0, 1])
        assert stakes(run, round) == [BOND, BOND, BOND, 0]  # joined in round 0
    score(run, 3, [0, 1])
    assert stakes(run, 3) == [BOND, BOND, 0, 0]
    run.enter("report_commit", 4)
    run.seed(4)
    with refused("runs: inactive seat"):
        run.seal({2: REPORT}, 4)

    runs.ask_back(run.id, 2, sender=who)
    back = run.evm.events("AskedBack")[0]["from_round"]
    assert back == run.params.schedule().next_round(run.evm.time)
    assert runs.seat_at(run.id, VALIDATOR, 2, back).active_from == back
    run.seal({0: REPORT}, 4)
    run.enter("report_reveal", 4)
    run.unseal({0: REPORT}, 4)
    for round in range(5, back):
        score(run, round, [0, 1])
        assert stakes(run, round)[2] == 0
    score(run, back, [0, 1, 2])
    for round in (back + 1, back + 2):
        score(run, round, [0, 1])
        assert stakes(run, round) == [BOND, BOND, BOND, 0]
    score(run, back + 3, [0, 1])
    assert stakes(run, back + 3)[2] == 0


def test_an_unrevealed_report_does_not_keep_a_seat_active(run: Run) -> None:
    for round in range(4):
        run.enter("report_commit", round)
        run.seed(round)
        if round < 3:
            run.seal({0: REPORT, 2: REPORT}, round)
        else:
            run.seal({0: REPORT}, round)
        run.enter("report_reveal", round)
        run.unseal({0: REPORT}, round)
    assert stakes(run, 3) == [BOND, 0, 0, 0]


def test_asking_back_is_for_inactive_seats_and_their_holders(run: Run) -> None:
    runs, who = run.system.runs, run.validators[2]
    with refused("runs: not owner or operator"):
        runs.ask_back(run.id, 2, sender=STRANGER)
    run.enter("commit", 3)
    with refused("runs: seat is still active"):
        runs.ask_back(run.id, 2, sender=who)
    run.enter("commit", 4)
    runs.ask_back(run.id, 2, sender=who)


def test_a_round_of_exited_validators_has_no_votes(run: Run) -> None:
    vault, runs = run.system.vault, run.system.runs
    for seat, who in enumerate(run.validators):
        vault.start_exit(run.settlement.address, run.id, sender=who)
        runs.sync(run.id, VALIDATOR, seat)
    run.enter("report_commit", 1)
    run.seed(1)
    with refused("runs: inactive seat"):
        run.seal({0: REPORT}, 1)
    assert runs.round_facts(run.id, 1).active_stake == 0


def test_the_report_only_round_is_scored_after_an_early_end(run: Run) -> None:
    run.system.runs.end(run.id, sender=SPONSOR)  # before the start: round 0 is still played
    score(run, 0, [0, 1, 2])
    score(run, 1, [0, 1, 2])
    assert run.system.runs.round_facts(run.id, 1).report_hashes[2] == REPORT.hash()
    run.enter("report_commit", 2)
    with refused("runs: not in report-commit window"):
        run.system.runs.seed(run.id, 2)


def test_sixteen_validators_vote(contracts: System) -> None:
    run = Run.create(contracts, rounds=20)
    run.join_trainers(1)
    run.join_validators([BOND + v for v in range(16)])
    score(run, 0, list(range(16)))
    facts = contracts.runs.round_facts(run.id, 0)
    assert list(facts.stakes) == [BOND + v for v in range(16)]
    assert facts.active_stake == 16 * BOND + 120
    assert list(facts.report_hashes) == [REPORT.hash()] * 16
    assert contracts.runs.unrevealed(run.id, VALIDATOR, 0) == (2**16 - 1, 2**16 - 1)
    assert contracts.runs.seat_counts(run.id) == (1, 16)
    assert contracts.runs.owners_at(run.id, VALIDATOR, 0, 0, 16) == VALIDATORS


def test_the_largest_stakes_fit(contracts: System) -> None:
    run = Run.create(contracts, rounds=20)
    run.join_trainers(1)
    run.join_validators([2**96 - 1] * 16)
    score(run, 0, [0])
    assert contracts.runs.round_facts(run.id, 0).active_stake == 16 * (2**96 - 1)


def test_256_trainers_commit_and_reveal(contracts: System) -> None:
    run = Run.create(contracts, rounds=3)
    run.join_trainers(256)
    run.enter("commit", 0)
    run.commit(range(256))
    run.enter("reveal", 0)
    run.reveal(range(256))
    assert contracts.runs.unrevealed(run.id, TRAINER, 0) == (2**256 - 1, 2**256 - 1)
    assert contracts.runs.owners_at(run.id, TRAINER, 0, 0, 256) == TRAINERS
