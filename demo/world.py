"""A whole run in one process: the embedded chain, the contracts, funded accounts, a run, and a node for each seat.

The demo, the tests and the benchmarks all play in this world. Contracts, signatures, HTTP and training are real; only
time is not waited for: the chain jumps to the next moment at which a node has something to do. Everything random
follows `Setup.seed`, so the same setup gives the same roots.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from earnest.attestation.policy_file import PolicyFile
from earnest.client.account.account import Account, DeployedContracts
from earnest.client.account.transactions import SeatRequest, fund_calls, join_calls
from earnest.client.chain.contracts import Call, Contracts
from earnest.client.chain.endpoints import Chain
from earnest.client.chain.outbox import MemoryIntents, Outbox
from earnest.client.chain.signer import Signer, import_key
from earnest.client.node.node import Node, NodeParts
from earnest.client.run.bundle import Bundle, RunFiles, publish
from earnest.client.trainer.node import TrainerNode
from earnest.demo.attacks.trainers import Attacker
from earnest.demo.attacks.validators import reverse_scores
from earnest.deploy.devnet.chain import Devnet, account
from earnest.deploy.devnet.server import DevnetProvider
from earnest.deploy.execute import run_plan
from earnest.deploy.plan import make_plan
from earnest.protocol.merkle import admission_root, content_root
from earnest.protocol.recipe import Recipe
from earnest.protocol.run import Level, Role, RunParams
from earnest.protocol.schedule import Schedule
from earnest.training.diloco.initial import initial_state
from earnest.training.diloco.state import to_bytes
from earnest.training.tasks.task import load_task
from earnest.validator.judge import judge_round
from earnest.validator.node import Judge, ValidatorNode

COIN = 10**18
TRAINER_BOND = 100 * COIN
VALIDATOR_BOND = 1_000 * COIN
TRAINER_POOL = 40 * COIN
VALIDATOR_POOL = 12 * COIN
GAS_MONEY = 100 * COIN
SCRYPT_N = 2  # the keys guard nothing
PASSWORD = "demo"  # noqa: S105
MAX_TURNS = 2_000

TERMS: Mapping[str, Any] = {
    "commit_s": 1_800,
    "reveal_s": 300,
    "report_commit_s": 900,
    "report_reveal_s": 300,
    "settle_s": 900,
    "contest_s": 900,
    "overlap": False,
    "trainer_pool": TRAINER_POOL,
    "validator_pool": VALIDATOR_POOL,
    "trainer_min_bond": TRAINER_BOND,
    "validator_min_bond": VALIDATOR_BOND,
    "validator_max_stake": 2**96 - 1,
    "exit_delay": 2 * 86_400,
}
"""Run parameters that a setup may change."""


@dataclass(frozen=True)
class Setup:
    """Parameters of a world. Accounts are named by role: `sponsor`, `trainer-0`.., `validator-0`.."""

    recipe: Recipe
    seed: bytes
    attacks: tuple[str, ...] = ("none",) * 3
    """The attack of each trainer, `none` for an honest one."""

    validators: int = 3
    liars: int = 0
    """Number of validators, the last ones, that lie."""

    rounds: int = 2
    start_delay_s: int = 4_000
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Run parameters that differ from `TERMS`."""

    policy: PolicyFile | None = None
    """Attestation policy of an attested run."""

    spare: tuple[str, ...] = ()
    """Further accounts, named by role, that are admitted to the run and have no seat yet."""

    outsiders: tuple[str, ...] = ()
    """Further accounts that are not admitted."""

    idle: tuple[str, ...] = ()
    """Seats for which no node is started."""

    patience: int = 0
    """Seconds that trainers wait for others to send the permissionless calls."""

    judge: Judge = judge_round


