"""Models for the parallel trainer's tests, loaded by its processes under their dotted paths."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from earnest.training.tasks.task import Batch, Task

WORDS = 16


class Mixed(nn.Module):
    """Embedding, some layers, an output: a chain."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.out = nn.Linear(width, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


class Chain(Task):
    """Next-number prediction on a fixed pattern. The task has no `stages`: the model is cut as a chain."""

    pool_size = 4096
    warmup_ids: Sequence[int] = range(0)
    report_ids: Sequence[int] = range(8)

    def __init__(self, layers: int = 4, width: int = 8) -> None:
        self.layers, self.width = layers, width

    def build_model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.model()

    def model(self) -> nn.Module:
        return Mixed(self.layers, self.width)

    def batches(self, split: str, seed: int, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        ids = torch.tensor(list(sample_ids))
        for start in range(0, len(ids), batch):
            some = (ids[start : start + batch, None] + torch.arange(7) * 3) % WORDS
            yield Batch(some[:, :-1], some[:, 1:])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        losses = functional.cross_entropy(
            model(batch.inputs).flatten(0, 1), batch.targets.flatten(), reduction="none"
        )
        return losses.view(batch.targets.shape).mean(1)


class Crossed(nn.Module):
    """Two weights, each used at the start and again, in the other order, at the end."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.turn = nn.Linear(width, width, bias=False)
        self.scale = nn.Parameter(torch.ones(3))  # neither a matrix nor divisible by two

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))

    def first(self, x: Tensor) -> Tensor:
        return self.turn(self.words(x)) * self.scale[0]

    def second(self, x: Tensor) -> Tensor:
        x = functional.linear(x * self.scale[1], self.turn.weight.T)
        return functional.linear(x, self.words.weight) * self.scale[2]


class Half(nn.Module):
    """One half of a Crossed; the second registers what they share in the opposite order."""

    def __init__(self, whole: Crossed, first: bool) -> None:
        super().__init__()
        for name in ("words", "turn", "scale") if first else ("scale", "turn", "words"):
            setattr(self, name, getattr(whole, name))
        self.run = whole.first if first else whole.second

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


class Tied(Chain):
    def model(self) -> nn.Module:
        return Crossed(self.width)

    def stages(self, model: nn.Module, n: int) -> list[nn.Module]:
        assert isinstance(model, Crossed)
        if n != 2:
            raise ValueError("two halves")
        return [Half(model, first) for first in (True, False)]
