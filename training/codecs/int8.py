"""`int8`: every parameter as an integer from -127 to 127 times its chunk's scale."""

import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from earnest.training.codecs.codec import (
    CodecState,
    Encoded,
    check_finite,
    chunk_blocks,
    encoded_as,
    require,
    update_plus_residual,
)
from earnest.training.codecs.update import BLOCK, Update, float32, root, square_sum
from earnest.training.diloco.state import Spec
from earnest.training.diloco.tensorfile import Entry, file_bytes, read, write_parts

MAX_CHUNK = 1 << 16
SMALLEST, LARGEST = 0x0080, 0x7C01
"""Raw bfloat16 of the scales allowed, 2**-126 to 1.0078125 * 2**121: every code times every scale is a float32."""


class Int8:
    """Rounded to nearest, halves to even: value = code * scale, exactly.

    Chunks of `chunk` run over the name-sorted concatenation of all parameters. A payload contains `scales` BF16
    [chunks] and `codes` U8 [size], two's complement. Rules per chunk:

    - the scale is zero or from 2**-126 to 1.0078125 * 2**121, where 127 times it is finite; no code is -128;
    - the largest magnitude of the codes is 127, so a value has one scale;
    - a chunk of zeros has scale and codes zero.
    """

    name = "int8"

    def __init__(self, spec: Spec, chunk: int = 4096, error_feedback: float = 0.0) -> None:
        if not 1 <= chunk <= MAX_CHUNK:
            raise ValueError(f"int8 needs 1 <= chunk <= {MAX_CHUNK}, not {chunk}")
        self.spec, self.chunk, self.error_feedback = spec, chunk, error_feedback
        self.chunks = math.ceil(spec.size / chunk)
        self.entries = [Entry("scales", "BF16", (self.chunks,)), Entry("codes", "U8", (spec.size,))]
        self.payload_bytes = file_bytes(self.entries)

    def encode(self, update: Mapping[str, Tensor], state: CodecState | None = None) -> Encoded:
        total = update_plus_residual(self.spec, update, state, self.error_feedback)
        scales = torch.cat([_scales(rows) for _, rows in chunk_blocks(total, self.chunk)])
        codes = (_codes(rows, scales[first:]) for first, rows in chunk_blocks(total, self.chunk))
        raw = scales.to(torch.bfloat16).view(torch.int16).numpy()
        payload = write_parts(self.entries, itertools.chain([raw], codes))
        return encoded_as(self, payload, total, self.error_feedback, {})

    def decode(self, payload: bytes) -> Update:
        tensors = read(payload, self.entries)
        scales, codes = tensors["scales"], tensors["codes"].view(np.int8)
        check_finite(scales)
        require(not (scales & 0x8000).any(), "negative scale")
        require(not (scales < SMALLEST)[scales > 0].any(), "scale below 2**-126")
        require(not (scales > LARGEST).any(), "scale above 1.0078125 * 2**121")
        squares = np.empty(self.chunks, np.int64)
        for first, rows in _code_groups(codes, self.chunk):
            low, high = (extreme.numpy().astype(np.int32) for extreme in (rows.amin(1), rows.amax(1)))
            require(not (low == -128).any(), "a code is -128")
            zero = scales[first : first + len(rows)] == 0
            largest = np.maximum(high, -low)
            require(not largest[zero].any(), "a chunk of scale zero has a code")
            require((largest == 127)[~zero].all(), "a chunk's largest code is not 127")
            squares[first : first + len(rows)] = _square_sums(rows)
        return Int8Update(self, payload, scales, codes, root(square_sum(scales, squares)))


class Int8Update(Update):
    """`codes` int8 [size]; `scales` [chunks] raw bfloat16."""

    def __init__(
        self, codec: Int8, payload: bytes, scales: np.ndarray, codes: np.ndarray, norm: float
    ) -> None:
        super().__init__(codec.spec, payload, norm)
        self.chunk, self.codes, self.scales = codec.chunk, codes, scales

    def add_to(self, total: Tensor, factor: float) -> None:
        scales = torch.from_numpy(self.scales.astype(np.int32) << 16).view(torch.float32)[:, None]
        share = float32(factor)
        for first, rows in _code_groups(self.codes, self.chunk):
            numbers = rows.float().mul_(scales[first : first + len(rows)]).mul_(share)
            total[first * self.chunk :][: numbers.numel()].add_(numbers.view(-1))


def _scales(rows: Tensor) -> Tensor:
    """Returns one scale per row, float32 [rows] rounded to bfloat16: the largest magnitude / 127."""
    scales = (torch.maximum(rows.amax(1), -rows.amin(1)) / 127).to(torch.bfloat16).float()
    return scales.where(scales >= 2.0**-126, 0.0)


def _codes(rows: Tensor, scales: Tensor) -> np.ndarray:
    """Returns int8 [rows, length]; zeros where the scale is zero."""
    scales = scales[: len(rows), None]
    numbers = (rows / scales.where(scales > 0, 1.0)).round_().clamp_(-127, 127).mul_(scales > 0)
    return numbers.to(torch.int8).numpy()


def _square_sums(rows: Tensor) -> np.ndarray:
    """Int8 [rows, length] -> sums of squares [rows]. Float32 is exact, in any order, for up to 1024 squares of 127."""
    few = rows.float().square_().view(len(rows), -1, math.gcd(rows.shape[1], 1024))
    return few.sum(2).double().sum(1).numpy()


def _code_groups(codes: np.ndarray, chunk: int) -> Iterator[tuple[int, Tensor]]:
    """Yields as `chunk_blocks` does, but copies: arrays that view a payload are read-only, unlike tensors."""
    whole = len(codes) // chunk
    size = max(1, BLOCK // chunk) * chunk
    for start in range(0, whole * chunk, size):
        part = codes[start : min(whole * chunk, start + size)]
        yield start // chunk, torch.from_numpy(part.copy()).view(-1, chunk)
    if whole * chunk < len(codes):
        yield whole, torch.from_numpy(codes[whole * chunk :].copy()).view(1, -1)
