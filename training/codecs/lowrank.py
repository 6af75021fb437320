"""`lowrank-int4`: matrices as sums of a few outer products of integers; everything else as bfloat16."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from earnest.training.codecs.adaptive import SizeLimits, choose, energy
from earnest.training.codecs.bits import pack, packed_bytes, unpack
from earnest.training.codecs.codec import (
    CodecState,
    Encoded,
    check_finite,
    encoded_as,
    require,
    update_plus_residual,
)
from earnest.training.codecs.dense import as_bfloat16
from earnest.training.codecs.update import BLOCK, Update, float32, root, square_sum
from earnest.training.diloco.state import Spec
from earnest.training.diloco.tensorfile import Entry, entries_of, file_bytes, read, write

MAX_RANK = 64
TENSORS = ("dense", "factors", "units", "weights")
LEAST_SIDE = 4
"""A tensor is factored if it has two dimensions, each at least this many times the recipe's rank."""

FACTOR, WEIGHT = 7, 4095
"""Largest code of a factor and largest weight of a column: 64 products of them sum to less than 2**24."""

LOWEST, HIGHEST = -126, 103
"""Limits of the exponent of a matrix's unit: no number is subnormal or infinite."""

Array = np.ndarray


@dataclass(frozen=True)
class Factors:
    """A matrix [m, n] = 2**exponent * sum over columns a of weights[a] * outer(p[a], q[a]).

    `weights` [r] int64, `p` [r, m] and `q` [r, n] int8.
    """

    exponent: int
    weights: Array
    p: Array
    q: Array

    def rows(self) -> Iterator[Tensor]:
        """Yields the numbers, float32 [rows, n] at a time, in a buffer that the next rows overwrite.

        The numbers and all partial sums are integers below 2**24 times a power of two, so any order of summation,
        with or without fused operations, gives the same bits: an ordinary matrix product is exact. It is computed in
        float64, which no setting makes less precise (float32 may become TF32 or bfloat16).
        """
        left = torch.from_numpy(self.p.T * (self.weights * 2.0**self.exponent))
        right = torch.from_numpy(self.q.astype(np.float64))
        step = min(len(left), max(1, BLOCK // self.q.shape[1]))
        product = torch.empty(step, self.q.shape[1], dtype=torch.float64)
        numbers = torch.empty(step, self.q.shape[1])
        for at in range(0, len(left), step):
            count = min(step, len(left) - at)
            torch.mm(left[at : at + count], right, out=product[:count])
            yield numbers[:count].copy_(product[:count])

    def squares(self) -> int:
        """Returns the exact sum of squares, in units of 2**-266, from the factors' inner products."""
        p, q = (torch.from_numpy(factor.astype(np.float64)) for factor in (self.p, self.q))
        products = ((p @ p.T).long() * (q @ q.T).long()).numpy().astype(object)
        weights = self.weights.astype(object)
        return int(weights @ products @ weights) << 2 * (self.exponent + 133)


class LowrankInt4:
    """One power iteration from where the last round's ended (PowerSGD, arXiv 1905.13727), factors in 4 bits.

    A payload contains, for the tensors that are matrices (see LEAST_SIDE), in name order, and the rank r:

    - `dense` BF16 [numbers]: all other tensors, as in `dense-bf16`;
    - `factors` U8: for each matrix p [r, m], then q [r, n]; fields of 4 bits, two's complement, low first;
    - `units` U8 [matrices]: exponent + 126;
    - `weights` U8 [matrices, r, 2]: unsigned, little-endian.

    `Factors` defines a matrix. Empty tensors are omitted. Rules per matrix:

    - codes lie in -7 .. 7, weights in 0 .. 4095, units in 0 .. 229;
    - columns descend by (weight, p, q), compared as they are stored; the first weight is at least 2048;
    - in a column with a weight, p and q both have a 7 or -7, and the first number of p that isn't zero is
      above zero; a column without has zeros only;
    - a matrix of zeros has unit, weights and codes zero.

    With `energy` above 0, r is chosen from `rank_min` to `rank` for each payload (see `adaptive`); above
    `rank_min` some matrix has a weight in column r. The same sum of products can have other factors, which no rule
    on columns excludes, so `content` is the hash of the numbers and not of the payload.
    """

    name = "lowrank-int4"

    def __init__(
        self, spec: Spec, rank: int, error_feedback: float = 0.0, *, rank_min: int = 0, energy: float = 0.0
    ) -> None:
        if not 1 <= rank <= MAX_RANK:
            raise ValueError(f"lowrank-int4 needs 1 <= rank <= {MAX_RANK}, not {rank}")
        self.spec, self.error_feedback = spec, error_feedback
        self.limits = SizeLimits(rank_min if energy else rank, rank, energy)
        self.matrices = {
            name: (shape[0], shape[1])
            for name, shape in spec.shapes
            if len(shape) == 2 and min(shape) >= LEAST_SIDE * rank
        }
        self.others = spec.size - sum(m * n for m, n in self.matrices.values())
        self.payload_bytes = max(
            file_bytes(self._layout(r)) for r in range(self.limits.least, self.limits.most + 1)
        )

    def encode(self, update: Mapping[str, Tensor], state: CodecState | None = None) -> Encoded:
        total = update_plus_residual(self.spec, update, state, self.error_feedback)
        tensors, most = self.spec.split(total), self.limits.most
        energies, starts = np.zeros(most + 1), CodecState()
        pairs: list[tuple[Tensor, Tensor]] = []
        for name in self.matrices:
            start = (state or {}).get(f"start/{name}", _start(tensors[name].shape[1], most))
            p, q = _iterate(tensors[name], start)
            squares = q.square().sum(0)
            if self.limits.adaptive:
                energies[:most] += squares.cumsum(0).numpy()
                energies[most] += energy(tensors[name])
            starts[f"start/{name}"] = _next_start(q, squares)
            pairs.append((p, q))
        rank, history = choose(self.limits, energies if self.limits.adaptive else None, state)
        rank, factors = self._factor(rank, pairs)
        rest = [tensors[name].reshape(-1) for name, _ in self.spec.shapes if name not in self.matrices]
        dense = torch.cat([*rest, torch.zeros(0)]).to(torch.bfloat16) + 0.0  # adding zero turns -0 into +0
        payload = self._write(rank, factors, dense)
        return encoded_as(self, payload, total, self.error_feedback, starts | history)

    def decode(self, payload: bytes) -> Update:
        tensors, rank = self._read(payload)
        dense = tensors.get("dense", np.empty(0, np.uint16))
        check_finite(dense)
        require(not (dense == 0x8000).any(), "negative zero")
        factors = list(self._unpack(tensors, rank)) if self.matrices else []
        if factors and rank > self.limits.least:
            require(any(f.weights[-1] for f in factors), "the rank is higher than any matrix needs")
        squares = square_sum(*np.unique(dense, return_counts=True))
        squares += sum(matrix.squares() for matrix in factors)
        return LowrankUpdate(self, payload, dense, factors, root(squares))

    def _factor(self, rank: int, pairs: list[tuple[Tensor, Tensor]]) -> tuple[int, list[Factors]]:
        """Returns quantized factors, and the rank without the columns in which no matrix has a weight."""
        factors = [quantize(p[:, :rank], q[:, :rank]) for p, q in pairs]
        used = max((int(np.count_nonzero(f.weights)) for f in factors), default=0)
        rank = max(used, self.limits.least)
        return rank, [Factors(f.exponent, f.weights[:rank], f.p[:rank], f.q[:rank]) for f in factors]

    def _write(self, rank: int, factors: list[Factors], dense: Tensor) -> bytes:
        codes = [code.reshape(-1) for f in factors for code in (f.p, f.q)]
        bodies = {
            "dense": dense.view(torch.int16).numpy().view(np.uint16),
            "factors": pack(np.concatenate([*codes, np.empty(0, np.int8)]).view(np.uint8) & 15, 4),
            "units": np.array([f.exponent - LOWEST for f in factors], np.uint8),
            "weights": np.array([f.weights for f in factors], "<u2").reshape(-1, rank, 1).view(np.uint8),
        }
        return write({entry: bodies[entry.name] for entry in self._layout(rank)})

    def _read(self, payload: bytes) -> tuple[dict[str, Array], int]:
        """Returns views of the file's tensors, and the rank, read from the shape of `weights`."""
        shapes = {entry.name: entry.shape for entry in entries_of(payload, TENSORS)}
        shape = shapes.get("weights", ())
        rank = shape[1] if self.matrices and len(shape) == 3 else self.limits.most
        self.limits.check(rank, "rank")
        return read(payload, self._layout(rank)), rank

    def _layout(self, rank: int) -> list[Entry]:
        count = sum(rank * (m + n) for m, n in self.matrices.values())
        layout = [
            Entry("dense", "BF16", (self.others,)),
            Entry("factors", "U8", (packed_bytes(count, 4),)),
            Entry("units", "U8", (len(self.matrices),)),
            Entry("weights", "U8", (len(self.matrices), rank, 2)),
        ]
        return [entry for entry in layout if entry.nbytes]

    def _unpack(self, tensors: Mapping[str, Array], rank: int) -> Iterator[Factors]:
        """Yields the factors of each matrix. Raises PayloadError for a matrix that is not canonical."""
        count = sum(rank * (m + n) for m, n in self.matrices.values())
        codes = unpack(tensors["factors"], count, 4, "factors", np.uint8).view(np.int8)
        codes = codes << 4 >> 4  # the sign of 4 bits becomes that of 8
        require(not (codes == -8).any(), "a code is -8")
        weights = tensors["weights"].view("<u2")[..., 0].astype(np.int64)
        start = 0
        for unit, row, (m, n) in zip(tensors["units"], weights, self.matrices.values(), strict=True):
            middle, end = start + rank * m, start + rank * (m + n)
            p, q = codes[start:middle].reshape(rank, m), codes[middle:end].reshape(rank, n)
            _check(int(unit), row, p, q)
            yield Factors(int(unit) + LOWEST, row, p, q)
            start = end


class LowrankUpdate(Update):
    """`factors`: those of the factored matrices; `dense`: raw bfloat16 of all other tensors; both in name order."""

    def __init__(
        self, codec: LowrankInt4, payload: bytes, dense: Array, factors: list[Factors], norm: float
    ) -> None:
        super().__init__(codec.spec, payload, norm)
        self.matrices, self._dense, self.factors = codec.matrices, dense, factors

    @cached_property
    def content(self) -> bytes:
        """SHA-256 of the numbers as little-endian float32: one product can be factored in several ways."""
        digest = hashlib.sha256()
        for numbers in self._blocks():
            digest.update((numbers + 0.0).numpy().astype("<f4").data)  # adding zero turns -0 into +0
        return digest.digest()

    def add_to(self, total: Tensor, factor: float) -> None:
        share, start = float32(factor), 0
        for numbers in self._blocks():
            total[start : start + len(numbers)].add_(numbers.mul_(share))
            start += len(numbers)

    def _blocks(self) -> Iterator[Tensor]:
        """Yields all numbers in order, float32, a block at a time; the caller may modify a block."""
        factors, at = iter(self.factors), 0
        for name, shape in self.spec.shapes:
            if name in self.matrices:
                yield from (rows.view(-1) for rows in next(factors).rows())
                continue
            end = at + math.prod(shape)
            for start in range(at, end, BLOCK):
                yield as_bfloat16(self._dense[start : min(end, start + BLOCK)]).float()
            at = end


def quantize(p: Tensor, q: Tensor) -> Factors:
    """Quantizes p @ q.T, float64 p [m, r] and q [n, r], to canonical factors; columns too small become zero."""
    left, right = _codes(p), _codes(q)
    sizes = (left.square().sum(0) * right.square().sum(0)).clamp(min=1)
    scales = (p * left).sum(0) * (q * right).sum(0) / sizes  # the least-squares fit to both quantized columns
    top = scales.max().item()
    exponent = min(math.frexp(top)[1] - 12, HIGHEST)
    weights = (scales * 2.0**-exponent).round().clamp(0, WEIGHT)
    if not top > 0 or exponent < LOWEST:
        exponent, weights = LOWEST, torch.zeros(len(scales))
    used = weights > 0
    first = left.gather(0, (left != 0).int().argmax(0, keepdim=True))
    signs = torch.where(first < 0, -1, 1) * used
    columns = [
        (int(weight), a.numpy().astype(np.int8), b.numpy().astype(np.int8))
        for weight, a, b in zip(weights, (left * signs).T, (right * signs).T, strict=True)
    ]
    columns.sort(key=lambda column: (column[0], column[1].tobytes(), column[2].tobytes()), reverse=True)
    return Factors(
        exponent,
        np.array([weight for weight, _, _ in columns]),
        np.stack([a for _, a, _ in columns]),
        np.stack([b for _, _, b in columns]),
    )


def _check(unit: int, weights: Array, p: Array, q: Array) -> None:
    """Raises PayloadError unless one matrix follows the rules of `LowrankInt4`."""
    require(weights.max() <= WEIGHT, "a weight is above 4095")
    require(unit <= HIGHEST - LOWEST, "a unit is above 229")
    used = weights > 0
    require(weights[0] >= 2048 or not used.any(), "the first weight is below 2048")
    require(bool(used[0]) or unit == 0, "a matrix of zeros has a unit")
    require((weights[:-1] >= weights[1:]).all(), "weights do not descend")
    require(not p[~used].any() and not q[~used].any(), "a column without weight has codes")
    p, q, weights = p[used], q[used], weights[used]
    for name, factor in (("p", p), ("q", q)):
        require((np.abs(factor).max(1, initial=0) == FACTOR).all(), f"the largest code of a {name} is not 7")
    first = p[np.arange(len(p)), (p != 0).argmax(1)]
    require((first > 0).all(), "a column is turned around")
    for a in np.flatnonzero(weights[:-1] == weights[1:]):
        ordered = (p[a].tobytes(), q[a].tobytes()) > (p[a + 1].tobytes(), q[a + 1].tobytes())
        require(ordered, "columns of one weight do not descend")


def _iterate(matrix: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Takes one power iteration: float64 p [m, r] orthonormal, q [n, r] orthogonal, longest first, p @ q.T ~ matrix."""
    p = torch.linalg.qr((start.T.contiguous() @ matrix.T).T.double()).Q
    q = (
        p.T.float().contiguous() @ matrix
    ).T.double()  # in this order the small factor is the left: much faster
    if not torch.isfinite(q).all():
        raise ValueError("update contains numbers that are too large to factor")
    turn = torch.linalg.eigh(q.T @ q).eigenvectors.flip(1)
    return p @ turn, q @ turn


def _codes(columns: Tensor) -> Tensor:
    """Scales each column to -7 .. 7 and rounds it; a column of zeros stays zero."""
    largest = columns.abs().amax(0)
    return (columns * (FACTOR / largest.where(largest > 0, 1.0))).round()


def _start(columns: int, rank: int) -> Tensor:
    """Returns the start of the first iteration, the same for everyone: float32 [columns, rank]."""
    return torch.randn(columns, rank, generator=torch.Generator().manual_seed(0))


def _next_start(q: Tensor, squares: Tensor) -> Tensor:
    """Returns this round's q with columns of length 1; a column of zeros is replaced by a new start."""
    lengths = squares.sqrt()
    fresh = _start(len(q), q.shape[1])
    return torch.where(lengths > 1e-30, q / lengths.clamp(min=1e-30), fresh).float()
