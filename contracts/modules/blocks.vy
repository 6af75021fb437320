# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Blocks
@license MIT
@notice Hashes of past blocks. Protocol section 6.
"""

RECENT: constant(uint256) = 256                # blocks that the opcode reaches back
KEPT: constant(uint256) = 8191                 # blocks that the history contract reaches back
HISTORY: constant(address) = 0x0000F90827F1C53a10cb7A02335B175320002935


@internal
@view
def _hash(number: uint256) -> bytes32:
    """
    @dev Beyond 256 blocks it asks the history contract of EIP-2935, on chains that have one.
    @return Hash of an earlier block; zero if the chain no longer has it.
    """
    if block.number <= number + RECENT:
        return blockhash(number)
    if block.number > number + KEPT:
        return empty(bytes32)
    found: bool = False
    answer: Bytes[32] = b""
    found, answer = raw_call(
        HISTORY, abi_encode(number), max_outsize=32, is_static_call=True, revert_on_failure=False
    )
    if not found or len(answer) != 32:
        return empty(bytes32)
    return convert(answer, bytes32)
