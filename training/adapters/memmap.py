"""Token files as nanoGPT writes them: one array of uint16 or uint32 tokens, little-endian, without a header.

The file is memory-mapped, read-only, and read window by window: it may be larger than memory. A recipe names the file
and its root, so every node of a run checks that it has the same tokens.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from earnest.protocol.merkle import CHUNK, content_root
from earnest.training.tasks.task import Batch

DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
GOLDEN = (math.sqrt(5) - 1) / 2
REPORT_SAMPLES = 256


class TokenFile:
    """The tokens of a file: `tokens` [n], memory-mapped read-only, all below `vocab`.

    With `root` (hex) the whole file is hashed once, in pieces, and its tokens are checked; without, tokens are checked
    when they are read. Raises ValueError for a file that is missing, truncated or has another root, and for a token
    outside the vocabulary.
    """

    def __init__(self, path: str | Path, dtype: str, vocab: int, root: str = "") -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be uint16 or uint32, not {dtype!r}")
        self.path, self.vocab = located(path), vocab
        width = DTYPES[dtype].itemsize
        try:
            size = self.path.stat().st_size
        except OSError as error:
            raise ValueError(f"no token file {self.path}: {error.strerror}") from error
        if size == 0 or size % width:
            raise ValueError(f"{self.path} has {size} bytes, not a multiple of {width}")
        self.tokens: np.ndarray = np.memmap(self.path, DTYPES[dtype], mode="r")
        if root:
            self._check_root(root)

    def __len__(self) -> int:
        return len(self.tokens)

    def root(self) -> str:
        """Returns the file's root, hex, for the recipe."""
        return content_root(self._pieces()).hex()

    def windows(self, starts: np.ndarray, length: int) -> torch.Tensor:
        """Returns int64 [B, length]: the tokens from each start on."""
        tokens = self.tokens[starts[:, None] + np.arange(length)]
        self._check(tokens)
        return torch.from_numpy(tokens.astype(np.int64))

    def _check_root(self, root: str) -> None:
        actual = self.root()
        if actual != root.lower().removeprefix("0x"):
            raise ValueError(f"{self.path} is another file: its root is {actual}, the recipe names {root}")

    def _pieces(self) -> Iterator[bytes]:
        step = CHUNK // self.tokens.dtype.itemsize
        for start in range(0, len(self.tokens), step):
            piece = self.tokens[start : start + step]
            self._check(piece)
            yield piece.tobytes()

    def _check(self, tokens: np.ndarray) -> None:
        if tokens.size and int(tokens.max()) >= self.vocab:
            raise ValueError(
                f"{self.path} contains the token {int(tokens.max())}, the vocabulary ends at {self.vocab - 1}"
            )


class Windows:
    """The samples of a token file: adjacent windows of `context` tokens and the token after each.

    The last `report_share` of the file is the split "report"; the two splits share no token. Consecutive ids of "train"
    are far apart in the file, so any range of ids is an even sample of it. The last `warmup` ids are reserved. Raises
    ValueError if the file is too small.
    """

    def __init__(self, file: TokenFile, context: int, warmup: int = 0, report_share: float = 0.05) -> None:
        if context < 1 or warmup < 0 or not 0 < report_share < 1:
            raise ValueError("context must be at least 1, warmup at least 0, report_share between 0 and 1")
        self.file, self.context = file, context
        boundary = int(len(file) * (1 - report_share))
        self._first = {"train": 0, "report": boundary}
        self._count = {"train": (boundary - 1) // context, "report": (len(file) - boundary - 1) // context}
        train, report = self._count["train"], self._count["report"]
        if train <= warmup or report < 1:
            raise ValueError(
                f"{len(file)} tokens are too few: {train} training windows, {report} report windows"
            )
        self._stride = _coprime(round(train * GOLDEN), train)
        self.pool_size = train - warmup
        self.warmup_ids = range(self.pool_size, train)
        self.report_ids = range(0, report, max(1, report // REPORT_SAMPLES))[:REPORT_SAMPLES]

    def batches(self, split: str, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        """Yields batches: see `Task.batches`. Raises ValueError for an unknown split or id."""
        if split not in self._first:
            raise ValueError(f"no split {split!r}; there are train and report")
        ids, count = np.asarray(sample_ids, np.int64), self._count[split]
        if ids.size and not 0 <= ids.min() <= ids.max() < count:
            raise ValueError(f"sample ids of split {split} are 0 to {count - 1}")
        if split == "train":
            ids = ids * self._stride % count
        for start in range(0, len(ids), batch):
            places = self._first[split] + ids[start : start + batch] * self.context
            window = self.file.windows(places, self.context + 1)
            yield Batch(window[:, :-1], window[:, 1:])


def located(path: str | Path) -> Path:
    """Returns the path on this machine: relative to EARNEST_TOKENS, else to the working folder."""
    return Path(os.environ.get("EARNEST_TOKENS", "")) / Path(path)


def _coprime(near: int, to: int) -> int:
    """Returns the first number from `near` on, at least 1, that is coprime to `to`."""
    return next(n for n in range(max(1, near), near + to + 1) if math.gcd(n, to) == 1)
