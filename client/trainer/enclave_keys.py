"""Registering an enclave's key: challenge, key, quote, evidence, transaction; and again before it expires.

The chain says which key counts, the folder holds the keys that were made, the outbox sends each registration once.
So a trainer that is killed anywhere goes on: a key that was made and not registered is used again, a transaction
that was written down is waited for, and a key that the chain names is found in the folder by its address.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from earnest.attestation.evidence_file import EvidenceFile, gpu_digest
from earnest.attestation.formats.quote import Quote, QuoteError, parse_quote, quote_calldata
from earnest.attestation.policy_file import PolicyFile, own_root_id
from earnest.attestation.prover.attester import Attester, AttesterError, Quoted
from earnest.attestation.prover.enclave_key import EnclaveKey
from earnest.attestation.roots import root_name
from earnest.base.errors import EarnestError
from earnest.client.chain.outbox import Status
from earnest.protocol.attestation import QuoteParts, Registration, key_binding, round_statement

if TYPE_CHECKING:
    from earnest.client.account.account import Account
    from earnest.client.chain.answers import Receipt
    from earnest.client.chain.blockref import BlockRef
    from earnest.client.chain.contracts import Call, Registry, Runs
    from earnest.client.chain.contracts import EnclaveKey as LiveKey
    from earnest.client.chain.outbox import Outbox
    from earnest.client.storage.journal import Journal
    from earnest.client.storage.objects import ObjectStore

RENEW_SHARE: Final = 4
"""A key is renewed when less than this part of its time to live is left: a quarter."""

REGISTER_STEP: Final = "register-key"
ENCLAVE_FOLDER: Final = "enclave"
RETRY_S: Final = 60
"""Seconds before a registration that failed is tried again: each try asks the machine for a quote."""

PATIENCE_S: Final = 600
"""Seconds that a registration may wait to be mined; its challenge names a block among the last 256."""


class RegistrationError(EarnestError):
    """The run would not take this machine's key; told before a transaction is paid for."""


@dataclass(frozen=True)
class KeyScope:
    """Where a key is to count: one trainer (the seat's owner) in one run, at one registry."""

    chain_id: int
    registry: str
    run: int
    trainer: str

    def binding(self, key: str, challenge: bytes) -> bytes:
        """First half of the report data of a quote for `key`."""
        return key_binding(self.chain_id, self.registry, self.trainer, key, self.run, challenge)

    def statement(self, round: int, manifest_hash: bytes) -> bytes:
        """What the key signs of a round."""
        return round_statement(self.chain_id, self.registry, self.run, round, manifest_hash)


@dataclass(frozen=True)
class PreparedRegistration:
    """A registration ready to be sent, and the evidence to be published before that."""

    registration: Registration
    evidence: EvidenceFile
    quote: Quote
    parts: QuoteParts


def prepare_registration(
    attester: Attester,
    key: str,
    place: KeyScope,
    challenge: tuple[int, bytes],
    policy: PolicyFile,
    *,
    collateral: Callable[[bytes], bytes] | None = None,
    gpu: Callable[[bytes], bytes] | None = None,
    check: bool = True,
) -> PreparedRegistration:
    """Has a quote made for the key with this address, and everything packed for the registry.

    `challenge` is (block number, challenge). `collateral(quote)` fetches what judges the quote where the attester has
    none; `gpu(nonce)` collects the GPUs' evidence over a nonce of 32 bytes. With `check`, raises RegistrationError for
    what the policy would refuse. Raises AttesterError for what the platform does not give.
    """
    number, value = challenge
    binding = place.binding(key, value)
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
            f"the quote cannot be registered: {error}", "the run takes other machines; ask its sponsor"
        ) from error
    registration = Registration(
        place.run, place.trainer, key, number, evidence.root(), evidence.collateral_digest()
    )
    return PreparedRegistration(registration, evidence, quote, parts)


