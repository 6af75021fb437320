# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Bits
@notice Counting in 256-bit bitmaps, bit i for seat i.
"""


@internal
@pure
def _count(bitmap: uint256) -> uint256:
    """
    @notice Number of set bits, 0 to 256: sums of ever wider lanes; 16-bit ones in the end, as 256 needs nine bits.
    """
    x: uint256 = bitmap
    x = unsafe_sub(x, (x >> 1) & (max_value(uint256) // 3))  # no lane borrows: a pair holds at least its upper bit
    x = unsafe_add(x & (max_value(uint256) // 5), (x >> 2) & (max_value(uint256) // 5))
    x = unsafe_add(x, x >> 4) & (max_value(uint256) // 17)
    x = unsafe_add(x & (max_value(uint256) // 257), (x >> 8) & (max_value(uint256) // 257))
    return unsafe_mul(x, max_value(uint256) // 65535) >> 240  # sums 16 lanes of at most 16 into the top one


@internal
@pure
def _span(bitmap: uint256) -> uint256:
    """
    @notice Index of the highest set bit plus one; 0 for an empty bitmap.
    """
    rest: uint256 = bitmap
    low: uint256 = 0
    for step: uint256 in [128, 64, 32, 16, 8, 4, 2, 1]:
        if rest >> step != 0:
            rest >>= step
            low += step
    return low + rest
