"""`dense-bf16`: every parameter as bfloat16."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from earnest.training.codecs.codec import (
    CodecState,
    Encoded,
    check_finite,
    encoded_as,
    require,
    update_plus_residual,
)
from earnest.training.codecs.update import BLOCK, Update, float32, root, square_sum
from earnest.training.diloco.state import Spec
from earnest.training.diloco.tensorfile import Entry, file_bytes, read, write_parts


class DenseBf16:
    """Every parameter as bfloat16, rounded to nearest even: half the bytes of float32.

    A payload contains every parameter as BF16, under its name. Numbers are finite; no zero is negative.
    """

    name = "dense-bf16"

    def __init__(self, spec: Spec, error_feedback: float = 0.0) -> None:
        self.spec = spec
        self.error_feedback = error_feedback
        self.entries = [Entry(name, "BF16", shape) for name, shape in spec.shapes]
        self.payload_bytes = file_bytes(self.entries)

    def encode(self, update: Mapping[str, Tensor], state: CodecState | None = None) -> Encoded:
        total = update_plus_residual(self.spec, update, state, self.error_feedback)
        rounded = (
            part.to(torch.bfloat16) + 0.0 for part in total.split(BLOCK)
        )  # adding zero turns -0 into +0
        payload = write_parts(self.entries, (part.view(torch.int16).numpy() for part in rounded))
        return encoded_as(self, payload, total, self.error_feedback, {})

    def decode(self, payload: bytes) -> Update:
        tensors = read(payload, self.entries)
        parts = [tensors[name].reshape(-1) for name, _ in self.spec.shapes]
        return DenseUpdate(self.spec, payload, parts, root(_checked_squares(parts)))


class DenseUpdate(Update):
    """`parts`: raw bfloat16 of each parameter, flat, in name order."""

    def __init__(self, spec: Spec, payload: bytes, parts: list[np.ndarray], norm: float) -> None:
        super().__init__(spec, payload, norm)
        self.parts = parts

    @property
    def bits(self) -> np.ndarray:
        return np.concatenate(self.parts)

    def add_to(self, total: Tensor, factor: float) -> None:
        scale, start = float32(factor), 0
        for part in self.parts:
            for at in range(0, len(part), BLOCK):
                numbers = as_bfloat16(part[at : at + BLOCK]).float().mul_(scale)
                total[start + at : start + at + len(numbers)].add_(numbers)
            start += len(part)


def as_bfloat16(bits: np.ndarray) -> Tensor:
    """Returns a copy: arrays that view a payload are read-only, which torch does not support."""
    return torch.from_numpy(bits.copy().view(np.int16)).view(torch.bfloat16)


def _checked_squares(parts: list[np.ndarray]) -> int:
    """Returns the sum of squares (see `square_sum`) by counting each of the 65,536 bfloat16 values.

    Raises PayloadError for a number that is not finite, or a negative zero.
    """
    counts = np.zeros(1 << 16, np.int64)
    for part in parts:
        for at in range(0, len(part), BLOCK):
            counts += np.bincount(part[at : at + BLOCK], minlength=1 << 16)
    present = np.flatnonzero(counts)
    check_finite(present)
    require(not counts[0x8000], "negative zero")
    return square_sum(present, counts[present])
