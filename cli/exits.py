"""Exit codes, and errors as a JSON document."""

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
    """Exit codes. Their meanings are stable; docs/cli.md lists them."""

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
    Exit.REFUSED: "refused by a contract, by the rules or by a failed check, or not enough money",
    Exit.USAGE: "the command line, a setting or one of your files is wrong",
    Exit.CHAIN: "no endpoint answers, or it serves another chain",
    Exit.KEY: "problem with the key file or its password",
    Exit.STORAGE: "problem with an object, the journal or the disk",
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
    """The command line is not valid, or contradicts itself or the run."""


class Interrupted(EarnestError):
    """The command was interrupted by Ctrl-C."""


def exit_code(error: EarnestError) -> Exit:
    """Returns the exit code of an error, by its class (`earnest.base.errors`); a HalfwayError has its failure's."""
    error = getattr(error, "failure", error)
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
    """Returns the error's stable name: `wrong_password` for WrongPassword."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).lower()


def error_document(error: EarnestError) -> dict[str, Any]:
    """Returns the error as `--json` prints it; `reason` is the contract's revert reason.

    If a step failed after others, `transactions` lists the mined ones, and the code is the failure's.
    """
    failure: EarnestError = getattr(error, "failure", error)
    document: dict[str, Any] = {"code": error_name(failure), "cause": error.cause, "fix": error.fix}
    if isinstance(failure, Reverted):
        document["reason"] = failure.reason
    if failure is not error:
        document["transactions"] = getattr(error, "transactions", [])
    return {"error": document}
