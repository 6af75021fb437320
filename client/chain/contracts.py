"""The contracts, typed. A read takes the block to read at; a write returns a `Call`, which the outbox sends.

Method names and arguments are the contracts' own, documented in `contracts/interfaces/*.vyi`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Self

from eth_utils.address import to_checksum_address

from earnest.base.errors import BadAnswer
from earnest.client.chain.abi import Abi
from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.endpoints import Chain
from earnest.contracts import load_artifact
from earnest.protocol.attestation import Claims, Policy, QuoteParts, Registration
from earnest.protocol.constants import NO_SEAT, PROTOCOL_VERSION
from earnest.protocol.manifest import Manifest
from earnest.protocol.run import Role, RunParams


@dataclass(frozen=True)
class Call:
    """A transaction not yet sent: receiver, calldata, and its function and arguments by name. `value` in wei."""

    to: str
    data: bytes
    function: str
    args: dict[str, Any] = field(hash=False)
    value: int = 0


@dataclass(frozen=True)
class Seat:
    """A seat in one round; `owner` is None if nobody holds it. `stake` in wei."""

    owner: str | None
    operator: str | None
    from_round: int
    stake: int
    barred_until: int
    active_from: int


@dataclass(frozen=True)
class SeatId:
    """The role and index of a seat; an account has one seat in a run."""

    role: Role
    seat: int


@dataclass(frozen=True)
class RoundFacts:
    """The inputs of settlement in a round.

    `revealed`: bit i stands for trainer seat i. `stakes`: wei, by validator seat. `active_stake`: T, wei.
    """

    params: RunParams
    rounds: int
    trainer_count: int
    revealed: int
    active_stake: int
    stakes: tuple[int, ...]
    report_hashes: tuple[bytes, ...]


@dataclass(frozen=True)
class EnclaveKey:
    """An enclave key, which signs for rounds that open before `expiry`, unix seconds."""

    address: str
    expiry: int


@dataclass(frozen=True)
class AttestationTerms:
    """Attestation in a run. `policy`: hash of its policy, zero without attestation. Times in unix seconds.

    `narrows_at`: t0 of the second next round, from which a narrowing of the policy counts; `oldest_opened`: t0 of the
    oldest round still open to reveals.
    """

    policy: bytes
    narrows_at: int
    oldest_opened: int


@dataclass(frozen=True)
class PlatformKey:
    """A trainer's place on one platform in a run.

    `expiry` of its enclave key in unix seconds; `bond`: wei of the trainer's bond counted at registration.
    """

    trainer: str
    expiry: int
    bond: int


@dataclass(frozen=True)
class SeedState:
    """State of a seed. `block`: number of the block in which it was requested, 0 if never; `seed` once stored."""

    block: int
    seed: bytes | None


@dataclass(frozen=True)
class SettledRound:
    """A round's settlement on the chain.

    `agreeing`: bitmap of the validator seats that reported the majority's roots. `harmful`: bitmap of the trainer seats
    on which verdict 4 holds.
    """

    settled: bool
    void: bool
    agreeing: int
    harmful: int


class PenaltyStatus(IntEnum):
    NONE = 0
    LOCKED = 1
    CONTESTED = 2
    SEIZED = 3
    RELEASED = 4


@dataclass(frozen=True)
class Penalty:
    """A locked verdict. Amounts and stakes in wei.

    `votes`: bitmap of validator seats upholding it; `contest_until`: end of contests and votes, unix seconds.
    """

    run: int
    round: int
    seat: int
    account: str
    verdict: int
    amount: int
    contest_amount: int
    upheld: int
    active_stake: int
    status: PenaltyStatus
    votes: int
    contest_until: int


class Contract:
    """A contract at an address. `abi` is its artifact's unless given."""

    ARTIFACT = ""

    def __init__(self, chain: Chain, address: str, abi: Abi | None = None) -> None:
        self.chain = chain
        self.address = to_checksum_address(address)
        self.abi = abi or Abi(load_artifact(self.ARTIFACT).abi)

    def _read(self, function: str, *arguments: Any, at: BlockRef) -> Any:
        data = self.chain.call(self.address, self.abi.encode_call(function, arguments), at)
        return self.abi.decode_result(function, data)

    def _call(self, function: str, *arguments: Any) -> Call:
        data = self.abi.encode_call(function, arguments)
        return Call(self.address, data, function, self.abi.named(function, arguments))


