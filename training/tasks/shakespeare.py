"""The bundled task: a small byte-level GPT on Shakespeare's plays, which trains on two CPU cores."""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from earnest.protocol.recipe import CodecChoice, Inner, Outer, Recipe, Scoring
from earnest.training.codecs import make_codec
from earnest.training.diloco.state import Spec, read_parameters
from earnest.training.tasks.task import Batch, Task

BYTES = 256
TRAIN_SHARE = 0.9  # first part of the text; the rest is the report split
WARMUP_SAMPLES = 4800  # windows kept out of the pool: 300 steps of 16
REPORT_SAMPLES = 256


class Shakespeare(Task):
    """Sample i of a split is a window of `context` bytes and the byte after each.

    Windows do not overlap. Consecutive ids are far apart in the text, so any range of ids is an even sample of it. The
    last WARMUP_SAMPLES ids are for the warm-up.
    """

    def __init__(self, layers: int = 2, width: int = 64, heads: int = 4, context: int = 64) -> None:
        if not (1 <= layers <= 12 and 8 <= width <= 1024 and 8 <= context <= 1024 and heads >= 1):
            raise ValueError("layers must be 1 to 12, width and context 8 to 1024")
        if width % heads:
            raise ValueError(f"heads must divide width {width}, not {heads}")
        self.layers, self.width, self.heads, self.context = layers, width, heads, context
        text = _text()
        boundary = int(len(text) * TRAIN_SHARE)
        self._texts = {"train": text[:boundary], "report": text[boundary:]}
        self._windows = {split: (len(part) - 1) // context for split, part in self._texts.items()}
        windows = self._windows["train"]
        self._stride = _coprime(round(windows * (math.sqrt(5) - 1) / 2), windows)
        reserved = min(WARMUP_SAMPLES, windows // 2)
        self.pool_size = windows - reserved
        self.warmup_ids = range(self.pool_size, windows)
        self.report_ids = range(0, self._windows["report"], self._windows["report"] // REPORT_SAMPLES)[
            :REPORT_SAMPLES
        ]

    def build_model(self, seed: int) -> nn.Module:
        with torch.device("meta"):  # no default initialisation: it would draw from the process's generator
            model = Gpt(self.layers, self.width, self.heads, self.context)
        model.to_empty(device="cpu").initialise(torch.Generator().manual_seed(seed))
        return model

    def batches(self, split: str, seed: int, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        if split not in self._texts:
            raise ValueError(f"no split {split!r}; there are train and report")
        ids = np.asarray(sample_ids, np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self._windows[split]:
            raise ValueError(f"sample ids of split {split} are 0 to {self._windows[split] - 1}")
        if split == "train":
            ids = ids * self._stride % self._windows[split]
        for start in range(0, len(ids), batch):
            places = ids[start : start + batch, None] * self.context + np.arange(self.context + 1)
            window = torch.from_numpy(self._texts[split][places].astype(np.int64))
            yield Batch(window[:, :-1], window[:, 1:])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch.inputs)  # [B, T, BYTES]
        losses = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
        return losses.view(batch.targets.shape).mean(1)

    def stages(self, model: nn.Module, n: int) -> list[nn.Module]:
        """Splits the model into n pipeline stages: blocks in even runs, the byte embedding in the first and the last.

        Raises ValueError for more stages than blocks.
        """
        if not isinstance(model, Gpt) or not 1 <= n <= self.layers:
            raise ValueError(f"a Gpt of {self.layers} layers has at most {self.layers} stages, not {n}")
        ends = [self.layers * i // n for i in range(n + 1)]
        return [GptStage(model, start, end) for start, end in pairwise(ends)]


def demo_recipe(codec: str, trainers: int, seed: int) -> Recipe:
    """Returns the recipe of `earnest demo`, for dense-bf16 or topk-2bit; `benchmarks/pilot.py` prints its losses.

    Outer momentum helps the dense codec and harms the sparse one, whose error feedback already acts as momentum. Raises
    ValueError if the text is too short for `trainers`.
    """
    task = Shakespeare()
    inner, outer, warmup, clip_norm = Inner(lr=3e-3), Outer(0.7, 0.5, "mean"), 0, 20.0
    choice = CodecChoice(codec)
    if codec == "topk-2bit":
        inner, outer = Inner(lr=2e-3, lr_schedule="cosine"), Outer(1.0, 0.0, "contributor-mean")
        choice, warmup, clip_norm = CodecChoice(codec, k=64, error_feedback=0.5), 300, 4.0
    spec = Spec.of(read_parameters(task.build_model(seed)))
    recipe = Recipe(
        task="earnest.training.tasks.shakespeare:Shakespeare",
        pool_size=task.pool_size,
        seed=seed,
        inner=inner,
        codec=choice,
        outer=outer,
        scoring=Scoring(clip_norm=clip_norm, trial_rounds=0 if warmup else 1),
        warmup_steps=warmup,
        max_payload_bytes=make_codec(choice, spec).payload_bytes,
    )
    recipe.sample_pool().check(trainers)
    return recipe


def _embedding(rows: int, width: int) -> nn.Embedding:
    """Returns an embedding without values: giving it some on the meta device would import the compiler of torch."""
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


class Gpt(nn.Module):
    """A decoder-only transformer without biases; the output layer shares its weights with the byte embedding."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.bytes = _embedding(BYTES, width)
        self.places = _embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)

    def initialise(self, generator: torch.Generator) -> None:
        """Initialises as GPT-2: normal, std 0.02, smaller for layers that add to the residual stream; norms are 1."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                nn.init.ones_(parameter)
            else:
                adds = name.endswith(("out.weight", "down.weight"))
                depth = math.sqrt(2 * len(self.blocks)) if adds else 1
                nn.init.normal_(parameter, std=0.02 / depth, generator=generator)

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes logits: int64 [B, T] -> [B, T, BYTES]."""
        x = self.bytes(inputs) + self.places.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.bytes.weight)


class GptStage(nn.Module):
    """Blocks `start` to `end` of a Gpt, with the embeddings before the first and the output after the last block."""

    def __init__(self, model: Gpt, start: int, end: int) -> None:
        super().__init__()
        first, last = start == 0, end == len(model.blocks)
        self.bytes = model.bytes if first or last else None
        self.places = model.places if first else None
        self.blocks = model.blocks[start:end]
        self.norm = model.norm if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Int64 [B, T] into the first stage, [B, T, width] between stages, [B, T, BYTES] out of the last."""
        if self.bytes and self.places:
            x = self.bytes(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.bytes.weight) if self.bytes and self.norm else x


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width]."""
        b, t, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [B, heads, T, width / heads]
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, width))
        return x + self.down(functional.relu(self.up(self.norm2(x))))


@cache
def _text() -> np.ndarray:
    """Returns the plays, uint8 [4,881,613]."""
    corpus = files("earnest.training.tasks") / "corpus" / "shakespeare-plays.txt"
    return np.frombuffer(corpus.read_bytes(), np.uint8)


def _coprime(near: int, to: int) -> int:
    """Returns the first number from `near` on that is coprime to `to`: its multiples visit every residue."""
    return next(n for n in range(near, near + to) if math.gcd(n, to) == 1)
