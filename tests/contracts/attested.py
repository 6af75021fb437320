"""A run whose trainers are attested: the real contracts, a P-256 verifier at 0x100, and a simulated vendor's quotes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyrevm

from earnest.attestation.formats.certificate import parse_certificate, pem_to_ders
from earnest.attestation.formats.quote import Quote, claims, parse_quote, pck_chain, quote_calldata
from earnest.attestation.prover.enclave_key import EnclaveKey
from earnest.attestation.prover.simulated import SimulatedAttester, SimulatedVendor
from earnest.protocol.attestation import (
    Claims,
    Policy,
    QuoteParts,
    Registration,
    challenge,
    key_binding,
    root_id,
)
from tests.contracts.harness import CHAIN_ID, Contract, Evm, System, account, compiled, system
from tests.contracts.rounds import Run

PRECOMPILE = "0x" + "00" * 18 + "0100"
GUARDIAN = account("guardian")
VENDOR = SimulatedVendor()
DAY = 86_400
NO_CHANGES: Mapping[str, Any] = MappingProxyType({})


def install_p256(evm: Evm, runtime: bytes | None = None) -> None:
    """Put a verifier (or other code) where Osaka has its precompile; nothing on a chain that has it."""
    if not hasattr(evm, "revm"):
        return
    code = compiled("P256Verifier").runtime if runtime is None else runtime
    evm.revm.insert_account_info(PRECOMPILE, pyrevm.AccountInfo(nonce=1, code=code))


def policy_for(quote: Quote, **changes: Any) -> Policy:
    """The narrowest policy that this quote passes, with `changes`."""
    root = root_of(quote)
    policy = Policy(
        root_id=root,
        pck_cas=(pck_chain(quote)[1].public_key,),
        qe_signer=quote.qe.mrsigner,
        qe_product=quote.qe.product,
        qe_min_svn=quote.qe.svn,
        workloads=(quote.workload(),),
        ttl_s=7 * DAY,
        platform_keys=2,
        guardian=GUARDIAN,
    )
    return replace(policy, **changes)


def root_of(quote: Quote) -> bytes:
    """Root id of the chain in a quote."""
    return root_id(parse_certificate(pem_to_ders(quote.chain)[-1]).public_key)


def deploy_registry(parts: System) -> Contract:
    """The registry that the runs contract expects, as the deployer's next contract."""
    registry = parts.evm.deploy(
        "AttestationRegistry", parts.runs.address, parts.settlement.address, parts.vault.address
    )
    assert registry.address.lower() == parts.registry.lower()
    return registry


def enclave_key(label: str) -> EnclaveKey:
    """A fixed enclave key for each label."""
    return EnclaveKey(label.encode().rjust(32, b"\1"))


@dataclass
class AttestedRun:
    """One attested run with seated trainers and the registry that its keys go through."""

    run: Run
    registry: Contract
    policy: Policy

    @classmethod
    def create(
        cls,
        trainers: int = 3,
        parts: System | None = None,
        *,
        run: Mapping[str, Any] = NO_CHANGES,
        **changes: Any,
    ) -> AttestedRun:
        """`changes` to the policy that takes simulated TDX quotes of the default code; `run`: to the run's terms."""
        parts = parts or system()
        install_p256(parts.evm)
        registry = deploy_registry(parts)
        policy = policy_for(quote_of(SimulatedAttester(VENDOR), bytes(64)), **changes)
        created = Run.create(parts, **{"verification": 2, "attestation_policy": policy.hash(), **run})
        created.join_trainers(trainers)
        return cls(created, registry, policy)

    @property
    def evm(self) -> Evm:
        return self.run.evm

    @property
    def chain_id(self) -> int:
        return getattr(self.evm, "chain_id", CHAIN_ID)

    def attempt(
        self, trainer: int = 0, *, attester: SimulatedAttester | None = None, key: str = "key", **changes: Any
    ) -> tuple[Registration, QuoteParts]:
        """What a trainer would register now; `changes` to the registration are made before the quote."""
        who = self.run.trainers[trainer]
        block, drawn = self.registry.challenge(self.run.id, who)
        registration = Registration(
            run=self.run.id,
            trainer=who,
            key=enclave_key(key).address,
            challenge_block=block,
            evidence_root=b"\x0e" * 32,
            collateral_digest=b"\x0c" * 32,
        )
        binding = key_binding(
            self.chain_id, self.registry.address, who, registration.key, registration.run, drawn
        )
        if changes:
            registration = replace(registration, **changes)
            binding = self.binding(registration)
        quote = quote_of(attester or SimulatedAttester(VENDOR), binding + bytes(32))
        return registration, quote_calldata(quote, self.policy.pck_cas)

    def binding(self, r: Registration) -> bytes:
        """First half of the report data that this registration needs, computed without the registry."""
        block_hash = self.evm.block_hash(r.challenge_block)
        drawn = challenge(
            self.chain_id, self.registry.address, r.run, r.trainer, r.challenge_block, block_hash
        )
        return key_binding(self.chain_id, self.registry.address, r.trainer, r.key, r.run, drawn)

    def register(self, trainer: int = 0, **how: Any) -> Registration:
        """A trainer registers a key, a block later than anything before."""
        self.evm.mine()
        registration, evidence = self.attempt(trainer, **how)
        self.send(registration, evidence)
        return registration

    def send(self, registration: Registration, evidence: QuoteParts, sender: str | None = None) -> None:
        self.registry.register(registration, self.policy, evidence, sender=sender or registration.trainer)

    def enclave_key(self, trainer: int = 0) -> tuple[int, int]:
        """Key and expiry that `reveal` goes by."""
        word = self.run.system.runs.enclave_key(self.run.id, self.run.trainers[trainer])
        return word & (2**160 - 1), word >> 160


def attest_register_gas(parts: System) -> int:
    """Gas of a trainer's first registration, on a chain that has the precompile, with all limits of a policy in use."""
    attested = AttestedRun.create(1, parts, platform_keys=4, platform_bond=10**24)
    attested.register()
    return attested.evm.gas_used


def assembled(quote: Quote) -> bytes:
    """A quote's file, its lengths as they should be."""
    certification = (
        quote.qe_report
        + quote.qe_signature
        + len(quote.qe_auth).to_bytes(2, "little")
        + quote.qe_auth
        + (5).to_bytes(2, "little")
        + len(quote.chain).to_bytes(4, "little")
        + quote.chain
    )
    if quote.version != 3:
        certification = (6).to_bytes(2, "little") + len(certification).to_bytes(4, "little") + certification
    data = quote.signature + quote.attestation_key + certification
    return quote.signed + len(data).to_bytes(4, "little") + data


def quote_of(attester: SimulatedAttester, report_data: bytes) -> Quote:
    return parse_quote(attester.quote(report_data).quote)


def claims_of(attester: SimulatedAttester) -> Claims:
    return claims(quote_of(attester, bytes(64)))
