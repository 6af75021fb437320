"""A run with attestation, on the embedded chain or on anvil; only the vendor of the machines is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eth_hash.auto import keccak
from web3.providers import BaseProvider, HTTPProvider

from earnest.attestation.evidence_file import EvidenceFile
from earnest.attestation.formats.quote import parse_quote, quote_calldata
from earnest.attestation.policy_document import PolicyDocument
from earnest.attestation.policy_file import PolicyFile
from earnest.attestation.prover.enclave_key import EnclaveKey
from earnest.attestation.prover.simulated import SimulatedAttester, SimulatedVendor
from earnest.client.account.account import DeployedContracts
from earnest.client.chain.answers import Receipt
from earnest.client.chain.contracts import Call, Contracts
from earnest.client.chain.endpoints import Chain
from earnest.client.chain.outbox import MemoryIntents, Outbox
from earnest.client.chain.signer import Signer
from earnest.client.run.record import RunRecord
from earnest.demo.world import COIN, deploy_contracts
from earnest.deploy.devnet.chain import Devnet
from earnest.deploy.devnet.server import DevnetProvider
from earnest.protocol.attestation import QuoteParts, Registration, key_binding, round_statement
from earnest.protocol.constants import NO_SEAT
from earnest.protocol.manifest import Manifest, commitment
from earnest.protocol.run import Level, Role, RunParams
from tests.anvil import anvil

DAY = 86_400
SALT = b"\x05" * 32
PEOPLE = ("sponsor", "trainer", "other trainer", "guardian")
SIGNERS = {name: Signer(keccak(name.encode())) for name in PEOPLE}
VENDOR = SimulatedVendor()


def enclave_key(label: str) -> EnclaveKey:
    """A fixed key for each label."""
    return EnclaveKey(label.encode().rjust(32, b"\1"))


@dataclass
class Town:
    """The chain, the contracts, one run and its two trainers in seats 0 and 1."""

    chain: Chain
    provider: BaseProvider
    deployment: DeployedContracts
    policy: PolicyFile
    params: RunParams = field(init=False)
    run: int = 0
    evidence: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """Evidence files made so far, by root."""

    @property
    def contracts(self) -> Contracts:
        return self.deployment.contracts

    def send(self, name: str, call: Call) -> Receipt:
        outbox = Outbox(
            self.chain, SIGNERS[name], MemoryIntents(), clock=lambda: 0.0, sleep=lambda seconds: None
        )
        receipt = outbox.send("test", call)
        assert receipt is not None
        return receipt

    def travel(self, to: int) -> None:
        """Mines a block at `to`, unix seconds."""
        ahead = to - self.chain.head().time
        assert ahead > 0, "the chain is past it"
        for method, parameters in (("evm_increaseTime", [ahead]), ("evm_mine", [])):
            answer = self.provider.make_request(method, parameters)  # pyright: ignore
            assert "error" not in answer, answer

    def record(self) -> RunRecord:
        return self.deployment.read_run(self.run)

    def open_run(self, level: Level = Level.ATTESTED, **changes: Any) -> None:
        """Opens a run as the sponsor; both trainers join it."""
        runs, vault, token = self.contracts.runs, self.contracts.vault, self.contracts.token
        manager, policy = self.contracts.settlement.address, self.policy.hash
        params = replace(TERMS, verification=level, **changes)
        params = replace(
            params,
            attestation_policy=policy if level.uses_attestation else bytes(32),
            start=self.chain.head().time + params.schedule().period + 500,
        )
        for name in ("sponsor", "trainer", "other trainer"):
            self.send("sponsor", token.mint(SIGNERS[name].address, 100 * COIN))
            self.send(name, token.approve(vault.address, 100 * COIN))
            self.send(name, vault.deposit(100 * COIN))
        self.send("sponsor", vault.allow(manager, params.budget))
        self.send("sponsor", self.contracts.terms.create_run(params, "http://run.example"))
        self.params, self.run = params, runs.run_count(at=self.chain.head())
        for name in ("trainer", "other trainer"):
            self.send(name, vault.bond(manager, self.run, COIN))
            address = SIGNERS[name].address
            self.send(name, runs.join(self.run, Role.TRAINER, address, "http://t.example", (), NO_SEAT))

    def attempt(
        self, name: str = "trainer", key: str = "key", attester: SimulatedAttester | None = None
    ) -> tuple[Registration, QuoteParts]:
        """Returns the registration of a trainer at the newest block, not yet sent."""
        trainer, registry = SIGNERS[name].address, self.contracts.registry
        number, challenge = registry.challenge(self.run, trainer, at=self.chain.head())
        address = enclave_key(key).address
        binding = key_binding(self.chain.chain_id, registry.address, trainer, address, self.run, challenge)
        quoted = (attester or SimulatedAttester(VENDOR)).quote(binding + bytes(32))
        assert quoted.collateral is not None
        evidence = EvidenceFile(quoted.quote, quoted.collateral, quoted.event_log)
        self.evidence[evidence.root()] = evidence.to_bytes()
        parts = quote_calldata(parse_quote(quoted.quote), self.policy.policy.pck_cas)
        digest = evidence.collateral_digest()
        return Registration(self.run, trainer, address, number, evidence.root(), digest), parts

    def register(self, name: str = "trainer", root: bytes | None = None, **how: Any) -> Receipt:
        """A trainer registers a key, a block later than anything before. `root`: replaces its evidence root."""
        self.travel(self.chain.head().time + 2)
        registration, parts = self.attempt(name, **how)
        registration = replace(registration, evidence_root=root or registration.evidence_root)
        return self.send(name, self.contracts.registry.register(registration, self.policy.policy, parts))

    def manifest(self, name: str, round: int) -> Manifest:
        nothing = bytes(32)
        return Manifest(
            self.run, round, SIGNERS[name].address, b"\1" * 32, b"\2" * 32, nothing, nothing, 1, 2, 3
        )

    def commit(self, name: str, seat: int, round: int) -> Receipt:
        who, digest = SIGNERS[name].address, self.manifest(name, round).hash()
        runs = self.contracts.runs
        commit = commitment(self.chain.chain_id, runs.address, self.run, round, who, digest, SALT)
        return self.send(name, runs.commit(self.run, round, seat, commit))

    def reveal(self, name: str, seat: int, round: int, key: str | None = None) -> Receipt:
        """Reveals with the signature of the enclave key of that label, or without one."""
        manifest, registry = self.manifest(name, round), self.contracts.registry.address
        statement = round_statement(self.chain.chain_id, registry, self.run, round, manifest.hash())
        signed = b"" if key is None else enclave_key(key).sign(statement)
        return self.send(name, self.contracts.runs.reveal(seat, manifest, SALT, signed))


TERMS = RunParams(
    start=0,
    rounds=6,
    commit_s=1_000,
    reveal_s=500,
    report_commit_s=400,
    report_reveal_s=300,
    settle_s=600,
    contest_s=700,
    overlap=False,
    trainer_limit=4,
    validator_limit=1,
    trainer_pool=COIN,
    validator_pool=COIN,
    trainer_min_bond=COIN,
    validator_min_bond=COIN,
    validator_max_stake=10**6 * COIN,
    exit_delay=2 * DAY,
    open_trainers=True,
    admission_root=b"\6" * 32,
    recipe_hash=b"\7" * 32,
    initial_state=b"\x08" * 32,
)


@contextmanager
def open_town(kind: str, folder: Path, document: PolicyDocument | None = None) -> Iterator[Town]:
    """A town on the chain of this kind: "embedded", or "anvil" (skips where that is not installed).

    `document`: the checks that the policy requires of validators.
    """
    if kind == "embedded":
        devnet = Devnet({signer.address: 100 * COIN for signer in SIGNERS.values()})
        yield _settle(DevnetProvider(devnet), devnet.chain_id, folder, document)
        return
    with anvil() as url:
        provider = HTTPProvider(url, exception_retry_configuration=None)
        for signer in SIGNERS.values():
            provider.make_request("anvil_setBalance", [signer.address, hex(100 * COIN)])  # pyright: ignore
        yield _settle(provider, 31_337, folder, document)


def _settle(provider: BaseProvider, chain_id: int, folder: Path, document: PolicyDocument | None) -> Town:
    chain = Chain([provider], chain_id)
    deployment = deploy_contracts(chain, SIGNERS["sponsor"], folder)
    quote = parse_quote(SimulatedAttester(VENDOR).quote(bytes(64)).quote)
    guardian = SIGNERS["guardian"].address
    policy = PolicyFile.from_quotes([quote], document, platform_keys=2, guardian=guardian)
    return Town(chain, provider, deployment, policy)
