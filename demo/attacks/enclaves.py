"""Trainers of an attested run that cheat with their enclaves, the SIMULATED machines, and the policy that admits them.

Each cheat uses the same attester, keeper and node as an honest trainer and changes one thing. The registry refuses
their keys, `TrainingRuns` refuses their signatures, and validators give no weight to updates revealed without one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from earnest.attestation.formats.quote import parse_quote
from earnest.attestation.policy_file import PolicyFile
from earnest.attestation.prover.attester import Attester, Quoted
from earnest.attestation.prover.enclave_key import EnclaveKey
from earnest.attestation.prover.key_registration import KeyScope
from earnest.attestation.prover.simulated import SimulatedAttester
from earnest.base.errors import EarnestError
from earnest.client.trainer.attested_rounds import AttestedRounds, Keeper
from earnest.client.trainer.enclave_keys import EnclaveKeys
from earnest.client.trainer.job import HonestWork
from earnest.client.trainer.node import Forge
from earnest.protocol.manifest import Manifest
from earnest.protocol.merkle import content_root, samples_root

if TYPE_CHECKING:
    from earnest.client.account.account import Account
    from earnest.client.chain.answers import Receipt
    from earnest.client.chain.blockref import BlockRef

CODE: Final = b"the training code that the sponsor measured"
OTHER_CODE: Final = b"training code with a change of its owner's"


@dataclass(frozen=True)
class Cheat:
    """One way to cheat. `attack` says how the trainer changes its payloads (`attacks.trainers.ATTACKS`)."""

    name: str
    description: str
    attack: str


SWAPPED_CODE: Final = Cheat("swapped code", "runs code that skips the training", "noise")
OLD_QUOTE: Final = Cheat("old quote", "shows a quote that was made for an earlier key", "none")
OTHER_MANIFEST: Final = Cheat(
    "other manifest", "submits an update that its enclave did not compute", "sign-flip"
)
CHEATS: Final = (SWAPPED_CODE, OLD_QUOTE, OTHER_MANIFEST)
"""The cheats of the last three trainers, in seat order."""


def demo_policy() -> PolicyFile:
    """Returns the policy of the demo's sponsor: its code, on any up-to-date machine of the SIMULATED vendor."""
    return PolicyFile.from_quotes([parse_quote(SimulatedAttester(code=CODE).quote(bytes(64)).quote)])


def make_enclave(
    cheat: Cheat | None,
    machine: int,
    account: Account,
    run: int,
    policy: PolicyFile,
    random: Callable[[int], bytes],
    forge: Forge | None,
) -> tuple[AttestedRounds, Forge | None]:
    """Returns a trainer's attester on the SIMULATED platform number `machine`, and the forger of its payloads, if any.

    `forge` makes the payload that a cheat submits instead of the computed one.
    """
    chain, registry = account.deployment.chain, account.deployment.contracts.registry
    scope = KeyScope(chain.chain_id, registry.address, run, account.owner)
    attester: Attester = SimulatedAttester(code=CODE, platform=machine)
    if cheat is SWAPPED_CODE:
        attester = SimulatedAttester(code=OTHER_CODE, platform=machine)
    if cheat is OLD_QUOTE:
        _, challenge = registry.challenge(run, account.owner, chain.head())
        binding = scope.binding(EnclaveKey.make(random).address, challenge)
        attester = ReplayingAttester(attester.root_id, attester.quote(binding + bytes(32)))
    keeper: Keeper = EnclaveKeys.of(account, run, attester, policy, random, check=cheat is None)
    if cheat is not None:
        keeper = SingleTryKeeper(keeper)
    if cheat is OTHER_MANIFEST and forge is not None:
        keeper = other = OtherManifestKeeper(keeper, scope, forge, EnclaveKey.make(random))
        forge = other.forge
    return AttestedRounds(keeper, run, account.journal, chain.head), forge


@dataclass(frozen=True)
class ReplayingAttester:
    """An attester that answers every request with the same quote."""

    root_id: bytes
    quoted: Quoted
    kind: str = "simulated"

    def quote(self, report_data: bytes) -> Quoted:
        return self.quoted


class SingleTryKeeper:
    """A keeper that does not register again after the registry refused its key."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper, self._refused = keeper, False
        self.live, self.sign = keeper.live, keeper.sign

    def due(self, at: BlockRef) -> bool:
        return not self._refused and self._keeper.due(at)

    def renew(self, at: BlockRef) -> Receipt | None:
        try:
            return self._keeper.renew(at)
        except EarnestError:
            self._refused = True
            raise


class OtherManifestKeeper:
    """A keeper of an honest enclave whose owner submits another update than the enclave computed.

    In even rounds the owner sends the enclave's signature over the computed manifest, in odd rounds the signature of a
    key without a quote.
    """

    def __init__(self, enclave: Keeper, scope: KeyScope, forge: Forge, own: EnclaveKey) -> None:
        self._enclave, self._scope, self._forge, self._own = enclave, scope, forge, own
        self._computed: dict[int, bytes] = {}
        self.live, self.due, self.renew = enclave.live, enclave.due, enclave.renew

    def forge(self, work: HonestWork) -> bytes | None:
        self._computed[work.round] = self._manifest(work).hash()
        return self._forge(work)

    def sign(self, round: int, manifest_hash: bytes, start: int, at: BlockRef) -> bytes:
        if round % 2:
            return self._own.sign(self._scope.statement(round, manifest_hash))
        return self._enclave.sign(round, self._computed[round], start, at)

    def _manifest(self, work: HonestWork) -> Manifest:
        """The manifest of the honest work, as the enclave makes it."""
        return Manifest(
            run=self._scope.run,
            round=work.round,
            trainer=self._scope.trainer,
            base_state=work.base_root,
            update=content_root(work.payload),
            samples=samples_root(work.sample_ids),
            trace=bytes(32),
            steps=work.steps,
            tokens=work.tokens,
            size=len(work.payload),
        )
