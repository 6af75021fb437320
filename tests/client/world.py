"""A whole run in one process: the embedded chain, our contracts, and nodes that train a tiny model.

Everything is real but time: the chain jumps to the next moment at which somebody has something to do.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from web3.providers import BaseProvider

from earnest.attestation.policy_file import PolicyFile
from earnest.client.account.account import Account, DeployedContracts
from earnest.client.account.transactions import fund_calls, join_calls
from earnest.client.chain.contracts import Call, Contracts
from earnest.client.chain.endpoints import Chain
from earnest.client.chain.outbox import MemoryIntents, Outbox
from earnest.client.chain.signer import Signer, import_key
from earnest.client.node.node import Node
from earnest.client.run.bundle import RunFiles, publish
from earnest.client.trainer.node import TrainerNode
from earnest.demo.demo import Attacker, Liar, Names, served_by
from earnest.deploy.devnet.chain import Devnet, account
from earnest.deploy.devnet.server import DevnetProvider
from earnest.deploy.plan import make_plan
from earnest.deploy.run import run_plan
from earnest.protocol.merkle import admission_root
from earnest.protocol.recipe import CodecChoice, Inner, Recipe, Scoring
from earnest.protocol.run import Level, Role, RunParams
from earnest.training.codecs import make_codec
from earnest.training.diloco.initial import initial_state
from earnest.training.diloco.state import Spec, read_parameters, state_root
from earnest.training.tasks.shakespeare import Shakespeare
from earnest.training.tasks.task import load_task
from earnest.validator.node import ValidatorNode

SEED = b"tests of the nodes"
COIN = 10**18
TRAINER_BOND = 100 * COIN
VALIDATOR_BOND = 1_000 * COIN
TRAINER_POOL = 40 * COIN
VALIDATOR_POOL = 12 * COIN
PASSWORD = "a good password"
OPTIONS: Mapping[str, int] = {"layers": 1, "width": 8, "heads": 1, "context": 8}


def tiny_recipe(**changes: Any) -> Recipe:
    """A model of 2,000-odd parameters, two inner steps of four sequences, eight sequences to judge on."""
    task = Shakespeare(**OPTIONS)
    layout = Spec.of(read_parameters(task.build_model(0)))
    codec = CodecChoice("dense-bf16")
    recipe = Recipe(
        task="earnest.training.tasks.shakespeare:Shakespeare",
        task_options=dict(OPTIONS),
        pool_size=4_000,
        inner=Inner(steps=2, batch=4),
        codec=codec,
        scoring=Scoring(held_out=8, own=8, clip_norm=20.0, trial_rounds=0),
        max_payload_bytes=make_codec(codec, layout).payload_bytes,
    )
    return replace(recipe, **changes)


@dataclass(frozen=True)
class Setup:
    """What a test wants of its run. A trainer per attack (`none` is honest); the last validators lie."""

    attacks: tuple[str, ...] = ("none", "none", "none")
    validators: int = 3
    liars: int = 0
    rounds: int = 2
    recipe: Recipe = field(default_factory=tiny_recipe)
    params: Mapping[str, Any] = field(default_factory=dict)
    spare: tuple[str, ...] = ()
    """Further admitted accounts, `trainer-…` or `validator-…`, that take no seat by themselves."""

    idle: tuple[str, ...] = ()
    """Names with a seat and nobody at work for it."""

    patience: int = 0

    policy: PolicyFile | None = None
    """Of an attested run."""


OVERLAP: Mapping[str, Any] = {
    "overlap": True,
    "commit_s": 3_000,
    "reveal_s": 300,
    "report_commit_s": 900,
    "report_reveal_s": 300,
    "settle_s": 900,
}


class World:
    """The chain, the run and everybody in it. `open(name)` gives an account, `node(name)` its node."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.folder, self.setup = folder, setup
        torch.set_num_threads(1)
        trainers = [f"trainer-{i}" for i in range(len(setup.attacks))]
        validators = [f"validator-{i}" for i in range(setup.validators)]
        self.seated = [*trainers, *validators]
        self.names = ["sponsor", *self.seated, *setup.spare, "stranger"]
        self.keys = {name: account(SEED, index) for index, name in enumerate(self.names)}
        self.served = Names()  # ports on the chain would make every run another one
        self.devnet = Devnet({key.address: 100 * COIN for key in self.keys.values()})
        self.chain = Chain([DevnetProvider(self.devnet)], self.devnet.chain_id)
        self.signers = {name: self._keystore(name) for name in self.names}
        self.deployment = self._deploy()
        self.contracts = self.deployment.contracts
        self.accounts: dict[str, Account] = {}
        self.nodes: dict[str, Node] = {}
        self.files: dict[str, RunFiles] = {}
        self.run = self._open_run()
        for name in self.seated:
            self.take_seat(name)
        for name in self.seated:
            if name not in setup.idle:
                self.node(name)

    # People

    def role(self, name: str) -> Role:
        return Role.VALIDATOR if name.startswith("validator") else Role.TRAINER

    def address(self, name: str) -> str:
        return self.signers[name].address

    def open(self, name: str, provider: BaseProvider | None = None, **options: Any) -> Account:
        """The account at work in its folder; what was open is closed first, as after a restart."""
        self.close(name)
        deployment = self.deployment if provider is None else self.through(provider)
        account = Account(
            deployment,
            options.get("signer", self.signers[name]),
            self.address(name),
            options.get("folder", self.folder / name),
            clock=self.devnet.now,
            sleep=lambda seconds: self.devnet.travel(self.devnet.now() + max(1, int(seconds))),
            locate=self.served.locate,
        )
        self.accounts[name] = account
        return account

    def through(self, provider: BaseProvider) -> DeployedContracts:
        """The same deployment, seen through another endpoint."""
        chain = Chain([provider], self.devnet.chain_id)
        contracts = Contracts.at(chain, self.contracts.runs.address, chain.head())
        return DeployedContracts(chain, contracts, self.deployment.first_block)

    def account(self, name: str) -> Account:
        return self.accounts.get(name) or self.open(name)

    def close(self, name: str) -> None:
        self.nodes.pop(name, None)
        if (account := self.accounts.pop(name, None)) is not None:
            account.close()

    def close_all(self) -> None:
        for name in list(self.accounts):
            self.close(name)

    def node(self, name: str, **options: Any) -> Node:
        """A node for the account's seat; its attack or its lie are as the setup says."""
        account = self.account(name)
        parts, files = account.follow(self.run, salts(name))
        self.files[name] = files
        number = int(name.rpartition("-")[2])
        if self.role(name) is Role.VALIDATOR:
            lies = self.setup.validators - self.setup.liars <= number < self.setup.validators
            lie = options.pop("lie", Liar() if lies else None)
            node: Node = ValidatorNode(parts, files.task, patience=self.setup.patience, lie=lie, **options)
        else:
            attack = self.setup.attacks[number] if number < len(self.setup.attacks) else "none"
            forge = None
            if attack != "none":
                forge = Attacker(attack, parts.follower, np.random.default_rng(number))
            forge = options.pop("forge", forge)
            node = TrainerNode(parts, files.task, patience=self.setup.patience, forge=forge, **options)
        self.nodes[name] = node
        return node

    def send(self, name: str, call: Call) -> None:
        """One transaction of the account, outside its journal."""
        outbox = Outbox(
            self.chain, self.signers[name], MemoryIntents(), clock=lambda: 0.0, sleep=lambda seconds: None
        )
        outbox.send("test", call)

    # Time

    def turn(self, names: list[str] | None = None) -> int:
        """Everyone (or only these) does what is due; returns when something is next due."""
        nodes = [self.nodes[name] for name in names or self.nodes]
        heads = [node.observe() for node in nodes]
        for node, head in zip(nodes, heads, strict=True):
            node.prepare(head)
        return min(node.act_on(head) for node, head in zip(nodes, heads, strict=True))

    def play(self, until: int | None = None, turns: int = 2_000) -> None:
        """Plays to the end of the run, or up to the first moment that is not before `until`."""
        for _ in range(turns):
            if all(node.finished for node in self.nodes.values()):
                return
            due = self.turn()
            if until is not None and due >= until:
                self.devnet.travel(until)
                return
            self.devnet.travel(due)
        raise AssertionError("the run does not come to its end")

    @property
    def schedule(self):
        return self.params.schedule()

    # Money

    def bond(self, name: str) -> int:
        manager = self.contracts.settlement.address
        return self.contracts.vault.bond_of(manager, self.run, self.address(name), at=self.chain.head())

    def idle(self, name: str) -> int:
        return self.contracts.vault.idle(self.address(name), at=self.chain.head())

    def locked(self, name: str) -> int:
        return self.contracts.settlement.locked(self.run, self.address(name), at=self.chain.head())

    def burned(self) -> int:
        return self.contracts.vault.burned(at=self.chain.head())

    def refund(self) -> int:
        """Gives the sponsor back what is left; returns it, wei."""
        before = self.idle("sponsor")
        self.send("stranger", self.contracts.settlement.refund(self.run))
        return self.idle("sponsor") - before

    def transactions(self, name: str) -> int:
        """How many the account has sent."""
        return self.chain.nonce(self.address(name))

    # Setting up

    def _keystore(self, name: str) -> Signer:
        return import_key(self.folder / "keys" / f"{name}.json", PASSWORD, bytes(self.keys[name].key), 2)

    def _deploy(self) -> DeployedContracts:
        plan, intents = make_plan(self.chain.chain_id, self.address("sponsor"), 0), MemoryIntents()
        outbox = Outbox(
            self.chain, self.signers["sponsor"], intents, clock=lambda: 0.0, sleep=lambda seconds: None
        )
        path = self.folder / "manifest.json"
        manifest = run_plan(plan, self.chain, outbox, intents, path, network="devnet", git="")
        contracts = Contracts.at(self.chain, manifest.address("TrainingRuns"), self.chain.head())
        return DeployedContracts(self.chain, contracts, manifest.first_block)

    def _open_run(self) -> int:
        setup, sponsor = self.setup, self.open("sponsor")
        accounts = [*self.seated, *setup.spare]
        self.admission = tuple((self.address(name), self.role(name)) for name in accounts)
        initial = initial_state(load_task(setup.recipe.task, setup.recipe.task_options), setup.recipe)
        root = publish(sponsor.public, setup.recipe, self.admission, initial, setup.policy)
        attestation = {}
        if setup.policy is not None:
            attestation = {"verification": Level.ATTESTED, "attestation_policy": setup.policy.hash}
        self.params = RunParams(
            **{
                "start": self.devnet.now() + 10_000,
                "rounds": setup.rounds,
                "commit_s": 1_800,
                "reveal_s": 300,
                "report_commit_s": 900,
                "report_reveal_s": 300,
                "settle_s": 900,
                "contest_s": 900,
                "overlap": False,
                "trainer_limit": len(setup.attacks),
                "validator_limit": setup.validators,
                "trainer_pool": TRAINER_POOL,
                "validator_pool": VALIDATOR_POOL,
                "trainer_min_bond": TRAINER_BOND,
                "validator_min_bond": VALIDATOR_BOND,
                "exit_delay": 2 * 86_400,
                "admission_root": admission_root(self.admission),
                "recipe_hash": setup.recipe.hash(),
                "initial_state": state_root(initial),
                **attestation,
                **setup.params,
            }
        )
        self.send("sponsor", self.contracts.token.mint(self.address("sponsor"), self.params.budget))
        self.served.add("sponsor", sponsor.serve())
        uri = f"{served_by('sponsor')}/{root.hex()}"
        sponsor.do(fund_calls(self.contracts, sponsor.owner, self.params, uri, self.chain.head()), "run")
        return self.contracts.runs.run_count(at=self.chain.head())

    def take_seat(self, name: str, bond: int | None = None, take: int | None = None) -> None:
        """Mints a bond, puts it up and joins, serving the account's objects."""
        role = self.role(name)
        bond = bond or (VALIDATOR_BOND if role is Role.VALIDATOR else TRAINER_BOND)
        self.send("sponsor", self.contracts.token.mint(self.address(name), bond))
        account = self.account(name)
        self.served.add(name, account.serve())
        steps = join_calls(
            self.contracts,
            self.run,
            role,
            account.owner,
            bond=bond,
            operator=account.owner,
            uri=served_by(name),
            admission=self.admission,
            take=take,
            at=self.chain.head(),
        )
        account.do(steps, f"{self.run}/join")


def salts(name: str) -> Callable[[], bytes]:
    """Salts that follow from the name, a fresh one at each call."""
    numbers = itertools.count()
    return lambda: hashlib.sha256(name.encode() + next(numbers).to_bytes(8, "big")).digest()


@contextmanager
def make_world(folder: Path, **setup: Any) -> Iterator[World]:
    """A world, closed at the end."""
    world = World(folder, Setup(**setup))
    try:
        yield world
    finally:
        world.close_all()
