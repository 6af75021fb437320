"""A decoded update and its norm, which is summed in integers: the same on every machine."""

import math
from abc import ABC, abstractmethod
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from earnest.training.diloco.state import Parameters, Spec

BLOCK = 1 << 17
"""Numbers processed at a time: a block fits a core's cache and bounds a codec's extra memory."""

EXACT = 1 << 22
"""Number of products below 2**31 that float64 sums exactly."""

Array = np.ndarray


class Update(ABC):
    """A decoded update: one float32 number for each parameter, or for those at `indices`.

    `indices` [m] int64, strictly ascending places in the name-sorted concatenation of all parameters, or None
    where every parameter has its number; `norm` is the L2 norm. Only the payload is stored; numbers are decoded when
    they are used.
    """

    def __init__(self, spec: Spec, payload: bytes, norm: float, indices: Array | None = None) -> None:
        self.spec = spec
        self.payload = payload
        self.norm = norm
        self.indices = indices

    @cached_property
    def content(self) -> bytes:
        """Bytes that are equal exactly for equal updates of one codec: the payload itself."""
        return self.payload

    @property
    def bits(self) -> Array:
        """Raw bfloat16 (uint16 [m]) of the numbers sent. Raises TypeError for a codec of other numbers."""
        raise TypeError("the numbers of this codec are not bfloat16")

    @abstractmethod
    def add_to(self, total: Tensor, factor: float) -> None:
        """Adds update * float32(factor) to `total` [size], in place: one multiplication, one addition per number.

        Bit for bit `total + flat() * factor` wherever `total` has no negative zero, without making `flat()`.
        """

    def add_sent_to(self, weight: Tensor, share: float) -> None:
        """Adds float32(share) to `weight` [size], in place, wherever the update has a number."""
        if self.indices is None:
            weight.add_(float32(share))
        else:
            weight.index_add_(0, torch.from_numpy(self.indices), float32(share).expand(len(self.indices)))

    def flat(self, device: str | torch.device = "cpu") -> Tensor:
        """Returns float32 [size]; zero where nothing was sent."""
        total = torch.zeros(self.spec.size)
        self.add_to(total, 1.0)
        return total.to(device)

    def sent(self, device: str | torch.device = "cpu") -> Tensor:
        """Returns float32 [size]: 1 where the update has a number, 0 elsewhere."""
        weight = torch.zeros(self.spec.size)
        self.add_sent_to(weight, 1.0)
        return weight.to(device)

    def dense(self, device: str | torch.device = "cpu") -> Parameters:
        """Returns float32 tensors by parameter name."""
        return self.spec.split(self.flat(device))


def float32(scalar: float) -> Tensor:
    """Rounds a scalar to float32 once, here, and not in a kernel."""
    return torch.tensor(scalar, dtype=torch.float32)


def widen(bits: Array) -> Array:
    """Converts raw bfloat16 to float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def square_sum(bits: Array, counts: Array | None = None) -> int:
    """Returns the exact sum of counts * number**2 over finite bfloat16 numbers (raw bits), in units of 2**-266.

    A number is `mantissa * 2**(exponent - 134)`, mantissa below 256. Products are summed per exponent, in two
    halves of 31 bits (exact in float64 for up to 2**22 numbers: more are summed a part at a time), the 255 sums as
    one Python integer.
    """
    if len(bits) > EXACT:
        parts = (slice(at, at + EXACT) for at in range(0, len(bits), EXACT))
        return sum(square_sum(bits[part], None if counts is None else counts[part]) for part in parts)
    exponents = bits.astype(np.int64) >> 7 & 0xFF
    mantissas = (bits & 0x7F).astype(np.int64) + np.where(exponents > 0, 0x80, 0)
    products, exponents = mantissas**2, np.maximum(exponents, 1)
    if counts is not None:
        products *= counts
    low = np.bincount(exponents, (products & 0x7FFFFFFF).astype(np.float64))
    high = np.bincount(exponents, (products >> 31).astype(np.float64))
    pairs = enumerate(zip(low, high, strict=True))
    return sum((int(a) + (int(b) << 31)) << 2 * (exponent - 1) for exponent, (a, b) in pairs if a or b)


def root(squares: int) -> float:
    """Returns the square root of `squares` (in units of 2**-266): rounded only here."""
    return math.ldexp(math.sqrt(squares), -133)


def exact_norm(bits: Array) -> float:
    """Returns the L2 norm of finite bfloat16 numbers (raw bits, uint16)."""
    return root(square_sum(bits))
