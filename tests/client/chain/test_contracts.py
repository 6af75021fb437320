"""The wrappers have every function of the contracts, with the same names and arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import rlp
import vyper
from eth_abi.abi import encode
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from earnest.base.errors import BadAnswer, Reverted
from earnest.client.chain.abi import Abi
from earnest.client.chain.answers import Log
from earnest.client.chain.contracts import (
    Contract,
    Contracts,
    Registry,
    Runs,
    SeatId,
    Settlement,
    Terms,
    Token,
    Vault,
)
from earnest.client.chain.endpoints import Chain
from earnest.client.chain.outbox import Outbox
from earnest.client.chain.scanner import Scanner
from earnest.client.chain.signer import Signer
from earnest.contracts import load_artifact
from earnest.protocol.manifest import Manifest
from earnest.protocol.merkle import admission_proof, admission_root
from earnest.protocol.run import Role, RunParams
from tests.client.chain.conftest import Counter, counter_code, outbox_of
from tests.client.chain.local_node import World

COIN = 10**18
SINK = "0x" + "de" * 20
MANAGERS_ONLY = {
    "open",
    "open_run",
    "pay",
    "burn_escrow",
    "seize",
    "set_bar",
    "refund",
    "set_enclave_key",
    "unpack",
    "release",
}
NOT_OURS = {"transferFrom", "name", "totalSupply", "MINTER"}


def deploy(world: World, name: str, types: list[str], arguments: list[Any]) -> str:
    """Creates a contract from the chain's own rich account, at the address its nonce fixes."""
    rich = world.tester.get_accounts()[0]
    code = load_artifact(name).bytecode + encode(types, arguments)
    sent = world.tester.send_transaction(
        {"from": rich, "to": "", "data": "0x" + code.hex(), "gas": 12_000_000}
    )
    return world.tester.get_transaction_receipt(sent)["contract_address"]


def created_at(creator: str, nonce: int) -> str:
    return to_checksum_address(keccak(rlp.encode([bytes.fromhex(creator[2:]), nonce]))[12:])


@pytest.fixture
def contracts(chain: Chain, world: World) -> Contracts:
    """Each contract knows the next one's address before it exists."""
    rich = world.tester.get_accounts()[0]
    nonce = world.tester.get_nonce(rich)
    token, vault, terms, settlement, runs, registry = (created_at(rich, nonce + i) for i in range(6))
    assert deploy(world, "PlayToken", ["string", "string"], ["Earnest", "EARN"]) == token
    assert deploy(world, "StakeVault", ["address", "address"], [token, SINK]) == vault
    assert deploy(world, "RunTerms", ["address"], [runs]) == terms
    assert deploy(world, "Settlement", ["address", "address"], [vault, runs]) == settlement
    assert deploy(world, "TrainingRuns", ["address"] * 4, [settlement, vault, terms, registry]) == runs
    assert deploy(world, "AttestationRegistry", ["address"] * 3, [runs, settlement, vault]) == registry
    return Contracts.at(chain, runs, chain.head())


@pytest.fixture
def params(chain: Chain, trainer: Signer) -> RunParams:
    return RunParams(
        start=chain.head().time + 10_000,
        rounds=3,
        commit_s=100,
        reveal_s=100,
        report_commit_s=100,
        report_reveal_s=100,
        settle_s=200,
        contest_s=300,
        overlap=False,
        trainer_limit=4,
        validator_limit=3,
        trainer_pool=6 * COIN,
        validator_pool=3 * COIN,
        trainer_min_bond=COIN,
        validator_min_bond=2 * COIN,
        validator_max_stake=10**6 * COIN,
        exit_delay=5 * 86_400,
        admission_root=admission_root([(trainer.address, Role.TRAINER), (SINK, Role.VALIDATOR)]),
        recipe_hash=bytes([7]) * 32,
        initial_state=bytes([8]) * 32,
    )


@pytest.fixture
def outbox(chain: Chain, contracts: Contracts, trainer: Signer, world: World) -> Outbox:
    outbox = outbox_of(chain, trainer)
    minter = world.tester.get_accounts()[0]
    call = contracts.token.mint(trainer.address, 100 * COIN)
    world.tester.send_transaction(
        {"from": minter, "to": call.to, "data": "0x" + call.data.hex(), "gas": 200_000}
    )
    return outbox


