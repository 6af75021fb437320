"""Fetches collateral from Intel or a caching service and keeps it on disk until it expires. Protocol section 11.

For trainers, who need fresh collateral for a new evidence file. Validators need none of this: they use the collateral
in the evidence file, whose digest is on the record.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
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
"""Collateral is fetched again when it expires within this many seconds: Intel signs for 30 days."""

MAX_AGE_S: Final = 86_400
"""Collateral is fetched again after this many seconds, so that a new evaluation number is noticed in time."""

FETCH_TIMEOUT_S: Final = 30.0

FAULTS_OF_THE_QUOTE: Final = ("debug", "TD attributes", "TCB level", "revocation")
"""Checks that a quote reaches only under collateral whose signatures and dates are valid."""

Fetch = Callable[[bytes], Awaitable[bytes]]
"""Fetches the collateral for a quote's platform, as JSON. May raise OSError, RuntimeError or ValueError."""


class CollateralUnavailable(EarnestError):
    """No service delivers collateral for a platform, and the kept one has expired or is missing."""


@dataclass(frozen=True)
class Collateral:
    """Canonical collateral of one platform family."""

    data: bytes
    evaluation_number: int
    """The lower of those of TCB info and QE identity."""

    issued: int
    """Unix second of the newest signed piece."""

    expires: int
    """Unix second at which the first signed piece expires."""

    note: str = ""
    """The reason that renewing it failed, for the operator; empty if it was renewed."""

    @property
    def digest(self) -> bytes:
        """SHA-256, as `register` records it."""
        return sha256(self.data).digest()


def read_collateral(data: bytes) -> Collateral:
    """Parses collateral and the dates that it states; verifies nothing. Raises CollateralError."""
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
    """Returns a Fetch from a provisioning certificate caching service, or from Intel, at `url`."""

    async def fetch(quote: bytes) -> bytes:
        return (await dcap_qvl.get_collateral(url, quote)).to_json().encode()

    return fetch


class CollateralCache:
    """Collateral on disk, one file per TEE, processor family and platform CA.

    Only collateral under which the quote verified is kept, so a dishonest service can at most deliver nothing.
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
        """Returns collateral for the quote's platform that is valid at Unix second `now`, renewed if it is due.

        Raises CollateralUnavailable if there is none and none can be fetched.
        """
        path = self._folder / f"{platform_name(quote)}.json"
        async with self._lock:
            cached, fetched_at = _cached(path, now)
            if cached and cached.expires - now >= self._margin_s and 0 <= now - fetched_at < self._max_age_s:
                return cached
            try:
                fetched = await self._fetched(quote, now)
            except CollateralUnavailable as error:
                if cached is None:
                    raise
                return _with_note(cached, now, error.cause)
            if cached and (fetched.evaluation_number, fetched.issued) < (
                cached.evaluation_number,
                cached.issued,
            ):
                return _with_note(cached, now, "the service answered with older collateral")
            self._folder.mkdir(parents=True, exist_ok=True)
            write_durably(path, _file(fetched, now))
            return fetched

    async def _fetched(self, quote: bytes, now: int) -> Collateral:
        """Fetches and verifies. Raises CollateralUnavailable."""
        try:
            answer = await asyncio.wait_for(self._fetch(quote), self._timeout_s)
            fetched = read_collateral(answer)
        except TimeoutError as error:
            raise _unavailable(f"the collateral service did not answer in {self._timeout_s:g} s") from error
        except CollateralError as error:
            raise _unavailable(f"the collateral service answered no collateral: {error}") from error
        except (OSError, RuntimeError, ValueError) as error:
            raise _unavailable(f"the collateral service failed: {error}") from error
        verified = verify_quote(quote, fetched.data, self._root, now)
        if not verified.accepted and verified.failed[0].name not in FAULTS_OF_THE_QUOTE:
            raise _unavailable(f"the collateral delivered does not verify: {verified.reason}")
        return fetched


def platform_name(quote: bytes) -> str:
    """Returns TEE, processor family and CA of a quote's platform as a file name. Raises CollateralUnavailable."""
    try:
        parsed = dcap_qvl.parse_quote(quote)
        name = f"{parsed.quote_type()}-{parsed.fmspc()}-{parsed.ca()}".lower()
    except ValueError as error:
        raise CollateralUnavailable(
            f"the quote does not name its platform: {error}", "give a complete quote"
        ) from error
    if re.fullmatch(r"(tdx|sgx)-[0-9a-f]{12}-[a-z]{1,16}", name) is None:
        raise CollateralUnavailable("the name of the quote's platform is malformed", "give a complete quote")
    return name


def _cached(path: Path, now: int) -> tuple[Collateral | None, int]:
    """Returns the file's collateral if it is valid at `now`, and when it was fetched. (None, 0) for a broken file."""
    try:
        with path.open("rb") as file:
            document = read_json(file.read(2 * MAX_COLLATERAL_BYTES))
        cached = read_collateral(write_json(document["collateral"]))
        fetched_at = int(document["asked_at"])
    except (OSError, ValueError, TypeError, KeyError):
        return None, 0
    return (cached if now < cached.expires else None), fetched_at


def _file(collateral: Collateral, now: int) -> bytes:
    return write_json({"asked_at": now, "collateral": read_json(collateral.data)})


def _with_note(cached: Collateral, now: int, cause: str) -> Collateral:
    left = cached.expires - now
    note = f"{cause}; the cached collateral stays valid for {left // 3600} h {left % 3600 // 60} min"
    return replace(cached, note=note)


def _unavailable(cause: str) -> CollateralUnavailable:
    return CollateralUnavailable(cause, "check the collateral service's address, or name another one")


def _date(text: dict[str, Any], name: str) -> int:
    date = datetime.fromisoformat(text[name])
    if date.tzinfo is None:
        raise ValueError(f"{name} has no time zone")
    return int(date.timestamp())


def _list_end(crl: x509.CertificateRevocationList) -> int:
    if crl.next_update_utc is None:
        raise ValueError("a revocation list has no end")
    return int(crl.next_update_utc.timestamp())
