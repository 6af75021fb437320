"""Logs: one event per line, as text or JSON, without secrets.

Every event passes one redacting step before it is rendered, including libraries' logs and tracebacks.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO
from urllib.parse import urlsplit

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

HIDDEN = "[hidden]"
SECRET_KEYS = frozenset(
    {"authorization", "mnemonic", "passphrase", "password", "private_key", "salt", "secret", "seed_phrase"}
)
SHORTEST_SECRET = 4
URL = re.compile(r"""(?:https?|wss?)://[^\s"'<>]+""", re.IGNORECASE)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
OF_SEVERAL_LINES = frozenset({"exception", "stack"})


def redacted_url(url: str) -> str:
    """Returns scheme, host and port only: path, query or user name may be the access key of a paid endpoint."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return HIDDEN
    host = f"[{host}]" if host and ":" in host else host or ""
    base = f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")
    bare = parts.path in ("", "/") and not parts.query and not parts.fragment and parts.username is None
    return base if bare else f"{base}/{HIDDEN}"


class Redactor:
    """A structlog processor that hides passwords, keys, salts and the private part of URLs, at any depth.

    It knows secrets by the name they are logged under and, wherever they turn up, by value (`secrets`, of at
    least 4 characters). A private key looks like any hash: whoever loads one must `hide` it.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: list[str] = []
        for secret in secrets:
            self.hide(secret)

    def hide(self, secret: str) -> None:
        """Hides this text wherever it appears from now on; hex with or without 0x."""
        secret = secret.removeprefix("0x")
        if len(secret) >= SHORTEST_SECRET and secret not in self._secrets:
            self._secrets.append(secret)
            self._secrets.sort(key=len, reverse=True)

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {key: self._value(key, value) for key, value in event.items()}

    def text(self, text: str) -> str:
        """Returns the text without secrets and without control characters."""
        for secret in self._secrets:
            text = re.sub(re.escape(secret), HIDDEN, text, flags=re.IGNORECASE)
        text = URL.sub(lambda match: redacted_url(match[0]), text)
        return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)

    def _value(self, key: str, value: Any) -> Any:
        if key.lower() in SECRET_KEYS:
            return HIDDEN
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, bytes | bytearray):
            return self.text(value.hex())
        if isinstance(value, Mapping):
            return {str(name): self._value(str(name), inner) for name, inner in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value("", inner) for inner in value]
        text = self.text(str(value))
        return text if key in OF_SEVERAL_LINES else text.replace("\n", "\\n")


def configure_logs(
    stream: TextIO,
    clock: Callable[[], float],
    *,
    json: bool = False,
    level: str = "info",
    secrets: Iterable[str] = (),
) -> Redactor:
    """Sends this process's logs to `stream`, a line of JSON or text per event; of libraries, only warnings and errors.

    `clock` gives seconds since 1970. Returns the redactor, to `hide` what is loaded later.
    """
    redactor = Redactor(secrets)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        _stamp(clock),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redactor, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("earnest").setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    return redactor


def _stamp(clock: Callable[[], float]) -> Processor:
    def stamp(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["timestamp"] = datetime.fromtimestamp(clock(), UTC).isoformat(timespec="milliseconds")
        return event

    return stamp
