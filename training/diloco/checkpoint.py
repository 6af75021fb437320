"""Checkpoints inside a round: a trainer killed at any step resumes and ends with the same bits.

One file, replaced atomically: the SHA-256 of the rest, then a canonical tensor file with the parameters, the inner
optimizer, the loss scaler, the losses so far, and a key that identifies the round. Error feedback does not change
inside a round, and the randomness of a step follows from its number, so neither is stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
import torch
from torch import Tensor

from earnest.base.durable import write_durably
from earnest.training.diloco.state import Parameters
from earnest.training.diloco.tensorfile import Entry, entries_of, read, write

log = structlog.get_logger()

DIGEST = 32


@dataclass(frozen=True, eq=False)
class Progress:
    """A round after some steps: their `losses`, `tokens`, `parameters`, and `inner` (optimizer and loss scaler)."""

    losses: list[float]
    tokens: int
    parameters: Parameters
    inner: dict[str, Tensor]

    @property
    def step(self) -> int:
        """Steps taken."""
        return len(self.losses)


class Checkpoints:
    """A checkpoint file, written every `every_steps` steps (0: never by steps) or every `every_s` seconds."""

    def __init__(
        self, path: Path, every_steps: int = 0, every_s: float = 30.0, *, clock: Callable[[], float]
    ) -> None:
        self.path = path
        self._every_steps, self._every_s, self._clock = every_steps, every_s, clock
        self._last = clock()

    def due(self, step: int) -> bool:
        """Returns True if a checkpoint is due after `step` steps."""
        by_steps = self._every_steps > 0 and step % self._every_steps == 0
        return by_steps or self._clock() - self._last >= self._every_s

    def save(self, key: bytes, progress: Progress) -> None:
        """Replaces the file durably. A full disk is only logged: training goes on. `key`: 32 bytes."""
        meta = key + progress.tokens.to_bytes(8, "little")
        tensors = {Entry("key", "U8", (len(meta),)): np.frombuffer(meta, "u1")}
        losses = np.array(progress.losses, "<f8").view(np.uint8)
        tensors[Entry("losses", "U8", (len(losses),))] = losses
        for folder, group in (("parameters", progress.parameters), ("inner", progress.inner)):
            for name, value in group.items():
                tensors[Entry(f"{folder}/{name}", "F32", tuple(value.shape))] = value.numpy()
        body = write(tensors)
        try:
            write_durably(self.path, hashlib.sha256(body).digest() + body)
        except OSError as error:
            log.error("checkpoint not written", cause=str(error))
        self._last = self._clock()

    def load(self, key: bytes) -> Progress | None:
        """Returns the content saved under `key`; None if there is none, it is damaged, or it has another key."""
        try:
            content = self.path.read_bytes()
        except OSError:
            return None
        digest, body = content[:DIGEST], content[DIGEST:]
        if hashlib.sha256(body).digest() != digest:
            log.warning("checkpoint damaged: the round starts again", path=str(self.path))
            return None
        try:
            tensors = read(body, entries_of(body))
            meta = tensors.pop("key").tobytes()
            losses = np.frombuffer(tensors.pop("losses").tobytes(), "<f8").tolist()
        except (KeyError, ValueError):
            return None
        if meta[:-8] != key:
            return None
        numbers = {name: torch.from_numpy(value.astype(np.float32)) for name, value in tensors.items()}
        return Progress(
            losses,
            int.from_bytes(meta[-8:], "little"),
            {name[11:]: value for name, value in numbers.items() if name.startswith("parameters/")},
            {name[6:]: value for name, value in numbers.items() if name.startswith("inner/")},
        )

    def clear(self) -> None:
        """Removes the file, after the round's result has been stored elsewhere."""
        self.path.unlink(missing_ok=True)
