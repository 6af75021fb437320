# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Settlement
@license MIT
@notice The vault's manager: turns reports into pay and penalties. Protocol sections 8 and 9.
@dev Everything about a round is read from TrainingRuns in one call and recomputed from the reports, which are passed
     again and checked against their hashes. All of it happens in the round's settle window; what is not done by then lapses.
@custom:security No owner, no admin. Pay never exceeds P and Q of its round, penalties never the bond, and seized money
     is burned. Calls go to the vault and to TrainingRuns only, both fixed at deployment.
"""

from interfaces import ISettlement
from interfaces import ITrainingRuns
from modules import bits
from modules import consensus
from modules import constants
from modules import penalties
from modules import round_records
from modules import schedule
from modules import verdicts
from modules import wiring

implements: ISettlement

initializes: wiring
initializes: penalties[wiring := wiring]
initializes: round_records

exports: (
    constants.PROTOCOL_VERSION,
    wiring.VAULT,
    wiring.RUNS,
    penalties.penalty_id,
    penalties.penalty,
    penalties.locked,
    penalties.charged_in,
    round_records.round_record,
    round_records.charged,
)


final_state: public(HashMap[uint256, bytes32])     # run -> root of the model it delivers
_unopened_refunded: HashMap[uint256, uint256]      # run -> wei refunded early, after `end`
_closed: HashMap[uint256, uint256]                 # run -> rounds whose outcome `refund` has checked


@deploy
def __init__(vault: address, runs: address):
    """
    @param vault The StakeVault
    @param runs Address at which TrainingRuns will be deployed
    """
    wiring.__init__(vault, runs)


@external
def open(run: uint256, sponsor: address, amount: uint256, exit_delay: uint256):
    """
    @notice TrainingRuns only: open a run in the vault with its whole budget, `amount` wei of the sponsor's idle balance.
    """
    self._only_runs()
    extcall wiring._vault().open_run(run, sponsor, amount, exit_delay)


# Consensus and pay.


@external
def settle(
    run: uint256,
    round: uint256,
    hints: DynArray[uint256, 16],
    reports: DynArray[DynArray[bytes32, 29], 16],
    majority: uint256,
):
    """
    @notice Settle a round, once, and pay its trainers and validators: anyone, in the settle window. A validator whose
            report is on other states than the majority's counts as absent, is not paid, and is charged.
    @param hints Consensus weights c_i up to the last revealed seat, sixteen 16-bit values a word, most significant first
    @param reports Report of each validator seat, empty for a seat that revealed none
    @param majority A validator seat whose (base root, newest root) more than half of T reported
    """
    facts: ITrainingRuns.RoundFacts = self._facts(run, round)
    consensus._check(reports, facts.report_hashes)
    agreeing: uint256 = consensus._majority(reports, facts.stakes, facts.active_stake, majority)
    assert agreeing != 0, "settlement: no majority"
    count: uint256 = bits._span(facts.revealed)
    assert len(hints) == (count + 15) // 16, "settlement: wrong hint count"
    if count % 16 != 0:
        assert hints[count // 16] << (16 * (count % 16)) == 0, "settlement: hint beyond seats"

    tally: consensus.Tally = consensus._tally(
        reports, facts.stakes, facts.active_stake, agreeing, facts.revealed, count, hints
    )
    round_records._record(run, round, agreeing, tally.harmful)
    burned: uint256 = 0
    if round == facts.rounds:
        self.final_state[run] = reports[majority][consensus.NEWEST]
        log ISettlement.FinalState(run=run, state=self.final_state[run])
    elif tally.judged != 0:
        burned = self._pay(run, round, facts, tally, count, hints)
    log ISettlement.RoundSettled(
        run=run,
        round=round,
        active_stake=facts.active_stake,
        agreeing=agreeing,
        consensus=hints,
        base_state=reports[majority][consensus.BASE],
        newest_state=reports[majority][consensus.NEWEST],
        burned=burned,
    )
    for v: uint256 in range(len(reports), bound=16):
        if len(reports[v]) != 0 and (agreeing >> v) & 1 == 0:
            self._charge(run, facts.params, round, constants.VALIDATOR, 1 << v, penalties.OTHER_STATES)


@external
def void(run: uint256, round: uint256, reports: DynArray[DynArray[bytes32, 29], 16]):
    """
    @notice Void a round in which no pair of roots has more than half of T: anyone, in the settle window. Its P + Q is
            burned if updates were revealed, so that a sponsor cannot get work for nothing by voiding rounds.
    """
    facts: ITrainingRuns.RoundFacts = self._facts(run, round)
    assert not round_records._has(run, round, round_records.VOID), "settlement: already void"
    consensus._check(reports, facts.report_hashes)
    for v: uint256 in range(len(reports), bound=16):
        assert consensus._majority(
            reports, facts.stakes, facts.active_stake, v
        ) == 0, "settlement: round is not void"
    round_records._mark(run, round, round_records.VOID)
    burned: uint256 = 0
    if facts.revealed != 0:
        burned = facts.params.trainer_pool + facts.params.validator_pool
        extcall wiring._vault().burn_escrow(run, burned)
    log ISettlement.RoundVoided(run=run, round=round, active_stake=facts.active_stake, burned=burned)


@external
def refund(run: uint256):
    """
    @notice Return to the sponsor what the run no longer needs, anyone: after `end` the rounds that will never open,
            after the last round's settle window everything left, less what is burned then: the P + Q of each
            round with reveals that was neither settled nor voided in its window. A call checks up to 256
            rounds; call again until all are checked.
    """
    params: ITrainingRuns.RunParams = wiring._params(run)
    rounds: uint256 = staticcall wiring._runs().run_rounds(run)
    amount: uint256 = 0
    if block.timestamp >= schedule._scored_at(params, rounds - 1) + params.settle_s:  # `end` leaves one round at least
        if self._close_rounds(run, params, rounds):
            return
        amount = staticcall wiring._vault().escrow(self, run)
    else:
        unopened: uint256 = (params.rounds - rounds) * (params.trainer_pool + params.validator_pool)
        amount = unopened - self._unopened_refunded[run]
        self._unopened_refunded[run] = unopened
    assert amount != 0, "settlement: nothing to refund"
    extcall wiring._vault().refund(run, amount)
    log ISettlement.RunRefunded(run=run, amount=amount)


@external
def release_bonds(run: uint256):
    """
    @notice Ends the exit delay of a run's bonds, anyone, a day after the contest window of the report-only round: until
            then what was locked can be seized.
    """
    params: ITrainingRuns.RunParams = staticcall wiring._runs().run_params(run)
    over: uint256 = schedule._scored_at(params, staticcall wiring._runs().run_rounds(run))
    over += params.settle_s + params.contest_s + constants.DAY
    assert block.timestamp >= over, "settlement: run is not over"
    extcall wiring._vault().release(run)


# Faults.


@external
def charge(run: uint256, round: uint256, role: uint256):
    """
    @notice Charge all who committed and did not reveal, unless fewer than half of the commitments were revealed: then
            the network failed. Anyone, once per role, from the end of the reveal window to the end of the settle window.
    """
    params: ITrainingRuns.RunParams = self._params(run, round)
    assert role == constants.TRAINER or role == constants.VALIDATOR, "settlement: no such role"
    scored_at: uint256 = schedule._scored_at(params, round)
    opens: uint256 = scored_at
    if role == constants.TRAINER:
        opens -= params.report_commit_s + params.report_reveal_s
    self._only_within(opens, scored_at + params.settle_s)
    assert not round_records._has(run, round, round_records.CHARGED << role), "settlement: already charged"
    round_records._mark(run, round, round_records.CHARGED << role)

    committed: uint256 = 0
    revealed: uint256 = 0
    committed, revealed = staticcall wiring._runs().unrevealed(run, role, round)
    if bits._count(committed & revealed) * 2 < bits._count(committed):
        log ISettlement.ChargesWaived(
            run=run, round=round, role=role, committed=committed, revealed=committed & revealed
        )
        return
    self._charge(run, params, round, role, committed & ~revealed, penalties.UNREVEALED)


@external
def lock(run: uint256, round: uint256, seats: DynArray[uint256, 32], reports: DynArray[DynArray[bytes32, 29], 16]):
    """
    @notice Lock the penalty of each seat on which a verdict from 3 to 6 holds: anyone, once the round is settled, in the
            settle window. Skipped: seats locked before, seats without such a verdict or whose verdict costs
            nothing, and verdict 4 in a broken round, see `broken`.
    """
    facts: ITrainingRuns.RoundFacts = self._facts(run, round)
    assert round_records._has(run, round, round_records.SETTLED), "settlement: round not settled"
    consensus._check(reports, facts.report_hashes)
    found: DynArray[uint256, 32] = consensus._penal_verdicts(
        reports, facts.stakes, facts.active_stake, round_records._agreeing(run, round), seats
    )
    broken: bool = self._broken(run, round)
    closes: uint256 = schedule._scored_at(facts.params, round) + facts.params.settle_s
    locks: uint256 = 0
    for i: uint256 in range(len(seats), bound=32):
        seat: uint256 = seats[i]
        verdict: uint256 = found[i] & consensus.VERDICT
        if penalties._bps(facts.params, verdict) == 0 or (verdict == verdicts.HARMFUL and broken):
            continue
        if seat >= 256 or (facts.revealed >> seat) & 1 == 0 or penalties._exists(run, round, seat):
            continue
        penalty: ISettlement.Penalty = empty(ISettlement.Penalty)
        penalty.run = run
        penalty.round = round
        penalty.seat = seat
        penalty.account = wiring._owners(run, constants.TRAINER, round, seat, 1)[0]
        penalty.verdict = verdict
        penalty.votes = (found[i] >> 8) & consensus.WEIGHT
        penalty.upheld = found[i] >> 24
        penalty.active_stake = facts.active_stake
        penalty.contest_until = closes + facts.params.contest_s
        penalties._lock(penalty, facts.params)
        locks += 1
    assert locks != 0, "settlement: nothing to lock"
    penalties._record_voters(run, round, facts.stakes)


@external
@view
def broken(run: uint256, round: uint256) -> bool:
    """
    @notice True in a broken round, whose verdicts 4 lock nothing: seats with that verdict have more than half of the bond
            of the revealed seats. A bond counts as it did in the round, at most what is left of it now.
    """
    return self._broken(run, round)


@external
def contest(penalty: bytes32):
    """
    @notice The penalised account contests, until the contest window ends. Locks `contest_bps` more of its bond.
    """
    penalties._contest(penalty)


@external
def vote(penalty: bytes32, uphold: bool):
    """
    @notice A validator that was active in the round changes its verdict on a penalty, until the contest window ends.
    """
    penalties._vote(penalty, uphold)


@external
def settle_penalty(penalty: bytes32):
    """
    @notice After the contest window, anyone: seize what is locked if more than half of T uphold the penalty, or free it.
    """
    penalties._settle_penalty(penalty)


# Internals.


@internal
@view
def _only_runs():
    assert msg.sender == wiring.RUNS, "settlement: only TrainingRuns"


@internal
@view
def _facts(run: uint256, round: uint256) -> ITrainingRuns.RoundFacts:
    """
    @notice Facts of a round from TrainingRuns. Reverts outside its settle window.
    """
    facts: ITrainingRuns.RoundFacts = staticcall wiring._runs().round_facts(run, round)
    self._only_rounds(round, facts.rounds)
    scored_at: uint256 = schedule._scored_at(facts.params, round)
    self._only_within(scored_at, scored_at + facts.params.settle_s)
    return facts


@internal
@view
def _params(run: uint256, round: uint256) -> ITrainingRuns.RunParams:
    self._only_rounds(round, staticcall wiring._runs().run_rounds(run))
    return wiring._params(run)


@internal
@pure
def _only_rounds(round: uint256, rounds: uint256):
    assert round <= rounds, "settlement: no such round"  # the one at `rounds` carries reports only


@internal
def _close_rounds(run: uint256, params: ITrainingRuns.RunParams, rounds: uint256) -> bool:
    """
    @notice Burn the pools of up to 256 further rounds that lapsed with reveals, as those of a void round.
    @return True if rounds are left to check, or the escrow is used up.
    """
    first: uint256 = self._closed[run]
    last: uint256 = min(rounds, first + 256)
    if first == last:
        return False
    self._closed[run] = last
    burned: uint256 = 0
    for round: uint256 in range(first, last, bound=256):
        if round_records._has(run, round, round_records.SETTLED | round_records.VOID):
            continue
        if staticcall wiring._runs().revealed(run, round) == 0:
            continue
        unpaid: uint256 = params.trainer_pool + params.validator_pool
        burned += unpaid
        log ISettlement.RoundLapsed(run=run, round=round, burned=unpaid)
    if burned != 0:
        extcall wiring._vault().burn_escrow(run, burned)
        return last < rounds or staticcall wiring._vault().escrow(self, run) == 0
    return last < rounds


@internal
@view
def _only_within(opens: uint256, closes: uint256):
    assert block.timestamp >= opens, "settlement: too early"
    assert block.timestamp < closes, "settlement: too late"


@internal
def _pay(
    run: uint256,
    round: uint256,
    facts: ITrainingRuns.RoundFacts,
    tally: consensus.Tally,
    count: uint256,
    hints: DynArray[uint256, 16],
) -> uint256:
    """
    @notice Pay P * c_i // D to each trainer and Q * stake_v * matches_v // (T * judged) to each validator. D is the summed
            weight, in which a seat in doubt counts in full, but at least `full_seats` of full weight. Burn what seats in
            doubt would have had beyond their c_i. All round down: the escrow, and so the sponsor, keeps the remainder.
    @return Wei burned
    """
    pool: uint256 = facts.params.trainer_pool
    shares: uint256 = max(tally.weight + tally.doubt, constants.WEIGHT_ONE * facts.params.full_seats)
    owners: DynArray[address, 256] = wiring._owners(run, constants.TRAINER, round, 0, count)
    payments: DynArray[uint256, 256] = []
    left: uint256 = 0  # of the present word of hints
    for i: uint256 in range(len(owners), bound=256):
        if i & 15 == 0:
            left = hints[i >> 4]
        c: uint256 = left >> 240
        left <<= 16
        if c != 0:
            # Safe: the pool has 96 bits, c has 16.
            payments.append(self._payment(owners[i], unsafe_div(unsafe_mul(pool, c), shares)))
    if len(payments) != 0:
        extcall wiring._vault().pay(run, payments)

    owners = wiring._owners(run, constants.VALIDATOR, round, 0, 16)
    payments = []
    amounts: DynArray[uint256, 16] = []
    for v: uint256 in range(len(owners), bound=16):
        matches: uint256 = (tally.matches >> (consensus.MATCHES * v)) & (2**consensus.MATCHES - 1)
        amount: uint256 = facts.params.validator_pool * facts.stakes[v] * matches // (facts.active_stake * tally.judged)
        amounts.append(amount)
        if amount != 0:
            payments.append(self._payment(owners[v], amount))
    if len(payments) != 0:
        extcall wiring._vault().pay(run, payments)
    log ISettlement.ValidatorsPaid(run=run, round=round, amounts=amounts)

    burned: uint256 = pool * tally.doubt // shares
    if burned != 0:
        extcall wiring._vault().burn_escrow(run, burned)
    return burned


@internal
def _charge(
    run: uint256,
    params: ITrainingRuns.RunParams,
    round: uint256,
    role: uint256,
    seats: uint256,
    reason: String[32],
):
    """
    @notice Charge the owners of all seats in a bitmap for an objective fault.
    """
    owners: DynArray[address, 256] = wiring._owners(run, role, round, 0, bits._span(seats))
    for seat: uint256 in range(len(owners), bound=256):
        if (seats >> seat) & 1 != 0:
            penalties._charge(run, params, round, role, seat, owners[seat], reason)


@internal
@view
def _broken(run: uint256, round: uint256) -> bool:
    harmful: uint256 = round_records._harmful[run][round]
    if harmful == 0:
        return False
    revealed: uint256 = staticcall wiring._runs().revealed(run, round)
    total: uint256 = 0
    harmed: uint256 = 0
    for seat: uint256 in range(256):
        if (revealed >> seat) & 1 != 0:
            held: ITrainingRuns.Seat = staticcall wiring._runs().seat_at(run, constants.TRAINER, seat, round)
            bond: uint256 = min(held.stake, staticcall wiring._vault().bond_of(self, run, held.owner))
            total += bond
            if (harmful >> seat) & 1 != 0:
                harmed += bond
    return harmed * 2 > total


@internal
@pure
def _payment(account: address, amount: uint256) -> uint256:
    """
    @notice One word for the vault; amounts have 96 bits.
    """
    return (convert(account, uint256) << 96) | amount
