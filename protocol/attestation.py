"""Attestation: policies, and the hashes that bind an enclave's key to a run. Protocol section 11.

A run names its policy by hash. A registration passes the whole policy, so no contract stores or owns one.
"""

from dataclasses import dataclass, fields
from typing import Any, Final

from eth_abi.abi import encode
from eth_hash.auto import keccak

from earnest.base.strict_json import JsonError, read_json, write_json
from earnest.protocol.constants import ZERO_ADDRESS
from earnest.protocol.hashing import keccak_abi

TAG_KEY: Final = keccak(b"earnest/enclave-key/v1")
TAG_ROUND: Final = keccak(b"earnest/round-statement/v1")
TAG_CHALLENGE: Final = keccak(b"earnest/challenge/v1")

KEY: Final = 64
"""Bytes of a P-256 public key (x, y) and of a signature (r, s), big endian."""

MAX_POLICY_BYTES: Final = 1 << 16
MAX_PCK_CAS: Final = 4
MAX_WORKLOADS: Final = 16
MAX_PLATFORM_KEYS: Final = 16
MAX_TTL_S: Final = 30 * 86_400
CHALLENGE_BLOCKS: Final = 256
"""A challenge names one of this many blocks before the registration's: 51 minutes where a block takes 12 seconds."""

POLICY_TYPE: Final = (
    "(bytes32,(bytes32,bytes32)[],bytes32,uint16,uint16,bytes32[],"  # root id to workloads
    "uint32,uint16,uint128,uint32,address,bytes32)"
)

INTEL_ROOT_KEY: Final = bytes.fromhex(
    "0ba9c4c0c0c86193a3fe23d6b02cda10a8bbd4e88e48b4458561a36e705525f5"
    "67918e2edc88e40d860bd0cc4ee26aacc988e505a953558c453f6b0904ae7394"
)
"""x, y of the Intel SGX Root CA."""

TD_QE_SIGNER: Final = bytes.fromhex("dc9e2a7c6f948f17474e34a7fc43ed030f7c1563f1babddf6340c82e0e54a8c5")
SGX_QE_SIGNER: Final = bytes.fromhex("8c4f5775d796503e96137f77c68a829a0056ac8ded70140b081b094490c57bff")
"""MRSIGNER of Intel's quoting enclaves."""

TD_QE_PRODUCT: Final = 2
SGX_QE_PRODUCT: Final = 1


class PolicyError(ValueError):
    """An invalid policy; the message says why."""


def root_id(public_key: bytes) -> bytes:
    """Returns keccak256 of a root CA's key (x, y)."""
    return keccak(_key(public_key))


def pck_hash(public_key: bytes) -> bytes:
    """Returns keccak256 of a PCK key (x, y): its entry in a deny-list."""
    return keccak(_key(public_key))


def platform_hash(ppid: bytes) -> bytes:
    """Returns keccak256 of a PPID (16 bytes), which stands for one physical platform."""
    if len(ppid) != 16:
        raise ValueError("a PPID has 16 bytes")
    return keccak(ppid)


def key_entry(key: str) -> bytes:
    """Returns the entry of an enclave key in a deny-list."""
    return keccak_abi(["address"], [key])


def _key(public_key: bytes) -> bytes:
    if len(public_key) != KEY:
        raise ValueError("a P-256 key is x and y, 64 bytes")
    return public_key


def challenge(
    chain_id: int, registry: str, run: int, trainer: str, block_number: int, block_hash: bytes
) -> bytes:
    """Returns the challenge of a quote: unknown before its block, and specific to one trainer of one run."""
    return keccak_abi(
        ["bytes32", "uint256", "address", "uint256", "address", "uint256", "bytes32"],
        [TAG_CHALLENGE, chain_id, registry, run, trainer, block_number, block_hash],
    )


def key_binding(chain_id: int, registry: str, trainer: str, key: str, run: int, challenge: bytes) -> bytes:
    """Returns the first half of the report data of the quote that registers an enclave key."""
    return keccak_abi(
        ["bytes32", "uint256", "address", "address", "address", "uint256", "bytes32"],
        [TAG_KEY, chain_id, registry, trainer, key, run, challenge],
    )