class EnclaveKeys:
    """One trainer's enclave keys in one run: registers one, signs with it, renews it before it expires.

    Keys lie in `folder`, readable by their owner only, evidence in `store`, which the trainer serves. `random(n)` gives
    n unpredictable bytes.
    """

    def __init__(
        self,
        *,
        place: KeyScope,
        registry: Registry,
        runs: Runs,
        attester: Attester,
        policy: PolicyFile,
        folder: Path,
        store: ObjectStore,
        journal: Journal,
        outbox: Outbox,
        random: Callable[[int], bytes],
        collateral: Callable[[bytes], bytes] | None = None,
        gpu: Callable[[bytes], bytes] | None = None,
        check: bool = True,
    ) -> None:
        self.place, self.policy, self.attester = place, policy, attester
        self._registry, self._runs = registry, runs
        self._folder, self._store = folder, store
        self._journal, self._outbox = journal, outbox
        self._random, self._collateral, self._gpu, self._check = random, collateral, gpu, check
        self._loaded: EnclaveKey | None = None
        self._tried: int | None = None

    @classmethod
    def of(
        cls,
        account: Account,
        run: int,
        attester: Attester,
        policy: PolicyFile,
        random: Callable[[int], bytes],
        *,
        collateral: Callable[[bytes], bytes] | None = None,
        gpu: Callable[[bytes], bytes] | None = None,
        check: bool = True,
    ) -> EnclaveKeys:
        """The keeper of an account at work: its keys lie in the account's folder, under `enclave`."""
        contracts = account.deployment.contracts
        return cls(
            place=KeyScope(account.deployment.chain.chain_id, contracts.registry.address, run, account.owner),
            registry=contracts.registry,
            runs=contracts.runs,
            attester=attester,
            policy=policy,
            folder=account.folder / ENCLAVE_FOLDER,
            store=account.public,
            journal=account.journal,
            outbox=account.outbox,
            random=random,
            collateral=collateral,
            gpu=gpu,
            check=check,
        )

    def live(self, at: BlockRef) -> LiveKey | None:
        """The key that the chain holds for this trainer at `at`, whoever has it."""
        return self._runs.enclave_key(self.place.run, self.place.trainer, at)

    def due(self, at: BlockRef) -> bool:
        """Whether a key should be registered now: there is none of ours, or a quarter of its time is left.

        Not within RETRY_S after the last try.
        """
        if self._tried is not None and at.time < self._tried + RETRY_S:
            return False
        live = self.live(at)
        if live is None or self._key(live.address) is None:
            return True
        return live.expiry - at.time < self.policy.policy.ttl_s // RENEW_SHARE

    def renew(self, at: BlockRef) -> Receipt | None:
        """Registers a key, new unless an earlier one was made and not registered. Waits until it is mined.

        None: not mined in time; call it again. Raises RegistrationError, AttesterError, and what the outbox raises.
        """
        name, call = self.next_call(at)
        return self.send(name, call, at)

    def send(self, name: str, call: Call, at: BlockRef) -> Receipt | None:
        """Sends what `next_call` gave at `at`; as `renew`."""
        return self._outbox.send(name, call, deadline=at.time + PATIENCE_S)

    def next_call(self, at: BlockRef) -> tuple[str, Call]:
        """What `renew` sends, and its name in the outbox. By then key and evidence are on disk."""
        self._tried = at.time
        key = self._pending(at)
        name = self._intent(key.address)
        intent = self._journal.intent(name)
        if intent is not None and intent.status == Status.OPEN:
            return name, _again(intent.to, intent.data, intent.value)  # written down before we were killed
        challenge = self._registry.challenge(self.place.run, self.place.trainer, at)
        prepared = prepare_registration(
            self.attester,
            key.address,
            self.place,
            challenge,
            self.policy,
            collateral=self._collateral,
            gpu=self._gpu,
            check=self._check,
        )
        self._store.put(prepared.evidence.to_bytes())
        return name, self._registry.register(prepared.registration, self.policy.policy, prepared.parts)

    def sign(self, round: int, manifest_hash: bytes, start: int, at: BlockRef) -> bytes:
        """The attestation of a manifest, 64 bytes, for `reveal`; empty without a key of ours that counts at `start`.

        `start` is the round's t0. The key is read from the chain: what the contract will compare with.
        """
        live = self.live(at)
        key = None if live is None or live.expiry <= start else self._key(live.address)
        return b"" if key is None else key.sign(self.place.statement(round, manifest_hash))

    # Keys

    def _pending(self, at: BlockRef) -> EnclaveKey:
        """The key to register: on disk before anything names it."""
        entry = f"attest/{self.place.run}/pending"
        known = self._journal.get(entry)
        if known is not None:
            address = known.decode()
            key = self._key(address)
            if key is not None and not self._spent(address, at):
                return key
        key = EnclaveKey.make(self._random)
        key.keep(self._path(key.address))
        self._journal.put(entry, key.address.encode())
        return key

    def _spent(self, address: str, at: BlockRef) -> bool:
        """Whether the key was registered before; each may be once."""
        live, intent = self.live(at), self._journal.intent(self._intent(address))
        return (live is not None and live.address == address) or (
            intent is not None and intent.status == Status.DONE
        )

    def _key(self, address: str) -> EnclaveKey | None:
        if self._loaded is None or self._loaded.address != address:
            self._loaded = EnclaveKey.load(self._path(address))
        return self._loaded

    def _path(self, address: str) -> Path:
        return self._folder / f"{self.place.run}-{address.lower()}.json"

    def _intent(self, address: str) -> str:
        return f"{self.place.run}/attest/{address}"


def _again(to: str, data: bytes, value: int) -> Call:
    from earnest.client.chain.contracts import Call

    return Call(to, data, "register", {}, value)


def _collateral(quoted: Quoted, fetch: Callable[[bytes], bytes] | None) -> bytes:
    if quoted.collateral is not None:
        return quoted.collateral
    if fetch is None:
        raise AttesterError("there is no collateral for the quote", "give it, or where to fetch it from")
    return fetch(quoted.quote)


def _check(quote: Quote, policy: PolicyFile) -> None:
    """What the registry or every validator would refuse, in plain words."""
    rules = policy.policy
    own = own_root_id(quote)
    if own != rules.root_id:
        raise RegistrationError(
            f"this machine's root is {root_name(own)}, the run takes {root_name(rules.root_id)}",
            "use an attester of the run's kind",
        )
    if quote.workload() not in rules.workloads:
        raise RegistrationError(
            f"what runs here is workload 0x{quote.workload().hex()}, which the run's policy does not list",
            "run the code that the sponsor measured; for a simulated machine --code says which that is",
        )
    if any(quote.unmeasured):
        raise RegistrationError(
            "this machine has a configuration that its workload id leaves out",
            "start it without MROWNER and MROWNERCONFIG (TDX), or CONFIGID and CONFIGSVN (SGX)",
        )
    if quote.debug:
        raise RegistrationError("this machine runs in debug mode", "start it without debugging")
