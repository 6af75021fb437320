"""A trainer node's attestations: keeps a key registered, signs before each commit, records failures.

After any failure here the node reveals without a signature, which costs the round's pay where the run requires
attestation. An update that is not revealed would cost bond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from earnest.attestation.prover.enclave_key import SIGNATURE_BYTES
from earnest.base.errors import ChainError, EarnestError, Reverted

if TYPE_CHECKING:
    from earnest.client.chain.answers import Receipt
    from earnest.client.chain.blockref import BlockRef
    from earnest.client.chain.contracts import EnclaveKey as LiveKey
    from earnest.client.storage.journal import Journal

log = structlog.get_logger()

HASH_BYTES: Final = 32
FAILURES_KEPT: Final = 100


@dataclass(frozen=True)
class AttestationFailure:
    """A failure in a round (None: while registering a key). `reason` is the contract's revert string, or empty."""

    round: int | None
    cause: str
    reason: str


class Keeper(Protocol):
    """The part of `EnclaveKeys` that attests rounds."""

    def live(self, at: BlockRef) -> LiveKey | None: ...
    def due(self, at: BlockRef) -> bool: ...
    def renew(self, at: BlockRef) -> Receipt | None: ...
    def sign(self, round: int, manifest_hash: bytes, start: int, at: BlockRef) -> bytes: ...


class AttestedRounds:
    """Keeps a trainer's key registered and signs its rounds in one run. Raises only if the journal cannot be written.

    `newest()` returns the chain's newest block: the contract will check the signature against the key registered there.
    """

    def __init__(self, keeper: Keeper, run: int, journal: Journal, newest: Callable[[], BlockRef]) -> None:
        self._keeper, self._run, self._journal, self._newest = keeper, run, journal, newest
        self._looked: int | None = None
        self._refused: set[int] = set()
        self.troubles: list[AttestationFailure] = []
        """Oldest first."""

    def keep_key(self, head: BlockRef) -> None:
        """Registers a key if that is due, checked once a block. May wait two minutes for the transaction."""
        if self._looked == head.number:
            return
        self._looked = head.number
        self._try(None, self._renew)

    def sign(self, round: int, manifest_hash: bytes, start: int) -> None:
        """Signs a manifest and saves the signature, before the commitment, so that a restart reveals the same.

        `start` is the round's t0, unix seconds.
        """
        if made := self._try(round, lambda: self._signed(round, manifest_hash, start)):
            self._journal.put(self._entry(round), made)

    def signature(self, round: int, manifest_hash: bytes, start: int) -> bytes:
        """Returns the signature to reveal with, 64 bytes, or nothing.

        That is the saved signature, unless its key has been replaced since: then the new key signs.
        """
        if round in self._refused:
            return b""
        made = self._try(round, lambda: self._saved(round, manifest_hash, start))
        made = made or self._try(round, lambda: self._signed(round, manifest_hash, start))
        if made is None:
            log.warning(
                "not attested", round=round, cause="no registered key of this machine counts in the round"
            )
            return b""
        return made[HASH_BYTES:][:SIGNATURE_BYTES]

    def refused(self, round: int, error: Reverted) -> None:
        """Records that the contract refused the round's signature, which is not used again."""
        self._refused.add(round)
        self._note(round, error)

    def figures(self) -> dict[str, Any]:
        """Returns the failures, oldest first, for `--json`."""
        return {"troubles": [asdict(failure) for failure in self.troubles]}

    def _renew(self) -> None:
        at = self._newest()
        if self._keeper.due(at) and (receipt := self._keeper.renew(at)) is not None:
            log.info("enclave key registered", block=receipt.block_number, gas=receipt.gas_used)

    def _signed(self, round: int, manifest_hash: bytes, start: int) -> bytes | None:
        """Returns the saved fields of a signature: manifest hash, signature, address of the key on the chain."""
        at = self._newest()
        live, signature = self._keeper.live(at), self._keeper.sign(round, manifest_hash, start, at)
        return manifest_hash + signature + live.address.encode() if live and signature else None

    def _saved(self, round: int, manifest_hash: bytes, start: int) -> bytes | None:
        """Returns the saved signature unless the chain has another key now; if the chain cannot be read, it is used."""
        saved = self._journal.get(self._entry(round))
        if saved is None or saved[:HASH_BYTES] != manifest_hash:
            return None
        try:
            live = self._keeper.live(self._newest())
        except ChainError:
            return saved
        if live is None or live.expiry <= start:
            return None
        return saved if saved[HASH_BYTES + SIGNATURE_BYTES :] == live.address.encode() else None

    def _try(self, round: int | None, action: Callable[[], bytes | None]) -> bytes | None:
        try:
            return action()
        except (EarnestError, OSError) as error:
            self._note(round, error)
            return None

    def _note(self, round: int | None, error: EarnestError | OSError) -> None:
        cause, fix = getattr(error, "cause", str(error)), getattr(error, "fix", "")
        log.warning(
            "not attested" if round is not None else "no enclave key", round=round, cause=cause, fix=fix
        )
        failure = AttestationFailure(round, cause, error.reason if isinstance(error, Reverted) else "")
        if failure not in self.troubles:
            self.troubles = [*self.troubles, failure][-FAILURES_KEPT:]

    def _entry(self, round: int) -> str:
        return f"{self._run}/attested/{round}"
