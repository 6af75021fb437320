"""`earnest demo`: a whole run on the embedded chain, from deployment to the last refund.

Everything is what it is on a real network: contracts on a real EVM, transactions signed from keystore files, payloads
over HTTP, torch models on real text. Only time is not waited for: the chain jumps to the next boundary. All that is
random follows the seed, so the same seed gives the same roots.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from earnest.attestation.policy_file import PolicyFile
from earnest.attestation.roots import SIMULATED_WARNING
from earnest.base.errors import StorageError
from earnest.client.account.account import Account, DeployedContracts
from earnest.client.account.transactions import fund_calls, join_calls
from earnest.client.chain.contracts import Contracts
from earnest.client.chain.endpoints import Chain
from earnest.client.chain.outbox import MemoryIntents, Outbox
from earnest.client.chain.signer import Signer, import_key
from earnest.client.node.node import Node, NodeParts
from earnest.client.run.bundle import RunFiles, publish
from earnest.client.run.follower import Follower
from earnest.client.trainer.job import HonestWork
from earnest.client.trainer.node import TrainerNode
from earnest.demo.attacks.trainers import ATTACKS, Forgery
from earnest.demo.cheats import CHEATS, Cheat, demo_policy, enclave
from earnest.deploy.devnet.chain import Devnet
from earnest.deploy.devnet.chain import account as devnet_key
from earnest.deploy.devnet.server import DevnetProvider
from earnest.deploy.plan import make_plan
from earnest.deploy.run import run_plan
from earnest.protocol.constants import WEIGHT_ONE
from earnest.protocol.merkle import admission_root
from earnest.protocol.recipe import Recipe
from earnest.protocol.report import Report, SeatVote
from earnest.protocol.run import Level, Role, RunParams
from earnest.protocol.verdicts import Verdict
from earnest.training.diloco.initial import initial_state
from earnest.training.diloco.state import state_root
from earnest.training.tasks.shakespeare import demo_recipe
from earnest.training.tasks.task import Task, load_task
from earnest.validator.gain import Meter
from earnest.validator.judge import judge_round
from earnest.validator.node import Judge, ValidatorNode

TOKEN = 10**18
TRAINER_BOND = 100 * TOKEN
VALIDATOR_BOND = 1_000 * TOKEN
TRAINER_POOL = 40 * TOKEN
VALIDATOR_POOL = 12 * TOKEN
GAS_MONEY = 100 * TOKEN
KEY_COST = 2  # scrypt N: these keys guard nothing
PASSWORD = "demo"  # noqa: S105
WORKERS = 2
START_DELAY_S = 4_000
MAX_MEASUREMENTS_BYTES = 1 << 26


@dataclass(frozen=True)
class DemoOptions:
    """What `earnest demo` can be asked for."""

    output: Path
    seed: int = 0
    attack: str = "sign-flip"
    lying_validator: bool = False
    codec: str = "dense-bf16"
    rounds: int = 6
    trainers: int = 4
    validators: int = 3
    attested: bool = False
    """The run counts only what enclaves sign; the last three trainers cheat with theirs (`earnest.demo.cheats`)."""


@dataclass(frozen=True)
class Member:
    """One seat of the demo: who holds it, whether it is honest, and the node that works for it."""

    name: str
    role: Role
    honest: bool
    account: Account
    node: Node
    cheat: Cheat | None = None
    """In an attested run."""


@dataclass
class Demo:
    """The demo's world, set up and ready to `play`."""

    options: DemoOptions
    devnet: Devnet
    deployment: DeployedContracts
    sponsor: Account
    run: int
    files: RunFiles
    members: list[Member]
    policy: PolicyFile | None = None
    bonds: list[dict[str, int]] = field(default_factory=list)

    def play(self, on_round: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Plays the run to its end and calls `on_round` as each round closes; returns the whole result."""
        torch.set_num_threads(1)  # one thread a node: their number changes the bits of training
        loss = ReportLoss(self.files.task, self.files.bundle.recipe.seed)
        self.bonds.append(self._bonds())
        rounds: list[dict[str, Any]] = []
        with ThreadPoolExecutor(WORKERS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            while not all(member.node.finished for member in self.members):
                due = self._turn(pool)
                if (report := self._closed_round(len(rounds), loss)) is not None:
                    rounds.append(report)
                    on_round(report)
                self.devnet.travel(due)
        return self._finish(rounds, loss)

    def _turn(self, pool: ThreadPoolExecutor) -> int:
        """Everyone does what is due now: the heavy work side by side, transactions in seat order."""
        nodes = [member.node for member in self.members]
        heads = [node.observe() for node in nodes]
        list(pool.map(lambda node, head: node.prepare(head), nodes, heads))
        return min([node.act_on(head) for node, head in zip(nodes, heads, strict=True)])

    # What is shown

    @property
    def _judge(self) -> Follower:
        """An honest validator's view of the run."""
        return next(m for m in self.members if m.role is Role.VALIDATOR and m.honest).node.follower

    def _closed_round(self, round: int, loss: ReportLoss) -> dict[str, Any] | None:
        """What happened in `round`, once it is settled; None before."""
        judge = self._judge
        record, schedule = judge.record, judge.schedule
        if round >= record.planned_rounds or judge.at is None:
            return None
        settled_by = schedule.settle(round).start + 1
        if judge.at.time < settled_by or self.devnet.now() < settled_by:
            return None
        rooted = judge.state_after(round)
        assert rooted is not None
        settled, manifests = record.settled(round), record.round(round).manifests
        self.bonds.append(self._bonds())
        return {
            "round": round,
            "trial": round < self.files.bundle.recipe.scoring.trial_rounds,
            "loss": loss(rooted.state.parameters),
            "state_root": rooted.root.hex(),
            "seed": (record.round(round).seed or b"").hex(),
            "update_bytes": max((m.size for m in manifests.values()), default=0),
            "dense_bytes": judge.codec.spec.dense_bytes,
            "verdicts": {
                member.name: _verdict(settled.verdicts[seat] if seat in manifests else Verdict.ABSENT)
                for seat, member in enumerate(self._trainers())
            },
            "weights": {m.name: settled.consensus[seat] for seat, m in enumerate(self._trainers())},
            "pay_wei": {m.name: str(settled.trainer_pay[seat]) for seat, m in enumerate(self._trainers())},
            "bonds_wei": {name: str(bond) for name, bond in self.bonds[-1].items()},
            **({} if self.policy is None else self._attested_round(round)),
        }

    def _attested_round(self, round: int) -> dict[str, Any]:
        """Whose update an enclave stands behind, and who refused what, in their own words."""
        record = self._judge.record
        return {
            "attested": {
                m.name: seat in record.round(round).attested for seat, m in enumerate(self._trainers())
            },
            "reasons": {
                m.name: [*self._refused(m, None), *self._refused(m, round), *self._reasons(round, seat)]
                for seat, m in enumerate(self._trainers())
            },
        }

    def _refused(self, member: Member, round: int | None) -> list[str]:
        """What the contracts refused of a trainer in a round, or of its keys (None)."""
        attested_rounds = member.node.attested_rounds if isinstance(member.node, TrainerNode) else None
        troubles = [] if attested_rounds is None else attested_rounds.troubles
        return [one.reason or one.cause for one in troubles if one.round == round]

    def _reasons(self, round: int, seat: int) -> list[str]:
        """Why an honest validator did not count an update, from its measurements file."""
        judge = next(m for m in self.members if m.node.follower is self._judge)
        position = judge.node.seat_in(round)
        report = None if position is None else self._judge.record.reports(round)[position]
        if report is None or not any(report.measurements):
            return []
        measurements = json.loads(judge.account.public.get(report.measurements, MAX_MEASUREMENTS_BYTES))
        return [one["reason"] for one in measurements["seats"] if one["seat"] == seat and "reason" in one]

    def keys(self) -> list[dict[str, Any]]:
        """Every trainer's enclave key in an attested run: registered, or refused and why."""
        found = []
        for member in self._trainers():
            key = self._judge.record.newest_key(member.account.owner)
            found.append(
                {
                    "name": member.name,
                    "cheat": member.cheat and member.cheat.name,
                    "told": "an honest enclave" if member.cheat is None else member.cheat.told,
                    "key": key and key.key,
                    "workload": key and key.workload.hex(),
                    "platform": key and key.platform.hex(),
                    "refused": self._refused(member, None),
                }
            )
        return found

    def attestation(self) -> dict[str, Any] | None:
        """Whose machines the run takes; None where it asks for none."""
        if self.policy is None:
            return None
        rules = self.policy.policy
        return {
            "simulated": True,
            "warning": SIMULATED_WARNING,
            "root": self.policy.root_name,
            "root_id": rules.root_id.hex(),
            "policy": self.policy.hash.hex(),
            "workloads": [workload.hex() for workload in rules.workloads],
            "keys": self.keys(),
        }

    def _trainers(self) -> list[Member]:
        return [member for member in self.members if member.role is Role.TRAINER]

    def _bonds(self) -> dict[str, int]:
        vault, at = self.deployment.contracts.vault, self.deployment.chain.head()
        manager = self.deployment.contracts.settlement.address
        return {m.name: vault.bond_of(manager, self.run, m.account.owner, at=at) for m in self.members}

    def _finish(self, rounds: list[dict[str, Any]], loss: ReportLoss) -> dict[str, Any]:
        """Gives the sponsor back what was not spent, and sums up."""
        contracts = self.deployment.contracts
        self.sponsor.outbox.send(f"{self.run}/refund", contracts.settlement.refund(self.run))
        at, ends = self.deployment.chain.head(), self._bonds()
        final = contracts.settlement.final_state(self.run, at=at)
        roots = {
            member.name: rooted.root.hex()
            for member in self.members
            if (rooted := member.node.follower.state_after(len(rounds) - 1)) is not None
        }
        return {
            "seed": self.options.seed,
            "attack": self.options.attack,
            "codec": self.options.codec,
            "attestation": self.attestation(),
            "initial_loss": loss(self.files.initial.state.parameters),
            "final_loss": rounds[-1]["loss"],
            "final_state_root": final.hex() if final else None,
            "state_roots": roots,
            "rounds": rounds,
            "participants": [
                {
                    "name": member.name,
                    "role": member.role.name.lower(),
                    "account": member.account.owner,
                    "honest": member.honest,
                    "cheat": member.cheat and member.cheat.name,
                    "bond_start_wei": str(self.bonds[0][member.name]),
                    "bond_end_wei": str(ends[member.name]),
                    "earned_wei": str(contracts.vault.idle(member.account.owner, at=at)),
                }
                for member in self.members
            ],
            "refunded_wei": str(contracts.vault.idle(self.sponsor.owner, at=at)),
            "burned_wei": str(contracts.vault.burned(at=at)),
        }


class ReportLoss:
    """Mean loss on the public report split, nats per byte: for reporting only, nobody is judged by it."""

    def __init__(self, task: Task, seed: int) -> None:
        self._meter = Meter(task, seed, split="report")
        self._batches = self._meter.batches(task.report_ids)

    def __call__(self, parameters: Mapping[str, Tensor]) -> float:
        return float(self._meter.losses(parameters, self._batches).mean())


def _verdict(verdict: int | None) -> str:
    return "undecided" if verdict is None else Verdict(verdict).name.lower()


# Setting up


@contextmanager
def set_up(options: DemoOptions, judge: Judge = judge_round) -> Iterator[Demo]:
    """Deploys, opens a run, and gives every member a bond, a seat, a folder and an HTTP server."""
    folder = _fresh(options.output / "nodes")
    seed = hashlib.sha256(b"earnest demo" + options.seed.to_bytes(8, "big")).digest()
    names = ["sponsor"]
    names += [f"trainer-{i}" for i in range(options.trainers)]
    names += [f"validator-{i}" for i in range(options.validators)]
    keys = [devnet_key(seed, index) for index in range(len(names))]
    devnet = Devnet({key.address: GAS_MONEY for key in keys})
    chain = Chain([DevnetProvider(devnet)], devnet.chain_id)
    with ExitStack() as closing:
        signers = {
            name: _keystore(folder / "keys" / f"{name}.json", bytes(key.key))
            for name, key in zip(names, keys, strict=True)
        }
        deployment, names_served = _deploy(chain, signers["sponsor"], folder), Names()
        accounts = {
            name: closing.enter_context(
                Account(
                    deployment,
                    signer,
                    signer.address,
                    folder / name,
                    clock=devnet.now,
                    sleep=lambda seconds: devnet.travel(devnet.now() + max(1, int(seconds))),
                    locate=names_served.locate,
                )
            )
            for name, signer in signers.items()
        }
        for name, opened in accounts.items():
            names_served.add(name, opened.serve())
        recipe = demo_recipe(options.codec, options.trainers, options.seed)
        run = _open_run(options, devnet, accounts, recipe)
        _, files = accounts["sponsor"].follow(run, bytes)
        for name in names[1:]:
            _take_seat(name, accounts[name], run, files)
        members = [_member(options, seed, name, accounts[name], run, judge) for name in names[1:]]
        policy = files.bundle.attestation
        yield Demo(options, devnet, deployment, accounts["sponsor"], run, files, members, policy)


class Names:
    """Where the demo's names are served. Ports are the system's to give, and what stands on the chain decides its block
    hashes, and they the seeds: so seats register names, which are the same in every demo.
    """

    def __init__(self) -> None:
        self._urls: dict[str, str] = {}

    def add(self, name: str, url: str) -> None:
        self._urls[served_by(name)] = url

    def locate(self, uri: str) -> str:
        """The URL behind a registered URI."""
        for name, url in self._urls.items():
            if uri == name or uri.startswith(f"{name}/"):
                return url + uri.removeprefix(name)
        return uri


def served_by(name: str) -> str:
    """The URI that a seat of the demo registers."""
    return f"http://{name}.demo"


def _fresh(folder: Path) -> Path:
    """An empty folder for this demo's nodes; an earlier demo's chain is gone, so its journals are of no use."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def _role(name: str) -> Role:
    return Role.VALIDATOR if name.startswith("validator") else Role.TRAINER


def _keystore(path: Path, key: bytes) -> Signer:
    return Signer.load(path, PASSWORD) if path.exists() else import_key(path, PASSWORD, key, KEY_COST)


def _deploy(chain: Chain, deployer: Signer, output: Path) -> DeployedContracts:
    plan, intents = make_plan(chain.chain_id, deployer.address, 0), MemoryIntents()
    outbox = Outbox(chain, deployer, intents, clock=lambda: 0.0, sleep=lambda seconds: None)
    path = output / "manifest.json"
    manifest = run_plan(plan, chain, outbox, intents, path, network="devnet", git="")
    contracts = Contracts.at(chain, manifest.address("TrainingRuns"), chain.head())
    return DeployedContracts(chain, contracts, manifest.first_block)


def _open_run(options: DemoOptions, devnet: Devnet, accounts: Mapping[str, Account], recipe: Recipe) -> int:
    sponsor = accounts["sponsor"]
    contracts = sponsor.deployment.contracts
    for name, account in accounts.items():
        amount = VALIDATOR_BOND if _role(name) is Role.VALIDATOR else TRAINER_BOND
        if name == "sponsor":
            amount = options.rounds * (TRAINER_POOL + VALIDATOR_POOL)
        sponsor.outbox.send(f"mint/{name}", contracts.token.mint(account.owner, amount))
    admission = tuple((account.owner, _role(name)) for name, account in accounts.items() if name != "sponsor")
    initial = initial_state(load_task(recipe.task, recipe.task_options), recipe)
    policy = demo_policy() if options.attested else None
    root = publish(sponsor.public, recipe, admission, initial, policy)
    uri = f"{served_by('sponsor')}/{root.hex()}"
    params = RunParams(
        start=devnet.now() + START_DELAY_S,
        rounds=options.rounds,
        commit_s=1_800,
        reveal_s=300,
        report_commit_s=900,
        report_reveal_s=300,
        settle_s=900,
        contest_s=900,
        overlap=False,
        trainer_limit=options.trainers,
        validator_limit=options.validators,
        trainer_pool=TRAINER_POOL,
        validator_pool=VALIDATOR_POOL,
        trainer_min_bond=TRAINER_BOND,
        validator_min_bond=VALIDATOR_BOND,
        exit_delay=2 * 86_400,
        admission_root=admission_root(admission),
        recipe_hash=recipe.hash(),
        initial_state=state_root(initial),
        verification=Level.INCENTIVE if policy is None else Level.ATTESTED,
        attestation_policy=bytes(32) if policy is None else policy.hash,
    )
    sponsor.do(fund_calls(contracts, sponsor.owner, params, uri, sponsor.deployment.chain.head()), "run")
    return contracts.runs.run_count(at=sponsor.deployment.chain.head())


def _take_seat(name: str, account: Account, run: int, files: RunFiles) -> None:
    role, at = _role(name), account.deployment.chain.head()
    steps = join_calls(
        account.deployment.contracts,
        run,
        role,
        account.owner,
        bond=VALIDATOR_BOND if role is Role.VALIDATOR else TRAINER_BOND,
        operator=account.owner,
        uri=served_by(name),
        admission=files.bundle.admission,
        take=None,
        at=at,
    )
    account.do(steps, f"{run}/join")


def _member(options: DemoOptions, seed: bytes, name: str, account: Account, run: int, judge: Judge) -> Member:
    """The node of one seat. The last trainer attacks, the last validator lies, where the options say so."""
    parts, files = account.follow(run, _salts(seed, name))
    role, task = _role(name), files.task
    if role is Role.VALIDATOR:
        position = int(name.rpartition("-")[2])
        lies = options.lying_validator and position == options.validators - 1
        lie = Liar() if lies else None
        node: Node = ValidatorNode(parts, task, lie=lie, judge=judge)
        return Member(name, role, not lies, account, node)
    if files.bundle.attestation is not None:
        return _attested_member(options, seed, name, account, parts, files)
    attacks = options.attack != "none" and name == f"trainer-{options.trainers - 1}"
    forge = Attacker(options.attack, parts.follower, _generator(seed, name)) if attacks else None
    return Member(name, role, not attacks, account, TrainerNode(parts, task, patience=300, forge=forge))


def _attested_member(
    options: DemoOptions, seed: bytes, name: str, account: Account, parts: NodeParts, files: RunFiles
) -> Member:
    """A trainer with a SIMULATED machine of its own; the last ones cheat with it."""
    policy, number = files.bundle.attestation, int(name.rpartition("-")[2])
    assert policy is not None
    position = number - (options.trainers - len(CHEATS))
    cheat = CHEATS[position] if position >= 0 else None
    forge = None
    if cheat is not None:
        forge = Attacker(cheat.attack, parts.follower, _generator(seed, name))
    secrets = _salts(seed, f"{name}'s enclave")
    attested_rounds, forge = enclave(
        cheat, number, account, parts, policy, lambda size: secrets()[:size], forge
    )
    node = TrainerNode(parts, files.task, patience=300, forge=forge, attested_rounds=attested_rounds)
    return Member(name, Role.TRAINER, cheat is None, account, node, cheat)


def _salts(seed: bytes, name: str) -> Callable[[], bytes]:
    """Salts that follow the demo's seed; a node on a real network takes them from the operating system."""
    numbers = itertools.count()
    return lambda: hashlib.sha256(seed + name.encode() + next(numbers).to_bytes(8, "big")).digest()


def _generator(seed: bytes, name: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(seed + name.encode()).digest()))


