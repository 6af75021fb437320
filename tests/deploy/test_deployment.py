"""Plan, run, verify: a deployment matches its plan, continues after a kill, and other code is detected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from eth_hash.auto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from earnest.base.errors import OutOfFunds
from earnest.client.chain.outbox import MemoryIntents
from earnest.client.storage.journal import Journal
from earnest.contracts import load_artifact
from earnest.deploy.devnet.chain import Devnet
from earnest.deploy.execute import DeploymentError, run_plan, unfinished_plan
from earnest.deploy.manifest import (
    Manifest,
    ManifestError,
    load_manifest,
    manifest_of_plan,
    plan_of_manifest,
    save_manifest,
)
from earnest.deploy.plan import SINK, DeploymentPlan, create_address, make_plan
from earnest.deploy.verify import ContractCheck, verify
from tests.deploy.chain import (
    Killed,
    MortalProvider,
    chain_of,
    deploy_all,
    deploy_token,
    fresh_devnet,
    outbox_of,
    signed,
    sponsor,
    stranger,
    trainer,
)

ORDER = ["PlayToken", "StakeVault", "RunTerms", "Settlement", "TrainingRuns", "AttestationRegistry"]


def run(devnet: Devnet, plan: DeploymentPlan, path: Path, **options) -> Manifest:
    chain, store = chain_of(devnet), options.pop("store", None) or MemoryIntents()
    outbox = outbox_of(chain, store, options.pop("sender", sponsor))
    return run_plan(plan, chain, outbox, store, path, network="devnet", git="", **options)


def failures(devnet: Devnet, manifest: Manifest) -> list[ContractCheck]:
    chain = chain_of(devnet)
    return [check for check in verify(manifest, chain, chain.head()) if not check.ok]


def questions(devnet: Devnet, manifest: Manifest) -> set[tuple[str, str]]:
    return {(check.contract, check.name) for check in failures(devnet, manifest)}


# Plan


@settings(max_examples=10)
@given(st.integers(0, 3))
def test_planned_addresses_are_those_of_the_deployed_contracts(earlier: int):
    devnet = fresh_devnet()
    for nonce in range(earlier):
        devnet.send(signed(sponsor, nonce))
    plan = make_plan(devnet.chain_id, sponsor.address, earlier)
    for planned in plan.contracts:
        devnet.send(signed(sponsor, planned.nonce, to="", value=0, data=planned.initcode, gas=planned.gas))
    chain = chain_of(devnet)
    assert [planned.name for planned in plan.contracts] == ORDER
    assert all(planned.matches(chain.code(planned.address, chain.head())) for planned in plan.contracts)


@given(st.binary(min_size=20, max_size=20), st.integers(0, 2**64 - 2))
def test_every_contract_of_a_plan_gets_the_addresses_of_the_others(deployer: bytes, nonce: int):
    plan = make_plan(1, "0x" + deployer.hex(), nonce)
    assert [planned.address for planned in plan.contracts] == [
        create_address(plan.deployer, nonce + i) for i in range(len(ORDER))
    ]
    args = {planned.name: planned.args for planned in plan.contracts}
    vault, terms, settlement, runs, registry = (plan.address(name) for name in ORDER[1:])
    assert args["StakeVault"] == {"token": plan.address("PlayToken"), "sink": SINK}
    assert args["RunTerms"] == {"runs": runs}
    assert args["Settlement"] == {"vault": vault, "runs": runs}
    assert args["TrainingRuns"] == {
        "settlement": settlement,
        "vault": vault,
        "terms": terms,
        "registry": registry,
    }
    assert args["AttestationRegistry"] == {"runs": runs, "settlement": settlement, "vault": vault}


def test_a_known_create_address():
    # go-ethereum, crypto.TestNewContractAddress
    deployer = "0x970e8128ab834e8eac17ab8e3812f010678cf791"
    assert [create_address(deployer, nonce).lower() for nonce in range(3)] == [
        "0x333c3310824b7c685133f2bedb2ca4b8b4df633d",
        "0x8bda78331c916a08481428e4b07c96d3e916d165",
        "0xc9ddedf451bc62ce88bf9292afb13df35b670699",
    ]


def test_with_a_token_of_its_own_the_network_gets_no_other():
    plan = make_plan(1, sponsor.address, 7, token=stranger.address)
    assert [planned.name for planned in plan.contracts] == ORDER[1:]
    assert plan.contracts[0].args["token"] == plan.token == stranger.address


def test_the_planned_gas_is_enough_and_its_waste_is_bounded(tmp_path):
    devnet = fresh_devnet()
    plan = make_plan(devnet.chain_id, sponsor.address, 0)
    manifest = run(devnet, plan, tmp_path / "manifest.json")
    for planned in plan.contracts:
        receipt = chain_of(devnet).receipt(str(manifest.current.contracts[planned.name].tx))
        assert receipt is not None
        assert planned.gas - 250_000 <= receipt.gas_used <= planned.gas


def test_a_plan_is_the_same_whenever_it_is_made():
    assert make_plan(1, sponsor.address, 0) == make_plan(1, sponsor.address.lower(), 0)


# Run


def test_a_deployment_is_recorded_whole_and_verifies(tmp_path):
    devnet, path = fresh_devnet(), tmp_path / "devnet.json"
    manifest = deploy_all(devnet, path)
    assert load_manifest(path) == manifest
    assert manifest.current.complete
    assert manifest.first_block == 1
    assert manifest.address("Token") == manifest.address("PlayToken")
    assert failures(devnet, manifest) == []


def test_running_a_finished_plan_again_sends_nothing(tmp_path):
    devnet, path = fresh_devnet(), tmp_path / "devnet.json"
    manifest = deploy_all(devnet, path)
    head = devnet.head.header.block_number
    assert run(devnet, plan_of_manifest(manifest), path) == manifest
    assert devnet.head.header.block_number == head


def test_a_new_deployment_keeps_the_old_one_as_history(tmp_path):
    devnet, path = fresh_devnet(), tmp_path / "devnet.json"
    manifests = [deploy_all(devnet, path) for _ in range(3)]
    last = load_manifest(path)
    assert last.history == [manifests[1].current, manifests[0].current]
    assert failures(devnet, last) == []


def test_progress_hears_of_each_step_before_it_starts(tmp_path):
    devnet, heard = fresh_devnet(), []
    plan = make_plan(devnet.chain_id, sponsor.address, 0)
    run(
        devnet,
        plan,
        tmp_path / "m.json",
        progress=lambda s: heard.append((s.name, devnet.pending_nonce(sponsor_bytes()))),
    )
    assert heard == [(name, nonce) for nonce, name in enumerate(ORDER)]


def sponsor_bytes() -> bytes:
    return bytes.fromhex(sponsor.address[2:])


def killed_then_finished(devnet: Devnet, provider: MortalProvider, path: Path) -> bool:
    """Runs until the provider kills it, and runs again; whether it was killed at all."""
    plan = make_plan(devnet.chain_id, sponsor.address, 0)
    chain, store, died = chain_of(devnet, provider), MemoryIntents(), False
    try:
        run_plan(plan, chain, outbox_of(chain, store), store, path, network="devnet", git="")
    except Killed:
        died = True
    again = unfinished_plan(path) or plan
    assert again == plan
    manifest = run(devnet, again, path, store=store)
    assert failures(devnet, manifest) == []
    assert devnet.pending_nonce(sponsor_bytes()) == len(plan.contracts), "a step was sent twice"
    assert unfinished_plan(path) is None
    assert all(contract.tx for contract in manifest.current.contracts.values())
    return died


def test_a_run_killed_at_any_of_its_requests_goes_on_and_sends_nothing_twice(tmp_path):
    lives, stride = 1, 4
    while (devnet := fresh_devnet()) and killed_then_finished(
        devnet, MortalProvider(devnet, lives), tmp_path / f"{lives}.json"
    ):
        lives += stride
    assert lives > 40


@pytest.mark.parametrize("position", range(len(ORDER)))
def test_a_run_killed_right_after_a_transaction_left_does_not_send_it_again(tmp_path, position):
    devnet = fresh_devnet()
    provider = MortalProvider(devnet, position, "eth_sendRawTransaction")
    assert killed_then_finished(devnet, provider, tmp_path / "m.json")


@pytest.mark.parametrize("name", ORDER)
def test_a_run_killed_before_each_step_goes_on_from_manifest_and_journal_on_disk(tmp_path, name):
    devnet, path = fresh_devnet(), tmp_path / "devnet.json"
    plan = make_plan(devnet.chain_id, sponsor.address, 0)

    def die(planned) -> None:
        if planned.name == name:
            raise Killed

    for progress in (die, lambda planned: None):
        journal = Journal(tmp_path / "journal.db", sponsor.address)
        try:
            run(devnet, unfinished_plan(path) or plan, path, store=journal, progress=progress)
        except Killed:
            assert unfinished_plan(path) == plan
        finally:
            journal.close()
    assert failures(devnet, load_manifest(path)) == []


def test_a_run_whose_journal_is_lost_finds_its_contracts_on_the_chain(tmp_path):
    devnet, path = fresh_devnet(), tmp_path / "devnet.json"
    plan = make_plan(devnet.chain_id, sponsor.address, 0)
    chain = chain_of(devnet, MortalProvider(devnet, 40))
    store = MemoryIntents()
    with pytest.raises(Killed):
        run_plan(plan, chain, outbox_of(chain, store), store, path, network="devnet", git="")
    manifest = run(devnet, plan, path, store=MemoryIntents())
    assert failures(devnet, manifest) == []
    assert devnet.pending_nonce(sponsor_bytes()) == len(ORDER)


def test_a_deployer_with_a_changed_nonce_has_to_plan_again(tmp_path):
    devnet = fresh_devnet()
    plan = make_plan(devnet.chain_id, sponsor.address, 0)
    devnet.send(signed(sponsor, 0))
    with pytest.raises(DeploymentError, match=r"planned for nonce 0 .* next is 1"):
        run(devnet, plan, tmp_path / "m.json")
    assert devnet.pending_nonce(sponsor_bytes()) == 1


def test_another_contract_at_the_planned_address_stops_the_run(tmp_path):
    devnet = fresh_devnet()
    plan = make_plan(devnet.chain_id, sponsor.address, 0, token=stranger.address)
    deploy_token(devnet)
    with pytest.raises(DeploymentError, match="is not StakeVault"):
        run(devnet, plan, tmp_path / "m.json")


def test_an_unfinished_deployment_is_not_overwritten_by_another(tmp_path):
    devnet, path = fresh_devnet(), tmp_path / "m.json"
    save_manifest(path, manifest_of_plan(make_plan(devnet.chain_id, sponsor.address, 0), "devnet", ""))
    with pytest.raises(ManifestError, match="unfinished"):
        run(devnet, make_plan(devnet.chain_id, sponsor.address, 9), path)


@pytest.mark.parametrize("wrong", ["key", "chain"])
def test_another_key_or_chain_than_planned_is_refused_before_anything_is_written(tmp_path, wrong):
    devnet, path = fresh_devnet(), tmp_path / "m.json"
    plan = make_plan(1 if wrong == "chain" else devnet.chain_id, sponsor.address, 0)
    with pytest.raises(DeploymentError, match="the plan is for"):
        run(devnet, plan, path, sender=trainer if wrong == "key" else sponsor)
    assert not path.exists()


def test_a_deployer_without_coins_is_an_error(tmp_path):
    devnet = fresh_devnet()
    plan = make_plan(devnet.chain_id, stranger.address, 0)
    with pytest.raises(OutOfFunds):
        run(devnet, plan, tmp_path / "m.json", sender=stranger)


# Manifest


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"schema": 1, "surprise": 2}', b"\xff"])
def test_a_broken_manifest_is_an_error_with_its_path(tmp_path, text):
    path = tmp_path / "m.json"
    path.write_bytes(text)
    with pytest.raises(ManifestError, match=r"m\.json"):
        load_manifest(path)


def test_a_missing_manifest_or_a_newer_one_says_what_to_do(tmp_path):
    with pytest.raises(ManifestError, match="deploy first"):
        load_manifest(tmp_path / "none.json")
    path = tmp_path / "newer.json"
    newer = manifest_of_plan(make_plan(1, sponsor.address, 0), "devnet", "")
    save_manifest(path, msgspec.structs.replace(newer, schema=2))
    with pytest.raises(ManifestError, match="schema 2"):
        load_manifest(path)


def test_asking_for_a_contract_that_is_not_there_lists_those_that_are():
    manifest = manifest_of_plan(make_plan(1, sponsor.address, 0), "devnet", "")
    with pytest.raises(ManifestError, match=r"no Treasury on devnet .*StakeVault"):
        manifest.address("Treasury")


# Verify


def changed(manifest: Manifest, name: str, **fields) -> Manifest:
    contracts = dict(manifest.current.contracts)
    contracts[name] = msgspec.structs.replace(contracts[name], **fields)
    return msgspec.structs.replace(
        manifest, current=msgspec.structs.replace(manifest.current, contracts=contracts)
    )


@pytest.fixture(scope="module")
def deployed(tmp_path_factory) -> tuple[Devnet, Manifest]:
    devnet = fresh_devnet()
    return devnet, deploy_all(devnet, tmp_path_factory.mktemp("deployed") / "m.json")


@pytest.mark.parametrize(
    ("name", "fields", "question"),
    [
        ("Settlement", {"address": stranger.address}, "address"),
        ("Settlement", {"deployer": stranger.address}, "deployer"),
        ("Settlement", {"args_abi": "0x00"}, "encoded arguments"),
        ("Settlement", {"integrity": "00"}, "source integrity"),
        ("Settlement", {"initcode_hash": "0x00"}, "creation code hash"),
        ("Settlement", {"runtime_hash": "0x00"}, "code hash"),
        ("Settlement", {"runtime_hash": None}, "code hash"),
        ("Settlement", {"args": {"vault": stranger.address, "runs": stranger.address}}, "arguments"),
        ("TrainingRuns", {"nonce": 9}, None),
    ],
)
def test_a_manifest_that_says_something_else_is_caught(deployed, name, fields, question):
    devnet, manifest = deployed
    found = questions(devnet, changed(manifest, name, **fields))
    assert found == ({(name, question)} if question else set())


def test_a_transaction_that_created_something_else_is_caught(deployed):
    devnet, manifest = deployed
    other = changed(manifest, "Settlement", tx=manifest.current.contracts["StakeVault"].tx)
    assert questions(devnet, other) == {("Settlement", "created by its transaction")}
    unknown = changed(manifest, "Settlement", tx="0x" + "11" * 32)
    assert questions(devnet, unknown) == {("Settlement", "created by its transaction")}


def test_a_manifest_that_leaves_a_contract_out_is_caught(deployed):
    devnet, manifest = deployed
    contracts = {n: c for n, c in manifest.current.contracts.items() if n != "TrainingRuns"}
    current = msgspec.structs.replace(manifest.current, contracts=contracts)
    found = questions(devnet, msgspec.structs.replace(manifest, current=current))
    assert ("TrainingRuns", "recorded") in found


Tamper = Callable[[str, bytes], bytes]


def imposter(tamper: Tamper) -> set[tuple[str, str]]:
    """The checks that fail for tampered creation code that is deployed at the planned nonces and recorded correctly."""
    devnet = fresh_devnet()
    deploy_token(devnet, deployer=trainer)
    plan = make_plan(devnet.chain_id, sponsor.address, 0)
    manifest = manifest_of_plan(plan, "devnet", "")
    chain = chain_of(devnet)
    for planned in plan.contracts:
        data = tamper(planned.name, planned.initcode)
        devnet.send(signed(sponsor, planned.nonce, to="", value=0, data=data, gas=planned.gas))
        code = chain.code(planned.address, chain.head())
        assert code, "the imposter must be on the chain to test anything"
        manifest = changed(manifest, planned.name, runtime_hash="0x" + keccak(code).hex())
    return questions(devnet, manifest)


def test_honest_creation_code_passes_the_imposters_test():
    assert imposter(lambda name, code: code) == set()


@pytest.mark.parametrize(
    ("name", "word", "getter"),
    [
        ("StakeVault", 2, "TOKEN()"),
        ("StakeVault", 1, "SINK()"),
        ("Settlement", 2, "VAULT()"),
        ("Settlement", 1, "RUNS()"),
        ("TrainingRuns", 4, "SETTLEMENT()"),
        ("TrainingRuns", 2, "TERMS()"),
        ("TrainingRuns", 1, "REGISTRY()"),
        ("AttestationRegistry", 3, "RUNS()"),
        ("AttestationRegistry", 2, "SETTLEMENT()"),
        ("AttestationRegistry", 1, "VAULT()"),
    ],
)
def test_a_contract_wired_to_somebody_elses_is_caught(name, word, getter):
    """The constructor's words are the last of the creation code; `word` counts from the end."""

    def rewire(contract: str, code: bytes) -> bytes:
        end = len(code) - 32 * (word - 1)
        other = bytes.fromhex(create_address(trainer.address, 0)[2:]).rjust(32, b"\0")
        return code[: end - 32] + other + code[end:] if contract == name else code

    assert {(name, "code"), (name, getter)} <= imposter(rewire)


@pytest.mark.parametrize("name", ORDER)
def test_a_contract_with_one_changed_byte_is_caught(name):
    def change(contract: str, code: bytes) -> bytes:
        if contract != name:
            return code
        runtime = load_artifact(name).runtime
        at = code.index(runtime) + len(runtime) - 1
        return code[:at] + bytes([code[at] ^ 1]) + code[at + 1 :]

    assert (name, "code") in imposter(change)


def test_code_that_is_too_long_or_too_short_is_not_the_contract(deployed):
    devnet, manifest = deployed
    chain, planned = chain_of(devnet), plan_of_manifest(manifest).contracts[1]
    code = chain.code(planned.address, chain.head())
    assert planned.matches(code)
    assert not any(planned.matches(other) for other in (code + b"\0", code[:-1], code[:-32], b""))


def test_nothing_at_the_address_is_caught():
    devnet = fresh_devnet()
    found = failures(devnet, manifest_of_plan(make_plan(devnet.chain_id, sponsor.address, 0), "devnet", ""))
    assert {(c.contract, c.actual) for c in found if c.name == "code"} == {(n, "no code") for n in ORDER}
