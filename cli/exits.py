"""How a command ends: stable exit codes, and errors as one JSON object or as cause and fix."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any

from earnest.base.errors import (
    ChainError,
    EarnestError,
    KeystoreError,
    OutOfFunds,
    Reverted,
    StorageError,
)


class Exit(IntEnum):
    """Exit codes. They keep their meaning; docs/cli.md lists them."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    CHAIN = 3
    KEY = 4
    STORAGE = 5
    PENDING = 6
    INTERRUPTED = 130


MEANINGS = {
    Exit.OK: "done, or nothing to do",
    Exit.REFUSED: "refused: by a contract, by the rules, by a failed check, or for lack of money",
    Exit.USAGE: "the command line, a setting or a file of yours is wrong",
    Exit.CHAIN: "no endpoint answers, or it is on the wrong chain",
    Exit.KEY: "key file or password",
    Exit.STORAGE: "an object, the journal or the disk",
    Exit.PENDING: "sent but not mined yet: run the same command again",
    Exit.INTERRUPTED: "interrupted",
}

USAGE_ERRORS = frozenset(
    {
        "AddressError",
        "AmountError",
        "ManifestError",
        "NetworkError",
        "PolicyFileError",
        "RootError",
        "RunFileError",
        "SettingsError",
        "TaskError",
        "UsageError",
    }
)


class UsageError(EarnestError):
    """The command line asks for something that makes no sense."""


class Interrupted(EarnestError):
    """Somebody pressed Ctrl-C."""


def exit_code(error: EarnestError) -> Exit:
    """The code of an error, by its place in the tree of `earnest.base.errors`."""
    if isinstance(error, Reverted | OutOfFunds):
        return Exit.REFUSED
    if isinstance(error, ChainError):
        return Exit.CHAIN
    if isinstance(error, KeystoreError):
        return Exit.KEY
    if isinstance(error, StorageError):
        return Exit.STORAGE
    name = type(error).__name__
    if name == "UnfinishedError":
        return Exit.PENDING
    return Exit.USAGE if name in USAGE_ERRORS else Exit.REFUSED


def error_name(error: EarnestError) -> str:
    """The error's stable name: `WrongPassword` is `wrong_password`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).lower()


def error_document(error: EarnestError) -> dict[str, Any]:
    """An error as `--json` prints it; a contract's own words come as `reason`."""
    told: dict[str, Any] = {"code": error_name(error), "cause": error.cause, "fix": error.fix}
    if isinstance(error, Reverted):
        told["reason"] = error.reason
    return {"error": told}
