"""Is a Task fit for a run? Found out before anybody stakes on it.

Two fresh processes do the same work: build the model, draw batches, measure losses, train a few steps. They differ in
everything that a task must not depend on: the hash seed, and the state of Python's, numpy's and torch's generators.
Neither has a network. Their results must agree to the last bit. Each process also checks the rules that can be checked
from one process (`Task` in `earnest.training.tasks.task` states them). Both run on one machine with one number of
threads: others round differently, and the protocol does not ask for more.
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
"""How far a sequence's loss may move with the batch it is in: kernels for other sizes add in another order."""

NETWORK_EVENTS = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"})
PROCESSES = 2
TIMEOUT_S = 3600


@dataclass(frozen=True)
class Finding:
    """One question, its answer, and what was seen."""

    name: str
    ok: bool
    seen: str


@dataclass(frozen=True)
class CheckReport:
    """`step_s`: seconds of one inner step here; `payload_bytes` by codec, at most."""

    task: str
    findings: tuple[Finding, ...]
    parameters: int
    step_s: float
    step_tokens: int
    payload_bytes: Mapping[str, int]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)


@dataclass(frozen=True)
class Subject:
    """What is checked: a task with its options, by a recipe or by defaults of our own."""

    task: str
    options: Mapping[str, int | float | str | bool]
    recipe: Recipe | None = None

    @classmethod
    def of(cls, recipe: Recipe) -> Subject:
        return cls(recipe.task, recipe.task_options, recipe)


def check_task(subject: Subject, *, threads: int = 1, steps: int = 3) -> CheckReport:
    """Runs the check in processes of its own: a task that crashes takes nothing with it.

    A task must be importable as the nodes import it: installed, or on PYTHONPATH. Raises TaskError where it cannot be
    loaded at all.
    """
    seen: list[dict[str, Any]] = []
    for which in range(PROCESSES):
        seen.append(_probe(subject, threads, steps, which))
        if "crash" in seen[-1]:
            return CheckReport(subject.task, (Finding("runs", False, seen[-1]["crash"]),), 0, 0.0, 0, {})
    first = seen[0]
    findings = [Finding("runs", True, "two fresh processes went through")]
    findings += [_same(name, [one["digests"][name] for one in seen]) for name in first["digests"]]
    for place in range(len(first["findings"])):
        answers = [Finding(*one["findings"][place]) for one in seen]
        findings.append(next((answer for answer in answers if not answer.ok), answers[0]))
    return CheckReport(
        subject.task,
        tuple(findings),
        first["parameters"],
        min(one["step_s"] for one in seen),
        first["step_tokens"],
        first["payload_bytes"],
    )


def _same(name: str, digests: Sequence[str]) -> Finding:
    same = len(set(digests)) == 1
    seen = f"the same bits in {len(digests)} processes" if same else "other bits in another process"
    return Finding(f"same {name}", same, f"{seen} ({digests[0][:12]})")


