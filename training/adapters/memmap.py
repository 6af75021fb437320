"""Token files as nanoGPT writes them: one array of uint16 or uint32 tokens, little-endian, without a header.

The file is mapped, read-only, and read window by window: it may be larger than memory. A recipe names the file and its
root (the tree hash that names every object here), so all nodes of a run prove that they have the same tokens.
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
    """The tokens of a file: `tokens` [n], mapped read-only, all of them below `vocab`.

    With `root` (hex) the whole file is hashed once, in pieces, and its tokens are looked at on the way; without, tokens
    are looked at when they are read. Raises ValueError for a file that is missing, cut off, not the one of that root,
    or holds a token that the vocabulary does not have.
    """

    def __init__(self, path: str | Path, dtype: str, vocab: int, root: str = "") -> None:
        if dtype not in DTYPES:
            raise ValueError(f"tokens are uint16 or uint32, not {dtype!r}")
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
            self._prove(root)

    def __len__(self) -> int:
        return len(self.tokens)

    def root(self) -> str:
        """The file's root, hex: what a recipe says to be sure of the data."""
        return content_root(self._pieces()).hex()

    def windows(self, starts: np.ndarray, length: int) -> torch.Tensor:
        """Int64 [B, length]: the tokens from each start on."""
        found = self.tokens[starts[:, None] + np.arange(length)]
        self._check(found)
        return torch.from_numpy(found.astype(np.int64))

    def _prove(self, root: str) -> None:
        found = self.root()
        if found != root.lower().removeprefix("0x"):
            raise ValueError(f"{self.path} has the root {found}, the recipe names {root}: it is another file")

    def _pieces(self) -> Iterator[bytes]:
        step = CHUNK // self.tokens.dtype.itemsize
        for start in range(0, len(self.tokens), step):
            piece = self.tokens[start : start + step]
            self._check(piece)
            yield piece.tobytes()

    def _check(self, tokens: np.ndarray) -> None:
        if tokens.size and int(tokens.max()) >= self.vocab:
            raise ValueError(
                f"{self.path} holds the token {int(tokens.max())}, the vocabulary ends at {self.vocab - 1}"
            )


class Windows:
    """A token file cut into samples: windows of `context` tokens and the token after each, side by side.

    The file's last `report_share` is the split "report"; the two share no token. Ids of "train" are spread:
    consecutive ones lie far apart in the file, so any range of them is an even sample of it. The last `warmup` of them
    are reserved. Raises ValueError where the file is too small.
    """

    def __init__(self, file: TokenFile, context: int, warmup: int = 0, report_share: float = 0.05) -> None:
        if context < 1 or warmup < 0 or not 0 < report_share < 1:
            raise ValueError("context is at least 1, warmup at least 0, report_share between 0 and 1")
        self.file, self.context = file, context
        border = int(len(file) * (1 - report_share))
        self._first = {"train": 0, "report": border}
        self._count = {"train": (border - 1) // context, "report": (len(file) - border - 1) // context}
        train, report = self._count["train"], self._count["report"]
        if train <= warmup or report < 1:
            raise ValueError(f"{len(file)} tokens make {train} training and {report} report windows: too few")
        self._stride = _coprime(round(train * GOLDEN), train)
        self.pool_size = train - warmup
        self.warmup_ids = range(self.pool_size, train)
        self.report_ids = range(0, report, max(1, report // REPORT_SAMPLES))[:REPORT_SAMPLES]

    def batches(self, split: str, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        """As `Task.batches` says. Raises ValueError for an unknown split or id."""
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
    """Where this machine has the file: a relative path starts at EARNEST_TOKENS, else at the working folder."""
    return Path(os.environ.get("EARNEST_TOKENS", "")) / Path(path)


def _coprime(near: int, to: int) -> int:
    """The first number from `near` on, at least 1, that shares no factor with `to`."""
    return next(n for n in range(max(1, near), near + to + 1) if math.gcd(n, to) == 1)
