"""Registering an enclave's key: challenge, key, quote, evidence, transaction; and again before it expires.

The chain says which key counts, the folder holds the keys that were made, the outbox sends each registration once.
So a trainer that is killed anywhere goes on: a key that was made and not registered is used again, a transaction
that was written down is waited for, and a key that the chain names is found in the folder by its address.
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
"""A key is renewed when less than this part of its time to live is left: a quarter."""

REGISTER_STEP: Final = "register-key"
ENCLAVE_FOLDER: Final = "enclave"
RETRY_S: Final = 60
"""Seconds before a registration that failed is tried again: each try asks the machine for a quote."""

PATIENCE_S: Final = 600
"""Seconds that a registration may wait to be mined; its challenge names a block among the last 256."""


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
            return name, Call(intent.to, intent.data, "register", {}, intent.value)  # saved before a restart
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
