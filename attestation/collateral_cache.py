"""Keeping what Intel signs about machines: fetched before it ends, kept while nobody can be asked. Protocol section 11.

Judging a registration needs none of this: its collateral is in the evidence, by the digest on the record. Who makes
evidence, and who watches that a platform stays in order, needs collateral that is new.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import dcap_qvl
from cryptography import x509

from earnest.attestation.formats.collateral import (
    MAX_COLLATERAL_BYTES,
    CollateralError,
    canonical_collateral,
    collateral_digest,
)
from earnest.attestation.roots import INTEL_SGX_ROOT_CA
from earnest.attestation.verifier.certificate_chain import CERTIFICATE_ERRORS
from earnest.attestation.verifier.intel import verify_quote
from earnest.base.durable import write_durably
from earnest.base.errors import EarnestError
from earnest.base.strict_json import read_json, write_json

__all__ = [
    "Collateral",
    "CollateralCache",
    "CollateralError",
    "CollateralUnavailable",
    "canonical_collateral",
    "collateral_digest",
    "pccs",
    "read_collateral",
]

MARGIN_S: Final = 15 * 86_400
"""Fetch again when less is left: Intel signs for 30 days."""

MAX_AGE_S: Final = 86_400
"""Fetch again when the last answer is older: a new evaluation number does not wait for the old one to end."""

FETCH_TIMEOUT_S: Final = 30.0

NOT_THE_COLLATERAL: Final = ("debug", "TD attributes", "TCB level", "revocation")
"""Checks that a quote can only fail under collateral whose signatures and dates hold."""

Fetch = Callable[[bytes], Awaitable[bytes]]
"""From a quote to the collateral for its platform, as JSON. May raise OSError, RuntimeError or ValueError."""


class CollateralUnavailable(EarnestError):
    """Nobody delivers collateral for a platform, and what is kept has ended."""


@dataclass(frozen=True)
class Collateral:
    """Canonical collateral of one platform family."""

    data: bytes
    evaluation_number: int
    """The lower of TCB info and QE identity."""

    issued: int
    """Unix second of the newest signed piece."""

    expires: int
    """Unix second at which the first signed piece ends."""

    note: str = ""
    """What the operator should know, when it could not be renewed."""

    @property
    def digest(self) -> bytes:
        """SHA-256, as on the record."""
        return sha256(self.data).digest()


def read_collateral(data: bytes) -> Collateral:
    """Collateral with its dates, as it says itself; nothing is verified. Raises CollateralError."""
    canonical = canonical_collateral(data)
    document = read_json(canonical)
    try:
        texts = [read_json(document[name]) for name in ("tcb_info", "qe_identity")]
        lists = [x509.load_der_x509_crl(bytes.fromhex(document[name])) for name in ("root_ca_crl", "pck_crl")]
        ends = [_date(text, "nextUpdate") for text in texts] + [_list_end(crl) for crl in lists]
        issued = max(_date(text, "issueDate") for text in texts)
        numbers = [int(text["tcbEvaluationDataNumber"]) for text in texts]
    except (KeyError, *CERTIFICATE_ERRORS) as error:
        raise CollateralError(f"collateral: {type(error).__name__}: {error}") from error
    return Collateral(canonical, min(numbers), issued, min(ends))


def pccs(url: str) -> Fetch:
    """Fetching from a provisioning certificate caching service, or from Intel, at `url`."""

    async def fetch(quote: bytes) -> bytes:
        return (await dcap_qvl.get_collateral(url, quote)).to_json().encode()

    return fetch


class CollateralCache:
    """Collateral on disk, one file per TEE, processor family and platform CA.

    Nothing is kept that the quote at hand did not verify under, so a lying service can at most deliver nothing.
    """

    def __init__(
        self,
        folder: Path,
        fetch: Fetch,
        *,
        root: bytes = INTEL_SGX_ROOT_CA,
        margin_s: int = MARGIN_S,
        max_age_s: int = MAX_AGE_S,
        timeout_s: float = FETCH_TIMEOUT_S,
    ) -> None:
        self._folder, self._fetch, self._root = folder, fetch, root
        self._margin_s, self._max_age_s, self._timeout_s = margin_s, max_age_s, timeout_s
        self._lock = asyncio.Lock()

    async def collateral(self, quote: bytes, now: int) -> Collateral:
        """Collateral for the quote's platform that is valid at Unix second `now`, renewed if it is time to.

        Raises CollateralUnavailable when there is none and none can be had.
        """
        path = self._folder / f"{platform_name(quote)}.json"
        async with self._lock:
            kept, asked_at = _kept(path, now)
            if kept and kept.expires - now >= self._margin_s and 0 <= now - asked_at < self._max_age_s:
                return kept
            try:
                fetched = await self._fetched(quote, now)
            except CollateralUnavailable as error:
                if kept is None:
                    raise
                return _with_note(kept, now, error.cause)
            if kept and (fetched.evaluation_number, fetched.issued) < (kept.evaluation_number, kept.issued):
                return _with_note(kept, now, "the service answered with older collateral")
            self._folder.mkdir(parents=True, exist_ok=True)
            write_durably(path, _file(fetched, now))
            return fetched

    async def _fetched(self, quote: bytes, now: int) -> Collateral:
        """What the service delivers, verified. Raises CollateralUnavailable."""
        try:
            answer = await asyncio.wait_for(self._fetch(quote), self._timeout_s)
            fetched = read_collateral(answer)
        except TimeoutError as error:
            raise _unavailable(f"the collateral service did not answer in {self._timeout_s:g} s") from error
        except CollateralError as error:
            raise _unavailable(f"the collateral service answered something else: {error}") from error
        except (OSError, RuntimeError, ValueError) as error:
            raise _unavailable(f"the collateral service failed: {error}") from error
        found = verify_quote(quote, fetched.data, self._root, now)
        if not found.accepted and found.failed[0].name not in NOT_THE_COLLATERAL:
            raise _unavailable(f"the collateral delivered does not verify: {found.reason}")
        return fetched


def platform_name(quote: bytes) -> str:
    """TEE, processor family and CA of a quote's platform, as a file name. Raises CollateralUnavailable."""
    try:
        parsed = dcap_qvl.parse_quote(quote)
        name = f"{parsed.quote_type()}-{parsed.fmspc()}-{parsed.ca()}".lower()
    except ValueError as error:
        raise CollateralUnavailable(
            f"the quote does not say what platform it is of: {error}", "give a whole quote"
        ) from error
    if re.fullmatch(r"(tdx|sgx)-[0-9a-f]{12}-[a-z]{1,16}", name) is None:
        raise CollateralUnavailable("the quote's platform has no usable name", "give a whole quote")
    return name


