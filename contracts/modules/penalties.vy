# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Penalties
@notice Penalties: amounts, ceilings, locks, contests and their settlement. Protocol section 9.
@dev A lock is a number here, not a transfer: the bond stays in the vault, and the part that has left by the time a
     penalty settles (after `exit_delay`) can no longer be seized. Nobody gains from a penalty: roundings favour the bond.
"""

from interfaces import ISettlement
from interfaces import IStakeVault
from interfaces import ITrainingRuns
from modules import constants
from modules import verdicts
from modules import wiring

uses: wiring

LOCKED: constant(uint256) = 1     # statuses of a penalty
CONTESTED: constant(uint256) = 2
SEIZED: constant(uint256) = 3
RELEASED: constant(uint256) = 4

UNREVEALED: constant(String[32]) = "unrevealed"
OTHER_STATES: constant(String[32]) = "other states"   # a report whose pair of roots is not the majority's

_penalties: HashMap[bytes32, ISettlement.Penalty]
_locked: HashMap[uint256, HashMap[address, uint256]]              # run -> account -> wei
_charged_in: HashMap[uint256, HashMap[uint256, HashMap[address, uint256]]]  # run -> ceiling window -> account -> wei
_barring: HashMap[uint256, HashMap[uint256, HashMap[address, uint256]]]     # the same -> penalties that bar, not released
_voters: HashMap[uint256, HashMap[uint256, uint256[16]]]          # run -> round -> seat: stake << 160 | owner


@internal
@view
def _id(run: uint256, round: uint256, seat: uint256) -> bytes32:
    return keccak256(abi_encode(run, round, seat))


@internal
@view
def _exists(run: uint256, round: uint256, seat: uint256) -> bool:
    return self._penalties[self._id(run, round, seat)].status != 0


@internal
@pure
def _reason(verdict: uint256) -> String[32]:
    if verdict == verdicts.MALFORMED:
        return "malformed"
    if verdict == verdicts.HARMFUL:
        return "harmful"
    return "copied" if verdict == verdicts.COPIED else "unfaithful"


@internal
@pure
def _bps(params: ITrainingRuns.RunParams, verdict: uint256) -> uint256:
    if verdict == verdicts.MALFORMED:
        return params.malformed_bps
    if verdict == verdicts.HARMFUL:
        return params.harmful_bps
    if verdict == verdicts.COPIED:
        return params.copied_bps
    if verdict == verdicts.UNFAITHFUL and params.verification == constants.AUDITED:
        return params.unfaithful_bps
    return 0  # without audits nothing is re-executed, so nobody can know that an update is unfaithful


@internal
@view
def _share(run: uint256, account: address, bps: uint256) -> uint256:
    """
    @return Wei that `bps` of the account's bond are now, at most what is not locked. Rounds down: the account gains.
    """
    bond: uint256 = staticcall wiring._vault().bond_of(self, run, account)
    return min(bond * bps // constants.BPS, bond - min(bond, self._locked[run][account]))


@internal
def _below_ceiling(
    run: uint256, params: ITrainingRuns.RunParams, round: uint256, account: address, amount: uint256
) -> uint256:
    """
    @notice Count an amount that is seized against the account's ceiling in its window of rounds.
    @return The part of it that the ceiling leaves, wei
    """
    window: uint256 = round // params.ceiling_rounds
    used: uint256 = self._charged_in[run][window][account]
    left: uint256 = min(amount, params.ceiling - min(params.ceiling, used))
    self._charged_in[run][window][account] = used + left
    return left


@internal
def _charge(
    run: uint256,
    params: ITrainingRuns.RunParams,
    round: uint256,
    role: uint256,
    seat: uint256,
    account: address,
    reason: String[32],
):
    """
    @notice Seize at once for an objective fault: committed but not revealed, or a report on other states.
    """
    amount: uint256 = self._share(run, account, params.unrevealed_bps)
    amount = self._below_ceiling(run, params, round, account, amount)
    seized: uint256 = extcall wiring._vault().seize(run, account, amount, reason)
    log ISettlement.FaultCharged(
        run=run, round=round, account=account, role=role, seat=seat, amount=seized, reason=reason
    )


@internal
def _record_voters(run: uint256, round: uint256, stakes: uint256[16]):
    """
    @notice Store the voters of the round's penalties and their stakes: contests last longer than the round's records.
    """
    owners: DynArray[address, 256] = wiring._owners(run, constants.VALIDATOR, round, 0, 16)
    for v: uint256 in range(len(owners), bound=16):
        if stakes[v] != 0:
            self._voters[run][round][v] = stakes[v] << 160 | convert(owners[v], uint256)


@internal
def _lock(penalty: ISettlement.Penalty, params: ITrainingRuns.RunParams):
    """
    @notice Lock the amount that the verdict costs and store the penalty.
    @param penalty Everything but the amount
    """
    locked: ISettlement.Penalty = penalty
    locked.amount = self._share(locked.run, locked.account, self._bps(params, locked.verdict))
    locked.status = LOCKED
    id: bytes32 = self._id(locked.run, locked.round, locked.seat)
    self._penalties[id] = locked
    self._locked[locked.run][locked.account] += locked.amount
    log ISettlement.PenaltyLocked(
        penalty=id,
        run=locked.run,
        account=locked.account,
        round=locked.round,
        seat=locked.seat,
        verdict=locked.verdict,
        amount=locked.amount,
        reason=self._reason(locked.verdict),
    )
    if locked.verdict >= verdicts.HARMFUL:
        window: uint256 = locked.round // params.ceiling_rounds
        self._barring[locked.run][window][locked.account] += 1
        until: uint256 = self._bar_end(window, params)
        extcall wiring._runs().set_bar(locked.run, locked.seat, locked.account, until, until)


@internal
def _acquit(penalty: ISettlement.Penalty, params: ITrainingRuns.RunParams):
    """
    @notice End the bar of a released penalty, unless another of the same window still bars the account.
    """
    window: uint256 = penalty.round // params.ceiling_rounds
    others: uint256 = self._barring[penalty.run][window][penalty.account] - 1
    self._barring[penalty.run][window][penalty.account] = others
    if others == 0:
        # A bar of an earlier window is over by now, and one of a later window stays.
        until: uint256 = self._bar_end(window, params)
        extcall wiring._runs().set_bar(penalty.run, penalty.seat, penalty.account, 0, until)


@internal
@pure
def _bar_end(window: uint256, params: ITrainingRuns.RunParams) -> uint256:
    """
    @return First round after a ceiling window
    """
    return (window + 1) * params.ceiling_rounds


@internal
def _contest(id: bytes32):
    """
    @notice The penalised account contests; locks `contest_bps` more of the same bond.
    """
    penalty: ISettlement.Penalty = self._open_penalty(id)
    assert penalty.status == LOCKED, "settlement: already contested"
    assert msg.sender == penalty.account, "settlement: not the penalised"
    params: ITrainingRuns.RunParams = wiring._params(penalty.run)
    amount: uint256 = self._share(penalty.run, penalty.account, params.contest_bps)
    self._penalties[id].contest_amount = amount
    self._penalties[id].status = CONTESTED
    self._locked[penalty.run][penalty.account] += amount
    log ISettlement.PenaltyContested(penalty=id, account=penalty.account, amount=amount)


@internal
def _vote(id: bytes32, uphold: bool):
    """
    @notice Replace the verdict of the sender's report by a vote, with the stake that its validator seat had in the round.
    """
    penalty: ISettlement.Penalty = self._open_penalty(id)
    seat: uint256 = 0
    stake: uint256 = 0
    seat, stake = self._voter(penalty.run, penalty.round)
    bit: uint256 = 1 << seat
    if uphold != (penalty.votes & bit != 0):
        penalty.votes ^= bit
        penalty.upheld = penalty.upheld + stake if uphold else penalty.upheld - stake
        self._penalties[id].votes = penalty.votes
        self._penalties[id].upheld = penalty.upheld
    log ISettlement.PenaltyVote(penalty=id, validator=msg.sender, uphold=uphold, upheld=penalty.upheld)


@internal
@view
def _voter(run: uint256, round: uint256) -> (uint256, uint256):
    """
    @notice Validator seat and its stake in the round, of which the sender is owner or operator.
    @dev Owners first: a validator that names another one as its operator cannot take over that validator's vote.
    """
    for v: uint256 in range(16):
        voter: uint256 = self._voters[run][round][v]
        if voter != 0 and msg.sender == self._voter_owner(voter):
            return v, voter >> 160
    for v: uint256 in range(16):
        voter: uint256 = self._voters[run][round][v]
        if voter == 0:
            continue
        owner: address = self._voter_owner(voter)
        seat: ITrainingRuns.Seat = staticcall wiring._runs().seat_at(run, constants.VALIDATOR, v, round)
        if msg.sender == seat.operator and owner == seat.owner:
            return v, voter >> 160
    raise "settlement: not a validator"


@internal
@pure
def _voter_owner(voter: uint256) -> address:
    return convert(voter & constants.ADDRESS_MASK, address)


@internal
def _settle_penalty(id: bytes32):
    """
    @notice After K: seize and burn the locked amount if more than half of T uphold the penalty, else release it. Only
            what is seized counts against the account's ceiling, and what exceeds the ceiling is released.
    """
    penalty: ISettlement.Penalty = self._get(id)
    assert penalty.status < SEIZED, "settlement: penalty is settled"
    assert block.timestamp >= penalty.contest_until, "settlement: contest still open"
    self._locked[penalty.run][penalty.account] -= penalty.amount + penalty.contest_amount
    params: ITrainingRuns.RunParams = wiring._params(penalty.run)
    upheld: bool = penalty.upheld * 2 > penalty.active_stake
    seized: uint256 = 0
    if upheld:
        self._penalties[id].status = SEIZED
        amount: uint256 = penalty.amount
        if penalty.verdict != verdicts.UNFAITHFUL:
            amount = self._below_ceiling(penalty.run, params, penalty.round, penalty.account, amount)
        amount += penalty.contest_amount
        seized = extcall wiring._vault().seize(penalty.run, penalty.account, amount, self._reason(penalty.verdict))
    else:
        self._penalties[id].status = RELEASED
        if penalty.verdict >= verdicts.HARMFUL:
            self._acquit(penalty, params)
    log ISettlement.PenaltySettled(penalty=id, account=penalty.account, upheld=upheld, seized=seized)


@internal
@view
def _get(id: bytes32) -> ISettlement.Penalty:
    penalty: ISettlement.Penalty = self._penalties[id]
    assert penalty.status != 0, "settlement: no such penalty"
    return penalty


@internal
@view
def _open_penalty(id: bytes32) -> ISettlement.Penalty:
    penalty: ISettlement.Penalty = self._get(id)
    assert block.timestamp < penalty.contest_until, "settlement: contest is over"  # so it is not settled either
    return penalty


# Views.

@external
@view
def penalty_id(run: uint256, round: uint256, seat: uint256) -> bytes32:
    """
    @notice Id of the one penalty that a trainer seat can get in a round.
    """
    return self._id(run, round, seat)


@external
@view
def penalty(penalty: bytes32) -> ISettlement.Penalty:
    """
    @notice A penalty; status 0 when there is none.
    """
    return self._penalties[penalty]


@external
@view
def locked(run: uint256, account: address) -> uint256:
    """
    @notice Wei of an account's bond that unsettled penalties have locked.
    """
    return self._locked[run][account]


@external
@view
def charged_in(run: uint256, window: uint256, account: address) -> uint256:
    """
    @notice Wei seized that count against the account's ceiling in an aligned window of `ceiling_rounds` rounds.
    """
    return self._charged_in[run][window][account]
