"""A run's parameters, fixed for its life. Protocol section 3.

To add a parameter: CONTRIBUTING.md, "A run parameter".
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from enum import IntEnum
from typing import Any, TypeVar

from earnest.protocol.constants import (
    AMOUNT_LIMIT,
    MAX_EXIT_DELAY_S,
    MAX_PENALTY_BPS,
    MAX_ROUNDS,
    MAX_TRAINERS,
    MAX_VALIDATORS,
    START_LIMIT,
)
from earnest.protocol.penalties import PenaltyTerms
from earnest.protocol.schedule import Schedule

ZERO_HASH = bytes(32)
DEFAULT_PENALTIES = PenaltyTerms()

Part = TypeVar("Part", Schedule, PenaltyTerms)


class Role(IntEnum):
    """Role of a seat, also in an admission leaf."""

    TRAINER = 1
    VALIDATOR = 2


class Level(IntEnum):
    """Level of verification, chosen per run. Protocol section 1."""

    INCENTIVE = 0
    """Held-out loss and bonds; attestations are refused."""

    AUDITED = 1
    """Reserved."""

    ATTESTED = 2
    """Only attested updates count: any other gets verdict 7."""

    OPTIONAL = 3
    """Attestations are checked and recorded, and change no pay."""

    @property
    def uses_attestation(self) -> bool:
        """True if `reveal` takes an enclave's signature."""
        return self >= Level.ATTESTED


AVAILABLE_LEVELS = (Level.INCENTIVE, Level.ATTESTED, Level.OPTIONAL)


@dataclass(frozen=True)
class RunParams:
    """Parameters of `create_run`. Times in seconds, amounts in wei, penalties in bps of the bond."""

    start: int
    rounds: int
    commit_s: int
    reveal_s: int
    report_commit_s: int
    report_reveal_s: int
    settle_s: int
    contest_s: int
    overlap: bool
    trainer_limit: int
    validator_limit: int
    trainer_pool: int
    """P per round."""

    validator_pool: int
    """Q per round."""

    trainer_min_bond: int
    validator_min_bond: int
    validator_max_stake: int
    """Largest part of a validator's bond that counts, wei; the minimum bond gives one seat, one vote."""

    exit_delay: int
    """Seconds from `start_exit` until a bond can be withdrawn; `_checks` has the smallest and the largest."""

    unrevealed_bps: int = DEFAULT_PENALTIES.unrevealed_bps
    malformed_bps: int = DEFAULT_PENALTIES.malformed_bps
    harmful_bps: int = DEFAULT_PENALTIES.harmful_bps
    copied_bps: int = DEFAULT_PENALTIES.copied_bps
    unfaithful_bps: int = DEFAULT_PENALTIES.unfaithful_bps
    contest_bps: int = DEFAULT_PENALTIES.contest_bps
    ceiling: int = DEFAULT_PENALTIES.ceiling
    ceiling_rounds: int = DEFAULT_PENALTIES.ceiling_rounds
    full_seats: int = 1
    """Summed weight, in seats of full weight, from which P is paid out in full (section 8)."""

    verification: int = Level.INCENTIVE
    attestation_policy: bytes = ZERO_HASH
    """keccak256 of the policy that enclave keys are registered under; zero exactly at level 0."""

    open_trainers: bool = False
    admission_root: bytes = ZERO_HASH
    recipe_hash: bytes = ZERO_HASH
    initial_state: bytes = ZERO_HASH

    def as_tuple(self) -> tuple[Any, ...]:
        """Returns the fields in the contract's order."""
        return astuple(self)

    @property
    def budget(self) -> int:
        """Escrow that the sponsor pays, wei: rounds * (P + Q)."""
        return self.rounds * (self.trainer_pool + self.validator_pool)

    @property
    def commit_bond(self) -> int:
        """Live bond that a trainer's commit needs, wei: half the minimum, rounded down to a power of two.

        Less than the minimum, so that a trainer can still work after a penalty; enough that a trainer that left and
        bonded again still has something at stake.
        """
        return 1 << max((self.trainer_min_bond // 2).bit_length() - 1, 0)

    @property
    def level(self) -> Level:
        """Level of verification. Raises ValueError for a number without a level."""
        return Level(self.verification)

    def schedule(self) -> Schedule:
        """Returns the run's windows."""
        return self._part(Schedule)

    def penalty_terms(self) -> PenaltyTerms:
        """Returns the run's penalties. Verdict 6 costs nothing unless the run is audited (section 9)."""
        terms = self._part(PenaltyTerms)
        return terms if self.verification == Level.AUDITED else replace(terms, unfaithful_bps=0)

    def _part(self, kind: type[Part]) -> Part:
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind)})

    def problems(self, now: int | None = None) -> list[str]:
        """Returns the reasons for which `create_run` refuses these parameters, in its order; empty if none.

        `now`: the block time of the call; without it the start is not checked.
        """
        return [reason for broken, reason in self._checks(now) if broken]

    def _checks(self, now: int | None) -> Iterator[tuple[bool, str]]:
        schedule = self.schedule()
        yield not 1 <= self.rounds <= MAX_ROUNDS, "runs: rounds out of range"
        yield from ((True, reason) for reason in schedule.problems())
        yield self.start >= START_LIMIT, "runs: start too late"
        yield now is not None and self.start < now + schedule.period, "runs: start too early"
        yield self.exit_delay < schedule.least_exit_delay, "runs: exit delay too short"
        yield self.exit_delay > MAX_EXIT_DELAY_S, "runs: exit delay too long"
        yield not 1 <= self.trainer_limit <= MAX_TRAINERS, "runs: trainer limit out of range"
        yield not 1 <= self.validator_limit <= MAX_VALIDATORS, "runs: validator limit out of range"
        yield self.trainer_min_bond == 0 or self.validator_min_bond == 0, "runs: zero minimum bond"
        yield self.validator_max_stake < self.validator_min_bond, "runs: stake cap below minimum bond"
        yield self._amounts_too_large(), "runs: amount too large"
        yield max(self._all_bps()) > MAX_PENALTY_BPS, "runs: penalty too high"
        yield self.ceiling_rounds == 0, "runs: zero ceiling window"
        yield self.ceiling_rounds > MAX_ROUNDS, "runs: ceiling window too long"
        yield not 1 <= self.full_seats <= self.trainer_limit, "runs: full seats out of range"
        yield self.verification not in AVAILABLE_LEVELS, "runs: level not available"
        plain, no_policy = self.verification == Level.INCENTIVE, self.attestation_policy == ZERO_HASH
        yield plain and not no_policy, "runs: policy at level 0"
        yield not plain and no_policy, "runs: empty attestation policy"
        yield self.admission_root == ZERO_HASH, "runs: empty admission root"
        yield self.recipe_hash == ZERO_HASH, "runs: empty recipe hash"
        yield self.initial_state == ZERO_HASH, "runs: empty initial state"

    def _amounts_too_large(self) -> bool:
        pools = self.trainer_pool, self.validator_pool
        bonds = self.trainer_min_bond, self.validator_min_bond, self.validator_max_stake
        return max(*pools, *bonds, self.ceiling, self.budget) >= AMOUNT_LIMIT

    def _all_bps(self) -> tuple[int, ...]:
        return tuple(getattr(self, field.name) for field in fields(self) if field.name.endswith("_bps"))