class Attacker:
    """Forges an attacking trainer's payloads from its honest work and what lies open."""

    def __init__(self, attack: str, follower: Follower, rng: np.random.Generator) -> None:
        self._attack = ATTACKS[attack]()
        self._follower = follower
        self._rng = rng
        self._own: dict[int, bytes] = {}

    def __call__(self, work: HonestWork) -> bytes | None:
        self._own[work.round] = work.payload
        newest = self._follower.newest(work.round)
        context = Forgery(
            round=work.round,
            codec=self._follower.codec,
            honest=work.payload,
            clip_norm=newest.state.clip_norm if newest else self._follower.recipe.scoring.clip_norm,
            rng=self._rng,
            own=self._own,
            others=self._others(work),
        )
        return self._attack.forge(context)

    def _others(self, work: HonestWork) -> dict[int, bytes]:
        """Another trainer's payload of the round before, if anybody published one."""
        if work.round == 0:
            return {}
        for seat in sorted(self._follower.record.round(work.round - 1).manifests):
            if seat != work.seat:
                try:
                    return {work.round - 1: self._follower.payload(work.round - 1, seat)}
                except StorageError:
                    continue
        return {}


class Liar:
    """Turns scores upside down: full weight for who earned none, a verdict of harm for who did."""

    def __call__(self, report: Report) -> Report:
        return replace(report, votes=tuple(self._lie(vote) for vote in report.votes))

    @staticmethod
    def _lie(vote: SeatVote) -> SeatVote:
        if vote.verdict == Verdict.ABSENT:
            return vote
        return SeatVote(0, Verdict.HARMFUL) if vote.weight else SeatVote(WEIGHT_ONE, Verdict.ACCEPTED)
