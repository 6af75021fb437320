"""A Task made of your own module and datasets, which a recipe can name; private data; a recipe with defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import islice
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from earnest.protocol.recipe import Recipe, Scoring
from earnest.training.codecs import make_codec
from earnest.training.diloco.state import Spec, read_parameters
from earnest.training.tasks.task import Batch, PrivateData, Task, TaskError

Pair = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(model, inputs, targets) -> float32 [B], one loss per sequence."""

REPORT_SAMPLES = 256


class Samples(Protocol):
    """A map-style dataset: sample i is (inputs, target), always the same."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def task_of(
    build: Callable[[], nn.Module], train: Samples, loss: Loss, *, report: Samples, warmup: int = 0
) -> type[Task]:
    """Returns a Task class made of a torch module and two datasets. Assign it to a name in a module of yours.

    A recipe then names it `module:Name`. `build` makes the model; torch's random generator is seeded before and
    restored after the call. The last `warmup` samples of `train` are reserved for the warm-up. Run `earnest task check`
    on the class: it checks model, datasets and loss.
    """
    if not 0 <= warmup < len(train):
        raise ValueError(f"warmup must be in [0, {len(train)})")
    splits: dict[str, Samples] = {"train": train, "report": report}

    class OwnTask(Task):
        def __init__(self) -> None:
            self.pool_size = len(train) - warmup
            self.warmup_ids = range(self.pool_size, len(train))
            self.report_ids = range(min(len(report), REPORT_SAMPLES))

        def build_model(self, seed: int) -> nn.Module:
            with torch.random.fork_rng([]):
                torch.manual_seed(seed)
                return build()

        def batches(self, split: str, seed: int, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
            if split not in splits:
                raise ValueError(f"no split {split!r}; there are train and report")
            size = len(splits[split])
            if any(not 0 <= sample < size for sample in sample_ids):
                raise ValueError(f"sample ids of split {split} are 0 to {size - 1}")
            for start in range(0, len(sample_ids), batch):
                yield _stacked([splits[split][int(sample)] for sample in sample_ids[start : start + batch]])

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return loss(model, batch.inputs, batch.targets)

    return OwnTask


class PrivateBatches:
    """Data that never leaves this machine, from any iterator of (inputs, targets) batches: a `PrivateData`.

    `make(round)` starts the iterator of a round. It must give the same batches for the same round, so that an
    interrupted round resumes to the same update. `root` (32 bytes) is in every manifest: a hash of the data with a
    secret salt, so that nobody can test guesses of the data.
    """

    def __init__(self, make: Callable[[int], Iterable[Pair]], root: bytes) -> None:
        if len(root) != 32:
            raise ValueError(f"the root must have 32 bytes, not {len(root)}")
        self.root, self._make = root, make

    def batches(self, round: int, steps: int, batch: int) -> Iterator[Batch]:
        """Yields at most `steps` batches of the size that the iterator gives; ignores `batch`."""
        return (Batch(inputs, targets) for inputs, targets in islice(self._make(round), steps))


def load_private(dotted: str) -> PrivateData:
    """Imports private data by name, `module:name`: a PrivateData, or a function that returns one.

    Unlike the task of a recipe, the name comes from this machine's owner and is trusted. Raises TaskError.
    """
    module, colon, name = dotted.partition(":")
    if not (module and colon and name):
        raise TaskError(f"{dotted!r} is not the name of data", "write module:name")
    try:
        target = getattr(import_module(module), name, None)
    except ImportError as error:
        raise TaskError(
            f"{module} cannot be imported: {error}", "install it, or put its folder on PYTHONPATH"
        ) from error
    data = target() if callable(target) else target
    root = getattr(data, "root", None)
    if not (isinstance(root, bytes) and len(root) == 32 and callable(getattr(data, "batches", None))):
        raise TaskError(f"{dotted} is not private data", "it needs `root`, 32 bytes, and `batches`")
    return cast(PrivateData, data)


def recipe_for(task: Task, name: str, **fields: Any) -> Recipe:
    """Returns a recipe for a task that can be imported as `name` (module:Class), with defaults that fit the task.

    `fields`: other fields of `earnest.protocol.recipe.Recipe`: inner, codec, outer, seed, ... Raises ValueError.
    """
    values: dict[str, Any] = {"scoring": Scoring(held_out=2, own=2), **fields}
    recipe = Recipe(name, task.pool_size, **values)
    spec = Spec.of(read_parameters(task.build_model(recipe.seed)))
    if "scoring" not in fields:
        scoring = Scoring(
            held_out=max(2, min(512, task.pool_size // 16)), own=min(512, recipe.judged_per_seat)
        )
        recipe = replace(recipe, scoring=scoring)
    if "max_payload_bytes" not in fields:
        recipe = replace(recipe, max_payload_bytes=make_codec(recipe.codec, spec).payload_bytes)
    return recipe


def _stacked(samples: Sequence[Any]) -> Batch:
    inputs, targets = zip(*((torch.as_tensor(x), torch.as_tensor(y)) for x, y in samples), strict=True)
    return Batch(torch.stack(inputs), torch.stack(targets))
