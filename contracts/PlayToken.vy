# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Play Token
@license MIT
@notice An ERC-20 whose deployer mints at will: for local chains and tests, worth nothing anywhere else.
"""

from ethereum.ercs import IERC20

implements: IERC20

event Transfer:
    sender: indexed(address)
    receiver: indexed(address)
    value: uint256

event Approval:
    owner: indexed(address)
    spender: indexed(address)
    value: uint256

MINTER: public(immutable(address))

name: public(String[32])
symbol: public(String[8])
totalSupply: public(uint256)
balanceOf: public(HashMap[address, uint256])
allowance: public(HashMap[address, HashMap[address, uint256]])


@deploy
def __init__(name: String[32], symbol: String[8]):
    MINTER = msg.sender
    self.name = name
    self.symbol = symbol


@external
@view
def decimals() -> uint8:
    return 18


@external
def mint(receiver: address, amount: uint256):
    """
    @notice Creates `amount` wei for `receiver`. Deployer only.
    """
    assert msg.sender == MINTER, "token: not the minter"
    self.totalSupply += amount
    self.balanceOf[receiver] += amount
    log Transfer(sender=empty(address), receiver=receiver, value=amount)


@external
def approve(spender: address, amount: uint256) -> bool:
    """
    @notice Sets what `spender` may move of the caller's balance, in wei.
    """
    self.allowance[msg.sender][spender] = amount
    log Approval(owner=msg.sender, spender=spender, value=amount)
    return True


@external
def transfer(receiver: address, amount: uint256) -> bool:
    """
    @notice Moves `amount` wei of the caller's balance.
    """
    self._move(msg.sender, receiver, amount)
    return True


@external
def transferFrom(sender: address, receiver: address, amount: uint256) -> bool:
    """
    @notice Moves `amount` wei of `sender`'s balance and uses up as much of the caller's allowance.
    """
    assert self.allowance[sender][msg.sender] >= amount, "token: allowance too small"
    self.allowance[sender][msg.sender] -= amount
    self._move(sender, receiver, amount)
    return True


@internal
def _move(sender: address, receiver: address, amount: uint256):
    assert self.balanceOf[sender] >= amount, "token: balance too small"
    self.balanceOf[sender] -= amount
    self.balanceOf[receiver] += amount
    log Transfer(sender=sender, receiver=receiver, value=amount)
