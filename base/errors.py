"""The tree of errors. Each says its cause and how to fix it.

EarnestError                    .cause  .fix
├── ChainError
│   ├── EndpointDown            unreachable, timed out, overloaded
│   ├── BadAnswer               not valid, behind the chain, or contradicted by itself or another endpoint
│   ├── ReorgDetected           a pinned block is no longer on the chain    .number
│   ├── WrongChain              the endpoint serves another chain
│   ├── Reverted                a contract refused                          .reason
│   ├── OutOfFunds              the account cannot pay for gas and value
│   └── NonceDrift              another program sends with this key
├── KeystoreError               a key file is missing, broken, or in the way
│   └── WrongPassword
└── StorageError
    ├── Unavailable             no source has the object                    .reasons
    ├── WrongContent            an object's bytes do not hash to its root
    ├── JournalLocked           another node uses this journal
    └── JournalCorrupt          the journal cannot be read

Defined beside the code that raises them:

base         AddressError, AmountError
training     DeviceError, LayoutError, PrivacyError, TaskError, TrainingDiverged, TrainingStopped, WorkersFailed
attestation  AttesterError with NoTeeError, CollateralUnavailable, EvidenceFileError, PolicyFileError,
             RegistrationError, RootError
client       BundleError, ChangedPlanError, HalfwayError, JournalForeign (a StorageError), NarrowingError, NoSeatError,
             NotAdmittedError, NotDueError, PrivateDataMissing, RpcErrorAnswer (a BadAnswer), RunFileError,
             UnfinishedError
deploy       DeploymentError, ManifestError, NetworkError
demo         AttackError
cli          Interrupted, SettingsError, UsageError
"""

from __future__ import annotations

from collections.abc import Mapping


class EarnestError(Exception):
    """A failure with its `cause` and its `fix`, both sentences without a final full stop."""

    def __init__(self, cause: str, fix: str) -> None:
        super().__init__(cause, fix)
        self.cause = cause
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.cause} ({self.fix})"


class ChainError(EarnestError):
    """A request to the chain failed."""


class EndpointDown(ChainError):
    """No answer: refused, timed out, or an HTTP error status."""


class BadAnswer(ChainError):
    """An answer that is not JSON-RPC, implausible, behind the chain, or contradicted by another endpoint."""


class ReorgDetected(ChainError):
    """Blocks after `number` were replaced; forget what was derived from them and read again."""

    def __init__(self, number: int, cause: str, fix: str) -> None:
        super().__init__(cause, fix)
        self.number = number


class WrongChain(ChainError):
    """The endpoint's chain id is not the network's."""


class Reverted(ChainError):
    """A contract refused a call or a transaction; `reason` is its revert string, e.g. `runs: inactive seat`."""

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
    """No source delivered the object; `reasons` maps each source to its failure."""

    def __init__(self, cause: str, fix: str, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(cause, fix)
        self.reasons = dict(reasons or {})


class WrongContent(StorageError):
    """The bytes do not hash to the requested root, or exceed the size allowed."""


class JournalLocked(StorageError):
    """Another node holds the journal's lease."""


class JournalCorrupt(StorageError):
    """The journal's file is damaged or was written by something else."""
