"""Gas of every action, from receipts of the embedded chain (py-evm, Prague), and of whole rounds.

    python -m benchmarks.gas [trainers x validators ..] [attested]        default: 64x8 256x16 attested

Prints tables, writes what 256x16 and `attested` gave into `contracts/gas.json`. `attested` is measured on anvil with
Osaka's rules where that is installed, else on the embedded chain, which has Osaka's precompile. "First" is the first
time a seat does it; "repeat" is from the third round on, when both slots of the seat, by round parity, have been used.
A round's total includes commits, reveals, seed, report commits, report reveals and settlement with all pay.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from eth.vm.forks.prague import PragueVM
from eth.vm.spoof import SpoofTransaction
from eth_utils.address import to_canonical_address

from earnest.attestation.formats.quote import (
    parse_quote,
    quote_calldata,
)
from earnest.deploy.devnet.chain import CHAIN_ID, GAS_LIMIT, Devnet, Message
from earnest.protocol.attestation import round_statement
from tests import anvil
from tests.contracts import attested, harness, osaka
from tests.contracts.harness import Evm, Reverted, System, account, compiled
from tests.contracts.rounds import SALT, SPONSOR, TRAINERS, VALIDATORS, Run, accepted, report, verdict

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("deployer", "sink", "sponsor", "stranger", "registry")
WEI = 10**30
MAX_FEE = 10**12
BYTECODE_LIMIT = 24_576
SIZES = ("64x8", "256x16")
ATTESTED = "attested"
GENUINE = ROOT / "tests/data/attestation/quotes/tdx4-b0c06f-phala.bin"
PEERS = "peers pay 232 k to 611 k a worker-round (Gensyn, Prime Intellect, 0G: receipts of their contracts on anvil)"


class Embedded(Evm):
    """The tests' chain on the embedded one, with a block for each transaction. Senders need no keys."""

    def __init__(self) -> None:
        people = [account(name) for name in NAMES] + [*TRAINERS, *VALIDATORS]
        self.devnet = Devnet(dict.fromkeys(people, WEI), chain_id=CHAIN_ID)
        self.builder = PragueVM.get_transaction_builder()
        self.contracts, self.logs, self.gas_used = {}, [], 0

    @property
    def time(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.devnet.now()

    def travel(self, to: int) -> None:
        self.devnet.travel(to)

    def mine(self, blocks: int = 1, seconds: int = 1) -> None:
        self.devnet.mine(blocks)

    def nonce(self, address: str) -> int:
        return self.devnet.state(self.devnet.head.header).get_nonce(to_canonical_address(address))

    def deploy(self, name: str, *args: Any, sender: str | None = None) -> Any:
        deployer = sender or account("deployer")
        code = compiled(name)
        inputs = next((e["inputs"] for e in code.abi if e["type"] == "constructor"), [])
        address = harness.create_address(deployer, self.nonce(deployer))
        self.send(b"", code.bytecode + harness.encode_arguments(inputs, args), deployer)
        return self.at(name, address)

    def call(self, to: str, data: bytes, sender: str, *, static: bool = False) -> bytes:
        target = to_canonical_address(to)
        if not static:
            self.send(target, data, sender)
            return bytes(32)  # a transaction answers nothing
        return self.devnet.call(
            Message(to_canonical_address(sender), target, 0, data), self.devnet.head.header
        ).output

    def send(self, to: bytes, data: bytes, sender: str) -> None:
        origin, nonce = to_canonical_address(sender), self.nonce(sender)
        transaction = self.builder.new_dynamic_fee_transaction(  # pyright: ignore
            chain_id=CHAIN_ID,
            nonce=nonce,
            max_priority_fee_per_gas=0,
            max_fee_per_gas=MAX_FEE,
            gas=GAS_LIMIT,
            to=to,
            value=0,
            data=data,
            access_list=(),
            y_parity=0,
            r=1,
            s=1,
        )
        spoofed = SpoofTransaction(transaction, sender=origin, check_signature_validity=lambda: None)
        self.devnet.mempool.add(spoofed, nonce)  # pyright: ignore[reportArgumentType]
        self.devnet.mine()
        (receipt,) = self.devnet.head.receipts
        if receipt.state_root != b"\x01":
            raise Reverted("transaction failed")
        self.gas_used = receipt.gas_used


class Meter:
    """Gas by action, in the order of the transactions."""

    def __init__(self, evm: Evm) -> None:
        self.evm = evm
        self.used: dict[str, list[int]] = defaultdict(list)

    def __call__(self, action: str, act: Callable[[], object]) -> None:
        act()
        self.used[action].append(self.evm.gas_used)


def prepare(contracts: System, trainers: int, validators: int, meter: Meter) -> Run:
    """Returns a run with all seats taken. Every account also has an idle balance, as after its first pay."""
    run = Run.create(contracts, rounds=4, start=contracts.evm.time + 200_000)
    meter.used["create_run"].append(contracts.evm.gas_used)
    for _ in range(trainers):
        run.join_trainers(1)
        meter.used["join"].append(contracts.evm.gas_used)
    run.join_validators([10**9 + 7 * v for v in range(validators)])
    for who in (*run.trainers, *run.validators):
        if not run.idle(who):
            contracts.token.mint(who, 1, sender=account("deployer"))
            contracts.token.approve(contracts.vault.address, 1, sender=who)
            contracts.vault.deposit(1, sender=who)
    return run


def play(run: Run, round: int, meter: Meter) -> int:
    """Plays a whole round; returns its total gas."""
    before = sum(sum(used) for used in meter.used.values())
    seats = range(len(run.trainers))
    run.enter("commit", round)
    for seat in seats:
        meter("commit", lambda seat=seat: run.commit([seat], round))
    run.enter("reveal", round)
    for seat in seats:
        meter("reveal", lambda seat=seat: run.reveal([seat], round))
    run.enter("report_commit", round)
    meter("seed request", lambda: run.system.runs.seed(run.id, round))
    run.evm.mine(4)
    meter("seed", lambda: run.system.runs.seed(run.id, round))
    weights = [1 + (7_919 * seat) % 60_000 for seat in seats]
    copied = verdict(5)
    for v in range(len(run.validators)):
        votes = [accepted(w + (w * (v - 8)) // 1_000) for w in weights]
        run.reports.setdefault(round, {})[v] = report([*votes[:-1], copied])
    sealed = run.reports[round]
    for v in sealed:
        meter("report_commit", lambda v=v: run.seal({v: sealed[v]}, round))
    run.enter("report_reveal", round)
    for v in sealed:
        meter("report_reveal", lambda v=v: run.unseal({v: sealed[v]}, round))
    run.enter("settle", round)
    meter("settle", lambda: run.settle(round))
    return sum(sum(used) for used in meter.used.values()) - before


def measure_rare(run: Run, round: int, meter: Meter) -> None:
    """Measures calls made once, or only for cheats, after `play`: lock, contest, vote, settle, charge, exit, claim."""
    settlement, vault = run.settlement, run.system.vault
    cheat = len(run.trainers) - 1
    penalty = run.penalty_id(cheat, round)
    meter("lock 1 seat", lambda: run.lock([cheat], round))
    meter("charge", lambda: settlement.charge(run.id, round, 1))
    meter("contest", lambda: settlement.contest(penalty, sender=run.trainers[cheat]))
    meter("vote", lambda: settlement.vote(penalty, False, sender=run.validators[0]))
    run.leave("contest", round)
    meter("settle_penalty", lambda: settlement.settle_penalty(penalty))
    meter("sync", lambda: run.system.runs.sync(run.id, 1, cheat))
    meter("start_exit", lambda: vault.start_exit(settlement.address, run.id, sender=run.trainers[0]))
    run.evm.travel(run.evm.time + run.params.exit_delay)
    meter("finish_exit", lambda: vault.finish_exit(settlement.address, run.id, sender=run.trainers[0]))
    meter("claim (withdraw)", lambda: vault.withdraw(1, sender=run.trainers[0]))
    meter("refund", lambda: settlement.refund(run.id))
    meter("deposit", lambda: _deposit(run.system, SPONSOR))
    meter("flush", vault.flush)


def _deposit(contracts: System, who: str) -> None:
    contracts.token.mint(who, 1, sender=account("deployer"))
    contracts.token.approve(contracts.vault.address, 1, sender=who)
    contracts.vault.deposit(1, sender=who)


@contextmanager
def osaka_chain() -> Iterator[Evm]:
    """Yields a chain with the P-256 precompile: anvil if it is installed, else the embedded one."""
    if shutil.which("anvil", path=anvil.search_path()) is None:
        yield Embedded()
        return
    with anvil.anvil(*osaka.OPTIONS, "--chain-id", str(CHAIN_ID)) as url:
        evm = osaka.OsakaEvm(url)
        evm.chain_id = CHAIN_ID
        yield evm


def measure_attested() -> dict[str, int]:
    """Measures attestation: registering a key, a signed reveal above a plain one, checking a genuine Intel quote."""
    with osaka_chain() as evm:
        print(
            f"\n{ATTESTED}: on {'anvil, Osaka' if isinstance(evm, osaka.OsakaEvm) else 'the embedded chain'}"
        )
        parts = harness.system(evm)
        found = {"attest_register": attested.attest_register_gas(parts)}
        registry = evm.at("AttestationRegistry", parts.registry)
        genuine = parse_quote(GENUINE.read_bytes())
        policy = attested.policy_for(genuine)
        evidence = quote_calldata(genuine, policy.pck_cas)
        evm.call(registry.address, registry.calldata("check_quote", policy, evidence), account("stranger"))
        found["check_quote"] = evm.gas_used
        found["attested_reveal_extra"] = attested_reveal_extra(harness.system(evm, account("registry")))
    for action, gas in found.items():
        print(f"  {action:<24} {gas:>10,}")
    return found


def attested_reveal_extra(contracts: System) -> int:
    """Three trainers reveal: the first fills the bitmap's slot, then one plain, one with its enclave's signature."""
    run = Run.create(contracts, verification=2, attestation_policy=b"\x0a" * 32)
    run.join_trainers(3)
    enclave = attested.enclave_key("enclave")
    word = int(enclave.address, 16) | (2**64 - 1) << 160
    contracts.runs.set_enclave_key(run.id, run.trainers[2], word, sender=contracts.registry)
    run.enter("commit")
    run.commit(range(3))
    run.enter("reveal")
    run.reveal([0, 1])
    plain, manifest = run.evm.gas_used, run.manifest(2, 0)
    signed = enclave.sign(round_statement(CHAIN_ID, contracts.registry, run.id, 0, manifest.hash()))
    contracts.runs.reveal(2, manifest, SALT, signed, sender=run.trainers[2])
    return run.evm.gas_used - plain


def show(size: str, meter: Meter, total: int) -> dict[str, int]:
    """Prints the table of one size; returns the medians of the repeat round."""
    trainers, _ = parse(size)
    print(f"\n{size}: {'first':>25} {'repeat':>10}")
    repeats: dict[str, int] = {}
    for action, used in meter.used.items():
        rounds = 3 if action not in ("create_run", "join") and len(used) % 3 == 0 and len(used) > 1 else 1
        each = len(used) // rounds
        first, repeat = (int(median(part)) for part in (used[:each], used[-each:]))
        repeats[action] = repeat
        print(f"  {action:<20} {first:>10,} {repeat:>10,}")
    per_seat, per_trainer = repeats["settle"] // trainers, total // trainers
    print(f"  a whole round {total:,} gas; per trainer {per_trainer:,}, of which settle {per_seat:,}")
    return repeats | {"settle per seat": per_seat, "per trainer": per_trainer}


def parse(size: str) -> tuple[int, int]:
    trainers, validators = size.split("x")
    return int(trainers), int(validators)


def main(sizes: list[str]) -> None:
    contracts = harness.system(Embedded())
    print("bytecode (limit 24,576):")
    for name in ("StakeVault", "RunTerms", "Settlement", "TrainingRuns", "AttestationRegistry"):
        length = len(compiled(name).runtime)
        print(f"  {name:<20} {length:>10,}")
        assert length <= BYTECODE_LIMIT
    results: dict[str, dict[str, int]] = {}
    golden = measure_attested() if ATTESTED in sizes else {}
    for size in sizes:
        if size == ATTESTED:
            continue
        meter = Meter(contracts.evm)
        run = prepare(contracts, *parse(size), meter)
        total = [play(run, round, meter) for round in range(3)][-1]
        measure_rare(run, 2, meter)
        results[size] = show(size, meter, total)
    print(f"\n{PEERS}")
    if "256x16" in results:
        golden = golden_of(results["256x16"]) | golden
    write(golden)


def golden_of(big: dict[str, int]) -> dict[str, int]:
    """Returns the numbers that `contracts/gas.json` records, for reviews to compare."""
    names = {
        "commit": "commit",
        "reveal": "reveal",
        "seed": "seed",
        "report_commit": "report_commit",
        "report_reveal_256": "report_reveal",
        "settle_seat_16": "settle per seat",
        "trainer_round_256x16": "per trainer",
        "join": "join",
    }
    return {key: big[name] for key, name in names.items()}


def write(golden: dict[str, int]) -> None:
    """Writes the measured numbers into `contracts/gas.json`; leaves the others unchanged."""
    path = ROOT / "contracts" / "gas.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | golden, indent=2) + "\n")
    print(json.dumps(golden))


if __name__ == "__main__":
    main(sys.argv[1:] or [*SIZES, ATTESTED])
