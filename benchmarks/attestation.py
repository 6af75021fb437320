"""Prints the tables of docs/attestation.md: every test vector with its verification, sizes, and times.

Vectors are public quotes with expected results; tests/data/attestation/README.md has their sources. An unexpected
result ends the command with 1. Gas figures are from `make gas`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from earnest.attestation.evidence_file import EvidenceFile
from earnest.attestation.formats.quote import parse_quote
from earnest.attestation.policy_file import PolicyFile
from earnest.attestation.prover.key_registration import KeyScope, PreparedRegistration, prepare_registration
from earnest.attestation.prover.simulated import QuoteKind, SimulatedAttester, SimulatedVendor
from earnest.attestation.verifier.intel import verify_quote
from earnest.attestation.verifier.verification import Verification

DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "attestation"
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
FORMATS: tuple[QuoteKind, ...] = ("tdx4", "tdx5", "sgx3")
REPEATS = 200


def main() -> int:
    """Prints all tables. Returns 1 if a vector has an unexpected result."""
    vectors = json.loads((DATA / "index.json").read_text())["vectors"]
    wrong = print_vectors(vectors)
    print_sizes()
    print_seconds(vectors)
    return 1 if wrong else 0


def print_vectors(vectors: list[dict[str, Any]]) -> int:
    """Prints one row per vector. Returns the number of unexpected results."""
    wrong = 0
    print("| vector | quote | judged at | verdict | up-to-date policy |\n|---|---|---|---|---|")
    for vector in vectors:
        verified = verification(vector)
        strict = vector.get("uptodate_only_policy", "reject").startswith("accept")
        expected = vector["expect"]["verdict"] == "accept"
        right = verified.accepted == expected and (
            not expected or verified.status == vector["expect"]["status"]
        )
        right = right and verified.policy_accepted == strict
        wrong += not right
        answer = verified.status if verified.accepted else f"refused: {verified.reason.split(' (')[0]}"
        policy = "accepts" if verified.policy_accepted else "refuses"
        name = f"{Path(vector['quote']).stem}{' *' if 'mutate' in vector else ''}"
        day = vector["now_iso"][:10]
        print(
            f"| {vector['id']} | {name} | {day} | {answer} | {policy}{'' if right else ' (NOT AS EXPECTED)'} |"
        )
    print(
        f"\n{len(vectors) - wrong} of {len(vectors)} vectors have the expected result; * altered on purpose\n"
    )
    return wrong


def verification(vector: dict[str, Any]) -> Verification:
    """Verifies a vector."""
    quote = mutated((DATA / vector["quote"]).read_bytes(), vector.get("mutate", {}))
    root = (DATA / vector["root"]).read_bytes()
    return verify_quote(quote, (DATA / vector["collateral"]).read_bytes(), root, vector["now"])


def mutated(quote: bytes, how: dict[str, Any]) -> bytes:
    """Returns the quote with bits flipped, bytes appended, or a signature's s mirrored."""
    changed = bytearray(quote)
    for offset, mask in how.get("xor", ()):
        changed[offset] ^= mask
    if (at := how.get("negate_s")) is not None:
        changed[at : at + 32] = (P256_ORDER - int.from_bytes(changed[at : at + 32])).to_bytes(32)
    return bytes(changed) + bytes.fromhex(how.get("append", ""))


def print_sizes() -> None:
    """Prints the bytes that a registration publishes and sends."""
    print("| registration | quote | collateral | evidence file | calldata |\n|---|---|---|---|---|")
    for kind in FORMATS:
        made = prepared(kind)
        row = (made.evidence.quote, made.evidence.collateral, made.evidence.to_bytes(), calldata(made))
        print(f"| SIMULATED {kind} | {' | '.join(f'{len(part):,}' for part in row)} |")
    quote, collateral = "tdx4-90c06f-dstack", "phala-2026-02-tdx-90C06F000000"
    genuine = EvidenceFile(
        (DATA / "quotes" / f"{quote}.bin").read_bytes(),
        (DATA / "collateral" / f"{collateral}.json").read_bytes(),
        (DATA / "quotes" / f"{quote}.eventlog.json").read_bytes(),
    )
    sizes = (len(genuine.quote), len(genuine.collateral), len(genuine.to_bytes()))
    print(f"| genuine TDX v4 with event log | {' | '.join(f'{size:,}' for size in sizes)} | |\n")


def prepared(kind: QuoteKind) -> PreparedRegistration:
    """Prepares a simulated registration."""
    attester = SimulatedAttester(SimulatedVendor(), b"code", format=kind)
    policy = PolicyFile.from_quotes([parse_quote(attester.quote(bytes(64)).quote)])
    place = KeyScope(1337, "0x" + "11" * 20, 1, "0x" + "22" * 20)
    return prepare_registration(attester, "0x" + "33" * 20, place, (1, bytes(32)), policy)


def calldata(made: PreparedRegistration) -> bytes:
    """Returns the calldata of `register`."""
    from earnest.client.chain.abi import Abi
    from earnest.contracts import load_artifact

    policy = PolicyFile.from_quotes([made.quote]).policy
    arguments = [made.registration.as_tuple(), policy.as_tuple(), made.parts.as_tuple()]
    return Abi(load_artifact("AttestationRegistry").abi).encode_call("register", arguments)


def print_seconds(vectors: list[dict[str, Any]]) -> None:
    """Prints the milliseconds of a verification and of a simulated quote."""
    genuine = next(vector for vector in vectors if vector["id"] == "P09")
    verification(genuine)
    print("| step | ms |\n|---|---|")
    print(f"| verify a genuine TDX v4 quote | {milliseconds(lambda: verification(genuine)):.2f} |")
    attester = SimulatedAttester()
    print(
        f"| make a SIMULATED quote and its collateral | {milliseconds(lambda: attester.quote(bytes(64))):.2f} |"
    )


def milliseconds(step: Any) -> float:
    """Returns the mean over REPEATS runs of `step`."""
    start = time.perf_counter()
    for _ in range(REPEATS):
        step()
    return (time.perf_counter() - start) / REPEATS * 1000


if __name__ == "__main__":
    sys.exit(main())
