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
    round_records.matches,
    round_records.validators_paid,
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
    first_seat: uint256,
    count: uint256,
    hints: DynArray[uint256, 16],
    reports: DynArray[DynArray[bytes32, 29], 16],
    majority: uint256,
):
    """
    @notice Settle whole 64-seat pages of a round, in any order, each seat once: anyone, in the settle window.
    @param first_seat First seat, a multiple of 64
    @param count Seats; ends on a page's end or at (or after) the last revealed seat. 0 if nobody revealed.
    @param hints Consensus weights c_i of these seats, sixteen 16-bit values a word, most significant first
    @param reports Report of each validator seat, empty for a seat that revealed none
    @param majority A validator seat whose (base root, newest root) more than half of T reported
    """
    facts: ITrainingRuns.RoundFacts = self._facts(run, round)
    consensus._check(reports, facts.report_hashes)
    assert consensus._holds_majority(
        reports, facts.stakes, facts.active_stake, majority
    ), "settlement: no majority"
    assert count <= 256 and len(hints) == (count + 15) // 16, "settlement: wrong hint count"
    if count % 16 != 0:
        assert hints[count // 16] << (16 * (count % 16)) == 0, "settlement: hint beyond seats"
    span: uint256 = bits._span(facts.revealed)
    pages: uint256 = round_records._unsettled_pages(run, round, span, first_seat, count)

    tally: consensus.Tally = consensus._tally(
        reports, facts.stakes, facts.active_stake, facts.revealed, first_seat, count, hints
    )
    round_records._record(run, round, span, pages, tally)
    log ISettlement.SeatsSettled(
        run=run,
        round=round,
        first_seat=first_seat,
        consensus=hints,
        base_state=reports[majority][consensus.BASE],
        newest_state=reports[majority][consensus.NEWEST],
    )
    if round == facts.rounds:
        self.final_state[run] = reports[majority][consensus.NEWEST]
        log ISettlement.FinalState(run=run, state=self.final_state[run])
    elif tally.positive != 0:
        self._pay_trainers(run, round, facts, first_seat, count, hints)


@external
def pay_validators(run: uint256, round: uint256):
    """
    @notice Pay the validators of a round whose seats are all settled: anyone, once, in the settle window.
    """
    facts: ITrainingRuns.RoundFacts = self._facts(run, round)
    self._only_settled(run, round)
    assert not round_records._has(run, round, round_records.PAID), "settlement: validators are paid"
    assert round < facts.rounds, "settlement: round has no pay"
    round_records._mark(run, round, round_records.PAID)
    positive: uint256 = round_records._positive(run, round)
    owners: DynArray[address, 256] = staticcall wiring._runs().owners_at(run, constants.VALIDATOR, round, 0, 16)
    payments: DynArray[uint256, 256] = []
    amounts: DynArray[uint256, 256] = []
    for v: uint256 in range(len(owners), bound=16):
        amount: uint256 = 0
        if positive != 0:
            matches: uint256 = round_records._matches_of(run, round, v)
            # rounds down: the escrow, and so the sponsor, keeps the remainder
            amount = facts.params.validator_pool * facts.stakes[v] * matches // (facts.active_stake * positive)
        amounts.append(amount)
        if amount != 0:
            payments.append(self._payment(owners[v], amount))
    if len(payments) != 0:
        extcall wiring._vault().pay(run, payments)
    log ISettlement.ValidatorsPaid(run=run, round=round, amounts=amounts)


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
        assert not consensus._holds_majority(
            reports, facts.stakes, facts.active_stake, v
        ), "settlement: round is not void"
    round_records._mark(run, round, round_records.VOID)
    burned: uint256 = 0
    if facts.revealed != 0:
        burned = facts.params.trainer_pool + facts.params.validator_pool
        extcall wiring._vault().burn_escrow(run, burned)
    log ISettlement.RoundVoided(run=run, round=round, burned=burned)


@external
def refund(run: uint256):
    """
    @notice Return to the sponsor what the run no longer needs, anyone: after `end` the rounds that will never open,
            after the last round's settle window everything left, less what is burned then: the unpaid part of P + Q
            of each round with reveals that was neither settled nor voided in its window. A call checks up to 256
            rounds; call again until all are checked.
    """
    params: ITrainingRuns.RunParams = staticcall wiring._runs().run_params(run)
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
    missing: uint256 = committed & ~revealed
    if bits._count(committed & revealed) * 2 < bits._count(committed):
        return
    owners: DynArray[address, 256] = staticcall wiring._runs().owners_at(run, role, round, 0, bits._span(missing))
    for seat: uint256 in range(len(owners), bound=256):
        if (missing >> seat) & 1 != 0:
            penalties._charge(run, params, round, role, seat, owners[seat])


@external
def lock(run: uint256, round: uint256, seats: DynArray[uint256, 64], reports: DynArray[DynArray[bytes32, 29], 16]):
    """
    @notice Lock the penalty of each seat on which a verdict from 3 to 6 holds: anyone, once the round is settled, in the
            settle window. Skipped: seats locked before, seats without such a verdict or whose verdict costs
            nothing, and verdict 4 in a broken round, in which it holds for more than half of the revealed seats.
    """
    facts: ITrainingRuns.RoundFacts = self._facts(run, round)
    self._only_settled(run, round)
    consensus._check(reports, facts.report_hashes)
    broken: bool = round_records._harmful(run, round) * 2 > bits._count(facts.revealed)
    closes: uint256 = schedule._scored_at(facts.params, round) + facts.params.settle_s
    locks: uint256 = 0
    for seat: uint256 in seats:
        if seat >= 256 or (facts.revealed >> seat) & 1 == 0 or penalties._exists(run, round, seat):
            continue
        penalty: ISettlement.Penalty = empty(ISettlement.Penalty)
        penalty.verdict, penalty.upheld, penalty.votes = consensus._penal_verdict(
            reports, facts.stakes, facts.active_stake, seat
        )
        if penalties._bps(facts.params, penalty.verdict) == 0 or (penalty.verdict == verdicts.HARMFUL and broken):
            continue
        penalty.run = run
        penalty.round = round
        penalty.seat = seat
        penalty.account = (staticcall wiring._runs().owners_at(run, constants.TRAINER, round, seat, 1))[0]
        penalty.active_stake = facts.active_stake
        penalty.contest_until = closes + facts.params.contest_s
        penalties._lock(penalty, facts.params)
        if penalty.verdict >= verdicts.HARMFUL:
            extcall wiring._runs().bar(run, seat, (round // facts.params.ceiling_rounds + 1) * facts.params.ceiling_rounds)
        locks += 1
    assert locks != 0, "settlement: nothing to lock"
    penalties._record_voters(run, round, facts.stakes)


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
    return staticcall wiring._runs().run_params(run)


@internal
@pure
def _only_rounds(round: uint256, rounds: uint256):
    assert round <= rounds, "settlement: no such round"  # the one at `rounds` carries reports only


@internal
def _close_rounds(run: uint256, params: ITrainingRuns.RunParams, rounds: uint256) -> bool:
    """
    @notice Burn the unpaid pools of up to 256 further rounds that lapsed with reveals, as those of a void round.
    @return True if rounds are left to check, or the escrow is used up.
    """
    first: uint256 = self._closed[run]
    last: uint256 = min(rounds, first + 256)
    if first == last:
        return False
    self._closed[run] = last
    burned: uint256 = 0
    for round: uint256 in range(first, last, bound=256):
        if round_records._has(run, round, round_records.COMPLETE | round_records.VOID):
            continue
        revealed: uint256 = staticcall wiring._runs().revealed(run, round)
        if revealed == 0:
            continue
        shares: uint256 = constants.WEIGHT_ONE * bits._count(revealed)
        unpaid: uint256 = params.trainer_pool + params.validator_pool
        # rounds up what settled pages were paid: never more is burned than is left of the round
        unpaid -= (params.trainer_pool * round_records._weight(run, round) + shares - 1) // shares
        burned += unpaid
        log ISettlement.RoundLapsed(run=run, round=round, burned=unpaid)
    if burned != 0:
        extcall wiring._vault().burn_escrow(run, burned)
        return last < rounds or staticcall wiring._vault().escrow(self, run) == 0
    return last < rounds


@internal
@view
def _only_settled(run: uint256, round: uint256):
    assert round_records._has(run, round, round_records.COMPLETE), "settlement: round not settled"


@internal
@view
def _only_within(opens: uint256, closes: uint256):
    assert block.timestamp >= opens, "settlement: too early"
    assert block.timestamp < closes, "settlement: too late"


@internal
def _pay_trainers(
    run: uint256,
    round: uint256,
    facts: ITrainingRuns.RoundFacts,
    first: uint256,
    count: uint256,
    hints: DynArray[uint256, 16],
):
    """
    @notice Pay P * c_i // (65535 n) to each owner of these seats in one call of the vault.
    """
    owners: DynArray[address, 256] = staticcall wiring._runs().owners_at(run, constants.TRAINER, round, first, count)
    payments: DynArray[uint256, 256] = []
    pool: uint256 = facts.params.trainer_pool
    shares: uint256 = constants.WEIGHT_ONE * bits._count(facts.revealed)
    left: uint256 = 0  # of the present word of hints
    for i: uint256 in range(len(owners), bound=256):
        if i & 15 == 0:
            left = hints[i >> 4]
        c: uint256 = left >> 240
        left <<= 16
        if c != 0:
            # Safe: the pool has 96 bits, c has 16. Rounds down: the escrow, and so the sponsor, keeps the remainder.
            payments.append(self._payment(owners[i], unsafe_div(unsafe_mul(pool, c), shares)))
    extcall wiring._vault().pay(run, payments)


@internal
@pure
def _payment(account: address, amount: uint256) -> uint256:
    """
    @notice One word for the vault; amounts have 96 bits.
    """
    return (convert(account, uint256) << 96) | amount
