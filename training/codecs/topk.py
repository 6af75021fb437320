"""`topk-2bit`: the largest numbers of every chunk, their indices as Rice codes."""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from earnest.training.codecs.adaptive import SizeLimits, choose, energy
from earnest.training.codecs.bits import pack, packed_bytes, read_unary, rice_width, unary, unpack
from earnest.training.codecs.codec import (
    CodecState,
    Encoded,
    check_finite,
    chunk_blocks,
    encoded_as,
    require,
    update_plus_residual,
)
from earnest.training.codecs.update import Update, float32, root, square_sum, widen
from earnest.training.diloco.state import Spec
from earnest.training.diloco.tensorfile import Entry, entries_of, file_bytes, read, write

MAX_CHUNK = 1 << 16
TENSORS = ("scales", "codes", "k", "lows", "quotients")
Array = np.ndarray


class Topk2Bit:
    """The k largest of every chunk: a Rice-coded index, a sign, and one of two magnitudes.

    Chunks of `chunk` run over the name-sorted concatenation of all parameters; the last keeps ceil(k * len
    / chunk). Within a chunk, a gap is an index less the one before, less one (the first: the index itself).
    With b = `rice_width(k, chunk)` a payload contains

    - `scales` BF16 [chunks, 2]: low, high;
    - `codes` U8: a field of 2 bits per index, bit 0 sign, bit 1 high;
    - `k` U8 [4]: k, little-endian;
    - `lows` U8: the low b bits of each gap;
    - `quotients` U8: gap >> b of each in unary, that many zero bits and a one.

    Fields are packed low bits first; spare bits are zero, and there is no spare byte. Rules per chunk:

    - indices inside the chunk; magnitudes finite, not negative, 0 <= low < high;
    - some number uses high; low is zero exactly if none uses it, so no number that is sent is zero;
    - a chunk of zeros has both magnitudes zero, the first k indices and codes zero.

    With `energy` above 0, k is chosen from `k_min` to `k` for each payload (see `adaptive`).
    """

    name = "topk-2bit"

    def __init__(
        self,
        spec: Spec,
        k: int,
        chunk: int = 4096,
        error_feedback: float = 0.0,
        *,
        k_min: int = 0,
        energy: float = 0.0,
    ) -> None:
        if not 1 <= k <= chunk <= MAX_CHUNK:
            raise ValueError(f"topk-2bit needs 1 <= k <= chunk <= {MAX_CHUNK}, not k={k}, chunk={chunk}")
        self.spec, self.chunk, self.error_feedback = spec, chunk, error_feedback
        self.limits = SizeLimits(k_min if energy else k, k, energy)
        self.chunks = math.ceil(spec.size / chunk)
        self.tail = spec.size % chunk
        self.payload_bytes = max(
            file_bytes(self._layout(k, self._most_quotients(k))) for k in self._largest_of_each_width()
        )

    def encode(self, update: Mapping[str, Tensor], state: CodecState | None = None) -> Encoded:
        total = update_plus_residual(self.spec, update, state, self.error_feedback)
        places, energies = self._rank(total)
        k, history = choose(self.limits, energies, state)
        scales = np.empty((self.chunks, 2), np.uint16)
        gaps, codes = list[Array](), list[Array]()
        for first, rows in chunk_blocks(total, self.chunk, 4 * k):
            chosen = np.sort(places[first : first + len(rows), : self._count(k, rows.shape[1])], axis=1)
            some, gap, scale = _quantize(rows, torch.from_numpy(chosen.astype(np.int64)))
            scales[first : first + len(rows)] = scale
            codes.append(some)
            gaps.append(gap)
        payload = self._write(k, np.concatenate(gaps), np.concatenate(codes), scales)
        return encoded_as(self, payload, total, self.error_feedback, history)

    def decode(self, payload: bytes) -> Update:
        tensors, k = self._read(payload)
        total = self._total(k)
        width = rice_width(k, self.chunk)
        gaps = read_unary(tensors["quotients"], total)
        require(bool((gaps <= self.chunk >> width).all()), "index out of range")  # before 32 bits overflow
        gaps <<= width
        gaps |= unpack(tensors["lows"], total, width, "lows")
        codes = unpack(tensors["codes"], total, 2, "codes", np.uint8)
        scales = tensors["scales"].astype(np.uint16)
        check_finite(scales)
        require(not (scales & 0x8000).any(), "negative magnitude")
        indices, squares = np.empty(total, np.int64), 0
        for first, rows, length, span in self._spans(k):
            gap, code = gaps[span].reshape(rows, -1), codes[span].reshape(rows, -1)
            places = indices[span].reshape(rows, -1)
            gap[:, 1:] += 1
            np.cumsum(gap, axis=1, out=places)
            require(bool((places[:, -1] < length).all()), "index out of range")
            squares += _check(scales[first : first + rows], code, gap)
            places += (np.arange(first, first + rows) * self.chunk)[:, None]
        return TopkUpdate(self, payload, k, indices, scales, codes, root(squares))

    def _rank(self, total: Tensor) -> tuple[Array, Array | None]:
        """Returns each chunk's largest indices, uint16 [chunks, most], largest first; and the energy kept by each k."""
        most = self.limits.most
        places = np.empty((self.chunks, most), np.uint16)
        energies = np.zeros(most + 1) if self.limits.adaptive else None
        for first, rows in chunk_blocks(total, self.chunk):
            sizes, indices = rows.abs().topk(self._count(most, rows.shape[1]), dim=1)
            places[first : first + len(rows), : indices.shape[1]] = indices.numpy()
            if energies is not None:
                squares = sizes.double().square_().sum(0).cumsum(0).numpy()
                last = [self._count(k, rows.shape[1]) - 1 for k in range(1, most + 1)]
                energies[:most] += squares[last]
                energies[most] += energy(rows)
        return places, energies

    def _write(self, k: int, gaps: Array, codes: Array, scales: Array) -> bytes:
        width = rice_width(k, self.chunk)
        quotients = unary(gaps >> width)
        layout = self._layout(k, len(quotients))
        bodies = {
            "scales": scales,
            "codes": pack(codes, 2),
            "k": np.frombuffer(k.to_bytes(4, "little"), np.uint8),
            "lows": pack(gaps & (1 << width) - 1, width),
            "quotients": quotients,
        }
        return write({entry: bodies[entry.name] for entry in layout})

    def _read(self, payload: bytes) -> tuple[dict[str, Array], int]:
        """Returns views of the file's tensors, and k; sizes are checked before anything is allocated."""
        claimed = {entry.name: entry for entry in entries_of(payload, TENSORS)}
        require("k" in claimed and claimed["k"].nbytes == 4, "no k of four bytes")
        k = int.from_bytes(read(payload, list(claimed.values()))["k"].tobytes(), "little")
        self.limits.check(k, "k")
        quotients = claimed["quotients"].nbytes if "quotients" in claimed else 1
        require(1 <= quotients <= self._most_quotients(k), "wrong size of quotients")
        return read(payload, self._layout(k, quotients)), k

    def _layout(self, k: int, quotients: int) -> list[Entry]:
        total = self._total(k)
        return [
            Entry("scales", "BF16", (self.chunks, 2)),
            Entry("codes", "U8", (packed_bytes(total, 2),)),
            Entry("k", "U8", (4,)),
            Entry("lows", "U8", (packed_bytes(total, rice_width(k, self.chunk)),)),
            Entry("quotients", "U8", (quotients,)),
        ]

    def _most_quotients(self, k: int) -> int:
        """Returns the largest size of `quotients`, bytes: the gaps of a chunk sum to less than its length."""
        width = rice_width(k, self.chunk)
        zeros = sum(rows * (length >> width) for _, rows, length, _ in self._spans(k))
        return packed_bytes(self._total(k) + zeros, 1)

    def _largest_of_each_width(self) -> set[int]:
        """Returns the largest k of each Rice width. The width falls as k grows; for one width, bytes grow with k."""
        allowed = range(self.limits.least, self.limits.most + 1)
        ends = (
            bisect_right(allowed, -width, key=lambda k: -rice_width(k, self.chunk)) for width in range(17)
        )
        return {allowed[end - 1] for end in ends if end}

    def _count(self, k: int, length: int) -> int:
        """Returns the numbers kept of a chunk of `length`."""
        return -(-k * length // self.chunk)

    def _total(self, k: int) -> int:
        return self.spec.size // self.chunk * k + self._count(k, self.tail)

    def _spans(self, k: int) -> list[tuple[int, int, int, slice]]:
        """Returns (first chunk, chunks, their length, their indices): whole chunks, then a shorter last one."""
        whole = self.spec.size // self.chunk
        spans = [(0, whole, self.chunk, slice(0, whole * k))]
        if self.tail:
            spans.append((whole, 1, self.tail, slice(whole * k, self._total(k))))
        return [span for span in spans if span[1]]


class TopkUpdate(Update):
    """`codes` uint8 [m] and `scales` raw bfloat16 [chunks, 2], as in `Topk2Bit`."""

    def __init__(
        self,
        codec: Topk2Bit,
        payload: bytes,
        k: int,
        indices: Array,
        scales: Array,
        codes: Array,
        norm: float,
    ) -> None:
        super().__init__(codec.spec, payload, norm, indices)
        self.k = k
        self.scales, self.codes = scales, codes
        self._spans = codec._spans(k)

    @cached_property
    def content(self) -> bytes:
        """SHA-256 of indices and numbers that are not zero: payloads with different k can encode the same update.

        A last chunk keeps ceil(k * len / chunk) numbers, the same for more than one k, and a chunk of zeros is encoded
        with the first k indices.
        """
        assert self.indices is not None
        sent = np.flatnonzero(self.bits)
        places, numbers = self.indices[sent].astype("<i8"), self.bits[sent].astype("<u2")
        return hashlib.sha256(places.tobytes() + numbers.tobytes()).digest()

    @property
    def bits(self) -> Array:
        return self._bits

    @cached_property
    def _bits(self) -> Array:
        return self._look_up(np.stack([self.scales, self.scales | 0x8000], 2).reshape(-1))

    def add_to(self, total: Tensor, factor: float) -> None:
        low, high = torch.from_numpy(widen(self.scales)).mul_(float32(factor)).numpy().T
        values = self._look_up(np.stack([low, -low, high, -high], 1).reshape(-1))
        total.index_add_(0, torch.from_numpy(self.indices), torch.from_numpy(values))

    def _look_up(self, table: Array) -> Array:
        """Returns the entry of `table` [4 * chunks] for each code."""
        values = np.empty(len(self.codes), table.dtype)
        for first, rows, _, span in self._spans:
            at = (
                self.codes[span].reshape(rows, -1)
                + (np.arange(first, first + rows, dtype=np.int32) * 4)[:, None]
            )
            np.take(table, at, out=values[span].reshape(rows, -1), mode="clip")
        return values


def _quantize(rows: Tensor, places: Tensor) -> tuple[Array, Array, Array]:
    """Float32 [rows, length], indices [rows, k] ascending -> codes, gaps [rows * k], scales [rows, 2].

    A number is `high` if its magnitude is above the mean of the k; each magnitude is the mean of its group.
    """
    values = rows.gather(1, places)
    sizes = values.abs().double()
    mean = sizes.mean(1, keepdim=True)
    is_high = sizes > mean
    low, high = (_group_mean(sizes, group) for group in (~is_high, is_high))
    single = (low <= 0) | (low >= high)
    low[single], high[single] = 0.0, mean.to(torch.bfloat16)[single]
    is_high |= single
    zero = high == 0
    codes = (is_high.to(torch.uint8) << 1 | (values < 0).to(torch.uint8)).masked_fill_(zero, 0)
    gaps = places.to(torch.int32)
    gaps[:, 1:] -= places[:, :-1] + 1
    gaps.masked_fill_(zero, 0)
    scales = torch.cat([low, high], 1).view(torch.int16).numpy().view(np.uint16)
    return codes.reshape(-1).numpy(), gaps.reshape(-1).numpy(), scales


def _group_mean(sizes: Tensor, group: Tensor) -> Tensor:
    """Returns the mean over a row's members of `group`, bfloat16 [rows, 1]; 0 for an empty group."""
    count = group.sum(1, keepdim=True).clamp(min=1)
    return ((sizes * group).sum(1, keepdim=True) / count).to(torch.bfloat16)


def _check(scales: Array, codes: Array, gaps: Array) -> int:
    """Checks the canonical rules of chunks of one length; returns the sum of squares.

    Non-negative bfloat16 sort like their bits.
    """
    low, high = scales[:, 0], scales[:, 1]
    highs = np.count_nonzero(codes & 2, axis=1)
    lows = codes.shape[1] - highs
    zero = high == 0
    some = ~zero
    require((low < high)[some].all(), "low magnitude is not below high")
    require((highs > 0)[some].all(), "high magnitude is not used")
    require(((low > 0) == (lows > 0))[some].all(), "low magnitude must be zero exactly if unused")
    if zero.any():
        first = np.minimum(np.arange(codes.shape[1]), 1)
        plain = not low[zero].any() and not codes[zero].any() and (gaps[zero] == first).all()
        require(bool(plain), "a chunk of zeros is not in its plain form")
    return square_sum(scales.reshape(-1), np.stack([lows, highs], 1).reshape(-1))
