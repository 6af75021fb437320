"""Codecs: what a trainer's update looks like on the wire (Protocol sections 5 and 13).

Both are canonical: one update has one encoding, and the decoder refuses every other byte string with a
reason. Both have one exact size, known from the model alone. The decoded numbers are bfloat16, so that an
update's norm can be summed exactly, in integers, and comes out the same on every machine.

Error feedback follows SparseLoCo (arXiv 2508.15706): what was not sent is kept, decayed, and joins the next
update: `total = feedback * residual + update; sent = C(total); residual = total - sent`.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from earnest.client.diloco.state import Parameters, Spec
from earnest.client.diloco.tensorfile import Entry, PayloadError, file_bytes, read, write
from earnest.protocol.recipe import CodecChoice

MAX_CHUNK = 4096  # an index inside a chunk is stored in 12 bits


@dataclass(frozen=True, eq=False)
class Update:
    """A decoded update: bfloat16 numbers, all of them or those at `indices`.

    `bits` [m] uint16 raw bfloat16; `indices` [m] int64, strictly ascending places in the name-sorted
    concatenation of all parameters, or None where m is the model's size. `content` (SHA-256 of the payload)
    is equal exactly for equal updates; `norm` is the L2 norm, from exact integer sums.
    """

    spec: Spec
    bits: np.ndarray
    indices: np.ndarray | None
    content: bytes
    norm: float

    def flat(self, device: str | torch.device = "cpu") -> Tensor:
        """Float32 [size]; zero where nothing was sent."""
        values = torch.from_numpy(_float32(self.bits))
        if self.indices is not None:
            values = torch.zeros(self.spec.size).index_copy_(0, torch.from_numpy(self.indices), values)
        return values.to(device)

    def sent(self, device: str | torch.device = "cpu") -> Tensor:
        """Float32 [size]: 1 where the update has a number, 0 elsewhere."""
        if self.indices is None:
            return torch.ones(self.spec.size, device=device)
        return torch.zeros(self.spec.size).index_fill_(0, torch.from_numpy(self.indices), 1.0).to(device)

    def dense(self, device: str | torch.device = "cpu") -> Parameters:
        """Float32 tensors by parameter name."""
        return self.spec.split(self.flat(device))


@dataclass(frozen=True, eq=False)
class Encoded:
    """A payload, the update that it decodes to, and what stays behind (None without error feedback)."""

    payload: bytes
    update: Update
    residual: Parameters | None


class Codec(Protocol):
    name: str
    spec: Spec
    payload_bytes: int
    """Exact size of every payload."""

    def encode(self, update: Mapping[str, Tensor], residual: Mapping[str, Tensor] | None = None) -> Encoded:
        """Encode an update (a pseudo-gradient) plus the decayed residual of the round before.

        Raises ValueError where a number isn't finite. A caller that gets `update.norm == 0` has nothing to
        send.
        """
        ...

    def decode(self, payload: bytes) -> Update:
        """Raises PayloadError, with nothing allocated that a file claims, unless it is canonical."""
        ...


def make_codec(choice: CodecChoice, spec: Spec) -> Codec:
    """The codec that a recipe names, for one model. Raises ValueError for one we don't have."""
    match choice.name:
        case "dense-bf16":
            return DenseBf16(spec, choice.error_feedback)
        case "topk-2bit":
            return Topk2Bit(spec, choice.k, choice.chunk, choice.error_feedback)
    raise ValueError(f"no codec named {choice.name!r}; there are dense-bf16 and topk-2bit")


class DenseBf16:
    """Every parameter as bfloat16, rounded to nearest even: half the bytes of float32, no other loss."""

    name = "dense-bf16"

    def __init__(self, spec: Spec, error_feedback: float = 0.0) -> None:
        self.spec = spec
        self.error_feedback = error_feedback
        self.entries = [Entry(name, "BF16", shape) for name, shape in spec.shapes]
        self.payload_bytes = file_bytes(self.entries)

    def encode(self, update: Mapping[str, Tensor], residual: Mapping[str, Tensor] | None = None) -> Encoded:
        total = _total(self.spec, update, residual, self.error_feedback)
        rounded = total.to(torch.bfloat16) + 0.0  # adding zero turns -0 into +0
        tensors = self.spec.split(rounded.view(torch.int16))
        payload = write({e: tensors[e.name].numpy().view(np.uint16) for e in self.entries})
        return _encoded(self, payload, total, self.error_feedback)

    def decode(self, payload: bytes) -> Update:
        tensors = read(payload, self.entries)
        bits = np.concatenate([tensors[name].reshape(-1) for name, _ in self.spec.shapes]).astype(np.uint16)
        _check_finite(bits)
        _require(not (bits == 0x8000).any(), "negative zero")
        return Update(self.spec, bits, None, hashlib.sha256(payload).digest(), exact_norm(bits))


