"""Plays rounds of a real run on the contracts: join, commit, reveal, seed, reports, up to the settle window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from earnest.protocol.consensus import Ballot, Settled, hint_words, settle
from earnest.protocol.constants import NO_SEAT
from earnest.protocol.manifest import Manifest, commitment
from earnest.protocol.merkle import admission_proof, admission_root
from earnest.protocol.report import Report, SeatVote, report_commitment
from earnest.protocol.run import Role, RunParams
from earnest.protocol.verdicts import Verdict
from tests.contracts.harness import CHAIN_ID, Contract, Evm, System, account

BASE, NEWEST, EVIDENCE = b"\x01" * 32, b"\x02" * 32, b"\x03" * 32
SALT = b"\x05" * 32
TRAINERS = tuple(account(f"trainer {i}") for i in range(256))
VALIDATORS = tuple(account(f"validator {v}") for v in range(16))
ADMITTED = [(address, Role.VALIDATOR) for address in VALIDATORS]
SPONSOR, STRANGER = account("sponsor"), account("stranger")

TERMS = RunParams(
    start=0,  # one period after the run is created, unless given
    rounds=3,
    commit_s=1_000,
    reveal_s=500,
    report_commit_s=400,
    report_reveal_s=300,
    settle_s=600,
    contest_s=700,
    overlap=False,
    trainer_limit=256,
    validator_limit=16,
    trainer_pool=10**18,
    validator_pool=10**17,
    trainer_min_bond=10**6,
    validator_min_bond=10**6,
    validator_max_stake=2**96 - 1,
    exit_delay=2 * 86_400,
    open_trainers=True,
    admission_root=admission_root(ADMITTED),
    recipe_hash=b"\x07" * 32,
    initial_state=b"\x08" * 32,
)


def accepted(weight: int) -> SeatVote:
    """A vote that counts."""
    return SeatVote(weight, Verdict.ACCEPTED)


def verdict(kind: int) -> SeatVote:
    """A vote that does not."""
    return SeatVote(0, kind)


def report(votes: Iterable[SeatVote], base: bytes = BASE, newest: bytes = NEWEST) -> Report:
    """A report with these votes, by seat."""
    return Report(base, newest, EVIDENCE, tuple(votes))


def payment(account: str, wei: int) -> int:
    """One payment as the vault takes it."""
    return int(account, 16) << 96 | wei


def fund(system: System, who: str, wei: int) -> None:
    """Mint and deposit: `who` has that much more idle in the vault."""
    system.token.mint(who, wei, sender=account("deployer"))
    system.token.approve(system.vault.address, wei, sender=who)
    system.vault.deposit(wei, sender=who)


@dataclass
class Run:
    """One run, and the test's copy of it. Reports by round and validator seat, as committed."""

    system: System
    id: int
    params: RunParams
    trainers: list[str] = field(default_factory=list[str])
    validators: list[str] = field(default_factory=list[str])
    reports: dict[int, dict[int, Report]] = field(default_factory=dict[int, dict[int, Report]])
    operators: dict[str, str] = field(default_factory=dict[str, str])  # by owner, where another account

    @classmethod
    def create(cls, system: System, **changes: Any) -> Run:
        """The sponsor funds and opens a run; `changes` to TERMS."""
        params = replace(TERMS, **changes)
        if params.start == 0:
            params = replace(params, start=system.evm.time + params.schedule().period + 1_000)
        fund(system, SPONSOR, params.budget)
        system.vault.allow(system.settlement.address, params.budget, sender=SPONSOR)
        system.terms.create_run(params, "http://run.example/", sender=SPONSOR)
        return cls(system, system.runs.run_count(), params)

    # Shorthands.

    @property
    def evm(self) -> Evm:
        return self.system.evm

    @property
    def settlement(self) -> Contract:
        return self.system.settlement

    @property
    def open_round(self) -> int:
        """The round whose period it is."""
        return self.params.schedule().round_at(self.evm.time)

    def bond_of(self, who: str) -> int:
        return self.system.vault.bond_of(self.settlement.address, self.id, who)

    def idle(self, who: str) -> int:
        return self.system.vault.idle(who)

    def escrow(self) -> int:
        return self.system.vault.escrow(self.settlement.address, self.id)

    def enter(self, window: str, round: int = 0, offset: int = 0) -> None:
        """Travel to a window's start (plus offset): "commit", "reveal", "report_commit", .. of a round."""
        self.evm.travel(getattr(self.params.schedule(), window)(round).start + offset)

    def leave(self, window: str, round: int = 0, offset: int = 0) -> None:
        """Travel to a window's end (plus offset)."""
        self.evm.travel(getattr(self.params.schedule(), window)(round).end + offset)

    # Seats.

    def bond(self, who: str, wei: int) -> None:
        fund(self.system, who, wei)
        self.system.vault.bond(self.settlement.address, self.id, wei, sender=who)

    def join_trainers(self, count: int, bond: int = 10**9) -> None:
        for who in TRAINERS[len(self.trainers) : len(self.trainers) + count]:
            self.bond(who, bond)
            self.system.runs.join(self.id, Role.TRAINER, who, "http://t.example/", [], NO_SEAT, sender=who)
            self.trainers.append(who)

    def join_validators(self, stakes: Sequence[int]) -> None:
        for who, stake in zip(VALIDATORS[len(self.validators) :], stakes, strict=False):
            self.bond(who, stake)
            proof = admission_proof(ADMITTED, who, Role.VALIDATOR)
            self.system.runs.join(
                self.id, Role.VALIDATOR, who, "http://v.example/", proof, NO_SEAT, sender=who
            )
            self.validators.append(who)

    # A round, phase by phase.

    def manifest(self, seat: int, round: int) -> Manifest:
        nothing = bytes(32)
        return Manifest(self.id, round, self.trainers[seat], BASE, NEWEST, nothing, nothing, 1, 2, 3)

    def commit(self, seats: Iterable[int], round: int = 0) -> None:
        runs = self.system.runs
        for seat in seats:
            who = self.trainers[seat]
            digest = self.manifest(seat, round).hash()
            sealed = commitment(CHAIN_ID, runs.address, self.id, round, who, digest, SALT)
            runs.commit(self.id, round, seat, sealed, sender=self.operators.get(who, who))

    def reveal(self, seats: Iterable[int], round: int = 0) -> None:
        for seat in seats:
            who = self.trainers[seat]
            sender = self.operators.get(who, who)
            self.system.runs.reveal(seat, self.manifest(seat, round), SALT, b"", sender=sender)

    def seed(self, round: int = 0) -> None:
        self.system.runs.seed(self.id, round)
        self.evm.mine(4)
        self.system.runs.seed(self.id, round)

    def seal(self, reports: Mapping[int, Report], round: int = 0) -> None:
        runs = self.system.runs
        for seat, sealed in reports.items():
            who = self.validators[seat]
            digest = report_commitment(CHAIN_ID, runs.address, self.id, round, who, sealed.hash(), SALT)
            runs.report_commit(self.id, round, seat, digest, sender=who)

    def unseal(self, reports: Mapping[int, Report], round: int = 0) -> None:
        for seat, opened in reports.items():
            who = self.validators[seat]
            self.system.runs.report_reveal(self.id, round, seat, opened.words(), SALT, sender=who)
            self.reports.setdefault(round, {})[seat] = opened

    def play(
        self,
        reports: Mapping[int, Report],
        round: int = 0,
        committed: Sequence[int] | None = None,
        revealed: Sequence[int] | None = None,
        sealed: Mapping[int, Report] | None = None,
    ) -> None:
        """The whole round up to the settle window. By default all trainers reveal and all reports are opened."""
        committed = range(len(self.trainers)) if committed is None else committed
        self.enter("commit", round)
        self.commit(committed, round)
        self.enter("reveal", round)
        self.reveal(committed if revealed is None else revealed, round)
        self.score(reports, round, sealed)

    def score(
        self, reports: Mapping[int, Report], round: int = 0, sealed: Mapping[int, Report] | None = None
    ) -> None:
        """Draws the seed, commits to `sealed` (default: `reports`), reveals `reports`, goes on to the settle window."""
        self.enter("report_commit", round)
        self.seed(round)
        self.seal(reports if sealed is None else sealed, round)
        self.enter("report_reveal", round)
        self.unseal(reports, round)
        self.enter("settle", round)

    # Settlement.

    def words(self, round: int = 0) -> list[list[bytes]]:
        """The revealed reports as settlement takes them, by validator seat."""
        opened = self.reports.get(round, {})
        return [opened[v].words() if v in opened else [] for v in range(max(opened, default=-1) + 1)]

    def ballot(self, round: int = 0) -> Ballot:
        """The reference's input, read from TrainingRuns."""
        facts = self.system.runs.round_facts(self.id, round)
        opened = self.reports.get(round, {})
        return Ballot(
            stakes=tuple(facts.stakes),
            active_stake=facts.active_stake,
            reports=tuple(opened.get(v) for v in range(16)),
            revealed=frozenset(i for i in range(256) if facts.revealed >> i & 1),
            seats=facts.trainer_count,
        )

    def expected(self, round: int = 0) -> Settled:
        """The reference's answer."""
        params = self.params
        return settle(self.ballot(round), params.trainer_pool, params.validator_pool, params.full_seats)

    def settle(self, round: int = 0, sender: str = STRANGER) -> None:
        """Settle with the reference's hints."""
        expected = self.expected(round)
        hints = hint_words(expected.consensus[: self.ballot(round).span])
        majority = max(expected.majority, 0)
        self.settlement.settle(self.id, round, hints, self.words(round), majority, sender=sender)

    def lock(self, seats: Sequence[int], round: int = 0) -> None:
        self.settlement.lock(self.id, round, seats, self.words(round))

    def penalty(self, seat: int, round: int = 0) -> Any:
        return self.settlement.penalty(self.penalty_id(seat, round))

    def penalty_id(self, seat: int, round: int = 0) -> bytes:
        return self.settlement.penalty_id(self.id, round, seat)