class Vault(Contract):
    """StakeVault: every token of the protocol. Protocol section 2. Amounts in wei."""

    ARTIFACT = "StakeVault"

    def deposit(self, amount: int) -> Call:
        return self._call("deposit", amount)

    def withdraw(self, amount: int) -> Call:
        return self._call("withdraw", amount)

    def withdraw_to(self, receiver: str, amount: int) -> Call:
        return self._call("withdraw_to", receiver, amount)

    def allow(self, manager: str, amount: int) -> Call:
        return self._call("allow", manager, amount)

    def bond(self, manager: str, run: int, amount: int) -> Call:
        return self._call("bond", manager, run, amount)

    def start_exit(self, manager: str, run: int) -> Call:
        return self._call("start_exit", manager, run)

    def finish_exit(self, manager: str, run: int) -> Call:
        return self._call("finish_exit", manager, run)

    def flush(self) -> Call:
        return self._call("flush")

    def idle(self, account: str, at: BlockRef) -> int:
        return self._read("idle", account, at=at)

    def allowance(self, account: str, manager: str, at: BlockRef) -> int:
        return self._read("allowance", account, manager, at=at)

    def bond_of(self, manager: str, run: int, account: str, at: BlockRef) -> int:
        return self._read("bond_of", manager, run, account, at=at)

    def exit_time(self, manager: str, run: int, account: str, at: BlockRef) -> int | None:
        """Returns the time from which the bond can be taken back, unix seconds; None if no exit was started."""
        return self._read("exit_time", manager, run, account, at=at) or None

    def live_bond(self, manager: str, run: int, account: str, at: BlockRef) -> int:
        return self._read("live_bond", manager, run, account, at=at)

    def released(self, manager: str, run: int, at: BlockRef) -> bool:
        """Returns True once the run's bonds can be taken back without a delay."""
        return self._read("released", manager, run, at=at)

    def escrow(self, manager: str, run: int, at: BlockRef) -> int:
        return self._read("escrow", manager, run, at=at)

    def exit_delay(self, manager: str, run: int, at: BlockRef) -> int:
        return self._read("exit_delay", manager, run, at=at)

    def sponsor(self, manager: str, run: int, at: BlockRef) -> str:
        return self._read("sponsor", manager, run, at=at)

    def burned(self, at: BlockRef) -> int:
        return self._read("burned", at=at)

    def token(self, at: BlockRef) -> str:
        return self._read("TOKEN", at=at)

    def sink(self, at: BlockRef) -> str:
        return self._read("SINK", at=at)


class Terms(Contract):
    """RunTerms: creates runs. Protocol section 3."""

    ARTIFACT = "RunTerms"

    def create_run(self, params: RunParams, uri: str) -> Call:
        return self._call("create_run", params.as_tuple(), uri)

    def protocol_version(self, at: BlockRef) -> int:
        return self._read("PROTOCOL_VERSION", at=at)

    def runs(self, at: BlockRef) -> str:
        return self._read("RUNS", at=at)


