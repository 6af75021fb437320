"""Everything that can go wrong, in one tree. Each error says its cause and how to fix it.

EarnestError                    .cause  .fix
├── ChainError                  .retryable: may the same request succeed later?
│   ├── EndpointDown            yes  unreachable, timed out, overloaded
│   ├── BadAnswer               yes  answered garbage, lags, or contradicts itself or another endpoint
│   ├── ReorgDetected           yes  the block that was pinned is no longer on the chain    .number
│   ├── WrongChain              no   the endpoint serves another chain
│   ├── Reverted                no   a contract refused                                     .reason
│   ├── OutOfFunds              no   the account cannot pay for gas and value
│   └── NonceDrift              no   somebody else sends with this key
├── KeystoreError                    a key file is missing, broken, or in the way
│   └── WrongPassword
└── StorageError
    ├── Unavailable                  no source has the object                               .reasons
    ├── WrongContent                 an object's bytes do not hash to its root
    ├── JournalLocked                another node uses this journal
    └── JournalCorrupt               the journal cannot be read

Beside what raises them: JournalForeign (a StorageError); SettingsError, AmountError, AddressError, RunFileError,
UnfinishedError; NotAdmittedError, NoSeatError, NotDueError (participation); BundleError; TaskError, TrainingDiverged,
TrainingStopped, DeviceError, PrivateDataMissing, PrivacyError (training); LayoutError, WorkersFailed (parallel);
AttesterError with NoTeeError, EvidenceError, NarrowingError, PolicyFileError, RegistrationError, RootError
(attestation);
CollateralUnavailable (validator); NetworkError, ManifestError, DeploymentError (deploy); UsageError, Interrupted (cli).
`Refusal` is a BadAnswer that stays inside client.chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class EarnestError(Exception):
    """A failure with its `cause` and its `fix`, both plain sentences without a final full stop."""

    def __init__(self, cause: str, fix: str) -> None:
        super().__init__(cause, fix)
        self.cause = cause
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.cause} ({self.fix})"


class ChainError(EarnestError):
    """The chain, or the way to it, did not do what was asked."""

    retryable: ClassVar[bool] = False


class EndpointDown(ChainError):
    """No answer: refused, timed out, or an HTTP error status."""

    retryable: ClassVar[bool] = True


class BadAnswer(ChainError):
    """Not JSON-RPC, not plausible, behind the chain, or contradicted by another endpoint."""

    retryable: ClassVar[bool] = True


class ReorgDetected(ChainError):
    """Blocks after `number` were replaced; forget what was derived from them and read again."""

    retryable: ClassVar[bool] = True

    def __init__(self, number: int, cause: str, fix: str) -> None:
        super().__init__(cause, fix)
        self.number = number


class WrongChain(ChainError):
    """The endpoint's chain id is not the network's."""


class Reverted(ChainError):
    """A contract refused a call or a transaction; `reason` is its own words, e.g. `runs: inactive seat`."""

    def __init__(self, reason: str, cause: str, fix: str) -> None:
        super().__init__(cause, fix)
        self.reason = reason


class OutOfFunds(ChainError):
    """The account cannot pay for the transaction."""


class NonceDrift(ChainError):
    """A nonce that this node reserved was used by a transaction that it did not sign."""


class KeystoreError(EarnestError):
    """A key file is missing, not a keystore v3, or already there."""


class WrongPassword(KeystoreError):
    """The password does not open the key file."""


class StorageError(EarnestError):
    """An object or the journal could not be read or written."""


class Unavailable(StorageError):
    """No source delivered the object; `reasons` maps each source to what it said."""

    def __init__(self, cause: str, fix: str, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(cause, fix)
        self.reasons = dict(reasons or {})


class WrongContent(StorageError):
    """The bytes do not hash to the root that was asked for, or exceed the size allowed."""


class JournalLocked(StorageError):
    """Another node holds the journal's lease."""


class JournalCorrupt(StorageError):
    """The journal's file is damaged or was written by something else."""