def round_statement(chain_id: int, registry: str, run: int, round: int, manifest_hash: bytes) -> bytes:
    """Returns the 32 bytes that an enclave key signs in a round (without a message prefix)."""
    return keccak_abi(
        ["bytes32", "uint256", "address", "uint256", "uint256", "bytes32"],
        [TAG_ROUND, chain_id, registry, run, round, manifest_hash],
    )


@dataclass(frozen=True)
class Policy:
    """Rules for the quotes that a run accepts. Field order is that of `Policy` in `IAttestationRegistry.vyi`."""

    root_id: bytes
    """`root_id` of the root CA that certified the PCK CAs, which validators check."""

    pck_cas: tuple[bytes, ...]
    """Keys (x, y) of the CAs that sign PCK certificates, at most 4."""

    qe_signer: bytes
    """MRSIGNER of the quoting enclave."""

    qe_product: int
    qe_min_svn: int
    workloads: tuple[bytes, ...]
    """`Quote.workload()` of the programs that may train, at most 16."""

    ttl_s: int
    """Seconds for which a registered key counts."""

    platform_keys: int = 1
    """Most keys of one platform that count in a run at a time, at most 16."""

    platform_bond: int = 0
    """Largest sum of the bonds of the owners of one platform's keys, in wei; 0: no limit."""

    evaluation_floor: int = 0
    """Lowest TCB evaluation number that validators accept."""

    guardian: str = ZERO_ADDRESS
    """Account that may deny entries and raise the floor, nothing else; zero: no account may."""

    document: bytes = bytes(32)
    """keccak256 of the canonical JSON of the rules that only validators apply."""

    def __post_init__(self) -> None:
        hashes = (self.root_id, self.qe_signer, self.document, *self.workloads)
        _need(all(len(value) == 32 for value in hashes), "a hash has 32 bytes")
        _need(all(len(key) == KEY for key in self.pck_cas), "a P-256 key is x and y, 64 bytes")
        _need(1 <= len(self.pck_cas) <= MAX_PCK_CAS, f"1 to {MAX_PCK_CAS} PCK CAs")
        _need(1 <= len(self.workloads) <= MAX_WORKLOADS, f"1 to {MAX_WORKLOADS} workloads")
        _need(
            0 <= self.qe_product < 1 << 16 and 0 <= self.qe_min_svn < 1 << 16,
            "QE product and SVN have 16 bits",
        )
        _need(1 <= self.ttl_s <= MAX_TTL_S, f"ttl_s is 1 to {MAX_TTL_S}")
        _need(1 <= self.platform_keys <= MAX_PLATFORM_KEYS, f"platform_keys is 1 to {MAX_PLATFORM_KEYS}")
        _need(0 <= self.platform_bond < 1 << 128, "platform_bond has 128 bits")
        _need(0 <= self.evaluation_floor < 1 << 32, "evaluation_floor has 32 bits")
        _need(_is_address(self.guardian), "the guardian is an address: 0x and 40 hex digits")

    def as_tuple(self) -> tuple[Any, ...]:
        """Returns the fields in the contract's types."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        values["pck_cas"] = [tuple(_words(key)) for key in self.pck_cas]
        values["workloads"] = list(self.workloads)
        return tuple(values.values())

    def encode(self) -> bytes:
        """Returns `abi.encode(policy)`."""
        return encode([POLICY_TYPE], [self.as_tuple()])

    def hash(self) -> bytes:
        """Returns the hash that a run has as its `attestation_policy`."""
        return keccak(self.encode())

    def to_json(self) -> bytes:
        """Returns canonical bytes: sorted keys, no spaces, ASCII, hashes as 0x and lower-case hex."""
        values: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bytes):
                value = "0x" + value.hex()
            elif isinstance(value, tuple):
                value = ["0x" + entry.hex() for entry in value]
            values[field.name] = value.lower() if isinstance(value, str) else value
        return write_json(values)

    @classmethod
    def from_json(cls, data: bytes) -> "Policy":
        """Reads a policy in any layout: exactly the fields of this class. Raises PolicyError."""
        try:
            read = read_json(data, max_bytes=MAX_POLICY_BYTES)
        except JsonError as error:
            raise PolicyError(str(error)) from error
        names = {field.name: field.type for field in fields(cls)}
        if not isinstance(read, dict) or set(read) != set(names):
            raise PolicyError("the fields are not " + ", ".join(sorted(names)))
        return cls(**{name: _read(name, kind, read[name]) for name, kind in names.items()})


@dataclass(frozen=True)
class Claims:
    """Values that the registry reads from a quote. Field order is that of `Claims` in `IAttestationRegistry.vyi`."""

    workload: bytes
    platform: bytes
    pck: bytes
    quote: bytes
    """SHA-256 of the signed part."""

    binding: bytes
    """First half of the report data."""

    extra: bytes
    """Second half: SHA-256 of the GPU evidence, or zero."""


@dataclass(frozen=True)
class Registration:
    """Run, trainer and key of a registration. Field order is that of `Registration` in `IAttestationRegistry.vyi`."""

    run: int
    trainer: str
    key: str
    challenge_block: int
    evidence_root: bytes
    """Content root of the evidence file."""

    collateral_digest: bytes

    def as_tuple(self) -> tuple[int, str, str, int, bytes, bytes]:
        """Returns the fields in the contract's types."""
        return (
            self.run,
            self.trainer,
            self.key,
            self.challenge_block,
            self.evidence_root,
            self.collateral_digest,
        )