class World:
    """A chain with the contracts, a run, and its accounts in their seats. `start` starts the nodes.

    `account(name)` opens an account, `node(name)` starts its node. `folder` must be empty.
    """

    def __init__(self, folder: Path, setup: Setup) -> None:
        torch.set_num_threads(1)  # the number of threads changes the bits of training
        self.folder, self.setup = folder, setup
        trainers = [f"trainer-{number}" for number in range(len(setup.attacks))]
        validators = [f"validator-{number}" for number in range(setup.validators)]
        self.seated = [*trainers, *validators]
        self.names = ["sponsor", *self.seated, *setup.spare, *setup.outsiders]
        keys = {name: account(setup.seed, index) for index, name in enumerate(self.names)}
        self.signers = {
            name: import_key(folder / "keys" / f"{name}.json", PASSWORD, bytes(key.key), SCRYPT_N)
            for name, key in keys.items()
        }
        self.devnet = Devnet({key.address: GAS_MONEY for key in keys.values()})
        self.chain = Chain([DevnetProvider(self.devnet)], self.devnet.chain_id)
        self.deployment = deploy_contracts(self.chain, self.signers["sponsor"], folder)
        self._forget_processes()
        self._open_run()
        for name in self.seated:
            self.join(name)

    @property
    def contracts(self) -> Contracts:
        return self.deployment.contracts

    @property
    def schedule(self) -> Schedule:
        return self.params.schedule()

    def copy(self, folder: Path, setup: Setup) -> World:
        """Returns an independent world in the same state, in another folder.

        `setup` may differ in what matters only once the nodes start: attacks, liars, idle seats, patience, judge.
        Raises ValueError while an account of this world is open.
        """
        if self.accounts:
            raise ValueError("an open account cannot be copied, call close() first")
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        twin = copy(self)
        twin.folder, twin.setup = folder, setup
        twin.devnet = self.devnet.copy()
        twin.deployment = self.through(DevnetProvider(twin.devnet))
        twin.chain = twin.deployment.chain
        twin._forget_processes()
        for name in ("sponsor", *self.seated):
            twin.serve(name)
        return twin

    def _forget_processes(self) -> None:
        self.served = UriBook()
        self.accounts: dict[str, Account] = {}
        self.nodes: dict[str, Node] = {}
        self.files: dict[str, RunFiles] = {}

    # Accounts

    def address(self, name: str) -> str:
        return self.signers[name].address

    def account(self, name: str) -> Account:
        """Returns the account; opens it if it is closed."""
        return self.accounts.get(name) or self.open(name)

    def open(self, name: str, provider: Any = None, **options: Any) -> Account:
        """Opens the account in its folder; closes it first if it is open, as a restart does. `provider`: endpoint."""
        self.close(name)
        self.accounts[name] = Account(
            self.deployment if provider is None else self.through(provider),
            options.get("signer", self.signers[name]),
            self.address(name),
            options.get("folder", self.folder / name),
            clock=self.devnet.now,
            sleep=lambda seconds: self.devnet.travel(self.devnet.now() + max(1, int(seconds))),
            locate=self.served.locate,
        )
        return self.accounts[name]

    def through(self, provider: Any) -> DeployedContracts:
        """Returns the same deployment, read through another endpoint."""
        chain = Chain([provider], self.devnet.chain_id)
        contracts = Contracts.at(chain, self.contracts.runs.address, chain.head())
        return DeployedContracts(chain, contracts, self.deployment.first_block)

    def serve(self, name: str) -> None:
        """Serves the account's public objects over HTTP until it is closed."""
        self.served.add(name, self.account(name).serve())

    def close(self, *names: str) -> None:
        """Closes these accounts, or all."""
        for name in names or list(self.accounts):
            self.nodes.pop(name, None)
            if (opened := self.accounts.pop(name, None)) is not None:
                opened.close()

    def send(self, name: str, call: Call) -> None:
        """Sends one transaction of the account, outside its journal."""
        _outbox(self.chain, self.signers[name], MemoryIntents()).send("transaction", call)

    # Nodes

    def start(self) -> None:
        """Starts a node for every seat that is not idle."""
        for name in self.seated:
            if name not in self.setup.idle:
                self.node(name)

    def node(self, name: str, **options: Any) -> Node:
        """Starts the node of the account's seat, honest or not as the setup says. `options` are the node's own."""
        parts, setup = self.follow(name), self.setup
        task = self.files[name].task
        if role_of(name) is Role.VALIDATOR:
            lie = reverse_scores if self.cheats(name) else None
            node: Node = ValidatorNode(parts, task, **{"lie": lie, "judge": setup.judge, **options})
        else:
            forge = self.attacker(name, parts)
            node = TrainerNode(parts, task, **{"forge": forge, "patience": setup.patience, **options})
        self.nodes[name] = node
        return node

    def follow(self, name: str) -> NodeParts:
        """Loads the run for the account and returns the parts of its node. The run's files are then in `files`."""
        parts, self.files[name] = self.account(name).follow(self.run, salts(self.setup.seed, name))
        return parts

    def cheats(self, name: str) -> bool:
        """Returns True if this seat attacks or lies in this setup."""
        number, setup = number_of(name), self.setup
        if role_of(name) is Role.VALIDATOR:
            return setup.validators - setup.liars <= number < setup.validators
        return number < len(setup.attacks) and setup.attacks[number] != "none"

    def attacker(self, name: str, parts: NodeParts) -> Attacker | None:
        """Returns the attacker that forges the trainer's payloads; None for an honest trainer."""
        if not self.cheats(name):
            return None
        digest = hashlib.sha256(self.setup.seed + name.encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest))
        attack, task = self.setup.attacks[number_of(name)], self.files[name].task
        partners = tuple(seat for seat, other in enumerate(self.setup.attacks) if other == attack)
        return Attacker(attack, parts.follower, task, rng, partners)

    # Time

    def turn(self, names: Sequence[str] | None = None, run_all: Callable[..., Any] = map) -> int:
        """Lets every node, or only these, do what is due; returns the next due time, unix seconds.

        The heavy work goes through `run_all` (a pool's `map`); transactions are sent in the order of the seats.
        """
        nodes = [self.nodes[name] for name in names or self.nodes]
        heads = [node.observe() for node in nodes]
        list(run_all(lambda node, head: node.prepare(head), nodes, heads))
        return min([node.act_on(head) for node, head in zip(nodes, heads, strict=True)])

    def play(self, until: int | None = None) -> None:
        """Plays to the end of the run, or to the first moment at or after `until` (unix seconds)."""
        for _ in range(MAX_TURNS):
            if self.finished:
                return
            due = self.turn()
            if until is not None and due >= until:
                self.devnet.travel(until)
                return
            self.devnet.travel(due)
        raise AssertionError("the run does not come to its end")

    @property
    def finished(self) -> bool:
        return all(node.finished for node in self.nodes.values())

    # Money, wei

    def bond(self, name: str) -> int:
        manager = self.contracts.settlement.address
        return self.contracts.vault.bond_of(manager, self.run, self.address(name), at=self.chain.head())

    def idle(self, name: str) -> int:
        """Returns the account's withdrawable balance in wei."""
        return self.contracts.vault.idle(self.address(name), at=self.chain.head())

    def locked(self, name: str) -> int:
        return self.contracts.settlement.locked(self.run, self.address(name), at=self.chain.head())

    def burned(self) -> int:
        return self.contracts.vault.burned(at=self.chain.head())

    def refund(self) -> int:
        """Refunds the rest of the budget to the sponsor; returns the amount in wei."""
        before = self.idle("sponsor")
        self.send("sponsor", self.contracts.settlement.refund(self.run))
        return self.idle("sponsor") - before

    def transactions(self, name: str) -> int:
        """Returns the number of transactions that the account has sent."""
        return self.chain.nonce(self.address(name))

    # The run and its seats

    def _open_run(self) -> None:
        setup, sponsor = self.setup, self.account("sponsor")
        admitted = [*self.seated, *setup.spare]
        self.admission = tuple((self.address(name), role_of(name)) for name in admitted)
        task = load_task(setup.recipe.task, setup.recipe.task_options)
        initial = to_bytes(initial_state(task, setup.recipe))
        params = _parameters(setup, self.admission, content_root(initial))
        amounts = {"sponsor": params.budget, **{name: bond_of(name) for name in self.seated}}
        for name, amount in amounts.items():
            sponsor.outbox.send(f"mint/{name}", self.contracts.token.mint(self.address(name), amount))
        self.params = replace(params, start=self.devnet.now() + setup.start_delay_s)
        bundle = Bundle(setup.recipe, self.admission, self.params.initial_state, setup.policy)
        root = publish(sponsor.public, bundle, initial)
        self.serve("sponsor")
        uri = f"{uri_of('sponsor')}/{root.hex()}"
        sponsor.do(fund_calls(self.contracts, sponsor.owner, self.params, uri, self.chain.head()), "run")
        self.run = self.contracts.runs.run_count(at=self.chain.head())

    def take_seat(self, name: str, bond: int | None = None, take: int | None = None) -> None:
        """Mints a bond for the account and joins with it. `take`: the seat to take over."""
        bond = bond or bond_of(name)
        self.send("sponsor", self.contracts.token.mint(self.address(name), bond))
        self.join(name, bond, take)

    def join(self, name: str, bond: int | None = None, take: int | None = None) -> None:
        """Bonds tokens that the account has, joins, and serves its objects."""
        self.serve(name)
        joining = self.account(name)
        owner = joining.owner
        wanted = SeatRequest(self.run, role_of(name), owner, bond or bond_of(name), owner, uri_of(name), take)
        steps = join_calls(self.contracts, wanted, self.admission, self.chain.head())
        joining.do(steps, f"{self.run}/join")


