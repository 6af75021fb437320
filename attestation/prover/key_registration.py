"""Prepares the registration of an enclave key: quote, evidence file and calldata for the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from earnest.attestation.evidence_file import EvidenceFile, gpu_digest
from earnest.attestation.formats.quote import Quote, QuoteError, parse_quote, quote_calldata
from earnest.attestation.policy_file import PolicyFile, own_root_id
from earnest.attestation.prover.attester import Attester, AttesterError, Quoted
from earnest.attestation.roots import root_name
from earnest.base.errors import EarnestError
from earnest.protocol.attestation import QuoteParts, Registration, key_binding, round_statement


class RegistrationError(EarnestError):
    """The run would refuse this machine's key; raised before a transaction is paid for."""


@dataclass(frozen=True)
class KeyScope:
    """The trainer (the seat's owner), run and registry that a key is for."""

    chain_id: int
    registry: str
    run: int
    trainer: str

    def binding(self, key: str, challenge: bytes) -> bytes:
        """Returns the first half of the report data of a quote for `key`."""
        return key_binding(self.chain_id, self.registry, self.trainer, key, self.run, challenge)

    def statement(self, round: int, manifest_hash: bytes) -> bytes:
        """Returns the hash that the key signs in a round."""
        return round_statement(self.chain_id, self.registry, self.run, round, manifest_hash)


@dataclass(frozen=True)
class PreparedRegistration:
    """A registration ready to be sent, and the evidence file to be published before that."""

    registration: Registration
    evidence: EvidenceFile
    quote: Quote
    parts: QuoteParts


def prepare_registration(
    attester: Attester,
    key: str,
    scope: KeyScope,
    challenge: tuple[int, bytes],
    policy: PolicyFile,
    *,
    collateral: Callable[[bytes], bytes] | None = None,
    gpu: Callable[[bytes], bytes] | None = None,
    check: bool = True,
) -> PreparedRegistration:
    """Gets a quote for the key with this address and packs the registry's calldata.

    `challenge` is (block number, challenge). `collateral(quote)` fetches the quote's collateral where the attester has
    none; `gpu(nonce)` collects the GPUs' reports over a nonce of 32 bytes. With `check`, raises RegistrationError for
    a machine that the policy would refuse. Raises AttesterError if the platform gives no quote or collateral.
    """
    number, value = challenge
    binding = scope.binding(key, value)
    gpus = None if gpu is None else gpu(binding)
    quoted = attester.quote(binding + gpu_digest(gpus))
    evidence = EvidenceFile(quoted.quote, _collateral(quoted, collateral), quoted.event_log, gpus)
    try:
        quote = parse_quote(quoted.quote)
        if check:
            _check(quote, policy)
        parts = quote_calldata(quote, policy.policy.pck_cas)
    except QuoteError as error:
        raise RegistrationError(
            f"the quote cannot be registered: {error}",
            "the run accepts other machines; ask its sponsor which",
        ) from error
    registration = Registration(
        scope.run, scope.trainer, key, number, evidence.root(), evidence.collateral_digest()
    )
    return PreparedRegistration(registration, evidence, quote, parts)


def _collateral(quoted: Quoted, fetch: Callable[[bytes], bytes] | None) -> bytes:
    if quoted.collateral is not None:
        return quoted.collateral
    if fetch is None:
        raise AttesterError("there is no collateral for the quote", "name a file or a service that has it")
    return fetch(quoted.quote)


def _check(quote: Quote, policy: PolicyFile) -> None:
    """Raises RegistrationError for a machine that the registry or every validator would refuse."""
    rules = policy.policy
    own = own_root_id(quote)
    if own != rules.root_id:
        raise RegistrationError(
            f"this machine's root is {root_name(own)}, the run accepts {root_name(rules.root_id)}",
            "use an attester under that root",
        )
    if quote.workload() not in rules.workloads:
        raise RegistrationError(
            f"the code on this machine is workload 0x{quote.workload().hex()}, which the run's policy does not list",
            "run the code that the sponsor measured; for a simulated machine, name it with --code",
        )
    if any(quote.unmeasured):
        raise RegistrationError(
            "this machine has a configuration that its workload id leaves out",
            "start it without MROWNER and MROWNERCONFIG (TDX), or CONFIGID and CONFIGSVN (SGX)",
        )
    if quote.debug:
        raise RegistrationError("this machine runs in debug mode", "start it without debugging")
