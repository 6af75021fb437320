# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Bond Pool
@license MIT
@notice The bond behind one seat, put up by many for a share of its pay. The pool owns the seat, the trainer's key operates
        it. Protocol section 2.
@dev To the vault and the runs it is an account like any other. A share's price is bond / shares. The bond grows only by
     `add` and falls only by slashing, and the pool reads no token balance: nobody can move the price by a gift. Between
     calls all money lies in the vault: the bond, and idle money, of which `owed` has an owner and the rest is new pay.
@custom:security No owner, no upgrade. The trainer cannot take a member's money; it can get the bond slashed. Nobody's claim
     calls another's account. Whoever leaves waits for `NOTICE` and the run's exit delay at most.
"""

from ethereum.ercs import IERC20

from interfaces import IBondPool
from interfaces import ISettlement
from interfaces import IStakeVault
from interfaces import ITrainingRuns
from modules import constants
from modules import token

implements: IBondPool

initializes: token
exports: token.TOKEN

struct Member:
    shares: uint256
    mark: uint256                  # `pay_per_share` up to which pay is in `credit`
    credit: uint256                # wei
    redeemed: bool
    queued: uint256                # shares
    asked_at: uint256              # unix seconds
    before: address                # neighbours in the queue
    behind: address

PAY_BITS: constant(uint256) = 128              # `pay_per_share` is in wei / 2**128
SHARES_MASK: constant(uint256) = 2**128 - 1    # so that products with 96 bits of wei fit a word
MAX_BUYOUTS: constant(uint256) = 32            # queue entries that one `add` reaches
CONTEST_SHARE: constant(uint256) = 10          # a tenth of the shares may contest

RUNS: public(immutable(address))
SETTLEMENT: public(immutable(address))
VAULT: public(immutable(address))
RUN: public(immutable(uint256))
ROLE: public(immutable(uint256))
TRAINER: public(immutable(address))
COMMISSION: public(immutable(uint256))         # 1/10,000 of the pay
MIN_ADD: public(immutable(uint256))            # wei
NOTICE: public(immutable(uint256))             # seconds

total_shares: public(uint256)
pay_per_share: public(uint256)
owed: public(uint256)                          # idle money in the vault that has an owner, wei
closing: public(bool)
finished: public(bool)
returned: public(uint256)                      # bond that came back, wei
first: public(address)                         # head of the queue; empty when nobody waits
last: address
members: HashMap[address, Member]


@deploy
def __init__(
    runs: address, run: uint256, role: uint256, trainer: address, commission: uint256, min_add: uint256, notice: uint256
):
    """
    @param runs The TrainingRuns of the run; vault, settlement and token follow from it.
    @param role 1 trainer, 2 validator.
    @param trainer Takes the commission and operates the seat.
    @param commission Part of the pay that is the trainer's before the rest is shared, in 1/10,000.
    @param min_add Smallest amount of one `add` and smallest entry of the queue, in wei or shares.
    @param notice Seconds that somebody may wait in the queue before anyone can close the pool, at most 60 days.
    """
    assert runs.is_contract, "pool: runs has no code"
    assert trainer != empty(address), "pool: no trainer"
    assert role == constants.TRAINER or role == constants.VALIDATOR, "pool: unknown role"
    assert commission <= constants.BPS, "pool: commission above all pay"
    assert min_add != 0 and min_add <= constants.AMOUNT_MASK, "pool: smallest amount out of range"
    assert notice != 0 and notice <= constants.MAX_EXIT_DELAY, "pool: notice out of range"
    RUNS = runs
    SETTLEMENT = staticcall ITrainingRuns(runs).SETTLEMENT()
    VAULT = staticcall ITrainingRuns(runs).VAULT()
    RUN = run
    ROLE = role
    TRAINER = trainer
    COMMISSION = commission
    MIN_ADD = min_add
    NOTICE = notice
    assert staticcall IStakeVault(VAULT).exit_delay(SETTLEMENT, run) != 0, "pool: no such run"
    token.__init__(staticcall IStakeVault(VAULT).TOKEN())
    log IBondPool.PoolOpened(
        run=run, trainer=trainer, role=role, commission=commission, min_add=min_add, notice=notice
    )


# The trainer, for the seat.


@external
def join(uri: String[256], proof: DynArray[bytes32, 32], take: uint256) -> uint256:
    """
    @notice Takes a seat for the pool, which the trainer operates. Trainer only; the run has the pool's address admitted.
    @param uri Location of the trainer's payloads.
    @param proof Admission proof for the pool's address; empty for a trainer of an open run.
    @param take As in `TrainingRuns.join`.
    @return The seat's index.
    """
    self._check_trainer()
    return extcall ITrainingRuns(RUNS).join(RUN, ROLE, TRAINER, uri, proof, take)


@external
def set_uri(uri: String[256]):
    """
    @notice Changes the location of the seat's payloads. Trainer only.
    """
    self._check_trainer()
    extcall ITrainingRuns(RUNS).set_uri(RUN, ROLE, self._seat(), uri)


@external
def set_operator(operator: address):
    """
    @notice Changes the seat's operator key from the next round on. Trainer only.
    """
    self._check_trainer()
    extcall ITrainingRuns(RUNS).set_operator(RUN, ROLE, self._seat(), operator)


@external
def ask_back():
    """
    @notice Makes an inactive validator seat active again. Trainer only.
    """
    self._check_trainer()
    extcall ITrainingRuns(RUNS).ask_back(RUN, self._seat())


@external
def contest(penalty: bytes32):
    """
    @notice Contests a penalty of the pool. It locks more of everybody's bond: the trainer only, or a member with a tenth of
            the shares.
    """
    if msg.sender != TRAINER:
        held: uint256 = self.members[msg.sender].shares
        assert held != 0 and held * CONTEST_SHARE >= self.total_shares, "pool: too few shares to contest"
    extcall ISettlement(SETTLEMENT).contest(penalty)


# Members.


@external
def add(amount: uint256, min_shares: uint256) -> uint256:
    """
    @notice Takes `amount` wei of the caller's tokens, buys out who waits in the queue (up to 32 of them), bonds the rest.
            Refused while a penalty is pending, for then nobody knows what a share is worth.
    @param min_shares Least number of shares that the caller accepts: a slash only makes them more.
    @return Shares.
    """
    self._check_open()
    assert amount >= MIN_ADD and amount <= constants.AMOUNT_MASK, "pool: amount out of range"
    token._pull(msg.sender, amount)
    assert extcall IERC20(token.TOKEN).approve(VAULT, amount, default_return_value=True), "pool: approval refused"
    extcall IStakeVault(VAULT).deposit(amount)
    self.owed += amount
    # The ledgers are read after the last call of the token, which may have moved them.
    assert staticcall ISettlement(SETTLEMENT).locked(RUN, self) == 0, "pool: penalty pending"
    self._collect()
    bond: uint256 = self._bond()
    total: uint256 = self.total_shares
    shares: uint256 = self._shares_for(amount, bond, total)
    assert shares != 0 and shares >= min_shares, "pool: too few shares"

    self._credit_pay(msg.sender)
    bought: uint256 = 0
    paid: uint256 = 0
    bought, paid = self._buy_out(shares, bond, total)
    minted: uint256 = shares - bought
    assert total + minted <= SHARES_MASK, "pool: too many shares"
    self.members[msg.sender].shares += shares
    self.total_shares = total + minted
    bonded: uint256 = amount - paid
    if bonded != 0:
        self.owed -= bonded
        extcall IStakeVault(VAULT).bond(SETTLEMENT, RUN, bonded)
    log IBondPool.Added(account=msg.sender, amount=amount, bonded=bonded, minted=minted)
    return shares


@external
def ask_exit(shares: uint256):
    """
    @notice Queues shares to be bought out at the price of that time. They earn, and are slashed, until then. After `NOTICE`
            anyone may close the pool. Not for the trainer, whose shares leave with the whole bond.
    @param shares At least `MIN_ADD`, or all that the caller has.
    """
    self._check_open()
    assert msg.sender != TRAINER, "pool: the trainer leaves last"
    held: uint256 = self.members[msg.sender].shares
    assert shares != 0 and shares <= held, "pool: not that many shares"
    assert shares >= MIN_ADD or shares == held, "pool: too few shares to queue"
    assert self.members[msg.sender].queued == 0, "pool: already queued"
    self.members[msg.sender].queued = shares
    self.members[msg.sender].asked_at = block.timestamp
    self.members[msg.sender].before = self.last
    if self.last == empty(address):
        self.first = msg.sender
    else:
        self.members[self.last].behind = msg.sender
    self.last = msg.sender
    log IBondPool.ExitAsked(account=msg.sender, shares=shares)


@external
def cancel_exit():
    """
    @notice Takes the caller's shares out of the queue.
    """
    shares: uint256 = self.members[msg.sender].queued
    assert shares != 0, "pool: nothing queued"
    self._leave_queue(msg.sender)
    log IBondPool.ExitCancelled(account=msg.sender, shares=shares)


@external
def claim(receiver: address) -> uint256:
    """
    @notice Sends the caller's pay and buyouts, and after `finish` its part of the bond, to `receiver`, whom the token's
            issuer may accept where it refuses the caller.
    @return Amount, wei.
    """
    self._collect()
    self._credit_pay(msg.sender)
    redeemed: uint256 = 0
    if self.finished:
        redeemed = self._redeemable(msg.sender)
        self.members[msg.sender].redeemed = True
    amount: uint256 = self.members[msg.sender].credit + redeemed
    self.members[msg.sender].credit = 0
    self.owed -= amount
    log IBondPool.Claimed(account=msg.sender, receiver=receiver, amount=amount, redeemed=redeemed)
    extcall IStakeVault(VAULT).withdraw_to(receiver, amount)
    return amount


# Anyone.


@external
def collect():
    """
    @notice Shares out the pay that has reached the pool since the last time.
    """
    self._collect()


@external
def close():
    """
    @notice Starts the exit of the whole bond, for good. The trainer at any time; anyone once somebody has waited in the
            queue for `NOTICE`, or the run's bonds are released, or none is left.
    """
    self._check_open()
    assert msg.sender == TRAINER or self._closable(), "pool: too early to close"
    self.closing = True
    log IBondPool.Closing(caller=msg.sender)
    if self._bond() != 0:
        extcall IStakeVault(VAULT).start_exit(SETTLEMENT, RUN)


@external
def finish():
    """
    @notice After the exit delay, takes back what is left of the bond; members claim their parts of it.
    """
    assert self.closing, "pool: not closed"
    assert not self.finished, "pool: already finished"
    self._collect()
    bond: uint256 = self._bond()
    if bond != 0:
        extcall IStakeVault(VAULT).finish_exit(SETTLEMENT, RUN)
    self.finished = True
    self.returned = bond
    self.owed += bond
    log IBondPool.Finished(returned=bond)


# Views.


@external
@view
def price() -> (uint256, uint256):
    """
    @return Bond in wei, and shares: a share costs their quotient.
    """
    return self._bond(), self.total_shares


@external
@view
def preview(amount: uint256) -> uint256:
    """
    @return Shares that `add` would give for `amount` wei; reverts where the whole bond was seized.
    """
    return self._shares_for(amount, self._bond(), self.total_shares)


@external
@view
def member(account: address) -> IBondPool.Position:
    """
    @return What the account has in the pool; pay that nobody has collected yet is counted.
    """
    found: Member = self.members[account]
    value: uint256 = 0
    if self.finished:
        value = self._redeemable(account)
    elif self.total_shares != 0:
        value = found.shares * self._bond() // self.total_shares
    pay: uint256 = 0
    commission: uint256 = 0
    pay, commission = self._new_pay()
    per_share: uint256 = self.pay_per_share
    if self.total_shares != 0:
        per_share += ((pay - commission) << PAY_BITS) // self.total_shares
    claimable: uint256 = found.credit + (((per_share - found.mark) * found.shares) >> PAY_BITS)
    if account == TRAINER:
        claimable += commission
    return IBondPool.Position(
        shares=found.shares, queued=found.queued, asked_at=found.asked_at, value=value, claimable=claimable
    )


@external
@view
def queue(after: address, count: uint256) -> DynArray[address, 32]:
    """
    @return The next `count` accounts that wait, at most 32, behind `after`; from the head for the zero address.
    """
    found: DynArray[address, 32] = []
    account: address = self.first if after == empty(address) else self.members[after].behind
    for i: uint256 in range(count, bound=MAX_BUYOUTS):
        if account == empty(address):
            break
        found.append(account)
        account = self.members[account].behind
    return found


@external
@view
def closable() -> bool:
    """
    @return True if anyone may close the pool now.
    """
    return not self.closing and self._closable()


@internal
@view
def _check_trainer():
    assert msg.sender == TRAINER, "pool: not the trainer"


@internal
@view
def _check_open():
    assert not self.closing, "pool: closed"


@internal
@view
def _seat() -> uint256:
    role: uint256 = 0
    seat: uint256 = 0
    role, seat = staticcall ITrainingRuns(RUNS).seat_of(RUN, self)
    assert role != 0, "pool: no seat"
    return seat


@internal
@view
def _bond() -> uint256:
    return staticcall IStakeVault(VAULT).bond_of(SETTLEMENT, RUN, self)


@internal
@view
def _closable() -> bool:
    if self.first != empty(address) and block.timestamp >= self.members[self.first].asked_at + NOTICE:
        return True
    if self.total_shares != 0 and self._bond() == 0:
        return True
    return staticcall IStakeVault(VAULT).released(SETTLEMENT, RUN)


@internal
@pure
def _shares_for(amount: uint256, bond: uint256, total: uint256) -> uint256:
    """
    @dev Rounds down: those who are in gain.
    """
    if total == 0:
        return amount
    assert bond != 0, "pool: bond was seized whole"
    return amount * total // bond


@internal
def _buy_out(shares: uint256, bond: uint256, total: uint256) -> (uint256, uint256):
    """
    @dev Takes up to `shares` from the head of the queue. Rounds down: those who stay gain, never the buyer.
    @return Shares bought, and wei for those who leave.
    """
    bought: uint256 = 0
    paid: uint256 = 0
    for i: uint256 in range(MAX_BUYOUTS):
        account: address = self.first
        if account == empty(address) or bought == shares:
            break
        taken: uint256 = min(self.members[account].queued, shares - bought)
        amount: uint256 = taken * bond // total
        self._credit_pay(account)
        self.members[account].shares -= taken
        self.members[account].credit += amount
        self.members[account].queued -= taken
        if self.members[account].queued == 0:
            self._leave_queue(account)
        bought += taken
        paid += amount
        log IBondPool.BoughtOut(account=account, buyer=msg.sender, shares=taken, amount=amount)
    return bought, paid


@internal
def _leave_queue(account: address):
    before: address = self.members[account].before
    behind: address = self.members[account].behind
    if before == empty(address):
        self.first = behind
    else:
        self.members[before].behind = behind
    if behind == empty(address):
        self.last = before
    else:
        self.members[behind].before = before
    self.members[account].queued = 0
    self.members[account].asked_at = 0
    self.members[account].before = empty(address)
    self.members[account].behind = empty(address)


@internal
@view
def _new_pay() -> (uint256, uint256):
    """
    @return Pay not shared out yet, and the trainer's commission of it, which rounds down: the members gain.
    """
    pay: uint256 = min(staticcall IStakeVault(VAULT).idle(self) - self.owed, constants.AMOUNT_MASK)
    if self.total_shares == 0:
        pay = 0
    return pay, pay * COMMISSION // constants.BPS


@internal
def _collect():
    pay: uint256 = 0
    commission: uint256 = 0
    pay, commission = self._new_pay()
    if pay == 0:
        return
    self.owed += pay
    self.members[TRAINER].credit += commission
    self.pay_per_share += ((pay - commission) << PAY_BITS) // self.total_shares
    log IBondPool.PayCollected(amount=pay, commission=commission)


@internal
def _credit_pay(account: address):
    """
    @dev Rounds down: the pool keeps the fraction of a wei.
    """
    earned: uint256 = self.pay_per_share - self.members[account].mark
    self.members[account].mark = self.pay_per_share
    self.members[account].credit += (earned * self.members[account].shares) >> PAY_BITS


@internal
@view
def _redeemable(account: address) -> uint256:
    """
    @dev Shares stay for pay that arrives late. Rounds down: the pool keeps the fraction of a wei.
    """
    if self.members[account].redeemed or self.total_shares == 0:
        return 0
    return self.members[account].shares * self.returned // self.total_shares
