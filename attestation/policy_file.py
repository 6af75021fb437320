"""A run's attestation policy as its sponsor writes it: one JSON file with both halves.

`policy` is for the registry, `document` for validators. The run fixes the hash of the first, which contains the hash of
the second; the file is one of the run's files, so that everyone reads the same rules.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from earnest.attestation.formats.certificate import CertificateError, parse_certificate, pem_to_ders
from earnest.attestation.formats.quote import Quote, QuoteError, pck_chain
from earnest.attestation.policy_document import PolicyDocument, PolicyDocumentError
from earnest.attestation.roots import root_name
from earnest.base.errors import EarnestError
from earnest.base.strict_json import JsonError, read_json, write_json
from earnest.protocol.attestation import Policy, PolicyError, root_id
from earnest.protocol.constants import ZERO_ADDRESS

FIELDS: Final = ("document", "policy")
MAX_POLICY_BYTES: Final = 1 << 17
DAY: Final = 86_400
DEFAULT_TTL_S: Final = 7 * DAY


class PolicyFileError(EarnestError):
    """A file that is no attestation policy, or quotes that cannot be made into one."""


@dataclass(frozen=True)
class PolicyFile:
    """Both halves. Raises PolicyFileError if `policy` names another document."""

    policy: Policy
    document: PolicyDocument

    def __post_init__(self) -> None:
        if self.policy.document != self.document.hash():
            raise _wrong(
                f"its policy names document 0x{self.policy.document.hex()}, it has 0x{self.document.hash().hex()}"
            )

    @property
    def hash(self) -> bytes:
        """The run's `attestation_policy`."""
        return self.policy.hash()

    @property
    def root_name(self) -> str:
        """Name of the root whose machines are accepted, for people."""
        return root_name(self.policy.root_id)

    def to_bytes(self) -> bytes:
        """Returns the canonical JSON."""
        return write_json(self._as_json())

    def to_text(self) -> str:
        """Returns indented JSON, for people to read and edit."""
        return json.dumps(self._as_json(), sort_keys=True, indent=2) + "\n"

    def _as_json(self) -> dict[str, Any]:
        return {"policy": read_json(self.policy.to_json()), "document": read_json(self.document.to_json())}

    @classmethod
    def from_bytes(cls, content: bytes) -> PolicyFile:
        """Parses a policy file of any layout; strict about fields and values. Raises PolicyFileError."""
        try:
            document = read_json(content, max_bytes=MAX_POLICY_BYTES)
        except JsonError as error:
            raise _wrong(str(error)) from error
        if not isinstance(document, dict) or tuple(sorted(document)) != FIELDS:
            raise _wrong(f"it does not have exactly the fields {' and '.join(FIELDS)}")
        try:
            return cls(
                Policy.from_json(write_json(document["policy"])),
                PolicyDocument.from_json(write_json(document["document"])),
            )
        except (PolicyError, PolicyDocumentError) as error:
            raise _wrong(str(error)) from error

    @classmethod
    def read(cls, path: Path) -> PolicyFile:
        """Reads the policy file at `path`. Raises PolicyFileError."""
        try:
            with path.open("rb") as file:
                content = file.read(MAX_POLICY_BYTES + 1)
        except OSError as error:
            raise PolicyFileError(
                f"{path} cannot be read: {error.strerror}", "give the path of a policy file"
            ) from error
        return cls.from_bytes(content)

    @classmethod
    def from_quotes(
        cls,
        quotes: Sequence[Quote],
        document: PolicyDocument | None = None,
        *,
        root: bytes | None = None,
        ttl_s: int = DEFAULT_TTL_S,
        platform_keys: int = 1,
        platform_bond: int = 0,
        evaluation_floor: int = 0,
        guardian: str = ZERO_ADDRESS,
    ) -> PolicyFile:
        """Makes a policy that accepts the workloads of `quotes` (all of one TEE type), on platforms of the same CAs.

        `root` is the id of the root to trust (default: that of the first quote's own chain, which proves nothing by
        itself: check which root it is). The CAs in the quotes are pinned. Raises PolicyFileError.
        """
        if not quotes:
            raise PolicyFileError("no quote is given", "give a quote of each workload that may train")
        if len({(quote.qe.mrsigner, quote.qe.product) for quote in quotes}) > 1:
            raise PolicyFileError(
                "the quotes are from more than one quoting enclave", "give quotes of one TEE type"
            )
        document = document or PolicyDocument()
        try:
            policy = Policy(
                root_id=root or own_root_id(quotes[0]),
                pck_cas=tuple(dict.fromkeys(pck_chain(quote)[1].public_key for quote in quotes)),
                qe_signer=quotes[0].qe.mrsigner,
                qe_product=quotes[0].qe.product,
                qe_min_svn=min(quote.qe.svn for quote in quotes),
                workloads=tuple(dict.fromkeys(quote.workload() for quote in quotes)),
                ttl_s=ttl_s,
                platform_keys=platform_keys,
                platform_bond=platform_bond,
                evaluation_floor=evaluation_floor,
                guardian=guardian,
                document=document.hash(),
            )
        except (PolicyError, QuoteError) as error:
            raise PolicyFileError(
                f"no policy can be made from these quotes: {error}", "give other quotes"
            ) from error
        return cls(policy, document)


def own_root_id(quote: Quote) -> bytes:
    """Returns the id of the root at the end of the quote's own chain, unverified. Raises QuoteError."""
    try:
        return root_id(parse_certificate(pem_to_ders(quote.chain)[-1]).public_key)
    except (CertificateError, IndexError) as error:
        raise QuoteError(f"PCK certificate chain: {error}") from error


def _wrong(reason: str) -> PolicyFileError:
    return PolicyFileError(f"not an attestation policy: {reason}", "make one with `earnest attest policy`")