class UriBook:
    """Maps the URIs that seats register to the URLs of the servers behind them.

    A registered URI is on the chain, whose block hashes decide the seeds. A server's port differs from process to
    process, so seats register names that stay the same.
    """

    def __init__(self) -> None:
        self._urls: dict[str, str] = {}

    def add(self, name: str, url: str) -> None:
        self._urls[uri_of(name)] = url

    def locate(self, uri: str) -> str:
        """Returns the URL of a registered URI."""
        for registered, url in self._urls.items():
            if uri == registered or uri.startswith(f"{registered}/"):
                return url + uri.removeprefix(registered)
        return uri


def uri_of(name: str) -> str:
    """Returns the URI that the account registers."""
    return f"http://{name}.demo"


def role_of(name: str) -> Role:
    return Role.VALIDATOR if name.startswith("validator") else Role.TRAINER


def number_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def bond_of(name: str) -> int:
    """Returns the minimum bond of the account's role, in wei."""
    return VALIDATOR_BOND if role_of(name) is Role.VALIDATOR else TRAINER_BOND


def salts(seed: bytes, name: str) -> Callable[[], bytes]:
    """Returns a source of salts derived from the seed; a node on a real network uses the operating system's."""
    numbers = itertools.count()
    return lambda: hashlib.sha256(seed + name.encode() + next(numbers).to_bytes(8, "big")).digest()