class Runs(Contract):
    """TrainingRuns: runs, seats, commitments, seeds, reports. Protocol sections 3 to 7."""

    ARTIFACT = "TrainingRuns"

    def end(self, run: int) -> Call:
        return self._call("end", run)

    def join(
        self,
        run: int,
        role: Role,
        operator: str,
        uri: str,
        proof: Sequence[bytes] = (),
        take: int = NO_SEAT,
    ) -> Call:
        """`take`: the seat to take over if none is free."""
        return self._call("join", run, role, operator, uri, list(proof), take)

    def set_operator(self, run: int, role: Role, seat: int, operator: str) -> Call:
        return self._call("set_operator", run, role, seat, operator)

    def set_uri(self, run: int, role: Role, seat: int, uri: str) -> Call:
        return self._call("set_uri", run, role, seat, uri)

    def sync(self, run: int, role: Role, seat: int) -> Call:
        return self._call("sync", run, role, seat)

    def ask_back(self, run: int, seat: int) -> Call:
        return self._call("ask_back", run, seat)

    def commit(self, run: int, round: int, seat: int, commitment: bytes) -> Call:
        return self._call("commit", run, round, seat, commitment)

    def reveal(self, seat: int, manifest: Manifest, salt: bytes, attestation: bytes = b"") -> Call:
        return self._call("reveal", seat, manifest.as_tuple(), salt, attestation)

    def seed(self, run: int, round: int) -> Call:
        return self._call("seed", run, round)

    def report_commit(self, run: int, round: int, seat: int, commitment: bytes) -> Call:
        return self._call("report_commit", run, round, seat, commitment)

    def report_reveal(self, run: int, round: int, seat: int, report: Sequence[bytes], salt: bytes) -> Call:
        return self._call("report_reveal", run, round, seat, list(report), salt)

    def protocol_version(self, at: BlockRef) -> int:
        return self._read("PROTOCOL_VERSION", at=at)

    def settlement(self, at: BlockRef) -> str:
        return self._read("SETTLEMENT", at=at)

    def vault(self, at: BlockRef) -> str:
        return self._read("VAULT", at=at)

    def terms(self, at: BlockRef) -> str:
        return self._read("TERMS", at=at)

    def registry(self, at: BlockRef) -> str:
        return self._read("REGISTRY", at=at)

    def run_count(self, at: BlockRef) -> int:
        return self._read("run_count", at=at)

    def run_params(self, run: int, at: BlockRef) -> RunParams:
        return RunParams(*self._read("run_params", run, at=at))

    def run_sponsor(self, run: int, at: BlockRef) -> str:
        return self._read("run_sponsor", run, at=at)

    def run_rounds(self, run: int, at: BlockRef) -> int:
        return self._read("run_rounds", run, at=at)

    def seat_counts(self, run: int, at: BlockRef) -> tuple[int, int]:
        """Returns the numbers of trainer seats and validator seats ever taken."""
        return self._read("seat_counts", run, at=at)

    def seat_at(self, run: int, role: Role, seat: int, round: int, at: BlockRef) -> Seat:
        return _seat(self._read("seat_at", run, role, seat, round, at=at))

    def seat_of(self, run: int, account: str, at: BlockRef) -> SeatId | None:
        role, seat = self._read("seat_of", run, account, at=at)
        return SeatId(Role(role), seat) if role else None

    def commitment_of(self, run: int, role: Role, seat: int, round: int, at: BlockRef) -> bytes:
        """Returns the commitment's first 28 bytes, all that the contract keeps, and four zero bytes.

        All zero if the seat has none for that round, or has committed for a round two or more later.
        """
        return self._read("commitment_of", run, role, seat, round, at=at)

    def revealed(self, run: int, round: int, at: BlockRef) -> int:
        """Returns a bitmap of trainer seats."""
        return self._read("revealed", run, round, at=at)

    def report_hash(self, run: int, round: int, seat: int, at: BlockRef) -> bytes:
        """Returns the hash of the report that the validator seat revealed; 32 zero bytes when there is none."""
        return self.round_facts(run, round, at).report_hashes[seat]

    def seed_of(self, run: int, round: int, at: BlockRef) -> SeedState:
        block, seed = self._read("seed_of", run, round, at=at)
        return SeedState(block, seed if any(seed) else None)

    def round_facts(self, run: int, round: int, at: BlockRef) -> RoundFacts:
        params, *others = self._read("round_facts", run, round, at=at)
        return RoundFacts(RunParams(*params), *others)

    def owners_at(
        self, run: int, role: Role, round: int, first: int, count: int, at: BlockRef
    ) -> tuple[str, ...]:
        return self._read("owners_at", run, role, round, first, count, at=at)

    def unrevealed(self, run: int, role: Role, round: int, at: BlockRef) -> tuple[int, int]:
        """Returns the bitmaps of the seats that committed and of those that revealed."""
        return self._read("unrevealed", run, role, round, at=at)

    def enclave_key(self, run: int, trainer: str, at: BlockRef) -> EnclaveKey | None:
        """Returns the trainer's newest enclave key, expired or not; None if it registered none."""
        word = self._read("enclave_key", run, trainer, at=at)
        return EnclaveKey(to_checksum_address(f"{word & (1 << 160) - 1:040x}"), word >> 160) if word else None

    def attestation(self, run: int, at: BlockRef) -> AttestationTerms:
        return AttestationTerms(*self._read("attestation", run, at=at))


