# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Terms
@license MIT
@notice A run's terms: checked, packed into seven words, unpacked. Protocol section 3.
@dev The attestation policy is not among the seven: rounds are settled without it.
"""

from interfaces import ITrainingRuns
from modules import bits
from modules import constants
from modules import schedule

# Fields above the amounts in `Terms`; the schedule's word has a module of its own.
SECOND: constant(uint256) = constants.AMOUNT_BITS    # pools: Q; bonds: the validators' minimum
UNREVEALED: constant(uint256) = 192                  # pools: bps, 16 bits each
MALFORMED: constant(uint256) = 208
HARMFUL: constant(uint256) = 224
COPIED: constant(uint256) = 240
UNFAITHFUL: constant(uint256) = 192                  # bonds: bps, 16 bits each
CONTEST: constant(uint256) = 208
EXIT_DELAY: constant(uint256) = 224                  # bonds: seconds, 24 bits
CEILING_ROUNDS: constant(uint256) = 96               # ceiling: 16 bits each
ROUNDS: constant(uint256) = 112
MAX_STAKE: constant(uint256) = 128                   # ceiling: 96 bits
FULL_SEATS: constant(uint256) = 248                  # bonds: one less than the term, 8 bits
EXIT_DELAY_MASK: constant(uint256) = 2**24 - 1
BPS_MASK: constant(uint256) = 2**16 - 1
MAX_BPS: constant(uint256) = 5000
MIN_WINDOW: constant(uint256) = 60                   # seconds of G and K: five blocks of Ethereum
MAX_LEVEL: constant(uint256) = 3


@internal
@pure
def _need(met: bool, reason: String[40]):
    """
    @dev One revert for all checks: twenty of them inline cost more code than the rest of a run.
    """
    assert met, reason


@internal
@view
def _check(p: ITrainingRuns.RunParams):
    """
    @dev Each bad parameter has its own reason, as in `earnest.protocol.run` and in its order.
    """
    # x - 1 < limit is 1 <= x <= limit: zero wraps around.
    self._need(unsafe_sub(p.rounds, 1) < constants.MAX_ROUNDS, "runs: rounds out of range")
    for window: uint256 in [p.commit_s, p.reveal_s, p.report_commit_s, p.report_reveal_s, p.settle_s, p.contest_s]:
        self._need(window <= constants.MAX_EXIT_DELAY, "runs: window too long")
    self._need(p.commit_s * p.reveal_s * p.report_commit_s * p.report_reveal_s != 0, "runs: empty window")
    self._need(min(p.settle_s, p.contest_s) >= MIN_WINDOW, "runs: window too short")
    scored: uint256 = p.reveal_s + p.report_commit_s + p.report_reveal_s
    if p.overlap:
        self._need(scored + p.settle_s <= p.commit_s, "runs: windows exceed commit")
    else:
        self._need(p.settle_s <= p.commit_s + scored, "runs: settle window too long")
    self._need(p.start <= schedule.START_MASK, "runs: start too late")
    self._need(p.start >= block.timestamp + schedule._period(p), "runs: start too early")
    least_delay: uint256 = p.commit_s + scored + p.settle_s + p.contest_s + constants.DAY
    self._need(p.exit_delay >= least_delay, "runs: exit delay too short")
    self._need(p.exit_delay <= constants.MAX_EXIT_DELAY, "runs: exit delay too long")
    self._need(unsafe_sub(p.trainer_limit, 1) < constants.MAX_TRAINERS, "runs: trainer limit out of range")
    self._need(unsafe_sub(p.validator_limit, 1) < constants.MAX_VALIDATORS, "runs: validator limit out of range")
    self._need(p.trainer_min_bond != 0 and p.validator_min_bond != 0, "runs: zero minimum bond")
    self._need(p.validator_max_stake >= p.validator_min_bond, "runs: stake cap below minimum bond")
    # The budget comes last: by then its parts are known to be small, and it cannot have wrapped.
    budget: uint256 = unsafe_mul(p.rounds, unsafe_add(p.trainer_pool, p.validator_pool))
    for amount: uint256 in [
        p.trainer_min_bond, p.validator_max_stake, p.ceiling, p.trainer_pool, p.validator_pool, budget
    ]:
        self._need(amount <= constants.AMOUNT_MASK, "runs: amount too large")
    for bps: uint256 in [
        p.unrevealed_bps, p.malformed_bps, p.harmful_bps, p.copied_bps, p.unfaithful_bps, p.contest_bps
    ]:
        self._need(bps <= MAX_BPS, "runs: penalty too high")
    self._need(p.ceiling_rounds != 0, "runs: zero ceiling window")
    self._need(p.ceiling_rounds <= constants.MAX_ROUNDS, "runs: ceiling window too long")
    self._need(unsafe_sub(p.full_seats, 1) < p.trainer_limit, "runs: full seats out of range")
    self._need(p.verification != constants.AUDITED and p.verification <= MAX_LEVEL, "runs: level not available")
    if p.verification == constants.INCENTIVE:
        self._need(p.attestation_policy == empty(bytes32), "runs: policy at level 0")
    else:
        self._need(p.attestation_policy != empty(bytes32), "runs: empty attestation policy")
    self._need(p.admission_root != empty(bytes32), "runs: empty admission root")
    self._need(p.recipe_hash != empty(bytes32), "runs: empty recipe hash")
    self._need(p.initial_state != empty(bytes32), "runs: empty initial state")


@internal
@pure
def _commit_floor(min_bond: uint256) -> uint256:
    """
    @return Logarithm of half the minimum bond, rounded down: the bond that a commit needs.
    """
    return max(bits._span(min_bond // 2), 1) - 1


@internal
@pure
def _pack(p: ITrainingRuns.RunParams) -> ITrainingRuns.Terms:
    """
    @dev Only after `_check`, which bounds every field to its bits.
    """
    return ITrainingRuns.Terms(
        schedule=(
            p.start
            | (p.commit_s << schedule.COMMIT)
            | (p.reveal_s << schedule.REVEAL)
            | (p.report_commit_s << schedule.REPORT_COMMIT)
            | (p.report_reveal_s << schedule.REPORT_REVEAL)
            | (p.settle_s << schedule.SETTLE)
            | (p.contest_s << schedule.CONTEST)
            | (p.rounds << schedule.ROUNDS)
            | (convert(p.overlap, uint256) << schedule.OVERLAP)
            | (p.trainer_limit << schedule.TRAINERS)
            | (p.validator_limit << schedule.VALIDATORS)
            | (convert(p.open_trainers, uint256) << schedule.OPEN)
            | (self._commit_floor(p.trainer_min_bond) << schedule.FLOOR)
            | (p.verification << schedule.LEVEL)
            | (schedule._period(p) << schedule.PERIOD)
        ),
        pools=(
            p.trainer_pool
            | (p.validator_pool << SECOND)
            | (p.unrevealed_bps << UNREVEALED)
            | (p.malformed_bps << MALFORMED)
            | (p.harmful_bps << HARMFUL)
            | (p.copied_bps << COPIED)
        ),
        bonds=(
            p.trainer_min_bond
            | (p.validator_min_bond << SECOND)
            | (p.unfaithful_bps << UNFAITHFUL)
            | (p.contest_bps << CONTEST)
            | (p.exit_delay << EXIT_DELAY)
            | ((p.full_seats - 1) << FULL_SEATS)
        ),
        ceiling=p.ceiling | (p.ceiling_rounds << CEILING_ROUNDS) | (p.rounds << ROUNDS) | (p.validator_max_stake << MAX_STAKE),
        admission_root=p.admission_root,
        recipe_hash=p.recipe_hash,
        initial_state=p.initial_state,
    )


@internal
@pure
def _unpack(t: ITrainingRuns.Terms, attestation_policy: bytes32) -> ITrainingRuns.RunParams:
    return ITrainingRuns.RunParams(
        start=t.schedule & schedule.START_MASK,
        rounds=(t.ceiling >> ROUNDS) & BPS_MASK,
        commit_s=schedule._seconds(t.schedule, schedule.COMMIT),
        reveal_s=schedule._seconds(t.schedule, schedule.REVEAL),
        report_commit_s=schedule._seconds(t.schedule, schedule.REPORT_COMMIT),
        report_reveal_s=schedule._seconds(t.schedule, schedule.REPORT_REVEAL),
        settle_s=schedule._seconds(t.schedule, schedule.SETTLE),
        contest_s=schedule._seconds(t.schedule, schedule.CONTEST),
        overlap=(t.schedule >> schedule.OVERLAP) & 1 == 1,
        trainer_limit=(t.schedule >> schedule.TRAINERS) & 511,
        validator_limit=(t.schedule >> schedule.VALIDATORS) & 31,
        trainer_pool=t.pools & constants.AMOUNT_MASK,
        validator_pool=(t.pools >> SECOND) & constants.AMOUNT_MASK,
        trainer_min_bond=t.bonds & constants.AMOUNT_MASK,
        validator_min_bond=(t.bonds >> SECOND) & constants.AMOUNT_MASK,
        validator_max_stake=t.ceiling >> MAX_STAKE,
        exit_delay=(t.bonds >> EXIT_DELAY) & EXIT_DELAY_MASK,
        unrevealed_bps=(t.pools >> UNREVEALED) & BPS_MASK,
        malformed_bps=(t.pools >> MALFORMED) & BPS_MASK,
        harmful_bps=(t.pools >> HARMFUL) & BPS_MASK,
        copied_bps=t.pools >> COPIED,
        unfaithful_bps=(t.bonds >> UNFAITHFUL) & BPS_MASK,
        contest_bps=(t.bonds >> CONTEST) & BPS_MASK,
        ceiling=t.ceiling & constants.AMOUNT_MASK,
        ceiling_rounds=(t.ceiling >> CEILING_ROUNDS) & BPS_MASK,
        full_seats=(t.bonds >> FULL_SEATS) + 1,
        verification=schedule._level(t.schedule),
        attestation_policy=attestation_policy,
        open_trainers=(t.schedule >> schedule.OPEN) & 1 == 1,
        admission_root=t.admission_root,
        recipe_hash=t.recipe_hash,
        initial_state=t.initial_state,
    )