def deploy_contracts(chain: Chain, deployer: Signer, folder: Path) -> DeployedContracts:
    """Deploys the contracts with a new play token; the manifest is `folder`/manifest.json."""
    plan, intents = make_plan(chain.chain_id, deployer.address, 0), MemoryIntents()
    outbox = _outbox(chain, deployer, intents)
    manifest = run_plan(plan, chain, outbox, intents, folder / "manifest.json", network="devnet", git="")
    contracts = Contracts.at(chain, manifest.address("TrainingRuns"), chain.head())
    return DeployedContracts(chain, contracts, manifest.first_block)


def _outbox(chain: Chain, signer: Signer, intents: MemoryIntents) -> Outbox:
    return Outbox(chain, signer, intents, clock=lambda: 0.0, sleep=lambda seconds: None)


def _parameters(setup: Setup, admission: tuple[tuple[str, Role], ...], initial_root: bytes) -> RunParams:
    terms: dict[str, Any] = {
        "start": 0,
        "rounds": setup.rounds,
        "trainer_limit": len(setup.attacks),
        "full_seats": len(setup.attacks),
        "validator_limit": setup.validators,
        "admission_root": admission_root(admission),
        "recipe_hash": setup.recipe.hash(),
        "initial_state": initial_root,
    }
    if setup.policy is not None:
        terms |= {"verification": Level.ATTESTED, "attestation_policy": setup.policy.hash}
    return RunParams(**{**TERMS, **terms, **setup.params})
