# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Terms
@license MIT
@notice What a run fixes for its life: checked, packed into seven words, unpacked. Protocol section 3.
@dev The attestation policy is not among the seven: rounds are settled without it.
"""

from interfaces import IRunTerms
from interfaces import ITrainingRuns
from modules import bits
from modules import schedule

AMOUNT_MASK: constant(uint256) = 2**96 - 1
BPS_MASK: constant(uint256) = 2**16 - 1
MAX_BPS: constant(uint256) = 5000
MAX_ROUNDS: constant(uint256) = 65535
MAX_TRAINERS: constant(uint256) = 256
MAX_VALIDATORS: constant(uint256) = 16
INCENTIVE: constant(uint256) = 0
AUDITED: constant(uint256) = 1
MAX_LEVEL: constant(uint256) = 3
DAY: constant(uint256) = 86400
MAX_EXIT_DELAY: constant(uint256) = 60 * DAY


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
    @dev Each bad parameter has its own reason, in the words and the order of `earnest.protocol.run`.
    """
    # x - 1 < limit says 1 <= x <= limit: zero wraps around.
    self._need(unsafe_sub(p.rounds, 1) < MAX_ROUNDS, "runs: rounds out of range")
    for window: uint256 in [p.commit_s, p.reveal_s, p.report_commit_s, p.report_reveal_s, p.settle_s, p.contest_s]:
        self._need(window <= MAX_EXIT_DELAY, "runs: window too long")
    self._need(p.commit_s * p.reveal_s * p.report_commit_s * p.report_reveal_s * p.settle_s != 0, "runs: empty window")
    scored: uint256 = p.reveal_s + p.report_commit_s + p.report_reveal_s
    if p.overlap:
        self._need(scored + p.settle_s <= p.commit_s, "runs: windows exceed commit")
    else:
        self._need(p.settle_s <= p.commit_s + scored, "runs: settle window too long")
    self._need(p.start <= schedule.START_MASK, "runs: start too late")
    self._need(p.start >= block.timestamp + self._period(p), "runs: start too early")
    least_delay: uint256 = p.commit_s + scored + p.settle_s + p.contest_s + DAY
    self._need(p.exit_delay >= least_delay, "runs: exit delay too short")
    self._need(p.exit_delay <= MAX_EXIT_DELAY, "runs: exit delay too long")
    self._need(unsafe_sub(p.trainer_limit, 1) < MAX_TRAINERS, "runs: trainer limit out of range")
    self._need(unsafe_sub(p.validator_limit, 1) < MAX_VALIDATORS, "runs: validator limit out of range")
    self._need(p.trainer_min_bond != 0 and p.validator_min_bond != 0, "runs: zero minimum bond")
    # The budget comes last: by then its parts are known to be small, and it cannot have wrapped.
    budget: uint256 = unsafe_mul(p.rounds, unsafe_add(p.trainer_pool, p.validator_pool))
    for amount: uint256 in [
        p.trainer_min_bond, p.validator_min_bond, p.ceiling, p.trainer_pool, p.validator_pool, budget
    ]:
        self._need(amount <= AMOUNT_MASK, "runs: amount too large")
    for bps: uint256 in [
        p.unrevealed_bps, p.malformed_bps, p.harmful_bps, p.copied_bps, p.unfaithful_bps, p.contest_bps
    ]:
        self._need(bps <= MAX_BPS, "runs: penalty too high")
    self._need(p.ceiling_rounds != 0, "runs: zero ceiling window")
    self._need(p.ceiling_rounds <= MAX_ROUNDS, "runs: ceiling window too long")
    self._need(p.verification != AUDITED and p.verification <= MAX_LEVEL, "runs: level not available")
    if p.verification == INCENTIVE:
        self._need(p.attestation_policy == empty(bytes32), "runs: policy at level 0")
    else:
        self._need(p.attestation_policy != empty(bytes32), "runs: empty attestation policy")
    self._need(p.admission_root != empty(bytes32), "runs: empty admission root")
    self._need(p.recipe_hash != empty(bytes32), "runs: empty recipe hash")
    self._need(p.initial_state != empty(bytes32), "runs: empty initial state")


@internal
@pure
def _period(p: ITrainingRuns.RunParams) -> uint256:
    return p.commit_s if p.overlap else p.commit_s + p.reveal_s + p.report_commit_s + p.report_reveal_s


