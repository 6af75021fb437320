# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Stake Vault
@license MIT
@notice Holds every token of the protocol: idle balances, bonds, run escrows, burned money. Protocol section 2.
@dev Four buckets, and each wei is in exactly one: idle, bond, escrow, burned. A manager is any contract that opened
     a run here; what it may do is bounded by the bonds and the escrow given to that run under its own address.
@custom:security No owner, no admin, no pause, no upgrade. Slashing moves numbers only and makes no external call.
     `transferFrom` is called for `msg.sender` alone; donations change nothing, for no balance is read as a ledger.
     The exit delay is enforced here; its minimum is set in contracts/modules/terms.vy (reference: protocol/schedule.py).
"""

from interfaces import IStakeVault
from modules import constants
from modules import token

implements: IStakeVault

initializes: token
exports: token.TOKEN

struct Run:
    escrow: uint256                # wei
    sponsor: address
    exit_delay: uint256            # seconds; 0 = never opened
    released: bool                 # bonds wait no longer


SINK: public(immutable(address))

idle: public(HashMap[address, uint256])
allowance: public(HashMap[address, HashMap[address, uint256]])     # account -> manager -> wei
burned: public(uint256)
runs: HashMap[address, HashMap[uint256, Run]]                      # manager -> run
# manager -> run -> account -> bond (96 bits) | exit time << 96: one read gives bond and exit
bonds: HashMap[address, HashMap[uint256, HashMap[address, uint256]]]


@deploy
def __init__(token_: address, sink: address):
    """
    @param token_ The only token that this vault holds.
    @param sink Receiver of burned money.
    """
    assert sink != empty(address) and sink != self, "vault: bad sink"
    token.__init__(token_)
    SINK = sink


# Anyone, for their own money.


@external
def deposit(amount: uint256):
    """
    @notice Moves `amount` wei of the caller's tokens into its idle balance.
    """
    token._pull(msg.sender, amount)
    self.idle[msg.sender] += amount
    log IStakeVault.Deposited(account=msg.sender, amount=amount)


@external
def withdraw(amount: uint256):
    """
    @notice Sends `amount` wei of the caller's idle balance to the caller.
    """
    self._withdraw(msg.sender, amount)


@external
def withdraw_to(receiver: address, amount: uint256):
    """
    @notice Sends `amount` wei of the caller's idle balance to `receiver`: the token's issuer may refuse the caller.
    """
    assert receiver != empty(address) and receiver != self, "vault: bad receiver"
    self._withdraw(receiver, amount)


@external
def allow(manager: address, amount: uint256):
    """
    @notice Sets what `open_run` by `manager` may take from the caller's idle balance, in wei.
    """
    self.allowance[msg.sender][manager] = amount
    log IStakeVault.Allowed(account=msg.sender, manager=manager, amount=amount)


@external
def bond(manager: address, run: uint256, amount: uint256):
    """
    @notice Moves `amount` wei of the caller's idle balance into its bond for one run.
    """
    assert self.runs[manager][run].exit_delay != 0, "vault: no such run"
    word: uint256 = self.bonds[manager][run][msg.sender]
    assert word >> constants.AMOUNT_BITS == 0, "vault: exit has started"
    self._take_idle(msg.sender, amount)
    total: uint256 = word + amount
    assert total <= constants.AMOUNT_MASK, "vault: bond too large"
    self.bonds[manager][run][msg.sender] = total
    log IStakeVault.Bonded(manager=manager, run=run, account=msg.sender, amount=amount, bond=total)


@external
def start_exit(manager: address, run: uint256):
    """
    @notice Starts the caller's exit from a run. The whole bond stays slashable until `finish_exit`.
    """
    word: uint256 = self.bonds[manager][run][msg.sender]
    assert word != 0, "vault: nothing bonded"
    assert word >> constants.AMOUNT_BITS == 0, "vault: exit already started"
    exit_time: uint256 = block.timestamp + self.runs[manager][run].exit_delay
    self.bonds[manager][run][msg.sender] = word | (exit_time << constants.AMOUNT_BITS)
    log IStakeVault.ExitStarted(manager=manager, run=run, account=msg.sender, amount=word, exit_time=exit_time)


@external
def finish_exit(manager: address, run: uint256):
    """
    @notice After the exit delay, moves the rest of the caller's bond to its idle balance. The manager cannot prevent it.
            In a run whose bonds are released, no exit has to be started.
    """
    word: uint256 = self.bonds[manager][run][msg.sender]
    exit_time: uint256 = word >> constants.AMOUNT_BITS
    if not self.runs[manager][run].released:
        assert exit_time != 0, "vault: no exit started"
        assert block.timestamp >= exit_time, "vault: exit not over"
    amount: uint256 = word & constants.AMOUNT_MASK
    self.bonds[manager][run][msg.sender] = 0
    self.idle[msg.sender] += amount
    log IStakeVault.ExitFinished(manager=manager, run=run, account=msg.sender, amount=amount)


@external
def flush():
    """
    @notice Sends all burned money to the sink. Anyone may call.
    """
    amount: uint256 = self.burned
    self.burned = 0
    log IStakeVault.Flushed(sink=SINK, amount=amount)
    token._push(SINK, amount)


# A manager, for its own runs only: every ledger below is keyed by `msg.sender`.


@external
def open_run(run: uint256, sponsor: address, amount: uint256, exit_delay: uint256):
    """
    @notice Opens the caller's run `run`, once, with `amount` wei of the sponsor's idle balance that it allowed.
    @param exit_delay Seconds between an exit's start and its end, at most 60 days. A run's minimum depends on its
           windows: `least_delay` in contracts/modules/terms.vy.
    """
    assert self.runs[msg.sender][run].exit_delay == 0, "vault: run already open"
    assert exit_delay != 0 and exit_delay <= constants.MAX_EXIT_DELAY, "vault: exit delay out of range"
    assert self.allowance[sponsor][msg.sender] >= amount, "vault: allowance too small"
    self.allowance[sponsor][msg.sender] -= amount
    self._take_idle(sponsor, amount)
    self.runs[msg.sender][run] = Run(escrow=amount, sponsor=sponsor, exit_delay=exit_delay, released=False)
    log IStakeVault.RunOpened(
        manager=msg.sender, run=run, sponsor=sponsor, amount=amount, exit_delay=exit_delay
    )


@external
def release(run: uint256):
    """
    @notice Ends the exit delay of all bonds of the caller's run, for ever: it is over, and nothing is left to seize.
    """
    assert self.runs[msg.sender][run].exit_delay != 0, "vault: no run to release"
    self.runs[msg.sender][run].released = True
    log IStakeVault.BondsReleased(manager=msg.sender, run=run)


@external
def pay(run: uint256, payments: DynArray[uint256, 256]):
    """
    @notice Moves escrow of the caller's run to idle balances.
    @param payments One word each: account << 96 | wei.
    """
    total: uint256 = 0
    for payment: uint256 in payments:
        amount: uint256 = payment & constants.AMOUNT_MASK
        if amount != 0:
            account: address = convert(payment >> constants.AMOUNT_BITS, address)
            total = unsafe_add(total, amount)  # safe: 256 amounts of 96 bits
            self.idle[account] += amount
    self._take_escrow(run, total)
    log IStakeVault.Paid(manager=msg.sender, run=run, payments=payments)


@external
def refund(run: uint256, amount: uint256):
    """
    @notice Moves `amount` wei of the run's escrow back to its sponsor's idle balance.
    """
    self._take_escrow(run, amount)
    sponsor: address = self.runs[msg.sender][run].sponsor
    self.idle[sponsor] += amount
    log IStakeVault.Refunded(manager=msg.sender, run=run, sponsor=sponsor, amount=amount)


@external
def burn_escrow(run: uint256, amount: uint256):
    """
    @notice Moves `amount` wei of the run's escrow to burned.
    """
    self._take_escrow(run, amount)
    self.burned += amount
    log IStakeVault.EscrowBurned(manager=msg.sender, run=run, amount=amount)


@external
def seize(run: uint256, account: address, amount: uint256, reason: String[32]) -> uint256:
    """
    @notice Moves up to `amount` wei of a bond of the caller's run to burned, exiting or not. Never reverts for lack of it.
    @return Amount seized, in wei.
    """
    word: uint256 = self.bonds[msg.sender][run][account]
    taken: uint256 = min(amount, word & constants.AMOUNT_MASK)
    self.bonds[msg.sender][run][account] = word - taken
    self.burned += taken
    log IStakeVault.BondSeized(manager=msg.sender, run=run, account=account, amount=taken, reason=reason)
    return taken


# Views.


@external
@view
def bond_of(manager: address, run: uint256, account: address) -> uint256:
    """
    @return The account's bond for the run, exiting or not, in wei.
    """
    return self.bonds[manager][run][account] & constants.AMOUNT_MASK


@external
@view
def exit_time(manager: address, run: uint256, account: address) -> uint256:
    """
    @return When the bond can be taken back, unix seconds; 0 when no exit was started.
    """
    return self.bonds[manager][run][account] >> constants.AMOUNT_BITS


@external
@view
@reentrant
def live_bond(manager: address, run: uint256, account: address) -> uint256:
    """
    @return The live bond, in wei: 0 once an exit has started.
    @dev No lock, for every commit reads it: no function that calls the token touches a bond.
    """
    word: uint256 = self.bonds[manager][run][account]
    return word if word <= constants.AMOUNT_MASK else 0


@external
@view
def released(manager: address, run: uint256) -> bool:
    """
    @return True once the run's bonds can be taken back without a delay.
    """
    return self.runs[manager][run].released


@external
@view
def escrow(manager: address, run: uint256) -> uint256:
    """
    @return The rest of the run's budget, in wei.
    """
    return self.runs[manager][run].escrow


@external
@view
def exit_delay(manager: address, run: uint256) -> uint256:
    """
    @return Seconds; 0 when the run was never opened.
    """
    return self.runs[manager][run].exit_delay


@external
@view
def sponsor(manager: address, run: uint256) -> address:
    """
    @return Account that funded the run and receives refunds.
    """
    return self.runs[manager][run].sponsor


@internal
def _withdraw(receiver: address, amount: uint256):
    self._take_idle(msg.sender, amount)
    log IStakeVault.Withdrawn(account=msg.sender, receiver=receiver, amount=amount)
    token._push(receiver, amount)


@internal
def _take_idle(account: address, amount: uint256):
    balance: uint256 = self.idle[account]
    assert balance >= amount, "vault: idle balance too small"
    self.idle[account] = balance - amount


@internal
def _take_escrow(run: uint256, amount: uint256):
    balance: uint256 = self.runs[msg.sender][run].escrow
    assert balance >= amount, "vault: escrow too small"
    self.runs[msg.sender][run].escrow = balance - amount
