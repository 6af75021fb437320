"""What a codec is, and what its encoders share.

Error feedback follows SparseLoCo (arXiv 2508.15706): what was not sent is kept, decayed, and joins the next
update: `total = feedback * residual + update; sent = C(total); residual = total - sent`.
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

CodecMemory = dict[str, Tensor]
"""What a codec carries from one round to the next: float32 tensors by name, {} where it carries nothing.

`residual/<parameter>`: what error feedback still owes. `start/<parameter>`: where low-rank iteration starts.
`history`: see `adaptive`.
"""


@dataclass(frozen=True, eq=False)
class Encoded:
    """A payload, the update that it decodes to, and what the next round's encoder wants to know."""

    payload: bytes
    update: Update
    memory: CodecMemory


class Codec(Protocol):
    name: str
    spec: Spec
    payload_bytes: int
    """The largest size of a payload."""

    def encode(self, update: Mapping[str, Tensor], memory: CodecMemory | None = None) -> Encoded:
        """Encode an update (a pseudo-gradient) plus the decayed residual of the round before.

        Raises ValueError where a number isn't finite. A caller that gets `update.norm == 0` has nothing to
        send. `memory` is that of the last encoded round, or None; it isn't changed.
        """
        ...

    def decode(self, payload: bytes) -> Update:
        """Raises PayloadError, with nothing allocated that a file claims, unless it is canonical."""
        ...


def owed(spec: Spec, update: Mapping[str, Tensor], memory: CodecMemory | None, feedback: float) -> Tensor:
    """update + feedback * residual, float32 [size], a copy. Raises ValueError unless all of it is finite."""
    total, start = spec.join(update), 0
    for name, shape in spec.shapes:
        size = math.prod(shape)
        residual = (memory or {}).get(f"residual/{name}") if feedback else None
        for at in range(0, size, BLOCK):
            part = total[start + at : start + min(size, at + BLOCK)]
            if residual is not None:
                part.add_(residual.reshape(-1)[at : at + BLOCK] * float32(feedback))
            if not all(math.isfinite(extreme) for extreme in torch.aminmax(part)):
                raise ValueError("update holds a number that is not finite")
        start += size
    return total


def finished(codec: Codec, payload: bytes, total: Tensor, feedback: float, kept: CodecMemory) -> Encoded:
    """Decodes what was encoded and remembers the rest: `total`, which it overwrites, less what was sent."""
    update = codec.decode(payload)
    if feedback:
        update.add_to(total, -1.0)
        kept = kept | {f"residual/{name}": part for name, part in codec.spec.split(total).items()}
    return Encoded(payload, update, kept)


def groups(flat: Tensor, chunk: int, kept: int = 0) -> Iterator[tuple[int, Tensor]]:
    """Index of the first chunk, and chunks [rows, chunk] as views; the last may be a shorter one, [1, rest].

    As many rows at a time as fill a block, counting `kept` numbers of each (0: all).
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