def test_the_contracts_are_found_from_one_address(contracts: Contracts, chain: Chain) -> None:
    head = chain.head()
    assert contracts.settlement.runs(head) == contracts.runs.address
    assert contracts.terms.runs(head) == contracts.runs.address
    assert contracts.settlement.vault(head) == contracts.vault.address == contracts.runs.vault(head)
    assert contracts.vault.token(head) == contracts.token.address
    assert int(contracts.vault.sink(head), 16) == int(SINK, 16)
    assert (contracts.token.symbol(head), contracts.token.decimals(head)) == ("EARN", 18)


def test_an_address_without_a_contract_is_a_clear_error(chain: Chain) -> None:
    with pytest.raises(BadAnswer, match="no contract"):
        Contracts.at(chain, SINK, chain.head())


def test_another_protocol_version_is_refused(chain: Chain, world: World) -> None:
    code = vyper.compile_code("PROTOCOL_VERSION: public(constant(uint256)) = 2", output_formats=["bytecode"])
    rich = world.tester.get_accounts()[0]
    sent = world.tester.send_transaction({"from": rich, "to": "", "data": code["bytecode"], "gas": 900_000})
    address = world.tester.get_transaction_receipt(sent)["contract_address"]
    with pytest.raises(BadAnswer, match="version 2, this program 1"):
        Contracts.at(chain, address, chain.head())


@pytest.mark.parametrize("wrapper", [Terms, Vault, Runs, Settlement, Token, Registry])
def test_every_function_that_is_for_us_has_a_method(wrapper: type[Contract]) -> None:
    names = Abi(load_artifact(wrapper.ARTIFACT).abi).functions - MANAGERS_ONLY - NOT_OURS
    for name in names:
        method = {"balanceOf": "balance_of"}.get(name, name.lower())
        assert callable(getattr(wrapper, method, None)), f"{wrapper.__name__} lacks {name}"


def test_a_run_is_opened_and_read_back_as_it_was_written(
    contracts: Contracts, chain: Chain, outbox: Outbox, trainer: Signer, params: RunParams
) -> None:
    vault, runs, settlement = contracts.vault, contracts.runs, contracts.settlement
    outbox.send("approve", contracts.token.approve(vault.address, 100 * COIN))
    outbox.send("deposit", vault.deposit(100 * COIN))
    outbox.send("allow", vault.allow(settlement.address, params.budget))
    outbox.send("create", contracts.terms.create_run(params, "http://sponsor.example/run"))
    head = chain.head()
    assert runs.run_count(head) == 1
    assert runs.run_params(1, head) == params
    assert runs.run_sponsor(1, head) == trainer.address == vault.sponsor(settlement.address, 1, head)
    assert runs.run_rounds(1, head) == 3
    assert vault.escrow(settlement.address, 1, head) == params.budget
    assert vault.idle(trainer.address, head) == 100 * COIN - params.budget
    assert vault.exit_delay(settlement.address, 1, head) == params.exit_delay

    opened = [e for e in Scanner(chain, [contracts.terms], 0).poll(head) if e.name == "RunCreated"]
    assert [RunParams(*event.args["params"]) for event in opened] == [params]
    assert opened[0].args["sponsor"] == trainer.address

    outbox.send("bond", vault.bond(settlement.address, 1, 2 * COIN))
    entries = [(trainer.address, Role.TRAINER), (SINK, Role.VALIDATOR)]
    proof = admission_proof(entries, trainer.address, Role.TRAINER)
    outbox.send("join", runs.join(1, Role.TRAINER, trainer.address, "http://trainer.example", proof))
    head = chain.head()
    assert runs.seat_of(1, trainer.address, head) == SeatId(Role.TRAINER, 0)
    assert runs.seat_of(1, SINK, head) is None
    assert runs.seat_counts(1, head) == (1, 0)
    seat = runs.seat_at(1, Role.TRAINER, 0, 0, head)
    assert (seat.owner, seat.operator, seat.stake) == (trainer.address, trainer.address, 2 * COIN)
    assert runs.owners_at(1, Role.TRAINER, 0, 0, 1, head) == (trainer.address,)
    assert vault.live_bond(settlement.address, 1, trainer.address, head) == 2 * COIN
    assert vault.exit_time(settlement.address, 1, trainer.address, head) is None
    assert runs.unrevealed(1, Role.TRAINER, 0, head) == (0, 0)
    assert runs.seed_of(1, 0, head).seed is None
    assert runs.commitment_of(1, Role.TRAINER, 0, 0, head) == bytes(32)
    assert runs.revealed(1, 0, head) == 0
    assert runs.report_hash(1, 0, 0, head) == bytes(32)
    facts = runs.round_facts(1, 0, head)
    assert (facts.params, facts.rounds, facts.trainer_count) == (params, 3, 1)
    assert len(facts.stakes) == len(facts.report_hashes) == 16
    record = settlement.round_record(1, 0, head)
    assert not record.settled and not record.void and record.agreeing == record.harmful == 0
    penalty = settlement.penalty(settlement.penalty_id(1, 0, 0, head), head)
    assert penalty.status.name == "NONE" and penalty.amount == 0
    assert settlement.locked(1, trainer.address, head) == 0
    assert not settlement.broken(1, 0, head) and not settlement.charged(1, 0, Role.TRAINER, head)
    assert settlement.final_state(1, head) is None


