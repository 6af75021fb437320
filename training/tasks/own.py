"""A Task around anybody's module and data: what a torch user has already, made into what a recipe can name."""

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
    """A map-style dataset: sample i is (inputs, target), the same whenever it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def task_of(
    build: Callable[[], nn.Module], train: Samples, loss: Loss, *, report: Samples, warmup: int = 0
) -> type[Task]:
    """A Task class around a module and two datasets; put it in a module that a recipe can name.

    `build` makes the model, as ordinary torch code does: it is called with torch's generator seeded, which is put back
    after. The last `warmup` samples of `train` are kept for the shared warm-up. What `earnest task check` finds wrong
    with the class is wrong with what it was made of.
    """
    if not 0 <= warmup < len(train):
        raise ValueError(f"warmup lies in [0, {len(train)})")
    parts: dict[str, Samples] = {"train": train, "report": report}

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
            if split not in parts:
                raise ValueError(f"no split {split!r}; there are train and report")
            size = len(parts[split])
            if any(not 0 <= sample < size for sample in sample_ids):
                raise ValueError(f"sample ids of split {split} are 0 to {size - 1}")
            for start in range(0, len(sample_ids), batch):
                yield _stacked([parts[split][int(sample)] for sample in sample_ids[start : start + batch]])

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return loss(model, batch.inputs, batch.targets)

    return OwnTask


class PrivateBatches:
    """Data that never leaves this machine, as any iterator of (inputs, targets) batches: a `PrivateData`.

    `make(round)` starts the iterator of a round, and must give the same batches for the same round, so that a round
    that was broken off goes on to the same update. `root` (32 bytes) goes into every manifest: a hash of the data with
    a secret salt, so that nobody can try out what the data might be.
    """

    def __init__(self, make: Callable[[int], Iterable[Pair]], root: bytes) -> None:
        if len(root) != 32:
            raise ValueError(f"a root has 32 bytes, not {len(root)}")
        self.root, self._make = root, make

    def batches(self, round: int, steps: int, batch: int) -> Iterator[Batch]:
        """At most `steps` batches; `batch` is the iterator's own matter."""
        return (Batch(inputs, targets) for inputs, targets in islice(self._make(round), steps))


def load_private(dotted: str) -> PrivateData:
    """The owner's own data by its importable name, `module:name`: a PrivateData, or what makes one when called.

    Unlike a recipe's task the name comes from this machine's owner, and is trusted. Raises TaskError.
    """
    module, colon, name = dotted.partition(":")
    if not (module and colon and name):
        raise TaskError(f"{dotted!r} names no data", "write module:name")
    try:
        found = getattr(import_module(module), name, None)
    except ImportError as error:
        raise TaskError(
            f"{module} cannot be imported: {error}", "install it, or put its folder on PYTHONPATH"
        ) from error
    made = found() if callable(found) else found
    root = getattr(made, "root", None)
    if not (isinstance(root, bytes) and len(root) == 32 and callable(getattr(made, "batches", None))):
        raise TaskError(f"{dotted} is not private data", "it needs `root`, 32 bytes, and `batches`")
    return cast(PrivateData, made)


def recipe_for(task: Task, name: str, **fields: Any) -> Recipe:
    """A recipe for a task of one's own that can be imported as `name` (module:Class), with what follows from the task.

    `fields` are the recipe's own, as in `earnest.protocol.recipe`: inner, codec, outer, seed, ... Raises ValueError.
    """
    given: dict[str, Any] = {"scoring": Scoring(held_out=2, own=2), **fields}
    recipe = Recipe(name, task.pool_size, **given)
    layout = Spec.of(read_parameters(task.build_model(recipe.seed)))
    if "scoring" not in fields:
        scoring = Scoring(
            held_out=max(2, min(512, task.pool_size // 8)), own=min(512, recipe.judged_per_seat)
        )
        recipe = replace(recipe, scoring=scoring)
    if "max_payload_bytes" not in fields:
        recipe = replace(recipe, max_payload_bytes=make_codec(recipe.codec, layout).payload_bytes)
    return recipe


def _stacked(samples: Sequence[Any]) -> Batch:
    inputs, targets = zip(*((torch.as_tensor(x), torch.as_tensor(y)) for x, y in samples), strict=True)
    return Batch(torch.stack(inputs), torch.stack(targets))
