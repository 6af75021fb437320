"""Generated rounds on which the contracts and `earnest.protocol` must agree, to the last wei.

Everything is real: validators join, trainers commit and reveal, reports are committed and revealed, whoever settles
passes the reference's hints. Only the start is shared: a few runs with their trainers are set up once, and each
round is played on a snapshot of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from earnest.protocol.consensus import Settled
from earnest.protocol.constants import WEIGHT_ONE
from earnest.protocol.penalties import (
    Bond,
    broken_round,
    charges,
    lock_amounts,
    objective_charge,
    seized_amount,
)
from earnest.protocol.report import Report, SeatVote
from earnest.protocol.run import Role
from earnest.protocol.verdicts import Verdict
from tests.contracts.harness import CHAIN_ID, System, reverts
from tests.contracts.rounds import BASE, EVIDENCE, NEWEST, SALT, VALIDATORS, Run, commitment

SIZES = (1, 3, 9, 10, 11, 63, 64, 65, 130, 255, 256)
"""Trainers of the shared runs."""

POOLS = (
    (10**18, 10**17),
    (1, 1),
    (65_535 * 256 - 1, 7),
    ((2**96 - 1) // 4, (2**96 - 1) // 4),
    (0, 5),
    (10**9 + 7, 0),
)
"""(P, Q) of the shared runs, in turn."""

TRAINER_BOND = 10**9 + 9


@dataclass
class World:
    """One shared run; `commits` and `reveals` are calldata by seat."""

    run: Run
    commits: list[bytes] = field(default_factory=list[bytes])
    reveals: list[bytes] = field(default_factory=list[bytes])

    def send(self, seat: int, data: bytes) -> None:
        run = self.run
        run.evm.revm.message_call(run.trainers[seat], run.system.runs.address, calldata=data)


def build_worlds(system: System, sizes: Sequence[int] = SIZES) -> list[World]:
    """Runs of all sizes, trainers joined, before the first round."""
    worlds: list[World] = []
    for i, size in enumerate(sizes):
        trainer_pool, validator_pool = POOLS[i % len(POOLS)]
        ceiling = 2**96 - 1 if i % 2 else TRAINER_BOND * 3 // 100
        run = Run.create(
            system,
            rounds=2,
            start=system.evm.time + 100_000,
            trainer_pool=trainer_pool,
            validator_pool=validator_pool,
            ceiling=ceiling,
            full_seats=1 + i * size // (2 * len(sizes)),
        )
        run.join_trainers(size // 3, bond=TRAINER_BOND * 7)
        run.join_trainers(size - size // 3, bond=TRAINER_BOND)
        world = World(run)
        for seat, who in enumerate(run.trainers):
            manifest = run.manifest(seat, 0)
            sealed = commitment(CHAIN_ID, system.runs.address, run.id, 0, who, manifest.hash(), SALT)
            world.commits.append(system.runs.calldata("commit", run.id, 0, seat, sealed))
            world.reveals.append(system.runs.calldata("reveal", seat, manifest, SALT, b""))
        worlds.append(world)
    return worlds


# Generated input.


@dataclass(frozen=True)
class Round:
    """What happens in one generated round."""

    stakes: list[int]
    committed: list[int]
    revealed: list[int]
    sealed: dict[int, Report]
    opened: dict[int, Report]


def generate(random: Random, size: int) -> Round:
    """A round of a run with `size` trainers: honest, lying, lazy, abstaining and missing validators."""
    count = random.randint(1, 16)
    stakes = _stakes(random, count)
    attendance = random.choice((0.5, 0.97, 1.0))
    committed = [seat for seat in range(size) if random.random() < attendance]
    missing = random.choice((0.0, 0.0, 0.02, 0.3, 0.6, 1.0))
    revealed = [seat for seat in committed if random.random() >= missing]
    special = (0, 1, 49, 50, 51, WEIGHT_ONE)
    truth = [random.choice((*special, *[random.randint(0, WEIGHT_ONE)] * 6)) for _ in range(size)]
    crime = random.choice((0.0, 0.1, 0.7))
    guilty = {seat: random.randint(2, 8) for seat in range(size) if random.random() < crime}
    rule = random.choice((Verdict.HARMFUL, None, None))
    guilty = {seat: rule or kind for seat, kind in guilty.items()}
    usual = random.choice(("honest", "honest", "exact", "any"))
    shows = random.choice((0.6, 0.9, 1.0, 1.0))
    sealed = {v: _report(random, size, truth, guilty, usual) for v in range(count) if random.random() < shows}
    opened = {v: report for v, report in sealed.items() if random.random() < shows}
    return Round(stakes, committed, revealed, sealed, opened)


def _stakes(random: Random, count: int) -> list[int]:
    least = 10**6
    kind = random.choice(("equal", "close", "wide", "halves"))
    if kind == "equal":
        return [least] * count
    if kind == "close":
        return [least + random.randint(0, 2) for _ in range(count)]
    if kind == "wide":
        return [random.randint(least, random.choice((10**7, 10**18, 2**95))) for _ in range(count)]
    return [least * (count - 1) or least, *[least] * (count - 1)]  # the first holds exactly half


def _report(random: Random, size: int, truth: Sequence[int], guilty: dict[int, int], usual: str) -> Report:
    def honest(seat: int) -> SeatVote:
        if seat in guilty and random.random() < 0.9:
            return SeatVote(0, guilty[seat])
        noise = truth[seat] * random.randint(-25, 25) // 1_000
        return SeatVote(min(WEIGHT_ONE, max(0, truth[seat] + noise)), Verdict.ACCEPTED)

    def exact(seat: int) -> SeatVote:
        return SeatVote(truth[seat], Verdict.ACCEPTED) if seat not in guilty else SeatVote(0, guilty[seat])

    def lying(seat: int) -> SeatVote:
        return SeatVote(random.randint(0, WEIGHT_ONE), Verdict.ACCEPTED)

    def abstaining(_seat: int) -> SeatVote:
        return SeatVote(0, Verdict.ABSTAIN)

    def absurd(_seat: int) -> SeatVote:
        return SeatVote(random.randint(0, WEIGHT_ONE), random.choice((0, 1, 4, 9, 254, 255)))

    styles: tuple[Callable[[int], SeatVote], ...] = (honest, exact, lying, abstaining, absurd)
    style = {"honest": honest, "exact": exact}.get(usual)
    if style is None or random.random() < 0.15:
        style = random.choice(styles)
    judged = size if random.random() < 0.9 else random.randint(0, size)
    pair = (BASE, NEWEST) if random.random() < 0.95 else random.choice(((NEWEST, NEWEST), (BASE, BASE)))
    return Report(*pair, EVIDENCE, tuple(style(seat) for seat in range(judged)))


# Playing and comparing.


def agree(world: World, random: Random) -> Settled:
    """Play one generated round on the contracts and compare all of it with the reference; undone afterwards."""
    with world.run.evm.anchor():
        run = world.run
        run.validators, run.reports = [], {}
        play(world, generate(random, len(run.trainers)))
        expected = run.expected()
        if expected.void:
            _agree_on_void(run)
        else:
            _agree_on_pay(run, expected, random)
        _agree_on_charges(run)
        if not expected.void:
            _agree_on_locks(run, expected)
        return expected


def play(world: World, generated: Round) -> None:
    """Everything up to the settle window."""
    run = world.run
    run.join_validators(generated.stakes)
    run.enter("commit")
    for seat in generated.committed:
        world.send(seat, world.commits[seat])
    run.enter("reveal")
    for seat in generated.revealed:
        world.send(seat, world.reveals[seat])
    run.score(generated.opened, sealed=generated.sealed)


def _agree_on_void(run: Run) -> None:
    for majority in range(16):
        with reverts("settlement: no majority"):
            run.settlement.settle(run.id, 0, [], run.words(), majority)
    burned = run.system.vault.burned()
    run.settlement.void(run.id, 0, run.words())
    pools = run.params.trainer_pool + run.params.validator_pool
    assert run.system.vault.burned() - burned == (pools if run.ballot().revealed else 0)


def _agree_on_pay(run: Run, expected: Settled, random: Random) -> None:
    with reverts("settlement: round is not void"):
        run.settlement.void(run.id, 0, run.words())
    _refuse_other_medians(run, expected, random)
    trainers = [run.idle(who) for who in run.trainers]
    validators = [run.idle(who) for who in VALIDATORS]
    burned, bonds = run.system.vault.burned(), [Bond(run.bond_of(who)) for who in VALIDATORS]
    run.settle()
    (log,) = run.evm.events("RoundSettled")
    assert (log["base_state"], log["newest_state"]) == expected.pair
    assert (log["active_stake"], log["burned"]) == (run.ballot().active_stake, expected.burned)
    assert [run.idle(who) for who in run.trainers] == _sum(trainers, expected.trainer_pay)
    assert [run.idle(who) for who in VALIDATORS] == _sum(validators, expected.validator_pay)
    harmful = [seat for seat, kind in enumerate(expected.verdicts) if kind == Verdict.HARMFUL]
    settled, void, agreeing, found = run.settlement.round_record(run.id, 0)
    assert (settled, void) == (True, False)
    assert (frozenset(_seats(agreeing)), _seats(found)) == (expected.agreeing, harmful)
    paid = sum(expected.trainer_pay) + sum(expected.validator_pay)
    assert run.escrow() == run.params.budget - paid - expected.burned
    terms, charged = run.params.penalty_terms(), 0
    for v, report in enumerate(run.ballot().reports):
        if report is not None and v not in expected.agreeing:
            amount = objective_charge(terms, bonds[v], 0)
            assert run.bond_of(VALIDATORS[v]) == bonds[v].total - amount
            charged += amount
    assert run.system.vault.burned() - burned == expected.burned + charged


def _sum(before: Sequence[int], change: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(before, change, strict=True)]


def _refuse_other_medians(run: Run, expected: Settled, random: Random) -> None:
    """One seat's hint off by one, either way, is refused."""
    span = run.ballot().span
    if not span:
        return
    seat = random.randrange(span)
    right = expected.consensus[seat]
    for wrong in (right - 1, right + 1):
        if 0 <= wrong <= WEIGHT_ONE:
            hints = list(expected.consensus)[: run.ballot().span]
            hints[seat] = wrong
            revealed = seat in run.ballot().revealed
            reason = (
                "hint for unrevealed"
                if not revealed
                else "hint too low"
                if wrong < right
                else "hint too high"
            )
            with reverts(f"settlement: {reason}"):
                settle_with(run, hints, expected.majority)


