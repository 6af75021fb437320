"""The manifest, a trainer's claim about one round, and the commitment to it. Protocol sections 5 and 13."""

from dataclasses import astuple, dataclass

from eth_hash.auto import keccak

from earnest.protocol.hashing import keccak_abi

FIELD_TYPES = {
    "run": "uint256",
    "round": "uint32",
    "trainer": "address",
    "base_state": "bytes32",
    "update": "bytes32",
    "samples": "bytes32",
    "trace": "bytes32",
    "steps": "uint64",
    "tokens": "uint64",
    "size": "uint64",
}
"""Solidity types of the manifest's fields, in order."""

TYPE = "Manifest(" + ",".join(f"{kind} {name}" for name, kind in FIELD_TYPES.items()) + ")"
TYPE_HASH = keccak(TYPE.encode())


@dataclass(frozen=True)
class Manifest:
    """A trainer's claim about one round. Only its hash is committed before the reveal."""

    run: int
    round: int
    trainer: str
    """The seat's owner."""

    base_state: bytes
    """Root of the state that the training started from."""

    update: bytes
    """Root of the payload file."""

    samples: bytes
    """Root of the list of sample ids used (or of the private shard)."""

    trace: bytes
    """Root of the hashes of intermediate local states; zero if the run isn't audited."""

    steps: int
    tokens: int
    size: int
    """Bytes of the payload file. Steps, tokens and size are recorded and never used for pay."""

    def as_tuple(self) -> tuple[int, int, str, bytes, bytes, bytes, bytes, int, int, int]:
        """Returns the fields in the order of the contract's struct."""
        return astuple(self)

    def hash(self) -> bytes:
        """Returns the EIP-712 `hashStruct`, 32 bytes."""
        return keccak_abi(["bytes32", *FIELD_TYPES.values()], [TYPE_HASH, *self.as_tuple()])


def commitment(
    chain_id: int, contract: str, run: int, round: int, trainer: str, manifest_hash: bytes, salt: bytes
) -> bytes:
    """Returns a trainer's commitment. It binds chain, contract, run, round and owner, so a copy is worthless.

    `contract` is TrainingRuns, `salt` 32 random bytes.
    """
    return keccak_abi(
        ["uint256", "address", "uint256", "uint256", "address", "bytes32", "bytes32"],
        [chain_id, contract, run, round, trainer, manifest_hash, salt],
    )


def slot(commitment: bytes, round: int) -> bytes:
    """Returns the stored word: the commitment's first 28 bytes, then the round as big-endian uint32."""
    return commitment[:28] + round.to_bytes(4, "big")
