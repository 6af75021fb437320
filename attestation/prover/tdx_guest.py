"""Gets a TDX guest's quotes through configfs-tsm, the report interface of Linux 6.7 and newer.

See Documentation/ABI/testing/configfs-tsm-report. A folder made in `/sys/kernel/config/tsm/report` is one request: the
kernel signs the data written to `inblob` when `outblob` is read. `generation` counts the writes, which shows whether
another process wrote to the same request.
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
ATTEMPTS = 3
"""Attempts in all: the quoting service may be busy, or another process may write to the request."""

TRANSIENT_ERRORS = frozenset({errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})


class _Disturbed(Exception):
    """Another process wrote to the request between our write and our read."""


class TdxGuestAttester:
    """Gets quotes of the TDX guest that this process runs in. `random(n)` gives n bytes, for the request's name.

    Needs write access to the report folder.
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
        """Returns a quote over 64 bytes. Raises NoTeeError outside a TDX guest, AttesterError for other failures."""
        check_report_data(report_data)
        reason = ""
        for _ in range(ATTEMPTS):
            try:
                quote = self._request_quote(report_data)
            except _Disturbed:
                reason = "another process writes to the same request"
            except OSError as error:
                if error.errno not in TRANSIENT_ERRORS:
                    raise AttesterError(
                        f"the kernel gave no quote: {error.strerror}",
                        "read dmesg and the log of the host's quoting service",
                    ) from error
                reason = error.strerror or "busy"
            else:
                check_quote_is_for(quote, report_data, "the kernel")
                return Quoted(quote)
        raise AttesterError(f"the kernel gave no quote in {ATTEMPTS} attempts: {reason}", "try again later")

    def _request_quote(self, report_data: bytes) -> bytes:
        with self._request() as request:
            provider = _text(request / "provider")
            if provider != PROVIDER:
                raise NoTeeError(
                    f"this machine's attestation is {provider!r}, not {PROVIDER!r}", "use another --attester"
                )
            before = _number(request / "generation")
            # The kernel accepts the blob when the file is closed; `generation` shows whether it did.
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
        """Makes a folder, which the kernel fills with the request's files, and removes it afterwards."""
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
        raise AttesterError(f"the kernel's {path.name} is {text[:32]!r}, not a number", "read dmesg")
    return int(text)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_TEXT_BYTES).decode("ascii", "replace").strip()