class Settlement(Contract):
    """Settlement: consensus, pay, penalties, contests. Protocol sections 8 and 9."""

    ARTIFACT = "Settlement"

    def settle(
        self,
        run: int,
        round: int,
        hints: Sequence[int],
        reports: Sequence[Sequence[bytes]],
        majority: int,
    ) -> Call:
        """`reports[v]`: validator seat v's words, empty if none; hints as packed by `hint_words`."""
        return self._call("settle", run, round, list(hints), _words(reports), majority)

    def void(self, run: int, round: int, reports: Sequence[Sequence[bytes]]) -> Call:
        return self._call("void", run, round, _words(reports))

    def charge(self, run: int, round: int, role: Role | int) -> Call:
        return self._call("charge", run, round, role)

    def lock(self, run: int, round: int, seats: Sequence[int], reports: Sequence[Sequence[bytes]]) -> Call:
        return self._call("lock", run, round, list(seats), _words(reports))

    def contest(self, penalty: bytes) -> Call:
        return self._call("contest", penalty)

    def vote(self, penalty: bytes, uphold: bool) -> Call:
        return self._call("vote", penalty, uphold)

    def settle_penalty(self, penalty: bytes) -> Call:
        return self._call("settle_penalty", penalty)

    def release_bonds(self, run: int) -> Call:
        return self._call("release_bonds", run)

    def refund(self, run: int) -> Call:
        return self._call("refund", run)

    def protocol_version(self, at: BlockRef) -> int:
        return self._read("PROTOCOL_VERSION", at=at)

    def runs(self, at: BlockRef) -> str:
        return self._read("RUNS", at=at)

    def vault(self, at: BlockRef) -> str:
        return self._read("VAULT", at=at)

    def penalty_id(self, run: int, round: int, seat: int, at: BlockRef) -> bytes:
        return self._read("penalty_id", run, round, seat, at=at)

    def penalty(self, penalty: bytes, at: BlockRef) -> Penalty:
        values = list(self._read("penalty", penalty, at=at))
        values[9] = PenaltyStatus(values[9])
        return Penalty(*values)

    def locked(self, run: int, account: str, at: BlockRef) -> int:
        return self._read("locked", run, account, at=at)

    def charged_in(self, run: int, window: int, account: str, at: BlockRef) -> int:
        """Returns the wei seized that count against the account's ceiling in a window of `ceiling_rounds` rounds."""
        return self._read("charged_in", run, window, account, at=at)

    def broken(self, run: int, round: int, at: BlockRef) -> bool:
        """Returns True if verdict 4 locks nothing: it holds for more than half of the revealed seats' bond."""
        return self._read("broken", run, round, at=at)

    def round_record(self, run: int, round: int, at: BlockRef) -> SettledRound:
        return SettledRound(*self._read("round_record", run, round, at=at))

    def charged(self, run: int, round: int, role: Role | int, at: BlockRef) -> bool:
        return self._read("charged", run, round, role, at=at)

    def final_state(self, run: int, at: BlockRef) -> bytes | None:
        """Returns the root of the model that the run delivered; None until the last round is settled."""
        root = self._read("final_state", run, at=at)
        return root if any(root) else None


