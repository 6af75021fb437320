"""Clock, randomness, streams and signals of the process. All other code receives them as arguments."""

from __future__ import annotations

import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from getpass import getpass
from typing import TextIO


@dataclass(frozen=True)
class Environment:
    """The parts of the machine that a command uses. Tests replace them."""

    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[int], bytes] = secrets.token_bytes
    ask_password: Callable[[str], str] = getpass
    make_stop: Callable[[], threading.Event] = threading.Event

    @property
    def stdin(self) -> TextIO:
        return sys.stdin

    @property
    def stdout(self) -> TextIO:
        return sys.stdout

    @property
    def stderr(self) -> TextIO:
        return sys.stderr

    @property
    def interactive(self) -> bool:
        """True if a person can answer a question: stdin and stderr are terminals."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    @contextmanager
    def stopping(self) -> Iterator[threading.Event]:
        """Yields an event that SIGTERM and SIGINT set. A second signal raises KeyboardInterrupt."""
        stop = self.make_stop()
        if threading.current_thread() is not threading.main_thread():
            yield stop
            return

        def stop_or_interrupt(*_: object) -> None:
            if stop.is_set():
                raise KeyboardInterrupt
            stop.set()

        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            for number in before:
                signal.signal(number, stop_or_interrupt)
            yield stop
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
