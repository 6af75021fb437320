"""Attestation: finds the revealed updates without a valid enclave signature. Protocol section 11.

Everything that decides is on chain or named there: the registration, the evidence file under its root, the block of the
challenge, and the policy among the run's files. So all validators reach the same verdict.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from earnest.attestation.evidence_file import EvidenceFile, EvidenceFileError
from earnest.attestation.formats.quote import QuoteError, claims, parse_quote
from earnest.attestation.policy_file import PolicyFile
from earnest.attestation.verifier.registration import RegistrationFacts, verify_registration
from earnest.attestation.verifier.verification import Verification
from earnest.base.errors import StorageError, Unavailable, WrongContent
from earnest.client.chain.blockref import BlockRef
from earnest.client.run.follower import Follower
from earnest.client.run.record import KeyRegistration
from earnest.protocol.attestation import challenge
from earnest.protocol.run import Level
from earnest.protocol.verdicts import Verdict
from earnest.validator.payload import OWN_FAILURE, Rejection

log = structlog.get_logger()


class Blocks(Protocol):
    """The part of a chain that is used here: its id, and the block of a challenge."""

    @property
    def chain_id(self) -> int: ...

    def block(self, number: int) -> BlockRef: ...


class Enclaves:
    """Verifies the enclave keys of one run; a key that passes is verified once for each evaluation floor."""

    def __init__(self, follower: Follower, blocks: Blocks, registry: str) -> None:
        self._follower, self._blocks, self._registry = follower, blocks, registry
        self._judged: dict[tuple[KeyRegistration, int], Verification] = {}

    def unattested(self, round: int) -> dict[int, Rejection]:
        """Returns a rejection for every revealed seat without a valid attestation; empty unless the level is attested.

        A failure of this machine is an abstention, never a verdict. Raises ChainError if the chain cannot be read.
        """
        record, policy = self._follower.record, self._follower.policy
        if record.params.level != Level.ATTESTED:
            return {}
        assert policy is not None, "the files of an attested run include its policy"
        seen, evidences = record.round(round), self._follower.evidences(round)
        rejections: dict[int, Rejection] = {}
        for seat in seen.manifests:
            key = seen.attested.get(seat)
            if key is None:
                rejections[seat] = _refused("the reveal was not attested")
                continue
            try:
                rejection = self._rejection(round, key, evidences[seat], policy)
            except MemoryError:
                rejection = OWN_FAILURE
            if rejection is not None:
                log.warning("not attested", round=round, seat=seat, reason=rejection.reason)
                rejections[seat] = rejection
        return rejections

    def _rejection(
        self, round: int, key: KeyRegistration, fetched: bytes | StorageError | OSError, policy: PolicyFile
    ) -> Rejection | None:
        evidence = _evidence(fetched, key)
        return evidence if isinstance(evidence, Rejection) else self._judge(round, key, evidence, policy)

    def _judge(
        self, round: int, key: KeyRegistration, evidence: EvidenceFile, policy: PolicyFile
    ) -> Rejection | None:
        """Returns the reason that the key does not count in the round, or None if it does.

        A denied entry ends the keys that depend on it, even if nobody revoked them on chain.
        """
        if denied := sorted(key.depends_on & self._follower.record.denied_in(round)):
            return _refused(f"the policy's guardian denied 0x{denied[0].hex()}")
        verification = self._verified(key, evidence, policy, self._follower.record.evaluation_floor(round))
        if not verification.policy_accepted:
            return _refused(verification.reason)
        expires = verification.expires
        if expires is not None and self._follower.schedule.opens(round) >= expires:
            return _refused("the collateral of the enclave key had expired when the round opened")
        return None

    def _verified(
        self, key: KeyRegistration, evidence: EvidenceFile, policy: PolicyFile, floor: int
    ) -> Verification:
        if (known := self._judged.get((key, floor))) is not None:
            return known
        verification = verify_registration(
            evidence, self._facts(key, policy, floor), policy.policy, policy.document
        )
        if verification.policy_accepted:  # a rejection may depend on a block that a reorganisation replaced
            self._judged[key, floor] = verification
        return verification

    def _facts(self, key: KeyRegistration, policy: PolicyFile, floor: int) -> RegistrationFacts:
        chain_id, run = self._blocks.chain_id, self._follower.record.run
        block_hash = self._blocks.block(key.challenge_block).hash
        drawn = challenge(chain_id, self._registry, run, key.trainer, key.challenge_block, block_hash)
        return RegistrationFacts(
            chain_id=chain_id,
            registry=self._registry,
            run=run,
            trainer=key.trainer,
            key=key.key,
            challenge=drawn,
            workload=key.workload,
            root_id=key.root_id,
            platform=key.platform,
            collateral_digest=key.collateral_digest,
            block_time=key.expiry - policy.policy.ttl_s,
            evaluation_floor=floor,
        )


def _evidence(fetched: bytes | StorageError | OSError, key: KeyRegistration) -> EvidenceFile | Rejection:
    """Returns the evidence file that the key was registered with, or why there is none."""
    if isinstance(fetched, Unavailable | WrongContent):
        return _refused("nobody serves the evidence of the enclave key")
    if not isinstance(fetched, bytes):
        return OWN_FAILURE
    try:
        evidence = EvidenceFile.read(fetched)
        quoted = claims(parse_quote(evidence.quote))
    except (EvidenceFileError, QuoteError) as error:
        return _refused(str(error))
    if (quoted.quote, quoted.pck) != (
        key.quote,
        key.pck,
    ):  # a platform has a PCK key for each of its versions
        return _refused("the evidence is of another quote, or PCK key, than the one registered")
    return evidence


def _refused(reason: str) -> Rejection:
    return Rejection(Verdict.NOT_COUNTED, f"not attested: {reason}")
