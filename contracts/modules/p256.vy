# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title P-256
@license MIT
@notice ECDSA over secp256r1 through the precompile of EIP-7951 (and RIP-7212). Protocol section 11.
@dev Without a precompile the call succeeds and answers nothing, so only 32 bytes equal to one mean valid. Both forms of
     `s` verify: so the bytes of a signature identify nothing.
"""

PRECOMPILE: constant(address) = 0x0000000000000000000000000000000000000100

# RFC 6979, A.2.5, SHA-256 of "sample".
GOOD_DIGEST: constant(bytes32) = 0xaf2bdbe1aa9b6ec1e2ade1d694f41fc71a831d0268e9891562113d8a62add1bf
GOOD_R: constant(bytes32) = 0xefd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716
GOOD_S: constant(bytes32) = 0xf7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8
GOOD_X: constant(bytes32) = 0x60fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6
GOOD_Y: constant(bytes32) = 0x7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299


@internal
@view
def _valid(digest: bytes32, signature: bytes32[2], key: bytes32[2]) -> bool:
    """
    @param signature r, s.
    @param key x, y.
    """
    success: bool = False
    answer: Bytes[64] = b""
    success, answer = raw_call(
        PRECOMPILE,
        abi_encode(digest, signature, key),
        max_outsize=64,
        is_static_call=True,
        revert_on_failure=False,
    )
    return success and len(answer) == 32 and extract32(answer, 0, output_type=uint256) == 1


@internal
@view
def _available() -> bool:
    """
    @return True if a signature known to be valid passes.
    """
    return self._valid(GOOD_DIGEST, [GOOD_R, GOOD_S], [GOOD_X, GOOD_Y])


@internal
@view
def _credulous() -> bool:
    """
    @return True if a signature known to be invalid passes: then the code at the address is no verifier.
    """
    return self._valid(GOOD_DIGEST, [GOOD_S, GOOD_R], [GOOD_X, GOOD_Y])