def _kept(path: Path, now: int) -> tuple[Collateral | None, int]:
    """What the file holds, if that is valid at `now`, and when it was asked for; a broken file holds nothing."""
    try:
        with path.open("rb") as file:
            document = read_json(file.read(2 * MAX_COLLATERAL_BYTES))
        kept = read_collateral(write_json(document["collateral"]))
        asked_at = int(document["asked_at"])
    except (OSError, ValueError, TypeError, KeyError):
        return None, 0
    return (kept if now < kept.expires else None), asked_at


def _file(collateral: Collateral, now: int) -> bytes:
    return write_json({"asked_at": now, "collateral": read_json(collateral.data)})


def _with_note(kept: Collateral, now: int, cause: str) -> Collateral:
    left = kept.expires - now
    note = f"{cause}; the collateral kept stays valid for {left // 3600} h {left % 3600 // 60} min"
    return Collateral(kept.data, kept.evaluation_number, kept.issued, kept.expires, note)


def _unavailable(cause: str) -> CollateralUnavailable:
    return CollateralUnavailable(cause, "check the collateral service's address, or name another one")


def _date(text: dict[str, Any], name: str) -> int:
    date = datetime.fromisoformat(text[name])
    if date.tzinfo is None:
        raise ValueError(f"{name} has no time zone")
    return int(date.timestamp())


def _list_end(crl: x509.CertificateRevocationList) -> int:
    if crl.next_update_utc is None:
        raise ValueError("a revocation list without an end")
    return int(crl.next_update_utc.timestamp())
