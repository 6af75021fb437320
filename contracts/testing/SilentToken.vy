# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Silent Token
@license MIT
@notice A token whose transfers return nothing, as some large ones do. For tests.
"""

balanceOf: public(HashMap[address, uint256])
allowance: public(HashMap[address, HashMap[address, uint256]])


@external
def mint(receiver: address, amount: uint256):
    self.balanceOf[receiver] += amount


@external
def approve(spender: address, amount: uint256):
    self.allowance[msg.sender][spender] = amount


@external
def transfer(receiver: address, amount: uint256):
    self.balanceOf[msg.sender] -= amount
    self.balanceOf[receiver] += amount


@external
def transferFrom(sender: address, receiver: address, amount: uint256):
    self.allowance[sender][msg.sender] -= amount
    self.balanceOf[sender] -= amount
    self.balanceOf[receiver] += amount