def settle_with(run: Run, consensus: Sequence[int], majority: int) -> None:
    """Settle with these hints."""
    words = [0] * -(-len(consensus) // 16)
    for i, c in enumerate(consensus):
        words[i // 16] |= c << (240 - 16 * (i % 16))
    run.settlement.settle(run.id, 0, words, run.words(), majority)


def _agree_on_charges(run: Run) -> None:
    """Objective faults of both roles."""
    terms = run.params.penalty_terms()
    for role, accounts in ((Role.TRAINER, run.trainers), (Role.VALIDATOR, run.validators)):
        committed, revealed = (_seats(bits) for bits in run.system.runs.unrevealed(run.id, role, 0))
        bonds = {seat: Bond(run.bond_of(who)) for seat, who in enumerate(accounts)}
        used = {seat: run.settlement.charged_in(run.id, 0, who) for seat, who in enumerate(accounts)}
        amounts = charges(terms, committed, revealed, bonds, used)
        run.settlement.charge(run.id, 0, role)
        logged = {fault["seat"]: fault["amount"] for fault in run.evm.events("FaultCharged")}
        assert logged == amounts
        for seat, who in enumerate(accounts):
            assert run.bond_of(who) == bonds[seat].total - amounts.get(seat, 0)
            assert run.settlement.charged_in(run.id, 0, who) == used[seat] + amounts.get(seat, 0)


def _agree_on_locks(run: Run, expected: Settled) -> None:
    terms = run.params.penalty_terms()
    bonds = {seat: Bond(run.bond_of(who)) for seat, who in enumerate(run.trainers)}
    seats = list(range(len(run.trainers)))
    harmful = sum(bonds[seat].total for seat, kind in enumerate(expected.verdicts) if kind == Verdict.HARMFUL)
    broken = broken_round(harmful, sum(bonds[seat].total for seat in run.ballot().revealed))
    assert run.settlement.broken(run.id, 0) == broken
    amounts = lock_amounts(terms, expected.verdicts, broken, seats, bonds)
    locked: dict[int, int] = {}
    for first in range(0, len(seats), 32):
        page = seats[first : first + 32]
        if not any(seat in amounts for seat in page):
            with reverts("settlement: nothing to lock"):
                run.lock(page)
            continue
        run.lock(page)
        locked |= {lock["seat"]: lock["amount"] for lock in run.evm.events("PenaltyLocked")}
    assert locked == amounts
    run.leave("contest")
    for seat, amount in list(amounts.items())[:8]:
        who = run.trainers[seat]
        assert run.settlement.locked(run.id, who) == amount
        used = run.settlement.charged_in(run.id, 0, who)
        kind = expected.verdicts[seat]
        assert kind is not None
        run.settlement.settle_penalty(run.penalty_id(seat))
        seized = seized_amount(terms, kind, amount, 0, used)
        assert run.bond_of(who) == bonds[seat].total - seized


def _seats(bits: int) -> list[int]:
    return [seat for seat in range(256) if bits >> seat & 1]
