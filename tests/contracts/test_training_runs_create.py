"""Creating and ending runs: protocol sections 3 and 4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from earnest.protocol.constants import ZERO_ADDRESS
from earnest.protocol.run import RunParams
from tests.contracts.harness import Reverted, System, account
from tests.contracts.rounds import SPONSOR, STRANGER, TERMS, Run, fund

DAY = 86_400
LIMIT = 2**96


def refused(reason: str) -> Any:
    return pytest.raises(Reverted, match=f"^{reason}$")


def terms(contracts: System, **changes: Any) -> RunParams:
    """TERMS one period from now, changed."""
    return replace(TERMS, start=contracts.evm.time + TERMS.schedule().period, **changes)


def test_names_its_partners_and_version(contracts: System) -> None:
    runs = contracts.runs
    assert runs.PROTOCOL_VERSION() == 1
    assert runs.SETTLEMENT() == contracts.settlement.address.lower()
    assert runs.VAULT() == contracts.vault.address.lower()
    assert runs.TERMS() == contracts.terms.address.lower()
    assert runs.REGISTRY() == contracts.registry
    assert runs.run_count() == 0


def test_refuses_to_be_wired_to_nothing(contracts: System) -> None:
    nobody, no_code = "0x" + "00" * 20, account("nobody")
    good = [
        contracts.settlement.address,
        contracts.vault.address,
        contracts.terms.address,
        contracts.registry,
    ]
    for place, bad in enumerate((nobody, no_code, no_code, nobody)):
        with refused("runs: bad wiring"):
            contracts.evm.deploy("TrainingRuns", *good[:place], bad, *good[place + 1 :])


@pytest.mark.parametrize("overlap", [False, True])
def test_every_parameter_reads_back_as_given(contracts: System, overlap: bool) -> None:
    params = terms(
        contracts,
        rounds=65_535,
        commit_s=86_399,
        reveal_s=11,
        report_commit_s=12,
        report_reveal_s=13,
        settle_s=60,
        contest_s=61,
        overlap=overlap,
        trainer_pool=2**79,
        validator_pool=2**78,
        trainer_min_bond=LIMIT - 1,
        validator_min_bond=LIMIT - 2,
        validator_max_stake=LIMIT - 1,
        exit_delay=60 * DAY,
        unrevealed_bps=1,
        malformed_bps=2,
        harmful_bps=3,
        copied_bps=4,
        unfaithful_bps=5000,
        contest_bps=6,
        ceiling=LIMIT - 3,
        ceiling_rounds=65_535,
        open_trainers=not overlap,
    )
    params = replace(params, start=contracts.evm.time + params.schedule().period)
    fund(contracts, SPONSOR, params.budget)
    contracts.vault.allow(contracts.settlement.address, params.budget, sender=SPONSOR)
    run = contracts.terms.create_run(params, "http://run.example/", sender=SPONSOR)
    event = contracts.evm.events("RunCreated")[0]
    assert tuple(contracts.runs.run_params(run)) == tuple(event["params"]) == params.as_tuple()
    assert (event["sponsor"], event["recipe_hash"]) == (SPONSOR, params.recipe_hash)
    assert event["uri"] == "http://run.example/"
    assert contracts.runs.run_sponsor(run) == SPONSOR
    assert contracts.runs.run_rounds(run) == params.rounds


def test_the_budget_leaves_the_sponsors_idle_money(contracts: System) -> None:
    run = Run.create(contracts, rounds=5)
    assert run.idle(SPONSOR) == 0
    assert run.escrow() == 5 * (10**18 + 10**17)


def test_the_terms_contract_needs_the_address_of_training_runs(contracts: System) -> None:
    assert contracts.terms.PROTOCOL_VERSION() == 1
    with refused("runs: terms not wired"):
        contracts.evm.deploy("RunTerms", ZERO_ADDRESS)


def test_only_the_terms_contract_opens_a_run(contracts: System) -> None:
    run = Run.create(contracts)
    words = (run.params.start, 0, 0, 0, bytes(32), bytes(32), bytes(32))
    with refused("runs: not the terms"):
        contracts.runs.open_run(STRANGER, words, bytes(32), 0, 60 * DAY, sender=SPONSOR)


def test_ids_count_from_one(contracts: System) -> None:
    assert [Run.create(contracts).id for _ in range(3)] == [1, 2, 3]


def test_a_run_without_the_sponsors_consent_is_refused(contracts: System) -> None:
    params = terms(contracts)
    fund(contracts, SPONSOR, params.budget)
    with refused("vault: allowance too small"):
        contracts.terms.create_run(params, "", sender=SPONSOR)
    contracts.vault.allow(contracts.settlement.address, params.budget, sender=SPONSOR)
    with refused("vault: allowance too small"):
        contracts.terms.create_run(params, "", sender=STRANGER)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rounds": 0}, "runs: rounds out of range"),
    ({"rounds": 65_536}, "runs: rounds out of range"),
    ({"commit_s": 0}, "runs: empty window"),
    ({"reveal_s": 0}, "runs: empty window"),
    ({"report_commit_s": 0}, "runs: empty window"),
    ({"report_reveal_s": 0}, "runs: empty window"),
    ({"settle_s": 59}, "runs: window too short"),
    ({"contest_s": 59}, "runs: window too short"),
    ({"commit_s": 60 * DAY + 1}, "runs: window too long"),
    ({"contest_s": 2**256 - 1}, "runs: window too long"),
    ({"overlap": True, "settle_s": 60}, "runs: windows exceed commit"),
    ({"settle_s": 2_201}, "runs: settle window too long"),
    ({"start": 2**40}, "runs: start too late"),
    ({"exit_delay": 3_500 + DAY - 1}, "runs: exit delay too short"),
    ({"exit_delay": 60 * DAY + 1}, "runs: exit delay too long"),
    ({"trainer_limit": 0}, "runs: trainer limit out of range"),
    ({"trainer_limit": 257}, "runs: trainer limit out of range"),
    ({"validator_limit": 0}, "runs: validator limit out of range"),
    ({"validator_limit": 17}, "runs: validator limit out of range"),
    ({"trainer_min_bond": 0}, "runs: zero minimum bond"),
    ({"validator_min_bond": 0}, "runs: zero minimum bond"),
    ({"trainer_pool": LIMIT}, "runs: amount too large"),
    ({"validator_pool": 2**256 - 1}, "runs: amount too large"),
    ({"trainer_pool": LIMIT // 3}, "runs: amount too large"),
    ({"trainer_min_bond": LIMIT}, "runs: amount too large"),
    ({"validator_min_bond": LIMIT, "validator_max_stake": LIMIT}, "runs: amount too large"),
    ({"validator_max_stake": 10**6 - 1}, "runs: stake cap below minimum bond"),
    ({"ceiling": LIMIT}, "runs: amount too large"),
    *(
        ({name: 5_001}, "runs: penalty too high")
        for name in (
            *("unrevealed_bps", "malformed_bps", "harmful_bps"),
            *("copied_bps", "unfaithful_bps", "contest_bps"),
        )
    ),
    ({"ceiling_rounds": 0}, "runs: zero ceiling window"),
    ({"ceiling_rounds": 65_536}, "runs: ceiling window too long"),
    ({"verification": 1}, "runs: level not available"),
    ({"verification": 1, "attestation_policy": b"\1" * 32}, "runs: level not available"),
    ({"verification": 4, "attestation_policy": b"\1" * 32}, "runs: level not available"),
    ({"verification": 2**256 - 1}, "runs: level not available"),
    ({"attestation_policy": b"\1" * 32}, "runs: policy at level 0"),
    ({"verification": 2}, "runs: empty attestation policy"),
    ({"verification": 3}, "runs: empty attestation policy"),
    ({"admission_root": bytes(32)}, "runs: empty admission root"),
    ({"recipe_hash": bytes(32)}, "runs: empty recipe hash"),
    ({"initial_state": bytes(32)}, "runs: empty initial state"),
]


@pytest.mark.parametrize(("changes", "reason"), BAD)
def test_each_bad_parameter_is_refused_with_its_own_reason(
    contracts: System, changes: dict[str, Any], reason: str
) -> None:
    base = terms(contracts)
    if changes.get("overlap"):  # R + S + V fills C
        base = replace(base, commit_s=1_200)
    base = replace(base, start=contracts.evm.time + 10**7)
    with refused(reason):
        contracts.terms.create_run(replace(base, **changes), "", sender=SPONSOR)


@pytest.mark.parametrize("early", [0, 1])
def test_the_start_is_at_least_a_period_away(contracts: System, early: int) -> None:
    params = terms(contracts)
    params = replace(params, start=params.start - early)
    fund(contracts, SPONSOR, params.budget)
    contracts.vault.allow(contracts.settlement.address, params.budget, sender=SPONSOR)
    if early:
        with refused("runs: start too early"):
            contracts.terms.create_run(params, "", sender=SPONSOR)
    else:
        contracts.terms.create_run(params, "", sender=SPONSOR)


# Ending a run.


def test_only_the_sponsor_ends_a_run(contracts: System) -> None:
    run = Run.create(contracts, rounds=5)
    with refused("runs: not the sponsor"):
        contracts.runs.end(run.id, sender=STRANGER)


@pytest.mark.parametrize(("offset", "rounds"), [(-1, 1), (0, 2), (2_199, 2), (2_200, 3)])
def test_ending_leaves_one_full_round(contracts: System, offset: int, rounds: int) -> None:
    run = Run.create(contracts, rounds=5)
    run.enter("commit", 0, offset)
    contracts.runs.end(run.id, sender=SPONSOR)
    assert contracts.evm.events("RunEnded") == [{"run": run.id, "rounds": rounds}]
    assert contracts.runs.run_rounds(run.id) == rounds
    assert contracts.runs.run_params(run.id) == run.params.as_tuple()
    with refused("runs: no round left to end"):
        contracts.runs.end(run.id, sender=SPONSOR)


def test_a_run_about_to_end_cannot_be_ended(contracts: System) -> None:
    run = Run.create(contracts, rounds=3)
    run.enter("commit", 1)
    with refused("runs: no round left to end"):
        contracts.runs.end(run.id, sender=SPONSOR)
    run.enter("commit", 1_000)
    with refused("runs: no round left to end"):
        contracts.runs.end(run.id, sender=SPONSOR)


def test_no_round_is_played_beyond_the_end(contracts: System) -> None:
    run = Run.create(contracts, rounds=5)
    run.join_trainers(1)
    contracts.runs.end(run.id, sender=SPONSOR)
    run.enter("commit", 1)
    with refused("runs: not in commit window"):
        run.commit([0], 1)


@pytest.mark.parametrize("run", [0, 1, 2**224 + 1, 2**256 - 1])
def test_an_unknown_run_is_refused_everywhere(contracts: System, run: int) -> None:
    runs, zero = contracts.runs, bytes(32)
    manifest = (run, 0, STRANGER, zero, zero, zero, zero, 0, 0, 0)
    for call in (
        lambda: runs.end(run),
        lambda: runs.join(run, 1, STRANGER, "", [], 0),
        lambda: runs.set_operator(run, 1, 0, STRANGER),
        lambda: runs.set_uri(run, 1, 0, ""),
        lambda: runs.sync(run, 1, 0),
        lambda: runs.ask_back(run, 0),
        lambda: runs.commit(run, 0, 0, zero),
        lambda: runs.reveal(0, manifest, zero, b""),
        lambda: runs.seed(run, 0),
        lambda: runs.report_commit(run, 0, 0, zero),
        lambda: runs.report_reveal(run, 0, 0, [], zero),
        lambda: runs.run_params(run),
        lambda: runs.run_rounds(run),
        lambda: runs.round_facts(run, 0),
        lambda: runs.attestation(run),
    ):
        with refused("runs: no such run"):
            call()
