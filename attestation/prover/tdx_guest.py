"""A TDX guest's quotes, through the report interface that Linux has had since 6.7.

`/sys/kernel/config/tsm/report`, as Documentation/ABI/testing/configfs-tsm-report describes it: a folder made there
is one request. What is written to its `inblob` is signed when its `outblob` is read; `generation` counts the
writes, so that a request somebody else has touched meanwhile is noticed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from earnest.attestation.prover.attester import (
    MAX_QUOTE_BYTES,
    AttesterError,
    NoTeeError,
    Quoted,
    check_quote_is_for,
    check_report_data,
)
from earnest.attestation.roots import INTEL_ROOT_ID

REPORT_FOLDER = Path("/sys/kernel/config/tsm/report")
PROVIDER = "tdx_guest"
MAX_TEXT_BYTES = 4096
NAME_BYTES = 8
MAX_DIGITS = 20
ASKS = 3
"""The quoting service may be busy, or another process may touch the request: asked so often in all."""

PASSING = frozenset({errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})


class _Disturbed(Exception):
    """Somebody else wrote to the request between our write and our read."""


class TdxGuestAttester:
    """Quotes of the TDX guest that this process runs in. `random(n)` gives n bytes, for the request's name.

    Needs write access to the report folder: root, or what the administrator gave.
    """

    def __init__(self, random: Callable[[int], bytes], folder: Path = REPORT_FOLDER) -> None:
        self._random = random
        self._folder = folder

    @property
    def kind(self) -> str:
        return "tdx-guest"

    @property
    def root_id(self) -> bytes:
        return INTEL_ROOT_ID

    def quote(self, report_data: bytes) -> Quoted:
        """A quote over 64 bytes. Raises NoTeeError outside a TDX guest, AttesterError when the service gives none."""
        check_report_data(report_data)
        told = ""
        for _ in range(ASKS):
            try:
                quote = self._ask(report_data)
            except _Disturbed:
                told = "somebody else writes to the same request"
            except OSError as error:
                if error.errno not in PASSING:
                    raise AttesterError(
                        f"the kernel gave no quote: {error.strerror}",
                        "see dmesg and the host's quoting service",
                    ) from error
                told = error.strerror or "busy"
            else:
                check_quote_is_for(quote, report_data, "the kernel")
                return Quoted(quote)
        raise AttesterError(f"the kernel gave no quote in {ASKS} attempts: {told}", "try again later")

    def _ask(self, report_data: bytes) -> bytes:
        with self._request() as request:
            provider = _text(request / "provider")
            if provider != PROVIDER:
                raise NoTeeError(
                    f"this machine's attestation is {provider!r}, not {PROVIDER!r}", "use another --attester"
                )
            before = _number(request / "generation")
            # The kernel takes the blob when the file is closed, so whether it did shows in the generation.
            with (request / "inblob").open("wb", buffering=0) as file:
                file.write(report_data)
            expected = before + 1
            if _number(request / "generation") != expected:
                raise _Disturbed
            with (request / "outblob").open("rb") as file:
                quote = file.read(MAX_QUOTE_BYTES + 1)
            if _number(request / "generation") != expected:
                raise _Disturbed
            return quote

    @contextmanager
    def _request(self) -> Iterator[Path]:
        """A folder of our own, which the kernel fills with the request's files; gone afterwards."""
        request = self._folder / f"earnest-{self._random(NAME_BYTES).hex()}"
        try:
            request.mkdir()
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            raise NoTeeError(
                f"{self._folder} cannot be used: {error.strerror}",
                "run inside a TDX guest with Linux 6.7 or newer and configfs mounted, with access to that folder",
            ) from error
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise NoTeeError("the kernel has no TEE driver loaded", "load tdx_guest") from error
            raise
        try:
            yield request
        finally:
            request.rmdir()


def _number(path: Path) -> int:
    text = _text(path)
    if not (text.isdecimal() and len(text) <= MAX_DIGITS):
        raise AttesterError(f"the kernel's {path.name} is {text[:32]!r}, no number", "see dmesg")
    return int(text)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_TEXT_BYTES).decode("ascii", "replace").strip()
