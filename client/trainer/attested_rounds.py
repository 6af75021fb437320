"""A trainer node's attestations: a key that stays registered, a signature before each commit, what was refused.

Whatever fails here, the node goes on: it reveals without a signature, which costs the round's pay where the run asks
for one. An update that is not revealed would cost bond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from earnest.attestation.prover.enclave_key import SIGNATURE_BYTES
from earnest.base.errors import ChainError, EarnestError, Reverted

if TYPE_CHECKING:
    from earnest.client.chain.blockref import BlockRef
    from earnest.client.storage.journal import Journal
    from earnest.client.trainer.enclave_keys import EnclaveKeys

log = structlog.get_logger()

HASH_BYTES: Final = 32
TROUBLES_KEPT: Final = 100


@dataclass(frozen=True)
class AttestationFailure:
    """What did not work, in which round (None: registering a key), and why; `reason` is the contract's, or empty."""

    round: int | None
    cause: str
    reason: str


class AttestedRounds:
    """What one trainer's keeper does for its node in one run. Raises only for a journal that cannot be written.

    `newest()` is the chain's newest block: the key that the contract will look for is the one that stands there.
    """

    def __init__(
        self, keeper: EnclaveKeys, run: int, journal: Journal, newest: Callable[[], BlockRef]
    ) -> None:
        self._keeper, self._run, self._journal, self._newest = keeper, run, journal, newest
        self._looked: int | None = None
        self._refused: set[int] = set()
        self.troubles: list[AttestationFailure] = []
        """The newest last."""

    def keep_key(self, head: BlockRef) -> None:
        """Registers a key if that is due, which it looks up once a block. May wait two minutes for the transaction."""
        if self._looked == head.number:
            return
        self._looked = head.number
        self._try(None, self._renew)

    def sign(self, round: int, manifest_hash: bytes, start: int) -> None:
        """Has the key sign a manifest and writes that down: before the commitment, so that a restart reveals the same.

        `start` is the round's t0, unix seconds.
        """
        if made := self._try(round, lambda: self._signed(round, manifest_hash, start)):
            self._journal.put(self._entry(round), made)

    def signature(self, round: int, manifest_hash: bytes, start: int) -> bytes:
        """What to reveal with: 64 bytes, or none.

        That is what was written down, unless its key has been replaced since: then the new key signs.
        """
        if round in self._refused:
            return b""
        made = self._try(round, lambda: self._kept(round, manifest_hash, start))
        made = made or self._try(round, lambda: self._signed(round, manifest_hash, start))
        if made is None:
            log.warning(
                "not attested", round=round, cause="no registered key of this machine counts in the round"
            )
            return b""
        return made[HASH_BYTES:][:SIGNATURE_BYTES]

    def refused(self, round: int, error: Reverted) -> None:
        """The contract did not take the round's signature: it is not tried again."""
        self._refused.add(round)
        self._note(round, error)

    def figures(self) -> dict[str, Any]:
        """For `--json`: what did not work, newest last."""
        return {
            "troubles": [
                {"round": one.round, "cause": one.cause, "reason": one.reason} for one in self.troubles
            ]
        }

    def _renew(self) -> None:
        at = self._newest()
        if self._keeper.due(at) and (receipt := self._keeper.renew(at)) is not None:
            log.info("enclave key registered", block=receipt.block_number, gas=receipt.gas_used)

    def _signed(self, round: int, manifest_hash: bytes, start: int) -> bytes | None:
        """What is written down of a signature: the manifest's hash, the signature, the key that the chain has."""
        at = self._newest()
        live, signature = self._keeper.live(at), self._keeper.sign(round, manifest_hash, start, at)
        return manifest_hash + signature + live.address.encode() if live and signature else None

    def _kept(self, round: int, manifest_hash: bytes, start: int) -> bytes | None:
        """What was written down, unless the chain has another key by now; the contract tells if it cannot be asked."""
        kept = self._journal.get(self._entry(round))
        if kept is None or kept[:HASH_BYTES] != manifest_hash:
            return None
        try:
            live = self._keeper.live(self._newest())
        except ChainError:
            return kept
        if live is None or live.expiry <= start:
            return None
        return kept if kept[HASH_BYTES + SIGNATURE_BYTES :] == live.address.encode() else None

    def _try(self, round: int | None, what: Callable[[], bytes | None]) -> bytes | None:
        try:
            return what()
        except (EarnestError, OSError) as error:
            self._note(round, error)
            return None

    def _note(self, round: int | None, error: EarnestError | OSError) -> None:
        cause, fix = getattr(error, "cause", str(error)), getattr(error, "fix", "")
        log.warning(
            "not attested" if round is not None else "no enclave key", round=round, cause=cause, fix=fix
        )
        trouble = AttestationFailure(round, cause, error.reason if isinstance(error, Reverted) else "")
        if trouble not in self.troubles:
            self.troubles = [*self.troubles, trouble][-TROUBLES_KEPT:]

    def _entry(self, round: int) -> str:
        return f"{self._run}/attested/{round}"
