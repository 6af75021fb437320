"""Checks that a Task is fit for a run (`earnest task check`), before anybody stakes on it.

Two fresh processes do the same work: build the model, draw batches, measure losses, train a few steps. They differ in
everything that a task must not depend on: the hash seed, and the state of Python's, numpy's and torch's generators.
Neither can use the network. Their results must agree to the last bit. Each process also checks the other rules of
`earnest.training.tasks.task.Task`. Both run on this machine with the same number of threads: other machines round
differently, and the protocol allows that.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from earnest.protocol.recipe import CODECS, CodecChoice, Inner, Recipe, Scoring
from earnest.training.codecs import make_codec
from earnest.training.diloco.engine import Machine, TrainerState, train_round
from earnest.training.diloco.state import Spec, State, read_parameters
from earnest.training.tasks.task import Batch, Task, TaskError, load_task, without_secrets

NEIGHBOUR_TOLERANCE = 1e-3
"""Largest relative change of a sequence's loss with its batch: kernels for other sizes add in another order."""

NETWORK_EVENTS = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"})
PROCESSES = 2
TIMEOUT_S = 3600


@dataclass(frozen=True)
class CheckResult:
    """The result of one check; `detail` says what was measured or what is wrong."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class CheckReport:
    """All results for one task.

    `step_s`: seconds of one inner step on this machine; `payload_bytes`: largest payload, bytes, by codec.
    """

    task: str
    results: tuple[CheckResult, ...]
    parameters: int
    step_s: float
    step_tokens: int
    payload_bytes: Mapping[str, int]

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results)


@dataclass(frozen=True)
class TaskUnderTest:
    """A task with its options, and the recipe to check it with; None: a small default recipe."""

    task: str
    options: Mapping[str, int | float | str | bool]
    recipe: Recipe | None = None

    @classmethod
    def of(cls, recipe: Recipe) -> TaskUnderTest:
        return cls(recipe.task, recipe.task_options, recipe)


def check_task(subject: TaskUnderTest, *, threads: int = 1, steps: int = 3) -> CheckReport:
    """Runs the checks in subprocesses, so that a task that crashes ends only its own process.

    The task must be importable as nodes import it: installed, or on PYTHONPATH. Raises TaskError if it cannot be
    loaded.
    """
    answers: list[dict[str, Any]] = []
    for number in range(PROCESSES):
        answers.append(_probe(subject, threads, steps, number))
        if "crash" in answers[-1]:
            crash = CheckResult("runs", False, answers[-1]["crash"])
            return CheckReport(subject.task, (crash,), 0, 0.0, 0, {})
    first = answers[0]
    results = [CheckResult("runs", True, "two fresh processes finished")]
    results += [_same(name, [answer["digests"][name] for answer in answers]) for name in first["digests"]]
    for pair in zip(*(answer["results"] for answer in answers), strict=True):
        both = [CheckResult(*result) for result in pair]
        results.append(next((result for result in both if not result.ok), both[0]))
    return CheckReport(
        subject.task,
        tuple(results),
        first["parameters"],
        min(answer["step_s"] for answer in answers),
        first["step_tokens"],
        first["payload_bytes"],
    )


def _same(name: str, digests: Sequence[str]) -> CheckResult:
    same = len(set(digests)) == 1
    detail = f"the same bits in {len(digests)} processes" if same else "different bits in another process"
    return CheckResult(f"same {name}", same, f"{detail} ({digests[0][:12]})")


def _probe(subject: TaskUnderTest, threads: int, steps: int, number: int) -> dict[str, Any]:
    """Returns the answer of one fresh process; {"crash": reason} if it did not finish."""
    request = {
        "task": subject.task,
        "options": dict(subject.options),
        "recipe": None if subject.recipe is None else subject.recipe.to_json().decode(),
        "threads": threads,
        "steps": steps,
        "number": number,
    }
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-m", "earnest.training.tasks.check"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            errors="replace",
            env={**without_secrets(os.environ), "PYTHONHASHSEED": str(number + 1)},
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"crash": f"the process did not end in {TIMEOUT_S} s"}
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        return {"crash": lines[-1] if lines else f"the process ended with {process.returncode}"}
    try:
        answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"crash": "the task ended the process, or overwrote its answer"}
    if "refused" in answer:
        raise TaskError(*answer["refused"])
    return answer


# In the subprocess


def main() -> None:
    """Reads one request from stdin and writes one answer to stdout, both JSON."""
    request = json.load(sys.stdin)
    out, sys.stdout = sys.stdout, sys.stderr  # a task may print; the answer is alone on stdout
    calls = _no_network()
    try:
        task = load_task(request["task"], request["options"])
    except TaskError as error:
        answer: dict[str, Any] = {"refused": [error.cause, error.fix]}
    else:
        answer = _examine(task, request, calls)
    print(json.dumps(answer), file=out)


def _no_network() -> list[str]:
    """Refuses the network to this process; returns the list of attempts, which grows."""
    calls: list[str] = []

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in NETWORK_EVENTS:
            named = isinstance(arguments[0], str | bytes)  # a host name; otherwise a socket and an address
            calls.append(f"{event} {arguments[0] if named else arguments[-1]}")
            raise ConnectionRefusedError("a task has no network")

    sys.addaudithook(refuse)
    return calls


def _examine(task: Task, request: Mapping[str, Any], calls: Sequence[str]) -> dict[str, Any]:
    recipe = _recipe(task, request)
    number, steps, threads = request["number"], request["steps"], request["threads"]
    torch.set_num_threads(threads)
    ids = list(range(min(steps * recipe.inner.batch, task.pool_size)))
    _seed_generators(number)
    before = _generators()
    model = task.build_model(recipe.seed)
    built = _generators()
    batches = list(task.batches("train", recipe.seed, ids, recipe.inner.batch))
    reports = list(task.batches("report", recipe.seed, list(task.report_ids)[:8], 8))
    drawn = _generators()
    losses = _losses(task, model, [batches[0], *reports])
    scored = _generators()
    draws = {"build_model": built != before, "batches": drawn != built, "loss": scored != drawn}
    start = State.start(read_parameters(model), recipe.scoring.clip_norm)
    update, step_s = _train(task, recipe, start, ids, threads)
    flat = [value for batch in (*batches, *reports) for value in batch]
    digests = {
        "weights": _digest(start.parameters[name] for name in sorted(start.parameters)),
        "batches": _digest(flat),
        "losses": _digest(losses),
        "update": _digest(update[name] for name in sorted(update)),
    }
    results = [
        _parameters(model, update),
        _buffers(task, model, batches[0]),
        _loss_form(losses, [batches[0], *reports]),
        _order(task, recipe, ids, batches),
        _neighbours(task, model, batches[0], losses[0]),
        _ids(task, recipe),
        _pool(task, recipe, request["recipe"] is not None),
        _undrawn(draws),
    ]
    spec = Spec.of(start.parameters)
    sizes = _sizes(recipe.codec, spec)
    if request["recipe"] is not None:
        results.append(_fits(recipe, sizes))
    results.append(CheckResult("no network", not calls, calls[0] if calls else "no attempt to use it"))
    return {
        "digests": digests,
        "results": [[r.name, r.ok, r.detail] for r in results],
        "parameters": spec.size,
        "step_s": step_s,
        "step_tokens": batches[0].targets.numel(),
        "payload_bytes": sizes,
    }


def _recipe(task: Task, request: Mapping[str, Any]) -> Recipe:
    if request["recipe"] is not None:
        return Recipe.from_json(request["recipe"].encode())
    inner = Inner(steps=max(2, request["steps"]), batch=8, lr=1e-3)
    scoring = Scoring(held_out=2, own=2)
    return Recipe(request["task"], task.pool_size, request["options"], inner=inner, scoring=scoring)


def _train(
    task: Task, recipe: Recipe, start: State, ids: Sequence[int], threads: int
) -> tuple[dict[str, Tensor], float]:
    """Returns the update and the seconds of one step: the median, without the first step if there are several."""
    ticks: list[float] = []

    def tick() -> bool:
        """Is called before every step, as `stop`."""
        ticks.append(time.perf_counter())
        return False

    local = train_round(
        task, recipe, start, ids, 0, 1, TrainerState(), machine=Machine("cpu", threads), stop=tick
    )
    ticks.append(time.perf_counter())
    steps = [after - before for before, after in pairwise(ticks)]
    return local.pseudo_gradient, median(steps[1:] or steps)


def _losses(task: Task, model: nn.Module, batches: Iterable[Batch]) -> list[Tensor]:
    """Measures losses as a validator does."""
    model.eval()
    with torch.inference_mode():
        losses = [task.loss(model, batch) for batch in batches]
    model.train()
    return losses


def _parameters(model: nn.Module, update: Mapping[str, Tensor]) -> CheckResult:
    name = "parameters are float32, finite and trained"
    parameters = dict(model.named_parameters())
    if odd := [n for n, p in parameters.items() if p.dtype != torch.float32]:
        return CheckResult(name, False, f"{odd[0]} is {parameters[odd[0]].dtype}")
    if odd := [n for n, p in parameters.items() if not torch.isfinite(p).all()]:
        return CheckResult(name, False, f"{odd[0]} contains a number that is not finite")
    if still := [n for n, value in update.items() if not value.any()]:
        return CheckResult(name, False, f"{still[0]} is not trained: it costs bytes in every update")
    return CheckResult(name, True, f"{len(parameters)} tensors")


def _buffers(task: Task, model: nn.Module, batch: Batch) -> CheckResult:
    """Checks that buffers stay constant: they are not part of a state, so nobody else would get their changes."""
    before = {name: value.clone() for name, value in model.named_buffers()}
    model.train()
    task.loss(model, batch).mean().backward()
    model.zero_grad()
    changed = [name for name, value in model.named_buffers() if not torch.equal(value, before[name])]
    detail = f"{changed[0]} changes in training" if changed else f"{len(before)} buffers, all constant"
    return CheckResult("no buffer learns", not changed, detail)


def _loss_form(losses: Sequence[Tensor], batches: Sequence[Batch]) -> CheckResult:
    name = "loss is one finite float32 per sequence"
    for loss, batch in zip(losses, batches, strict=True):
        if loss.dtype != torch.float32 or tuple(loss.shape) != (len(batch.inputs),):
            return CheckResult(
                name, False, f"{loss.dtype} {list(loss.shape)} for {len(batch.inputs)} sequences"
            )
        if not torch.isfinite(loss).all():
            return CheckResult(name, False, "an untrained model's loss is not finite")
    return CheckResult(name, True, f"mean {losses[0].mean().item():.3f}")


def _order(task: Task, recipe: Recipe, ids: Sequence[int], batches: Sequence[Batch]) -> CheckResult:
    """Reads the samples again, from the middle, and one by one: an interrupted round resumes in the middle."""
    name, size = "samples come in the order given", recipe.inner.batch
    sizes = [len(batch.inputs) for batch in batches]
    expected_sizes = [min(size, len(ids) - start) for start in range(0, len(ids), size)]
    if sizes != expected_sizes:
        return CheckResult(name, False, f"batches of {sizes} for {len(ids)} ids, {size} at a time")
    samples = [torch.cat([batch[part] for batch in batches]) for part in range(2)]
    for start, step in ((0, size), (size, size), (max(0, len(ids) - 3), 1)):
        again = list(task.batches("train", recipe.seed, ids[start:], step))
        for part, expected in enumerate(samples):
            if again and not torch.equal(torch.cat([batch[part] for batch in again]), expected[start:]):
                return CheckResult(
                    name, False, f"read from the {start + 1}th id on, {step} at a time, samples differ"
                )
    return CheckResult(name, True, f"{len(ids)} ids, from the start, the middle and one by one")


def _neighbours(task: Task, model: nn.Module, batch: Batch, losses: Tensor) -> CheckResult:
    """Checks losses one sequence at a time: scores compare sequences, whatever batch they are in."""
    name = "a sequence's loss does not depend on its batch"
    (alone,) = _losses(task, model, [Batch(batch.inputs[:1], batch.targets[:1])])
    gap = abs(alone[0].item() - losses[0].item())
    close = gap <= NEIGHBOUR_TOLERANCE * max(1.0, abs(losses[0].item()))
    return CheckResult(name, close, f"measured alone it differs by {gap:.2g}")


def _ids(task: Task, recipe: Recipe) -> CheckResult:
    name = "unknown ids and splits are refused"
    beyond = max(
        [task.pool_size, *(i + 1 for i in task.warmup_ids[-1:]), *(i + 1 for i in task.warmup_ids[:1])]
    )
    last = max(task.report_ids, default=0)
    unknown = (("train", [-1]), ("train", [beyond]), ("train", [0, beyond]), ("report", [-1]), ("test", [0]),
             ("report", [(last + 1) << 20]))  # fmt: skip
    for split, wrong in unknown:
        try:
            batches = list(task.batches(split, recipe.seed, wrong, 2))
        except ValueError:
            continue
        except (IndexError, KeyError) as error:
            return CheckResult(name, False, f"{split} {wrong} raises {type(error).__name__}, not ValueError")
        return CheckResult(name, False, f"{split} {wrong} gives {len(batches)} batches instead of ValueError")
    return CheckResult(name, True, f"ids of train end at {beyond - 1}")


def _pool(task: Task, recipe: Recipe, has_recipe: bool) -> CheckResult:
    name = "pool, warm-up and report samples fit"
    needed = recipe.warmup_steps * recipe.inner.batch
    inside = [i for i in task.warmup_ids if 0 <= i < task.pool_size]
    reasons = (
        (
            has_recipe and recipe.pool_size > task.pool_size,
            f"the recipe names {recipe.pool_size} samples, the task has {task.pool_size}",
        ),
        (bool(inside), f"warm-up id {inside[0] if inside else 0} is in the pool"),
        (
            needed > len(task.warmup_ids),
            f"the warm-up needs {needed} samples, {len(task.warmup_ids)} are reserved",
        ),
        (not len(task.report_ids), "report_ids is empty"),
    )
    wrong = [reason for bad, reason in reasons if bad]
    sizes = f"{task.pool_size} in the pool, {len(task.warmup_ids)} for the warm-up, {len(task.report_ids)} to report on"
    return CheckResult(name, not wrong, wrong[0] if wrong else sizes)


def _undrawn(draws: Mapping[str, bool]) -> CheckResult:
    users = [where for where, drew in draws.items() if drew]
    detail = f"{users[0]} draws from one" if users else "build_model, batches and loss leave them unchanged"
    return CheckResult("no use of the process's random generators", not users, detail)


def _fits(recipe: Recipe, sizes: Mapping[str, int]) -> CheckResult:
    size, limit = sizes[recipe.codec.name], recipe.max_payload_bytes
    return CheckResult("an update fits max_payload_bytes", size <= limit, f"{size:,} of {limit:,} bytes")


def _sizes(choice: CodecChoice, spec: Spec) -> dict[str, int]:
    """Returns the largest payload, bytes, of the recipe's codec and of the others with the same k, chunk and rank."""
    others = (CodecChoice(name, k=choice.k, chunk=choice.chunk, rank=choice.rank) for name in CODECS)
    choices = [choice if other.name == choice.name else other for other in others]
    return {codec.name: make_codec(codec, spec).payload_bytes for codec in choices}


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _generators() -> str:
    """Returns a digest of the state of the process's random generators."""
    state = np.random.get_state(legacy=False)
    digest = hashlib.sha256(repr((random.getstate(), state)).encode())
    digest.update(state["state"]["key"].tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    return digest.hexdigest()


def _digest(tensors: Iterable[Tensor]) -> str:
    """Returns the SHA-256 over dtypes, shapes and bits, as hex."""
    digest = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{plain.dtype}{list(plain.shape)}".encode())
        digest.update(plain.numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
