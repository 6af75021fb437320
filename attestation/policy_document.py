"""The half of an attestation policy that no contract can check. Protocol section 11.

Revocation lists, TCB levels and GPU reports need DER and JSON, so validators check them. All of them must reach the
same answer, so the rules are a file whose hash the run fixes: `Policy.document` is keccak256 of its canonical JSON.
"""

import re
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from eth_hash.auto import keccak

from earnest.base.strict_json import JsonError, read_json, write_json

TcbStatus = Literal[
    "UpToDate",
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
    "TDRelaunchAdvised",
    "TDRelaunchAdvisedConfigurationNeeded",
]
TCB_STATUSES: Final = get_args(TcbStatus)
"""Every status that a policy may accept. Revoked is not among them, so it can never be accepted."""

SignedStatus = Literal[
    "UpToDate",
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
    "Revoked",
]
"""Every status that Intel signs for a TCB level (PCS API v4)."""

GPU_ARCHITECTURES: Final = ("HOPPER", "BLACKWELL")

MAX_DOCUMENT_BYTES: Final = 1 << 16
MAX_ENTRIES: Final = 256
"""Limit of every list in a document."""

MAX_GRACE_S: Final = 366 * 86_400
MAX_MARGIN_S: Final = 30 * 86_400
"""Limit of `margin_s`. Intel signs collateral for 30 days: a longer margin would refuse all of it."""

MAX_EVALUATION: Final = 2**32 - 1
MAX_GPUS: Final = 64


class PolicyDocumentError(ValueError):
    """Bytes or values that are no policy document, with the offending key."""


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise PolicyDocumentError(f"policy document: {reason}")


@dataclass(frozen=True)
class PolicyDocument:
    """Rules for a quote whose signatures are valid. The defaults accept a genuine up-to-date machine."""

    statuses: tuple[str, ...] = ("UpToDate",)
    """Accepted TCB statuses, of `TCB_STATUSES`."""

    grace_s: int = 0
    """Seconds after the date of its TCB level for which an OutOfDate machine is accepted, if its status is."""

    evaluation_floor: int = 0
    """Lowest accepted TCB evaluation data number of the collateral: Intel signs several at the same time."""

    denied_advisories: tuple[str, ...] = ()
    """Security advisories (`INTEL-SA-01192`) that a machine must not be affected by."""

    denied_families: tuple[str, ...] = ()
    """Refused processor families (FMSPC, 12 upper-case hexadecimal digits), such as those whose keys leak."""

    allow_dynamic_platform: bool = True
    """Accepts machines whose processor packages can be exchanged; true of every genuine TDX quote so far."""

    allow_smt: bool = True
    """Accepts machines with hyper-threading; true of every genuine TDX quote so far."""

    allow_cached_keys: bool = True
    """Accepts machines whose platform keys Intel stores; true of every genuine TDX quote so far."""

    margin_s: int = 86_400
    """Seconds for which the collateral must still be valid at the registration."""

    events: tuple[tuple[str, str], ...] = ()
    """(name, payload as lower-case hexadecimal) of run-time events that the TD's event log must have exactly once,
    such as the digest of the training container. An event log is required unless this is empty."""

    gpus: int = 0
    """Number of NVIDIA GPUs that the evidence file must show; with 0, GPU evidence is neither required nor checked."""

    gpu_architectures: tuple[str, ...] = GPU_ARCHITECTURES

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                _require(len(value) <= MAX_ENTRIES, f"{field.name} has more than {MAX_ENTRIES} entries")
                _require(len(set(value)) == len(value), f"{field.name} has an entry twice")
        _require(bool(self.statuses), "no status is accepted")
        for status in self.statuses:
            _require(status in TCB_STATUSES, f"statuses: {status!r} is none of {', '.join(TCB_STATUSES)}")
        _require(0 <= self.grace_s <= MAX_GRACE_S, f"grace_s is not in [0, {MAX_GRACE_S}]")
        _require(
            0 <= self.evaluation_floor <= MAX_EVALUATION, f"evaluation_floor is not in [0, {MAX_EVALUATION}]"
        )
        for advisory in self.denied_advisories:
            _require(
                re.fullmatch(r"INTEL-SA-\d{5}", advisory, re.ASCII) is not None,
                f"denied_advisories: {advisory!r} is not INTEL-SA- and five digits",
            )
        for family in self.denied_families:
            _require(
                re.fullmatch(r"[0-9A-F]{12}", family) is not None,
                f"denied_families: {family!r} is not 12 upper-case hexadecimal digits",
            )
        _require(0 <= self.margin_s <= MAX_MARGIN_S, f"margin_s is not in [0, {MAX_MARGIN_S}]")
        for name, payload in self.events:
            _require(0 < len(name) <= 128, "events: a name must have 1 to 128 characters")
            _require(
                len(payload) <= 2048 and re.fullmatch(r"([0-9a-f]{2})*", payload) is not None,
                f"events: the payload of {name!r} is not at most 1024 bytes of lower-case hexadecimal",
            )
        names = {name for name, _ in self.events}
        _require(len(names) == len(self.events), "events: a name occurs twice")
        _require(0 <= self.gpus <= MAX_GPUS, f"gpus is not in [0, {MAX_GPUS}]")
        for architecture in self.gpu_architectures:
            _require(
                architecture in GPU_ARCHITECTURES,
                f"gpu_architectures: {architecture!r} is none of {', '.join(GPU_ARCHITECTURES)}",
            )

    def to_json(self) -> bytes:
        """Returns the canonical bytes."""
        return write_json(asdict(self))

    def hash(self) -> bytes:
        """Returns keccak256 of the canonical bytes: `Policy.document`."""
        return keccak(self.to_json())

    @classmethod
    def from_json(cls, data: bytes) -> "PolicyDocument":
        """Parses a document in any layout; missing keys have their default.

        Raises PolicyDocumentError on an unknown or repeated key, and on a value of the wrong type or range.
        """
        try:
            document = read_json(data, max_bytes=MAX_DOCUMENT_BYTES)
        except JsonError as error:
            raise PolicyDocumentError(f"policy document: {error}") from error
        _require(isinstance(document, dict), "not an object")
        hints = get_type_hints(cls)
        for key in document:
            _require(key in hints, f"unknown key {key!r}")
        return cls(**{key: _typed(hints[key], value, key) for key, value in document.items()})


def _typed(kind: Any, value: Any, path: str) -> Any:
    """Checks and converts `value` to an int, bool, str or tuple of such; a bool is no int."""
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        _require(isinstance(value, list), f"{path}: not a list")
        if parts[-1] is Ellipsis:
            parts = (parts[0],) * len(value)
        _require(len(value) == len(parts), f"{path}: not a list of {len(parts)}")
        return tuple(
            _typed(part, item, f"{path}[{i}]")
            for i, (part, item) in enumerate(zip(parts, value, strict=True))
        )
    _require(type(value) is kind, f"{path}: {value!r} is not {kind.__name__}")
    return value