def _probe(subject: Subject, threads: int, steps: int, which: int) -> dict[str, Any]:
    """What one fresh process saw; `crash` where it did not come to an end."""
    request = {
        "task": subject.task,
        "options": dict(subject.options),
        "recipe": None if subject.recipe is None else subject.recipe.to_json().decode(),
        "threads": threads,
        "steps": steps,
        "which": which,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "earnest.training.tasks.check"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            errors="replace",
            env={**without_secrets(os.environ), "PYTHONHASHSEED": str(which + 1)},
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"crash": f"the process did not end in {TIMEOUT_S} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"crash": lines[-1] if lines else f"the process ended with {done.returncode}"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"crash": "the task ended the process, or wrote over its answer"}
    if "refused" in answer:
        raise TaskError(*answer["refused"])
    return answer


# In the process of its own


def main() -> None:
    """Reads one request from stdin, writes one answer to stdout."""
    request = json.load(sys.stdin)
    out, sys.stdout = sys.stdout, sys.stderr  # a task may print; the answer is alone on stdout
    calls = _no_network()
    try:
        task = load_task(request["task"], request["options"])
    except TaskError as error:
        answer: dict[str, Any] = {"refused": [error.cause, error.fix]}
    else:
        answer = _look(task, request, calls)
    print(json.dumps(answer), file=out)


def _no_network() -> list[str]:
    calls: list[str] = []

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in NETWORK_EVENTS:
            named = isinstance(arguments[0], str | bytes)  # a host; else a socket and then an address
            calls.append(f"{event} {arguments[0] if named else arguments[-1]}")
            raise ConnectionRefusedError("a task has no network")

    sys.addaudithook(refuse)
    return calls


def _look(task: Task, request: Mapping[str, Any], calls: Sequence[str]) -> dict[str, Any]:
    recipe = _recipe(task, request)
    which, steps, threads = request["which"], request["steps"], request["threads"]
    torch.set_num_threads(threads)
    ids = list(range(min(steps * recipe.inner.batch, task.pool_size)))
    _seed_generators(which)
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
    findings = [
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
        findings.append(_fits(recipe, sizes))
    findings.append(Finding("no network", not calls, calls[0] if calls else "nothing was asked of it"))
    return {
        "digests": digests,
        "findings": [[f.name, f.ok, f.seen] for f in findings],
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
    """The update after all ids, and a step's seconds: the median, without the first where there are more."""
    ticks: list[float] = []

    def tick() -> bool:
        """Asked before every step whether to stop."""
        ticks.append(time.perf_counter())
        return False

    local = train_round(
        task, recipe, start, ids, 0, 1, TrainerState(), machine=Machine("cpu", threads), stop=tick
    )
    ticks.append(time.perf_counter())
    steps = [after - before for before, after in pairwise(ticks)]
    return local.pseudo_gradient, median(steps[1:] or steps)


def _losses(task: Task, model: nn.Module, batches: Iterable[Batch]) -> list[Tensor]:
    """As a validator measures them."""
    model.eval()
    with torch.inference_mode():
        losses = [task.loss(model, batch) for batch in batches]
    model.train()
    return losses


def _parameters(model: nn.Module, update: Mapping[str, Tensor]) -> Finding:
    name = "parameters are float32, finite and trained"
    parameters = dict(model.named_parameters())
    if odd := [n for n, p in parameters.items() if p.dtype != torch.float32]:
        return Finding(name, False, f"{odd[0]} is {parameters[odd[0]].dtype}")
    if odd := [n for n, p in parameters.items() if not torch.isfinite(p).all()]:
        return Finding(name, False, f"{odd[0]} holds a number that is not finite")
    if still := [n for n, value in update.items() if not value.any()]:
        return Finding(name, False, f"{still[0]} does not move: it costs bytes in every update")
    return Finding(name, True, f"{len(parameters)} tensors")


def _buffers(task: Task, model: nn.Module, batch: Batch) -> Finding:
    """Buffers are not part of a state: what they learn, nobody else has."""
    before = {name: value.clone() for name, value in model.named_buffers()}
    model.train()
    task.loss(model, batch).mean().backward()
    model.zero_grad()
    changed = [name for name, value in model.named_buffers() if not torch.equal(value, before[name])]
    seen = f"{changed[0]} changes in training" if changed else f"{len(before)} buffers, all constant"
    return Finding("no buffer learns", not changed, seen)


def _loss_form(losses: Sequence[Tensor], batches: Sequence[Batch]) -> Finding:
    name = "loss is one finite float32 per sequence"
    for loss, batch in zip(losses, batches, strict=True):
        if loss.dtype != torch.float32 or tuple(loss.shape) != (len(batch.inputs),):
            return Finding(name, False, f"{loss.dtype} {list(loss.shape)} for {len(batch.inputs)} sequences")
        if not torch.isfinite(loss).all():
            return Finding(name, False, "an untrained model's loss is not finite")
    return Finding(name, True, f"mean {losses[0].mean().item():.3f}")


def _order(task: Task, recipe: Recipe, ids: Sequence[int], batches: Sequence[Batch]) -> Finding:
    """Asked again, from the middle, and one by one: a round that was broken off goes on in the middle."""
    name, size = "samples come in the order given", recipe.inner.batch
    sizes = [len(batch.inputs) for batch in batches]
    wanted = [min(size, len(ids) - start) for start in range(0, len(ids), size)]
    if sizes != wanted:
        return Finding(name, False, f"batches of {sizes} for {len(ids)} ids, {size} at a time")
    whole = [torch.cat([batch[part] for batch in batches]) for part in range(2)]
    for start, step in ((0, size), (size, size), (max(0, len(ids) - 3), 1)):
        again = list(task.batches("train", recipe.seed, ids[start:], step))
        for part, expected in enumerate(whole):
            if again and not torch.equal(torch.cat([batch[part] for batch in again]), expected[start:]):
                return Finding(name, False, f"ids from the {start + 1}th on, by {step}, give other samples")
    return Finding(name, True, f"{len(ids)} ids, from the start, the middle and one by one")


def _neighbours(task: Task, model: nn.Module, batch: Batch, losses: Tensor) -> Finding:
    """Scores compare sequences one by one: a loss that depends on the rest of its batch compares nothing."""
    name = "a sequence's loss does not depend on its batch"
    (alone,) = _losses(task, model, [Batch(batch.inputs[:1], batch.targets[:1])])
    gap = abs(alone[0].item() - losses[0].item())
    close = gap <= NEIGHBOUR_TOLERANCE * max(1.0, abs(losses[0].item()))
    return Finding(name, close, f"alone it differs by {gap:.2g}")


def _ids(task: Task, recipe: Recipe) -> Finding:
    name = "unknown ids and splits are refused"
    beyond = max(
        [task.pool_size, *(i + 1 for i in task.warmup_ids[-1:]), *(i + 1 for i in task.warmup_ids[:1])]
    )
    last = max(task.report_ids, default=0)
    asked = (("train", [-1]), ("train", [beyond]), ("train", [0, beyond]), ("report", [-1]), ("test", [0]),
             ("report", [(last + 1) << 20]))  # fmt: skip
    for split, wrong in asked:
        try:
            got = list(task.batches(split, recipe.seed, wrong, 2))
        except ValueError:
            continue
        except (IndexError, KeyError) as error:
            return Finding(name, False, f"{split} {wrong} raises {type(error).__name__}, not ValueError")
        return Finding(name, False, f"{split} {wrong} gives {len(got)} batches instead of ValueError")
    return Finding(name, True, f"ids of train end at {beyond - 1}")


def _pool(task: Task, recipe: Recipe, given: bool) -> Finding:
    name = "pool, warm-up and report samples fit"
    needed = recipe.warmup_steps * recipe.inner.batch
    inside = [i for i in task.warmup_ids if 0 <= i < task.pool_size]
    reasons = (
        (
            given and recipe.pool_size > task.pool_size,
            f"the recipe names {recipe.pool_size} of {task.pool_size} samples",
        ),
        (bool(inside), f"warm-up id {inside[0] if inside else 0} is in the pool"),
        (
            needed > len(task.warmup_ids),
            f"the warm-up needs {needed} samples, {len(task.warmup_ids)} are reserved",
        ),
        (not len(task.report_ids), "there is nothing to report on"),
    )
    wrong = [reason for bad, reason in reasons if bad]
    good = f"{task.pool_size} in the pool, {len(task.warmup_ids)} reserved, {len(task.report_ids)} reported"
    return Finding(name, not wrong, wrong[0] if wrong else good)


def _undrawn(draws: Mapping[str, bool]) -> Finding:
    users = [where for where, drew in draws.items() if drew]
    seen = f"{users[0]} draws from one" if users else "build_model, batches and loss leave them alone"
    return Finding("no use of the process's random generators", not users, seen)


def _fits(recipe: Recipe, sizes: Mapping[str, int]) -> Finding:
    size, limit = sizes[recipe.codec.name], recipe.max_payload_bytes
    return Finding("an update fits max_payload_bytes", size <= limit, f"{size:,} of {limit:,} bytes")


def _sizes(choice: CodecChoice, spec: Spec) -> dict[str, int]:
    """Bytes of an update, at most, by codec: the recipe's own as it says, the others at its or default settings."""
    found = {}
    for name in CODECS:
        one = (
            choice
            if choice.name == name
            else CodecChoice(name, k=choice.k, chunk=choice.chunk, rank=choice.rank)
        )
        found[name] = make_codec(one, spec).payload_bytes
    return found


def _seed_generators(which: int) -> None:
    random.seed(which)
    np.random.seed(which)
    torch.manual_seed(which)


def _generators() -> str:
    """A digest of where the process's generators are."""
    state = np.random.get_state(legacy=False)
    told = repr((random.getstate(), state)).encode()
    return hashlib.sha256(
        told + state["state"]["key"].tobytes() + torch.get_rng_state().numpy().tobytes()
    ).hexdigest()


def _digest(tensors: Iterable[Tensor]) -> str:
    """SHA-256 over dtypes, shapes and bits."""
    digest = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{plain.dtype}{list(plain.shape)}".encode())
        digest.update(plain.numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
