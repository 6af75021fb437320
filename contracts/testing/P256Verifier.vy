# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy off
"""
@title P-256 Verifier
@license MIT
@notice Answers as the precompile of EIP-7951 does: 32 bytes equal to one, or nothing. For tests on chains without the
        precompile: its code is put at 0x100. Slow, and for nothing but tests.
@dev Jacobian coordinates, both scalars at once. Infinity has z = 0.
"""

P: constant(uint256) = 115792089210356248762697446949407573530086143415290314195533631308867097853951
N: constant(uint256) = 115792089210356248762697446949407573529996955224135760342422259061068512044369
B: constant(uint256) = 41058363725152142129326129780047268409114441015993725554835256314039467401291
GX: constant(uint256) = 48439561293906451759052585252797914202762949526041747995844080717082404635286
GY: constant(uint256) = 36134250956749795798585127919587881956611106672985015071877198253568414405109


@external
@view
@raw_return
def __default__() -> Bytes[32]:
    if len(msg.data) != 160:
        return b""
    input: Bytes[160] = slice(msg.data, 0, 160)
    digest: uint256 = extract32(input, 0, output_type=uint256)
    r: uint256 = extract32(input, 32, output_type=uint256)
    s: uint256 = extract32(input, 64, output_type=uint256)
    x: uint256 = extract32(input, 96, output_type=uint256)
    y: uint256 = extract32(input, 128, output_type=uint256)
    if r == 0 or r >= N or s == 0 or s >= N or not self._on_curve(x, y):
        return b""
    inverse: uint256 = self._power(s, N - 2, N)
    u: uint256 = uint256_mulmod(digest, inverse, N)
    v: uint256 = uint256_mulmod(r, inverse, N)
    point: uint256[3] = self._combine(u, v, x, y)
    if point[2] == 0:
        return b""
    z: uint256 = self._power(point[2], P - 2, P)
    if uint256_mulmod(point[0], uint256_mulmod(z, z, P), P) % N != r:
        return b""
    return abi_encode(convert(1, uint256))


@internal
@pure
def _on_curve(x: uint256, y: uint256) -> bool:
    if x >= P or y >= P:
        return False
    cube: uint256 = uint256_mulmod(uint256_mulmod(x, x, P), x, P)
    return uint256_mulmod(y, y, P) == uint256_addmod(uint256_addmod(cube, uint256_mulmod(P - 3, x, P), P), B, P)


@internal
@pure
def _power(base: uint256, exponent: uint256, modulus: uint256) -> uint256:
    result: uint256 = 1
    for i: uint256 in range(256):
        result = uint256_mulmod(result, result, modulus)
        if (exponent >> unsafe_sub(255, i)) & 1 == 1:
            result = uint256_mulmod(result, base, modulus)
    return result


@internal
@pure
def _combine(u: uint256, v: uint256, x: uint256, y: uint256) -> uint256[3]:
    """
    @return u * G + v * (x, y).
    """
    point: uint256[3] = [0, 0, 0]
    for i: uint256 in range(256):
        point = self._double(point)
        if (u >> unsafe_sub(255, i)) & 1 == 1:
            point = self._add(point, GX, GY)
        if (v >> unsafe_sub(255, i)) & 1 == 1:
            point = self._add(point, x, y)
    return point


@internal
@pure
def _double(p: uint256[3]) -> uint256[3]:
    if p[2] == 0:
        return p
    delta: uint256 = uint256_mulmod(p[2], p[2], P)
    gamma: uint256 = uint256_mulmod(p[1], p[1], P)
    beta: uint256 = uint256_mulmod(p[0], gamma, P)
    alpha: uint256 = uint256_mulmod(
        3, uint256_mulmod(uint256_addmod(p[0], P - delta, P), uint256_addmod(p[0], delta, P), P), P
    )
    x: uint256 = uint256_addmod(uint256_mulmod(alpha, alpha, P), uint256_mulmod(P - 8, beta, P), P)
    rest: uint256 = uint256_addmod(uint256_mulmod(4, beta, P), P - x, P)
    y: uint256 = uint256_addmod(
        uint256_mulmod(alpha, rest, P), uint256_mulmod(P - 8, uint256_mulmod(gamma, gamma, P), P), P
    )
    return [x, y, uint256_mulmod(2, uint256_mulmod(p[1], p[2], P), P)]


@internal
@pure
def _add(p: uint256[3], x: uint256, y: uint256) -> uint256[3]:
    if p[2] == 0:
        return [x, y, 1]
    square: uint256 = uint256_mulmod(p[2], p[2], P)
    h: uint256 = uint256_addmod(uint256_mulmod(x, square, P), P - p[0], P)
    r: uint256 = uint256_addmod(
        uint256_mulmod(y, uint256_mulmod(square, p[2], P), P), (P - p[1]) % P, P
    )
    if h == 0:
        return self._double(p) if r == 0 else [0, 0, 0]
    h2: uint256 = uint256_mulmod(h, h, P)
    h3: uint256 = uint256_mulmod(h2, h, P)
    v: uint256 = uint256_mulmod(p[0], h2, P)
    x3: uint256 = uint256_addmod(
        uint256_addmod(uint256_mulmod(r, r, P), (P - h3) % P, P), uint256_mulmod(P - 2, v, P), P
    )
    y3: uint256 = uint256_addmod(
        uint256_mulmod(r, uint256_addmod(v, P - x3, P), P), uint256_mulmod(P - h3, p[1], P), P
    )
    return [x3, y3, uint256_mulmod(p[2], h, P)]