@dataclass(frozen=True)
class QuoteParts:
    """Parts of a quote, as calldata of the registry. Field order is that of `QuoteParts` in `IAttestationRegistry.vyi`.

    The contract proves each position and length; none is trusted.
    """

    ca: int
    """Index of the PCK certificate's CA in the policy."""

    key_at: int
    ppid_at: int
    pck: bytes
    """The PCK certificate's signed part."""

    pck_signature: bytes
    qe_report: bytes
    qe_signature: bytes
    qe_auth: bytes
    attestation_key: bytes
    quote: bytes
    """The quote's signed part."""

    quote_signature: bytes

    def as_tuple(self) -> tuple[Any, ...]:
        """Returns the fields in the contract's types: signatures, keys and the QE report as words."""
        return (
            self.ca,
            self.key_at,
            self.ppid_at,
            self.pck,
            _words(self.pck_signature),
            _words(self.qe_report),
            _words(self.qe_signature),
            self.qe_auth,
            _words(self.attestation_key),
            self.quote,
            _words(self.quote_signature),
        )


def _words(data: bytes) -> list[bytes]:
    """Splits bytes into words of 32."""
    return [data[at : at + 32] for at in range(0, len(data), 32)]


def _need(condition: bool, reason: str) -> None:
    if not condition:
        raise PolicyError(reason)


def _is_address(text: str) -> bool:
    return len(text) == 42 and text.startswith("0x") and all(c in "0123456789abcdefABCDEF" for c in text[2:])


def _read(name: str, kind: Any, value: Any) -> Any:
    """Converts a JSON value to the type of the field."""
    if kind is int:
        _need(isinstance(value, int) and not isinstance(value, bool), f"{name} is a whole number")
        return value
    if kind is str:
        _need(isinstance(value, str), f"{name} is text")
        return value
    if kind is bytes:
        return _hex(name, value)
    _need(isinstance(value, list), f"{name} is a list")
    return tuple(_hex(name, entry) for entry in value)


def _hex(name: str, value: Any) -> bytes:
    _need(isinstance(value, str) and value.startswith("0x"), f"{name} is hex with 0x")
    digits = value[2:]
    _need(digits == digits.lower() and digits.isascii() and digits.isalnum(), f"{name} is lower-case hex")
    try:
        return bytes.fromhex(digits)
    except ValueError as error:
        raise PolicyError(f"{name} is not hex") from error
