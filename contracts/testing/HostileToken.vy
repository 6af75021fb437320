# pragma version 0.4.3
# pragma evm-version cancun
"""
@title Hostile Token
@license MIT
@notice A token that turns on whoever moves it: refuses, keeps a fee, charges the sender extra, or calls back. For tests.
"""

balanceOf: public(HashMap[address, uint256])
allowance: public(HashMap[address, HashMap[address, uint256]])
refuses: public(bool)            # moves nothing and returns false
fee: public(uint256)             # wei kept from what the receiver gets
surcharge: public(uint256)       # wei taken from the sender on top
target: public(address)          # called in the middle of each transfer, with `data`
data: public(Bytes[1024])
called_back: public(uint256)     # callbacks that did not revert


@external
def set_refuses(refuses: bool):
    self.refuses = refuses


@external
def set_fee(fee: uint256):
    self.fee = fee


@external
def set_surcharge(surcharge: uint256):
    self.surcharge = surcharge


@external
def set_callback(target: address, data: Bytes[1024]):
    self.target = target
    self.data = data


@external
def mint(receiver: address, amount: uint256):
    self.balanceOf[receiver] += amount


@external
def approve(spender: address, amount: uint256) -> bool:
    self.allowance[msg.sender][spender] = amount
    return True


@external
def transfer(receiver: address, amount: uint256) -> bool:
    return self._move(msg.sender, receiver, amount)


@external
def transferFrom(sender: address, receiver: address, amount: uint256) -> bool:
    self.allowance[sender][msg.sender] -= amount
    return self._move(sender, receiver, amount)


@external
def act(target: address, data: Bytes[1024]):
    """
    @notice Calls `target` as this token, so that it can own money of its own in the vault.
    """
    raw_call(target, data)


@internal
def _move(sender: address, receiver: address, amount: uint256) -> bool:
    if self.refuses:
        return False
    self.balanceOf[sender] -= amount + self.surcharge
    self.balanceOf[receiver] += amount - self.fee
    if self.target != empty(address):
        if raw_call(self.target, self.data, revert_on_failure=False):
            self.called_back += 1
    return True
