"""The attested demo's machines: SIMULATED ones, the policy that takes them, and three trainers that cheat with theirs.

The cheats use the same attester, keeper and node as everybody, and change one thing each. The registry refuses their
keys, the run's contract their signatures, and the validators what they reveal without.
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
from earnest.client.trainer.attested_rounds import AttestedRounds
from earnest.client.trainer.enclave_keys import EnclaveKeys
from earnest.client.trainer.job import HonestWork
from earnest.client.trainer.node import Forge
from earnest.protocol.manifest import Manifest
from earnest.protocol.merkle import content_root, samples_root

if TYPE_CHECKING:
    from earnest.client.account.account import Account
    from earnest.client.chain.answers import Receipt
    from earnest.client.chain.blockref import BlockRef
    from earnest.client.chain.contracts import EnclaveKey as LiveKey
    from earnest.client.node.node import NodeParts

CODE: Final = b"the training code that the sponsor measured"
OTHER_CODE: Final = b"training code with a change of its owner's"


@dataclass(frozen=True)
class Cheat:
    """What one trainer does instead of what it is paid for; `attack` is what becomes of its payloads."""

    name: str
    told: str
    attack: str


SWAPPED_CODE: Final = Cheat("swapped code", "runs code that saves itself the training", "noise")
OLD_QUOTE: Final = Cheat("old quote", "shows a quote that was made for an earlier key", "none")
OTHER_MANIFEST: Final = Cheat("other manifest", "submits what its enclave did not compute", "sign-flip")
CHEATS: Final = (SWAPPED_CODE, OLD_QUOTE, OTHER_MANIFEST)
"""What the last three trainers do, in seat order."""


def demo_policy() -> PolicyFile:
    """What the sponsor of the demo takes: its code, on any up-to-date machine of the SIMULATED vendor."""
    return PolicyFile.from_quotes([parse_quote(SimulatedAttester(code=CODE).quote(bytes(64)).quote)])


def enclave(
    cheat: Cheat | None,
    machine: int,
    account: Account,
    parts: NodeParts,
    policy: PolicyFile,
    random: Callable[[int], bytes],
    forge: Forge | None,
) -> tuple[AttestedRounds, Forge | None]:
    """What attests for a trainer on the SIMULATED platform number `machine`, and what becomes of its payloads.

    `forge` makes what a cheat would rather submit than what was computed.
    """
    run = parts.follower.record.run
    attester: Attester = SimulatedAttester(code=CODE, platform=machine)
    if cheat is SWAPPED_CODE:
        attester = SimulatedAttester(code=OTHER_CODE, platform=machine)
    if cheat is OLD_QUOTE:
        attester = _without_machine(attester, account, parts, EnclaveKey.make(random).address)
    keeper = EnclaveKeys.of(account, run, attester, policy, random, check=cheat is None)
    if cheat is not None:
        keeper = Once(keeper)
    if cheat is OTHER_MANIFEST and forge is not None:
        place = KeyScope(parts.chain.chain_id, parts.contracts.registry.address, run, parts.owner)
        keeper = Thief(keeper, place, forge, EnclaveKey.make(random))
        forge = keeper.forge
    return AttestedRounds(keeper, run, parts.journal, parts.chain.head), forge


def _without_machine(machine: Attester, account: Account, parts: NodeParts, key: str) -> OldQuote:
    """All that is left of a machine: a good quote that it made for `key`."""
    run, registry = parts.follower.record.run, parts.contracts.registry
    _, challenge = registry.challenge(run, account.owner, parts.chain.head())
    place = KeyScope(parts.chain.chain_id, registry.address, run, account.owner)
    return OldQuote(machine.root_id, machine.quote(place.binding(key, challenge) + bytes(32)))


@dataclass(frozen=True)
class OldQuote:
    """An attester that has one quote, whatever it is asked for."""

    root_id: bytes
    quoted: Quoted
    kind: str = "simulated"

    def quote(self, report_data: bytes) -> Quoted:
        return self.quoted


class Once:
    """A keeper that does not ask the registry again after it was refused."""

    def __init__(self, keeper: EnclaveKeys) -> None:
        self._keeper, self._refused = keeper, False

    def live(self, at: BlockRef) -> LiveKey | None:
        return self._keeper.live(at)

    def due(self, at: BlockRef) -> bool:
        return not self._refused and self._keeper.due(at)

    def renew(self, at: BlockRef) -> Receipt | None:
        try:
            return self._keeper.renew(at)
        except EarnestError:
            self._refused = True
            raise

    def sign(self, round: int, manifest_hash: bytes, start: int, at: BlockRef) -> bytes:
        return self._keeper.sign(round, manifest_hash, start, at)


class Thief:
    """The owner of an honest enclave, which signs what it computed, and nothing else.

    The owner submits something else: in even rounds beside the enclave's signature, in odd ones beside that of a key
    which no quote names.
    """

    def __init__(self, enclave: EnclaveKeys, place: KeyScope, forge: Forge, own: EnclaveKey) -> None:
        self._enclave, self._place, self._forge, self._own = enclave, place, forge, own
        self._computed: dict[int, bytes] = {}
        self.live, self.due, self.renew = enclave.live, enclave.due, enclave.renew

    def forge(self, work: HonestWork) -> bytes | None:
        self._computed[work.round] = self._manifest(work).hash()
        return self._forge(work)

    def sign(self, round: int, manifest_hash: bytes, start: int, at: BlockRef) -> bytes:
        if round % 2:
            return self._own.sign(self._place.statement(round, manifest_hash))
        return self._enclave.sign(round, self._computed[round], start, at)

    def _manifest(self, work: HonestWork) -> Manifest:
        """Of the honest work, as the enclave makes it."""
        return Manifest(
            run=self._place.run,
            round=work.round,
            trainer=self._place.trainer,
            base_state=work.base_root,
            update=content_root(work.payload),
            samples=samples_root(work.sample_ids),
            trace=bytes(32),
            steps=work.steps,
            tokens=work.tokens,
            size=len(work.payload),
        )