@internal
@pure
def _commit_floor(min_bond: uint256) -> uint256:
    """
    @return Logarithm of half the minimum bond, rounded down: who left and bonds a few wei again puts nothing at stake.
    """
    return max(bits._span(min_bond // 2), 1) - 1


@internal
@pure
def _pack(p: ITrainingRuns.RunParams) -> IRunTerms.Terms:
    """
    @dev Only after `_check`, which bounds every field to its bits.
    """
    return IRunTerms.Terms(
        schedule=(
            p.start
            | (p.commit_s << schedule.COMMIT)
            | (p.reveal_s << schedule.REVEAL)
            | (p.report_commit_s << schedule.SCORE_COMMIT)
            | (p.report_reveal_s << schedule.SCORE_REVEAL)
            | (p.settle_s << schedule.SETTLE)
            | (p.contest_s << schedule.CONTEST)
            | (p.rounds << schedule.ROUNDS)
            | (convert(p.overlap, uint256) << schedule.OVERLAP)
            | (p.trainer_limit << schedule.TRAINERS)
            | (p.validator_limit << schedule.VALIDATORS)
            | (convert(p.open_trainers, uint256) << schedule.OPEN)
            | (self._commit_floor(p.trainer_min_bond) << schedule.FLOOR)
            | (p.verification << schedule.LEVEL)
            | (self._period(p) << schedule.PERIOD)
        ),
        pools=(
            p.trainer_pool
            | (p.validator_pool << 96)
            | (p.unrevealed_bps << 192)
            | (p.malformed_bps << 208)
            | (p.harmful_bps << 224)
            | (p.copied_bps << 240)
        ),
        bonds=(
            p.trainer_min_bond
            | (p.validator_min_bond << 96)
            | (p.unfaithful_bps << 192)
            | (p.contest_bps << 208)
            | (p.exit_delay << 224)
        ),
        ceiling=p.ceiling | (p.ceiling_rounds << 96) | (p.rounds << 112),
        admission_root=p.admission_root,
        recipe_hash=p.recipe_hash,
        initial_state=p.initial_state,
    )


@internal
@pure
def _unpack(t: IRunTerms.Terms, attestation_policy: bytes32) -> ITrainingRuns.RunParams:
    return ITrainingRuns.RunParams(
        start=t.schedule & schedule.START_MASK,
        rounds=t.ceiling >> 112,
        commit_s=schedule._seconds(t.schedule, schedule.COMMIT),
        reveal_s=schedule._seconds(t.schedule, schedule.REVEAL),
        report_commit_s=schedule._seconds(t.schedule, schedule.SCORE_COMMIT),
        report_reveal_s=schedule._seconds(t.schedule, schedule.SCORE_REVEAL),
        settle_s=schedule._seconds(t.schedule, schedule.SETTLE),
        contest_s=schedule._seconds(t.schedule, schedule.CONTEST),
        overlap=(t.schedule >> schedule.OVERLAP) & 1 == 1,
        trainer_limit=(t.schedule >> schedule.TRAINERS) & 511,
        validator_limit=(t.schedule >> schedule.VALIDATORS) & 31,
        trainer_pool=t.pools & AMOUNT_MASK,
        validator_pool=(t.pools >> 96) & AMOUNT_MASK,
        trainer_min_bond=t.bonds & AMOUNT_MASK,
        validator_min_bond=(t.bonds >> 96) & AMOUNT_MASK,
        exit_delay=t.bonds >> 224,
        unrevealed_bps=(t.pools >> 192) & BPS_MASK,
        malformed_bps=(t.pools >> 208) & BPS_MASK,
        harmful_bps=(t.pools >> 224) & BPS_MASK,
        copied_bps=t.pools >> 240,
        unfaithful_bps=(t.bonds >> 192) & BPS_MASK,
        contest_bps=(t.bonds >> 208) & BPS_MASK,
        ceiling=t.ceiling & AMOUNT_MASK,
        ceiling_rounds=(t.ceiling >> 96) & BPS_MASK,
        verification=schedule._level(t.schedule),
        attestation_policy=attestation_policy,
        open_trainers=(t.schedule >> schedule.OPEN) & 1 == 1,
        admission_root=t.admission_root,
        recipe_hash=t.recipe_hash,
        initial_state=t.initial_state,
    )