def test_a_deposit_without_allowance_says_so(contracts: Contracts, outbox: Outbox) -> None:
    with pytest.raises(Reverted) as raised:
        outbox.send("deposit", contracts.vault.deposit(COIN))
    assert "allowance" in raised.value.reason


def test_bad_parameters_are_refused_in_the_words_of_the_protocol(
    contracts: Contracts, outbox: Outbox, params: RunParams
) -> None:
    for bad in (replace(params, rounds=0), replace(params, verification=1), replace(params, exit_delay=1)):
        with pytest.raises(Reverted) as raised:
            outbox.send("create", contracts.terms.create_run(bad, ""))
        assert raised.value.reason == bad.problems()[0]


def test_a_reveal_is_encoded_as_the_contract_reads_it(contracts: Contracts, trainer: Signer) -> None:
    word = bytes(range(32))
    manifest = Manifest(1, 2, trainer.address, word, word, word, bytes(32), 10, 20, 30)
    call = contracts.runs.reveal(0, manifest, word)
    assert call.function == "reveal" and call.to == contracts.runs.address
    assert call.args == {"seat": 0, "manifest": manifest.as_tuple(), "salt": word, "attestation": b""}


def test_settling_is_encoded_as_the_contract_reads_it(contracts: Contracts) -> None:
    word = bytes(range(32))
    call = contracts.settlement.settle(1, 2, [3, 4], [[word], []], 1)
    assert call.args == {
        "run": 1,
        "round": 2,
        "hints": [3, 4],
        "reports": [[word], []],
        "majority": 1,
    }


# The codec


def codec() -> Abi:
    return Abi(counter_code()["abi"])


def test_structs_and_nested_arrays_come_back(chain: Chain, counter_address: str, trainer: Signer) -> None:
    pair = (3, trainer.address)
    swapped, more = Counter(chain, counter_address, codec()).read("swap", pair, [pair, pair])
    assert (swapped, more) == ((4, trainer.address), (pair, pair))


@pytest.mark.parametrize("arguments", [(), (1,), (-1, ""), (2**256, ""), ("1", ""), (1, 2)])
def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((ValueError, TypeError)):
        codec().encode_call("add", arguments)


def test_an_answer_that_is_not_the_functions_result_is_refused() -> None:
    for data in (b"", b"\x01" * 31):
        with pytest.raises(BadAnswer, match="do not decode"):
            codec().decode_result("count", data)


def test_a_log_of_another_contract_is_not_decoded_and_a_mangled_one_is_refused() -> None:
    topic = next(iter(codec()._events))
    log = Log(SINK, (topic,), b"", 1, bytes(32), 0, "0x")
    with pytest.raises(BadAnswer, match="lacks topics"):
        codec().decode_log(log)
    with pytest.raises(BadAnswer, match="do not decode"):
        codec().decode_log(replace(log, topics=(topic, bytes(32))))
    assert codec().decode_log(replace(log, topics=(bytes(32),))) is None
    assert codec().decode_log(replace(log, topics=())) is None
