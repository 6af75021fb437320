"""A trainer's enclave keys: made, registered on chain with a quote, used to sign, and renewed before they expire.

The chain says which key counts, the folder holds the keys that were made, the outbox sends each registration once.
So a trainer that is killed at any point continues: an unregistered key is used again, a saved transaction is waited
for, and the key named on the chain is found in the folder by its address.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from earnest.attestation.policy_file import PolicyFile
from earnest.attestation.prover.attester import Attester
from earnest.attestation.prover.enclave_key import EnclaveKey
from earnest.attestation.prover.key_registration import KeyScope, prepare_registration
from earnest.client.chain.contracts import Call
from earnest.client.chain.outbox import Status

if TYPE_CHECKING:
    from earnest.client.account.account import Account
    from earnest.client.chain.answers import Receipt
    from earnest.client.chain.blockref import BlockRef
    from earnest.client.chain.contracts import EnclaveKey as LiveKey
    from earnest.client.chain.contracts import Registry, Runs
    from earnest.client.chain.outbox import Outbox
    from earnest.client.storage.journal import Journal
    from earnest.client.storage.objects import ObjectStore

RENEW_SHARE: Final = 4
"""A key is renewed when less than 1 / RENEW_SHARE of its time to live is left."""

REGISTER_STEP: Final = "register-key"
ENCLAVE_FOLDER: Final = "enclave"
RETRY_S: Final = 60
"""Seconds before a failed registration is tried again; each attempt makes a quote."""

PATIENCE_S: Final = 600
"""Seconds that a registration may wait to be mined; its challenge names one of the last 256 blocks."""


class EnclaveKeys:
    """One trainer's enclave keys in one run: registers one, signs with it, renews it before it expires.

    Keys are kept in `folder`, readable by their owner only, and evidence files in `store`, which the trainer serves.
    `random(n)` returns n unpredictable bytes.
    """

    def __init__(
        self,
        *,
        scope: KeyScope,
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
        self.scope, self.policy, self.attester = scope, policy, attester
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
        """Returns the enclave keys of an account, kept in the folder `enclave` of the account's own."""
        contracts = account.deployment.contracts
        return cls(
            scope=KeyScope(account.deployment.chain.chain_id, contracts.registry.address, run, account.owner),
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
        """Returns the key registered on chain for this trainer at `at`, on this machine or another."""
        return self._runs.enclave_key(self.scope.run, self.scope.trainer, at)

    def due(self, at: BlockRef) -> bool:
        """Returns True if a key must be registered now: the live key is not on this machine, or expires soon.

        False within RETRY_S after the last attempt.
        """
        if self._tried is not None and at.time < self._tried + RETRY_S:
            return False
        live = self.live(at)
        if live is None or self._key(live.address) is None:
            return True
        return live.expiry - at.time < self.policy.policy.ttl_s // RENEW_SHARE

    def renew(self, at: BlockRef) -> Receipt | None:
        """Registers a key, a new one unless an unregistered one exists, and waits until the transaction is mined.

        Returns None if it was not mined in time: call it again. Raises RegistrationError, AttesterError, and the
        errors of `Outbox.send`.
        """
        name, call = self.next_call(at)
        return self.send(name, call, at)

    def send(self, name: str, call: Call, at: BlockRef) -> Receipt | None:
        """Sends the call that `next_call` returned at `at`, as `renew` does."""
        return self._outbox.send(name, call, deadline=at.time + PATIENCE_S)

    def next_call(self, at: BlockRef) -> tuple[str, Call]:
        """Returns the name and call of the next registration; key and evidence file are on disk then."""
        self._tried = at.time
        key = self._unregistered(at)
        name = self._intent(key.address)
        intent = self._journal.intent(name)
        if intent is not None and intent.status == Status.OPEN:
            return name, Call(intent.to, intent.data, "register", {}, intent.value)  # saved before a restart
        challenge = self._registry.challenge(self.scope.run, self.scope.trainer, at)
        prepared = prepare_registration(
            self.attester,
            key.address,
            self.scope,
            challenge,
            self.policy,
            collateral=self._collateral,
            gpu=self._gpu,
            check=self._check,
        )
        self._store.put(prepared.evidence.to_bytes())
        return name, self._registry.register(prepared.registration, self.policy.policy, prepared.parts)

    def sign(self, round: int, manifest_hash: bytes, start: int, at: BlockRef) -> bytes:
        """Returns the signature for `reveal`, 64 bytes; empty if no key of this machine counts at `start`.

        `start` is the round's t0. The address of the key is read from the chain, as the contract will do.
        """
        live = self.live(at)
        key = None if live is None or live.expiry <= start else self._key(live.address)
        return b"" if key is None else key.sign(self.scope.statement(round, manifest_hash))

    # Keys

    def _unregistered(self, at: BlockRef) -> EnclaveKey:
        """Returns the key to register, which is on disk before anything names it."""
        entry = f"attest/{self.scope.run}/pending"
        saved = self._journal.get(entry)
        if saved is not None:
            address = saved.decode()
            key = self._key(address)
            if key is not None and not self._spent(address, at):
                return key
        key = EnclaveKey.make(self._random)
        key.keep(self._path(key.address))
        self._journal.put(entry, key.address.encode())
        return key

    def _spent(self, address: str, at: BlockRef) -> bool:
        """Returns True if the key was registered before; each key can be registered once."""
        live, intent = self.live(at), self._journal.intent(self._intent(address))
        return (live is not None and live.address == address) or (
            intent is not None and intent.status == Status.DONE
        )

    def _key(self, address: str) -> EnclaveKey | None:
        if self._loaded is None or self._loaded.address != address:
            self._loaded = EnclaveKey.load(self._path(address))
        return self._loaded

    def _path(self, address: str) -> Path:
        return self._folder / f"{self.scope.run}-{address.lower()}.json"

    def _intent(self, address: str) -> str:
        return f"{self.scope.run}/attest/{address}"
