# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Token
@license MIT
@notice Moves the one ERC-20 that the vault holds, without trusting it.
@dev Tokens that return nothing are accepted; `false` and short deliveries revert. Protocol section 2.
"""

from ethereum.ercs import IERC20

TOKEN: public(immutable(address))


@deploy
def __init__(token: address):
    assert token.is_contract, "vault: token has no code"
    TOKEN = token


@internal
def _pull(account: address, amount: uint256):
    """
    @dev Takes exactly `amount` wei from `account`; a fee on transfer reverts.
    """
    before: uint256 = staticcall IERC20(TOKEN).balanceOf(self)
    assert extcall IERC20(TOKEN).transferFrom(
        account, self, amount, default_return_value=True
    ), "vault: token refused"
    assert staticcall IERC20(TOKEN).balanceOf(self) >= before + amount, "vault: token delivered less"


@internal
def _push(account: address, amount: uint256):
    """
    @dev Sends `amount` wei to `account`; a token that takes more than that from the vault reverts.
         The amount that arrives is not checked: a later fee would lock everybody's money.
    """
    before: uint256 = staticcall IERC20(TOKEN).balanceOf(self)
    assert extcall IERC20(TOKEN).transfer(account, amount, default_return_value=True), "vault: transfer refused"
    assert staticcall IERC20(TOKEN).balanceOf(self) + amount >= before, "vault: token took more"