class Registry(Contract):
    """AttestationRegistry: enclave keys and what was attested about them. Protocol section 11."""

    ARTIFACT = "AttestationRegistry"

    def register(self, registration: Registration, policy: Policy, evidence: QuoteParts) -> Call:
        return self._call("register", registration.as_tuple(), policy.as_tuple(), evidence.as_tuple())

    def revoke(
        self, run: int, trainer: str, policy: Policy, workload: bytes, platform: bytes, pck: bytes
    ) -> Call:
        """Revokes a key; the last three arguments as in the trainer's newest `KeyRegistered`."""
        return self._call("revoke", run, trainer, policy.as_tuple(), workload, platform, pck)

    def deny(self, policy: Policy, entry: bytes) -> Call:
        """Denies a workload, a platform, a PCK key's hash, a root id, or `key_entry` of an enclave key."""
        return self._call("deny", policy.as_tuple(), entry)

    def raise_floor(self, policy: Policy, number: int) -> Call:
        return self._call("raise_floor", policy.as_tuple(), number)

    def challenge(self, run: int, trainer: str, at: BlockRef) -> tuple[int, bytes]:
        """Returns a block's number and the challenge that it gives the trainer's enclave; valid for 256 blocks."""
        return self._read("challenge", run, trainer, at=at)

    def check_quote(self, policy: Policy, evidence: QuoteParts, at: BlockRef) -> Claims:
        """Returns the claims of a quote that `register` would accept under the policy. Raises Reverted otherwise."""
        return Claims(*self._read("check_quote", policy.as_tuple(), evidence.as_tuple(), at=at))

    def policy_hash(self, policy: Policy, at: BlockRef) -> bytes:
        return self._read("policy_hash", policy.as_tuple(), at=at)

    def denied(self, policy: bytes, entry: bytes, at: BlockRef) -> bool:
        return self._read("denied", policy, entry, at=at)

    def raised_floor(self, policy: bytes, at: BlockRef) -> int:
        """Returns the raised evaluation floor; 0 if the guardian has not raised the policy's own."""
        return self._read("raised_floor", policy, at=at)

    def record_of(self, run: int, trainer: str, at: BlockRef) -> tuple[bytes, int]:
        """Returns the hash of the newest key's record (26 bytes, then zeros) and the block of its challenge."""
        return self._read("record_of", run, trainer, at=at)

    def platform_keys(self, run: int, platform: bytes, at: BlockRef) -> tuple[PlatformKey, ...]:
        """Returns the platform's keys in the run, expired ones included."""
        return tuple(PlatformKey(*values) for values in self._read("platform_keys", run, platform, at=at))

    def runs(self, at: BlockRef) -> str:
        return self._read("RUNS", at=at)

    def settlement(self, at: BlockRef) -> str:
        return self._read("SETTLEMENT", at=at)

    def vault(self, at: BlockRef) -> str:
        return self._read("VAULT", at=at)


class Token(Contract):
    """An ERC-20; `mint` only where the token is our own."""

    ARTIFACT = "PlayToken"

    def approve(self, spender: str, amount: int) -> Call:
        return self._call("approve", spender, amount)

    def transfer(self, to: str, amount: int) -> Call:
        return self._call("transfer", to, amount)

    def mint(self, to: str, amount: int) -> Call:
        return self._call("mint", to, amount)

    def balance_of(self, account: str, at: BlockRef) -> int:
        return self._read("balanceOf", account, at=at)

    def allowance(self, owner: str, spender: str, at: BlockRef) -> int:
        return self._read("allowance", owner, spender, at=at)

    def symbol(self, at: BlockRef) -> str:
        return self._read("symbol", at=at)

    def decimals(self, at: BlockRef) -> int:
        return self._read("decimals", at=at)


@dataclass(frozen=True)
class Contracts:
    """One deployment: the contracts that belong together."""

    terms: Terms
    runs: Runs
    settlement: Settlement
    vault: Vault
    token: Token
    registry: Registry

    @classmethod
    def at(cls, chain: Chain, runs: str, at: BlockRef) -> Self:
        """Reads the other addresses from TrainingRuns. Raises BadAnswer if there is none of our version."""
        front = Runs(chain, runs)
        if not chain.code(runs, at):
            raise BadAnswer(f"there is no contract at {runs}", "check the network and the address")
        version = front.protocol_version(at)
        if version != PROTOCOL_VERSION:
            raise BadAnswer(
                f"the contract speaks protocol version {version}, this program {PROTOCOL_VERSION}",
                "install the release that belongs to the contract",
            )
        vault = Vault(chain, front.vault(at))
        return cls(
            terms=Terms(chain, front.terms(at)),
            runs=front,
            settlement=Settlement(chain, front.settlement(at)),
            vault=vault,
            token=Token(chain, vault.token(at)),
            registry=Registry(chain, front.registry(at)),
        )


def _seat(values: tuple[Any, ...]) -> Seat:
    owner, operator, *others = values
    return Seat(_holder(owner), _holder(operator), *others)


def _holder(address: str) -> str | None:
    return address if int(address, 16) else None


def _words(reports: Sequence[Sequence[bytes]]) -> list[list[bytes]]:
    return [list(report) for report in reports]
