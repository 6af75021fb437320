"""Packed numbers: fixed-width fields, and sorted indices as Rice codes.

A gap (an index less the one before, less one) is `quotient << width | low`. The low parts are fields of `width` bits.
The quotients are stored separately, in unary: that many zero bits, then a one. Stored separately, both are read with
whole-array operations. A sorted set has exactly one form: a duplicate or a step back has no encoding.
"""

import numpy as np

from earnest.training.diloco.tensorfile import PayloadError

Array = np.ndarray


def packed_bytes(count: int, width: int) -> int:
    """Returns the bytes that `count` fields of `width` bits take."""
    return -(-count * width // 8)


def pack(fields: Array, width: int) -> Array:
    """Packs fields [n] of `width` <= 16 bits, low bits first, spare bits zero: uint8 [ceil(n * width / 8)]."""
    lanes = np.pad(fields.astype(np.uint32), (0, -len(fields) % 8)).reshape(-1, 8)
    out = np.zeros((len(lanes), width + 2), np.uint8)
    for lane in range(8):
        byte, shift = divmod(lane * width, 8)
        spread = lanes[:, lane] << np.uint32(shift)
        for i in range((shift + width + 7) // 8):
            out[:, byte + i] |= (spread >> np.uint32(8 * i)).astype(np.uint8)
    return np.ascontiguousarray(out[:, :width]).reshape(-1)[: packed_bytes(len(fields), width)]


def unpack(
    packed: Array, count: int, width: int, what: str, kind: type[np.unsignedinteger] = np.uint16
) -> Array:
    """Reverses `pack`: [count] of `kind`. Raises PayloadError, naming `what`, if spare bits are set."""
    if spare := -count * width % 8:
        _require(not packed[-1] >> (8 - spare), f"spare bits of the {what} are set")
    groups = -(-count // 8)
    lanes = np.zeros((groups, width + 2), np.uint8)
    whole = len(packed) // width if width else 0
    lanes[:whole, :width] = packed[: whole * width].reshape(whole, width)
    if rest := len(packed) - whole * width:
        lanes[whole, :rest] = packed[whole * width :]
    fields, mask = np.empty((groups, 8), kind), (1 << width) - 1
    for lane in range(8):
        byte, shift = divmod(lane * width, 8)
        needed = (shift + width + 7) // 8
        if needed <= 1:
            fields[:, lane] = lanes[:, byte] >> np.uint8(shift) & np.uint8(mask)
            continue
        word = lanes[:, byte].astype(np.uint32)
        for i in range(1, needed):
            word |= lanes[:, byte + i].astype(np.uint32) << np.uint32(8 * i)
        fields[:, lane] = word >> np.uint32(shift) & np.uint32(mask)
    return fields.reshape(-1)[:count]


def rice_width(k: int, length: int) -> int:
    """Returns the smallest width that minimises k * width + (length >> width), a bound of the bits for k indices."""
    return min(range(17), key=lambda width: (k * width + (length >> width), width))


def unary(quotients: Array) -> Array:
    """Encodes each quotient as that many zero bits and a one, low bits first; the last byte is padded with zeros."""
    ones = np.cumsum(quotients.astype(np.int64) + 1) - 1
    bits = np.zeros(int(ones[-1]) + 1, np.uint8)
    bits[ones] = 1
    return np.packbits(bits, bitorder="little")


def read_unary(packed: Array, count: int) -> Array:
    """Reverses `unary`: int32 [count]. Raises PayloadError unless there are `count` ones, the last in the last byte."""
    ones = np.flatnonzero(np.unpackbits(packed, bitorder="little").view(bool))
    _require(len(ones) == count, f"{len(ones)} quotients for {count} indices")
    _require(ones[-1] >> 3 == len(packed) - 1, "spare bytes follow the quotients")
    quotients = np.empty(count, np.int32)
    quotients[0] = ones[0]
    np.subtract(ones[1:], ones[:-1], out=quotients[1:], casting="same_kind")
    quotients[1:] -= 1
    return quotients


def _require(condition: bool | np.bool_, reason: str) -> None:
    if not condition:
        raise PayloadError(reason)
