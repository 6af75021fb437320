"""The interface of a codec, and helpers that the encoders share.

To add one: CONTRIBUTING.md, "A codec".

Error feedback follows SparseLoCo (arXiv 2508.15706): the part of an update that was not sent is decayed and added to
the next update: `total = feedback * residual + update; sent = C(total); residual = total - sent`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from earnest.training.codecs.update import BLOCK, Update, float32
from earnest.training.diloco.state import Spec
from earnest.training.diloco.tensorfile import PayloadError

CodecState = dict[str, Tensor]
"""A trainer's codec state between two rounds: float32 tensors by name.

`residual/<parameter>`: the error-feedback residual. `start/<parameter>`: the start of the low-rank iteration.
`history`: see `adaptive`.
"""


@dataclass(frozen=True, eq=False)
class Encoded:
    """A payload, the update that it decodes to, and the codec state for the next round."""

    payload: bytes
    update: Update
    state: CodecState


class Codec(Protocol):
    name: str
    spec: Spec
    payload_bytes: int
    """The largest size of a payload."""

    def encode(self, update: Mapping[str, Tensor], state: CodecState | None = None) -> Encoded:
        """Encodes an update (a pseudo-gradient) plus the decayed residual of the round before.

        `state`: that of the last encoded round, or None; it is not modified. If the result has `update.norm == 0`,
        there is nothing to send. Raises ValueError for a number that is not finite.
        """
        ...

    def decode(self, payload: bytes) -> Update:
        """Decodes a payload. Raises PayloadError unless it is canonical, before allocating what the file claims."""
        ...


def update_plus_residual(
    spec: Spec, update: Mapping[str, Tensor], state: CodecState | None, feedback: float
) -> Tensor:
    """Returns update + feedback * residual, float32 [size]. Raises ValueError unless every number is finite."""
    total, start = spec.join(update), 0
    for name, shape in spec.shapes:
        size = math.prod(shape)
        residual = (state or {}).get(f"residual/{name}") if feedback else None
        for at in range(0, size, BLOCK):
            part = total[start + at : start + min(size, at + BLOCK)]
            if residual is not None:
                part.add_(residual.reshape(-1)[at : at + BLOCK] * float32(feedback))
            if not all(math.isfinite(extreme) for extreme in torch.aminmax(part)):
                raise ValueError("update contains a number that is not finite")
        start += size
    return total


def encoded_as(codec: Codec, payload: bytes, total: Tensor, feedback: float, state: CodecState) -> Encoded:
    """Decodes the new payload and adds the residual to `state`: `total` (overwritten) minus what was sent."""
    update = codec.decode(payload)
    if feedback:
        update.add_to(total, -1.0)
        state = state | {f"residual/{name}": part for name, part in codec.spec.split(total).items()}
    return Encoded(payload, update, state)


def chunk_blocks(flat: Tensor, chunk: int, kept: int = 0) -> Iterator[tuple[int, Tensor]]:
    """Yields (index of the first chunk, chunks [rows, chunk]) as views; a shorter last chunk comes alone, [1, rest].

    Each block has about BLOCK numbers, counting `kept` numbers of each row (0: all).
    """
    whole, rows = len(flat) // chunk, max(1, BLOCK // (kept or chunk))
    for first in range(0, whole, rows):
        last = min(whole, first + rows)
        yield first, flat[first * chunk : last * chunk].view(-1, chunk)
    if whole * chunk < len(flat):
        yield whole, flat[whole * chunk :].view(1, -1)


def check_finite(bits: np.ndarray) -> None:
    special = (bits & 0x7F80) == 0x7F80
    if special.any():
        raise PayloadError("NaN" if (bits[special] & 0x7F).any() else "infinity")


def require(condition: bool | np.bool_, reason: str) -> None:
    if not condition:
        raise PayloadError(reason)