class Topk2Bit:
    """The k largest of every chunk: an index of 12 bits, a sign, and one of two magnitudes.

    Chunks of `chunk` run over the name-sorted concatenation of all parameters; the last keeps ceil(k * len
    / chunk). A file holds `scales` BF16 [chunks, 2] (low, high), `codes` U8 (four per byte, low bits first;
    bit 0 sign, bit 1 high) and `indices` U8 (two per three bytes, low bits first), spare bits zero.
    Canonical rules per chunk:

    - indices strictly ascending and inside the chunk; magnitudes finite, not negative, 0 <= low < high;
    - some number uses high; low is zero exactly if none uses it, so no number that is sent is zero;
    - a chunk of zeros has both magnitudes zero, the first k indices and codes zero.
    """

    name = "topk-2bit"

    def __init__(self, spec: Spec, k: int, chunk: int = MAX_CHUNK, error_feedback: float = 0.0) -> None:
        if not 1 <= k <= chunk <= MAX_CHUNK:
            raise ValueError(f"topk-2bit needs 1 <= k <= chunk <= {MAX_CHUNK}, not k={k}, chunk={chunk}")
        self.spec = spec
        self.k, self.chunk, self.error_feedback = k, chunk, error_feedback
        self.chunks = math.ceil(spec.size / chunk)
        self.tail = spec.size - (self.chunks - 1) * chunk
        self.counts = np.full(self.chunks, k)
        self.counts[-1] = math.ceil(k * self.tail / chunk)
        self.total = int(self.counts.sum())
        self.entries = [
            Entry("scales", "BF16", (self.chunks, 2)),
            Entry("codes", "U8", (math.ceil(self.total / 4),)),
            Entry("indices", "U8", (math.ceil(self.total * 3 / 2),)),
        ]
        self.payload_bytes = file_bytes(self.entries)

    def encode(self, update: Mapping[str, Tensor], residual: Mapping[str, Tensor] | None = None) -> Encoded:
        total = _total(self.spec, update, residual, self.error_feedback)
        whole, tail = total.split([self.spec.size - self.tail, self.tail])
        parts = [_quantize(tail.view(1, -1), int(self.counts[-1]))]
        if self.chunks > 1:
            parts.insert(0, _quantize(whole.view(-1, self.chunk), self.k))
        places, codes, scales = (np.concatenate([p[i] for p in parts]) for i in range(3))
        scales_entry, codes_entry, indices_entry = self.entries
        payload = write(
            {scales_entry: scales, codes_entry: _pack_codes(codes), indices_entry: _pack_indices(places)}
        )
        return _encoded(self, payload, total, self.error_feedback)

    def decode(self, payload: bytes) -> Update:
        tensors = read(payload, self.entries)
        places, codes = self._places(tensors["indices"]), self._codes(tensors["codes"])
        owner = np.repeat(np.arange(self.chunks), self.counts)
        scales = tensors["scales"].astype(np.uint16)
        self._check_scales(scales, codes, places, owner)
        bits = scales[owner, codes >> 1] | (codes & 1).astype(np.uint16) << 15
        indices = owner * self.chunk + places
        return Update(self.spec, bits, indices, hashlib.sha256(payload).digest(), exact_norm(bits))

    def _places(self, packed: np.ndarray) -> np.ndarray:
        """Places inside their chunks, int64 [total], checked."""
        places = _unpack_indices(packed)
        _require(not places[self.total :].any(), "spare bits of the indices are set")
        places = places[: self.total]
        lengths = np.full(self.chunks, self.chunk)
        lengths[-1] = self.tail
        _require((places < np.repeat(lengths, self.counts)).all(), "index out of range")
        first = np.zeros(self.total, bool)
        first[np.cumsum(self.counts)[:-1]] = True
        steps = np.diff(places)[~first[1:]]
        _require(not (steps == 0).any(), "duplicate index")
        _require((steps > 0).all(), "indices are not sorted")
        return places

    def _codes(self, packed: np.ndarray) -> np.ndarray:
        codes = (packed[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1)
        _require(not codes[self.total :].any(), "spare bits of the codes are set")
        return codes[: self.total]

    def _check_scales(
        self, scales: np.ndarray, codes: np.ndarray, places: np.ndarray, owner: np.ndarray
    ) -> None:
        """The canonical rules of one chunk, for all chunks; non-negative bfloat16 sort like their bits."""
        _check_finite(scales)
        _require(not (scales & 0x8000).any(), "negative magnitude")
        low, high = scales[:, 0], scales[:, 1]
        highs = np.bincount(owner, codes >> 1, self.chunks)
        zero = high == 0
        _require((low[~zero] < high[~zero]).all(), "low magnitude is not below high")
        _require((highs[~zero] > 0).all(), "high magnitude is not used")
        _require(
            ((low > 0) == (highs < self.counts))[~zero].all(), "low magnitude must be zero exactly if unused"
        )
        within = np.arange(self.total) - (np.cumsum(self.counts) - self.counts)[owner]
        idle = zero[owner]
        plain = not low[zero].any() and not codes[idle].any() and (places[idle] == within[idle]).all()
        _require(bool(plain), "a chunk of zeros is not in its plain form")


def exact_norm(bits: np.ndarray) -> float:
    """L2 norm of finite bfloat16 numbers (raw bits, uint16): squares summed exactly, rounded only at the end.

    A number is `mantissa * 2**(exponent - 134)`, mantissa below 256. Squared mantissas are summed per
    exponent (exact in float64 up to 2**37 numbers), the 255 sums as one Python integer.
    """
    exponents = bits.astype(np.int64) >> 7 & 0xFF
    mantissas = (bits & 0x7F) + np.where(exponents > 0, 0x80, 0)
    sums = np.bincount(np.maximum(exponents, 1), mantissas.astype(np.float64) ** 2)
    total = sum(int(value) << 2 * (exponent - 1) for exponent, value in enumerate(sums) if value)
    return math.ldexp(math.sqrt(total), -133)


def _total(
    spec: Spec, update: Mapping[str, Tensor], residual: Mapping[str, Tensor] | None, feedback: float
) -> Tensor:
    total = spec.join(update)
    if residual is not None and feedback:
        total = spec.join(residual) * feedback + total
    if not torch.isfinite(total).all():
        raise ValueError("update holds a number that is not finite")
    return total


def _encoded(codec: Codec, payload: bytes, total: Tensor, feedback: float) -> Encoded:
    update = codec.decode(payload)
    residual = codec.spec.split(total - update.flat()) if feedback else None
    return Encoded(payload, update, residual)


def _quantize(rows: Tensor, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Float32 [rows, length] -> places [rows * k], codes [rows * k], scales [rows, 2], in canonical form.

    A number is `high` if its magnitude is above the mean of the k; each magnitude is the mean of its group.
    """
    places = rows.abs().topk(k, dim=1).indices.sort(dim=1).values
    values = rows.gather(1, places)
    sizes = values.abs().double()
    mean = sizes.mean(1, keepdim=True)
    is_high = sizes > mean
    low, high = (_group_mean(sizes, group) for group in (~is_high, is_high))
    single = (low <= 0) | (low >= high)
    low[single], high[single] = 0.0, mean.to(torch.bfloat16)[single]
    is_high |= single
    zero = high == 0
    places = torch.where(zero, torch.arange(k), places)
    codes = torch.where(zero, 0, is_high.to(torch.uint8) << 1 | (values < 0).to(torch.uint8))
    scales = torch.cat([low, high], 1).view(torch.int16).numpy().view(np.uint16)
    return places.reshape(-1).numpy(), codes.reshape(-1).to(torch.uint8).numpy(), scales


def _group_mean(sizes: Tensor, group: Tensor) -> Tensor:
    """Mean over a row's members of `group`, bfloat16 [rows, 1]; 0 for an empty group."""
    count = group.sum(1, keepdim=True).clamp(min=1)
    return ((sizes * group).sum(1, keepdim=True) / count).to(torch.bfloat16)


def _pack_codes(codes: np.ndarray) -> np.ndarray:
    fours = np.pad(codes, (0, -len(codes) % 4)).reshape(-1, 4)
    return fours[:, 0] | fours[:, 1] << 2 | fours[:, 2] << 4 | fours[:, 3] << 6


def _pack_indices(places: np.ndarray) -> np.ndarray:
    pairs = np.pad(places, (0, len(places) % 2)).reshape(-1, 2)
    first, second = pairs[:, 0], pairs[:, 1]
    packed = np.stack([first & 0xFF, first >> 8 | (second & 0xF) << 4, second >> 4], 1).astype(np.uint8)
    return packed.reshape(-1)[: math.ceil(len(places) * 3 / 2)]


def _unpack_indices(packed: np.ndarray) -> np.ndarray:
    """Int64, an even number of them: the last is made of spare bits if the count was odd."""
    low, middle, high = np.pad(packed, (0, -len(packed) % 3)).reshape(-1, 3).astype(np.int64).T
    return np.stack([low | (middle & 0xF) << 8, middle >> 4 | high << 4], 1).reshape(-1)


def _float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _check_finite(bits: np.ndarray) -> None:
    special = (bits & 0x7F80) == 0x7F80
    if special.any():
        raise PayloadError("NaN" if (bits[special] & 0x7F).any() else "infinity")


def _require(condition: bool | np.bool_, reason: str) -> None:
    if not condition:
        raise PayloadError(reason)
