import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from earnest.protocol.constants import AMOUNT_LIMIT
from earnest.protocol.run import Level, RunParams

INTERFACE = Path(__file__).parents[2] / "contracts" / "interfaces" / "ITrainingRuns.vyi"
NOW, DAY = 1_000_000, 86_400
PARAMS = RunParams(
    start=NOW + 150,
    rounds=6,
    commit_s=60,
    reveal_s=30,
    report_commit_s=40,
    report_reveal_s=20,
    settle_s=150,
    contest_s=60,
    overlap=False,
    trainer_limit=4,
    validator_limit=3,
    trainer_pool=10**18,
    validator_pool=10**17,
    trainer_min_bond=10**18,
    validator_min_bond=10**18,
    validator_max_stake=10**24,
    exit_delay=360 + DAY,
    admission_root=b"\1" * 32,
    recipe_hash=b"\2" * 32,
    initial_state=b"\3" * 32,
)


def test_fields_are_those_of_the_interface():
    struct = re.search(r"struct RunParams:\n((?:    .*\n)+)", INTERFACE.read_text())
    assert struct
    names = re.findall(r"^    (\w+):", struct[1], re.MULTILINE)
    assert [field.name for field in fields(RunParams)] == names
    assert PARAMS.as_tuple() == tuple(getattr(PARAMS, name) for name in names)


def test_a_good_run_has_no_problems():
    assert PARAMS.problems(NOW) == []


TWO_MONTHS = 60 * DAY


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rounds": 0}, "rounds out of range"),
        ({"rounds": 65_536, "trainer_pool": 0, "validator_pool": 0}, "rounds out of range"),
        ({"reveal_s": 0, "settle_s": 60}, "empty window"),
        ({"contest_s": TWO_MONTHS + 1, "exit_delay": TWO_MONTHS}, "window too long"),
        ({"settle_s": 151, "exit_delay": 2 * DAY}, "settle window too long"),
        ({"contest_s": 59}, "window too short"),
        ({"validator_max_stake": 10**18 - 1}, "stake cap below minimum bond"),
        ({"overlap": True, "start": NOW + 60}, "windows exceed commit"),
        ({"start": 2**40}, "start too late"),
        ({"start": NOW + 149}, "start too early"),
        ({"exit_delay": 349 + DAY}, "exit delay too short"),
        ({"exit_delay": TWO_MONTHS + 1}, "exit delay too long"),
        ({"trainer_limit": 0}, "trainer limit out of range"),
        ({"trainer_limit": 257}, "trainer limit out of range"),
        ({"validator_limit": 0}, "validator limit out of range"),
        ({"validator_limit": 17}, "validator limit out of range"),
        ({"trainer_min_bond": 0}, "zero minimum bond"),
        ({"validator_min_bond": 0}, "zero minimum bond"),
        ({"trainer_min_bond": AMOUNT_LIMIT}, "amount too large"),
        ({"ceiling": AMOUNT_LIMIT}, "amount too large"),
        ({"validator_pool": AMOUNT_LIMIT // 6}, "amount too large"),
        ({"unrevealed_bps": 5001}, "penalty too high"),
        ({"contest_bps": 5001}, "penalty too high"),
        ({"ceiling_rounds": 0}, "zero ceiling window"),
        ({"ceiling_rounds": 65_536}, "ceiling window too long"),
        ({"verification": 1}, "level not available"),
        ({"verification": 4, "attestation_policy": b"\1" * 32}, "level not available"),
        ({"attestation_policy": b"\1" * 32}, "policy at level 0"),
        ({"verification": 2}, "empty attestation policy"),
        ({"verification": 3}, "empty attestation policy"),
        ({"admission_root": bytes(32)}, "empty admission root"),
        ({"recipe_hash": bytes(32)}, "empty recipe hash"),
        ({"initial_state": bytes(32)}, "empty initial state"),
    ],
)
def test_each_bad_parameter_is_refused_for_its_own_reason(changes, reason):
    problems = replace(PARAMS, **changes).problems(NOW)
    assert problems[0] == f"runs: {reason}"
    assert all(len(problem) <= len("runs: ") + 32 for problem in problems)


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 65_535, "trainer_pool": 0, "validator_pool": 0},
        {"trainer_limit": 256, "validator_limit": 16},
        {"exit_delay": TWO_MONTHS},
        {"unfaithful_bps": 5000, "malformed_bps": 0},
        {"ceiling": 0, "ceiling_rounds": 65_535},
        {"overlap": True, "commit_s": 240, "start": NOW + 240, "exit_delay": 540 + DAY},
        {"trainer_pool": (AMOUNT_LIMIT - 1) // 6, "validator_pool": 0},
    ],
)
def test_limits_themselves_are_allowed(changes):
    assert replace(PARAMS, **changes).problems(NOW) == []


def test_the_start_is_checked_only_against_a_known_time():
    assert replace(PARAMS, start=0).problems() == []


def test_the_sponsor_funds_every_round():
    assert PARAMS.budget == 6 * (10**18 + 10**17)


def test_parts_carry_the_runs_values():
    schedule, terms = PARAMS.schedule(), PARAMS.penalty_terms()
    assert (schedule.start, schedule.rounds, schedule.period) == (NOW + 150, 6, 150)
    for part in (schedule, terms):
        for field in fields(part):
            if field.name != "unfaithful_bps":
                assert getattr(part, field.name) == getattr(PARAMS, field.name)


def test_unfaithful_costs_bond_in_audited_runs_only():
    assert PARAMS.penalty_terms().bps(6) == 0
    assert replace(PARAMS, verification=Level.AUDITED).penalty_terms().bps(6) == 5000


def test_default_penalties_are_those_of_the_protocol_page():
    terms = PARAMS.penalty_terms()
    assert [terms.bps(k) for k in (3, 4, 5, 6)] == [100, 1000, 500, 0]
    assert (terms.unrevealed_bps, terms.contest_bps) == (100, 100)
