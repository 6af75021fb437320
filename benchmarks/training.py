"""The trainer against AllReduce: loss at equal tokens, bytes sent, idle time, and torchft's DiLoCo beside ours.

`python -m benchmarks.training [--seeds 3] [--rounds 8] [--only NAME ...] [--results FILE]` trains a byte-level GPT of
3.2 M parameters on Shakespeare's plays with 8 trainers of H = 30 steps a round. Every method starts from the same
model (one trainer's, PRETRAINING steps, as the DiLoCo paper starts from a pretrained one) and sees the same samples in
the same rounds. Each finished (method, seed) is written to FILE; a second call continues where the first stopped.
The table's last lines say which required figure holds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch import multiprocessing as processes
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import torchft_diloco
from benchmarks.simulated_idle import simulate_idle
from earnest.protocol.recipe import CodecChoice, Inner, Outer, Recipe, Scoring
from earnest.protocol.schedule import Schedule
from earnest.training.codecs import Update, inner_steps, make_codec
from earnest.training.diloco.clip_and_aggregate import aggregate
from earnest.training.diloco.engine import Machine, TrainerState, step_rates, train_round
from earnest.training.diloco.optimizers import inner_optimizer, set_rate
from earnest.training.diloco.outer_step import outer_step
from earnest.training.diloco.overlap import local_start
from earnest.training.diloco.precision import Precision
from earnest.training.diloco.state import State, from_bytes, read_parameters, to_bytes, write_parameters
from earnest.training.tasks.shakespeare import Shakespeare

TRAINERS, STEPS, BATCH = 8, 30, 4
PRETRAINING, PRETRAINING_BATCH = 1200, 16
TASK = {"layers": 4, "width": 256, "heads": 4, "context": 64}
INNER = Inner(
    round_schedule="constant",  # the schedule of the published methods that it is compared with
    steps=STEPS,
    batch=BATCH,
    lr=5e-4,
    lr_schedule="cosine",
    betas=(0.9, 0.95),
    weight_decay=0.1,
    precision="bf16",
)
FIRST_SAMPLE = 0
"""First sample id of the trainers; pretraining uses ids after theirs."""

UNCLIPPED = 1e30
RESULTS = Path("build/training.json")


@dataclass(frozen=True)
class Method:
    """A way to train: codec, aggregation, outer step and overlap."""

    codec: CodecChoice = field(default_factory=CodecChoice)
    outer: Outer = field(default_factory=lambda: Outer(0.8, 0.8))
    overlap: str = "none"
    steps_min: int = 0

    def recipe(self, seed: int) -> Recipe:
        return Recipe(
            task="earnest.training.tasks.shakespeare:Shakespeare",
            task_options=dict(TASK),
            pool_size=1 << 16,
            seed=seed,
            inner=replace(INNER, steps_min=self.steps_min),
            codec=self.codec,
            outer=self.outer,
            scoring=Scoring(held_out=2, own=2, clip_norm=UNCLIPPED),
            overlap=self.overlap,  # type: ignore[arg-type]
        )


SPARSE = Outer(0.8, 0.0, "contributor-mean")
TOPK = CodecChoice("topk-2bit", k=1024, chunk=65_536, error_feedback=0.95)
LOWRANK = CodecChoice("lowrank-int4", rank=8, error_feedback=0.95)
PLAIN = Outer(3.0, 0.0)
"""Without momentum, because error feedback already acts as one. The rate is near 4, the sum of all steps that one
update makes with a rate of 0.8 and a momentum of 0.8."""

LATE = Outer(1.0, 0.0)
"""Without momentum: with it, an update that is applied a round late overshoots."""

METHODS: dict[str, Method] = {
    "dense-bf16": Method(),
    "int8": Method(CodecChoice("int8", error_feedback=1.0)),
    "topk-2bit": Method(TOPK, SPARSE),
    "topk-2bit, mean over all": Method(TOPK, PLAIN),
    "topk-2bit, adaptive": Method(replace(TOPK, k_min=512, k=1280, energy=0.105), SPARSE),
    "lowrank-int4": Method(LOWRANK, PLAIN),
    "lowrank-int4, adaptive": Method(replace(LOWRANK, rank_min=4, rank=12, energy=0.24), PLAIN),
    "delayed": Method(outer=LATE, overlap="delayed"),
    "eager": Method(outer=LATE, overlap="eager"),
}
ALLREDUCE = "AllReduce"
TORCHFT = "torchft DiLoCo"


@dataclass(frozen=True)
class Result:
    """Result of one method with one seed: losses in nats per byte, after each round."""

    method: str
    seed: int
    losses: list[float]
    sent: int
    """Bytes that one trainer sent in the whole run."""

    steps: int
    """Inner steps that one trainer took."""


@dataclass(frozen=True)
class Plan:
    """Settings of the benchmark."""

    methods: tuple[str, ...]
    seeds: int
    rounds: int
    pretraining: int


# Data and evaluation


def samples(seed: int, round: int, rounds: int) -> list[range]:
    """Returns the sample ids of each trainer in a round: none twice in a run, and others for another seed."""
    first = FIRST_SAMPLE + (seed * rounds + round) * TRAINERS * STEPS * BATCH
    size = STEPS * BATCH
    return [range(first + seat * size, first + (seat + 1) * size) for seat in range(TRAINERS)]


def evaluate(task: Shakespeare, state: State) -> float:
    """Returns the mean loss on the report split, in nats per byte, computed in float32."""
    model = task.build_model(0)
    write_parameters(model, state.parameters)
    with torch.inference_mode():
        batches = task.batches("report", 0, task.report_ids, 32)
        return torch.cat([task.loss(model, batch) for batch in batches]).mean().item()


def pretrained(seed: int, steps: int, cache: Path) -> State:
    """Returns the common start: a model after `steps` steps of one trainer, with a full cosine schedule."""
    inner = replace(INNER, steps=max(1, steps), batch=PRETRAINING_BATCH, lr=2e-3, lr_warmup_steps=20)
    task, recipe = make_task(), replace(Method().recipe(seed), inner=inner)
    start = State.start(read_parameters(task.build_model(seed)), UNCLIPPED)
    if steps == 0:
        return start
    cache.mkdir(parents=True, exist_ok=True)
    file = cache / f"{recipe.hash().hex()[:16]}.safetensors"
    if file.exists():
        return from_bytes(file.read_bytes(), start.spec)
    last = task.pool_size
    ids = range(last - steps * PRETRAINING_BATCH, last)
    local = train_round(task, recipe, start, ids, 0, 1, TrainerState(), machine=Machine("cpu"))
    trained = {name: base - local.pseudo_gradient[name] for name, base in start.parameters.items()}
    state = State.start(trained, UNCLIPPED)
    file.write_bytes(to_bytes(state))
    return state


# DiLoCo and its relatives: the trainer's own functions, without a chain


def run_diloco(name: str, seed: int, start: State, rounds: int) -> Result:
    """Trains all trainers one after the other; states are the same as those of a run's nodes."""
    task, recipe = make_task(), METHODS[name].recipe(seed)
    codec = make_codec(recipe.codec, start.spec)
    trainer_states = [TrainerState() for _ in range(TRAINERS)]
    pending: list[Update | None] = [None] * TRAINERS
    states, losses, sent, steps = [start], [], 0, 0
    for round in range(rounds):
        base = states[-1] if recipe.overlap == "none" or round == 0 else states[-2]
        updates: list[Update] = []
        for seat, ids in enumerate(samples(seed, round, rounds)):
            trainer_state = trainer_states[seat]
            used = ids[: inner_steps(recipe, trainer_state.codec) * BATCH]
            local_base = local_start(recipe, base, pending[seat])
            local = train_round(
                task, recipe, local_base, used, round, rounds, trainer_state, machine=Machine("cpu")
            )
            encoded = codec.encode(local.pseudo_gradient, trainer_state.codec)
            trainer_state.codec = encoded.state
            updates.append(encoded.update)
            if seat == 0:
                sent, steps = sent + len(encoded.payload), steps + local.steps
        pending = list(updates)
        states.append(_next(recipe, states[-1], updates))
        losses.append(evaluate(task, states[-1]))
        states = states[-2:]
    return Result(name, seed, losses, sent, steps)


def _next(recipe: Recipe, state: State, updates: Sequence[Update]) -> State:
    shares = dict.fromkeys(range(TRAINERS), 1 / TRAINERS)
    gradient = aggregate(list(enumerate(updates)), shares, UNCLIPPED, recipe.outer.aggregation)
    return outer_step(state, gradient, recipe.outer.lr, recipe.outer.momentum)


# AllReduce at every step: DDP over gloo, one process per trainer


def run_allreduce(seed: int, start: State, rounds: int) -> Result:
    """Trains with eight processes that average their float32 gradients in every step."""
    results = processes.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (f"{folder}/rendezvous", seed, to_bytes(start), rounds, results)
        spawn(_worker, arguments, nprocs=TRAINERS)
        losses, sent = results.get()
    return Result(ALLREDUCE, seed, losses, sent, rounds * STEPS)


def _worker(rank: int, store: str, seed: int, start: bytes, rounds: int, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=TRAINERS)
    task, recipe = make_task(), Method().recipe(seed)
    model = task.build_model(seed)
    layout = State.start(read_parameters(model), UNCLIPPED).spec
    write_parameters(model, from_bytes(start, layout).parameters)
    replica = DistributedDataParallel(model)
    counter = [0]
    replica.register_comm_hook(counter, _counting_allreduce)
    optimizer = inner_optimizer(model, recipe.inner)
    precision = Precision(torch.device("cpu"), recipe.inner.precision)
    losses = []
    for round in range(rounds):
        rates = step_rates(recipe, round, rounds, STEPS)
        ids = samples(seed, round, rounds)[rank]
        for rate, batch in zip(rates, task.batches("train", seed, ids, BATCH), strict=True):
            set_rate(optimizer, rate)
            optimizer.zero_grad()
            with precision.forward():
                loss = task.loss(replica, batch).mean()
            precision.backward(loss)
            precision.step(optimizer, model.parameters(), recipe.inner.clip)
        if rank == 0:
            losses.append(evaluate(task, State.start(read_parameters(model), UNCLIPPED)))
        dist.barrier()
    if rank == 0:
        results.put((losses, counter[0]))
    dist.destroy_process_group()


def _counting_allreduce(counter: list[int], bucket):  # DDP takes no other annotations
    """Averages as DDP does, and counts the bytes of each worker's gradient (a ring sends up to twice as many)."""
    buffer = bucket.buffer().div_(TRAINERS)
    counter[0] += buffer.numel() * buffer.element_size()
    work: Any = dist.all_reduce(buffer, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def run_torchft(seed: int, start: State, rounds: int) -> Result:
    recipe = Method().recipe(seed)
    losses, sent = torchft_diloco.run(make_task, evaluate, samples, recipe, to_bytes(start), TRAINERS, rounds)
    return Result(TORCHFT, seed, losses, sent, rounds * STEPS)


def make_task() -> Shakespeare:
    return Shakespeare(**TASK)


# Results


def play(plan: Plan, file: Path, jobs: int) -> list[Result]:
    """Runs the methods that are not in `file` yet, `jobs` at a time, and writes each result at once."""
    known = {(one.method, one.seed): one for one in read_results(file, plan)}
    wanted = [
        (name, seed) for seed in range(plan.seeds) for name in plan.methods if (name, seed) not in known
    ]
    cache = file.parent / "pretrained"
    with ProcessPoolExecutor(jobs, processes.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        list(
            pool.map(
                pretrained, sorted({seed for _, seed in wanted}), repeat(plan.pretraining), repeat(cache)
            )
        )
        futures = [pool.submit(play_one, *one, plan, cache) for one in wanted]
        try:
            for done in as_completed(futures):
                result = done.result()
                known[result.method, result.seed] = result
                write_results(file, plan, list(known.values()))
                print(f"  {result.method}, seed {result.seed}: {result.losses[-1]:.4f}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [known[name, seed] for name in plan.methods for seed in range(plan.seeds)]


def play_one(name: str, seed: int, plan: Plan, cache: Path) -> Result:
    start, rounds = pretrained(seed, plan.pretraining, cache), plan.rounds
    if name == ALLREDUCE:
        return run_allreduce(seed, start, rounds)
    if name == TORCHFT:
        return run_torchft(seed, start, rounds)
    return run_diloco(name, seed, start, rounds)


def read_results(file: Path, plan: Plan) -> list[Result]:
    """Reads the results of earlier calls with the same rounds and start."""
    if not file.exists():
        return []
    document = json.loads(file.read_text())
    same = (document["rounds"], document["pretraining"]) == (plan.rounds, plan.pretraining)
    return [Result(**one) for one in document["results"]] if same else []


def write_results(file: Path, plan: Plan, results: Sequence[Result]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "rounds": plan.rounds,
        "pretraining": plan.pretraining,
        "trainers": TRAINERS,
        "steps": STEPS,
        "results": [asdict(one) for one in results],
    }
    file.write_text(json.dumps(document, indent=1) + "\n")


@dataclass(frozen=True)
class Row:
    """A method's mean over the seeds."""

    loss: float
    spread: float
    gain: float
    """Decrease of the loss since the start, in nats per byte."""

    sent: float
    bits: float
    """Bits that a trainer sends per parameter and round."""


def rows(
    results: Sequence[Result], starts: Mapping[int, float], parameters: int, rounds: int
) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for name in dict.fromkeys(one.method for one in results):
        own = [one for one in results if one.method == name]
        losses, sent = [one.losses[-1] for one in own], statistics.mean(one.sent for one in own)
        spread = max(losses) - min(losses)
        gain = statistics.mean(starts[one.seed] - one.losses[-1] for one in own)
        found[name] = Row(statistics.mean(losses), spread, gain, sent, 8 * sent / rounds / parameters)
    return found


def verdicts(table: Mapping[str, Row], parameters: int, rounds: int) -> Iterator[tuple[str, float, bool]]:
    """Yields each target as text, the measured value, and whether the target is met."""
    dense, every_step = table["dense-bf16"], table[ALLREDUCE]
    topk, adaptive = table["topk-2bit"], table["topk-2bit, adaptive"]
    lowrank, lowrank_adaptive = table["lowrank-int4"], table["lowrank-int4, adaptive"]
    fp32 = 4 * parameters * rounds
    gap = topk.loss / dense.loss - 1
    yield "topk-2bit: loss above dense DiLoCo's, at most 1 %", gap, gap <= 0.01
    yield "topk-2bit: fp32 bytes per byte sent, over 200", fp32 / topk.sent, fp32 / topk.sent > 200
    ratio = every_step.sent / topk.sent
    yield "topk-2bit: AllReduce's bytes per byte sent, at least 4,000", ratio, ratio >= 4000
    late = min(table["delayed"].loss, table["eager"].loss) / dense.loss - 1
    yield "best overlap: loss above none's, at most 1 %", late, late <= 0.01
    for name, ours, fixed in (("topk-2bit", adaptive, topk), ("lowrank-int4", lowrank_adaptive, lowrank)):
        worse, bytes_ = ours.loss / fixed.loss - 1, ours.sent / fixed.sent
        yield f"{name} adaptive: loss above fixed, none", worse, worse <= 0
        yield f"{name} adaptive: bytes of fixed, below 1", bytes_, bytes_ < 1


def show(table: Mapping[str, Row], parameters: int, rounds: int) -> None:
    every_step = table.get(ALLREDUCE)
    print(
        f"\n{parameters:,} parameters, {TRAINERS} trainers, {rounds} rounds of {STEPS} steps of {BATCH} x 64 bytes"
    )
    print(
        f"{'':26} {'loss':>7} {'spread':>7} {'gain':>7} {'MB sent':>9} {'bits/parameter':>15} {'AllReduce is':>13}"
    )
    for name, row in table.items():
        more = f"{every_step.sent / row.sent:,.0f} x" if every_step else ""
        losses = f"{row.loss:7.4f} {row.spread:7.4f} {row.gain:7.4f}"
        print(f"{name:26} {losses} {row.sent / 1e6:9.3f} {row.bits:15.3f} {more:>13}")


def show_idle() -> None:
    """Prints the idle share of a trainer, with chain windows of a fifth of the commit window: R + S + V = C / 5."""
    commit, windows = 1200, 240
    third = windows // 3
    for overlap in (False, True):
        schedule = Schedule(0, 100, commit, third, third, third, windows // 2, windows // 2, overlap)
        idle = simulate_idle(schedule, 0.985 * commit, 100)
        print(f"overlap {'on' if overlap else 'off':3}: a trainer waits {100 * idle:.2f} % of its time")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=[ALLREDUCE, *METHODS, TORCHFT], help="methods to play")
    parser.add_argument(
        "--jobs", type=int, default=2, help="methods that are played at a time, one thread each"
    )
    parser.add_argument(
        "--pretraining", type=int, default=PRETRAINING, help="steps before round 0; 0: a new model"
    )
    parser.add_argument("--plot", type=Path, help="write a picture here")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if TORCHFT in options.only and not torchft_diloco.installed():
        print("torchft is not installed: pip install -c requirements.lock -e '.[bench]'")
        options.only.remove(TORCHFT)
    torch.set_num_threads(1)
    plan = Plan(tuple(options.only), options.seeds, options.rounds, options.pretraining)
    results = play(plan, options.results, options.jobs)
    parameters = sum(p.numel() for p in make_task().build_model(0).parameters())
    cache = options.results.parent / "pretrained"
    starts = {
        seed: evaluate(make_task(), pretrained(seed, plan.pretraining, cache)) for seed in range(plan.seeds)
    }
    print(f"start: {statistics.mean(starts.values()):.4f}")
    table = rows(results, starts, parameters, plan.rounds)
    show(table, parameters, plan.rounds)
    show_idle()
    if table.keys() >= {ALLREDUCE, *METHODS}:
        for question, value, holds in verdicts(table, parameters, plan.rounds):
            print(f"{'holds ' if holds else 'MISSED'} {question}: {value:,.4f}")
    if options.plot:
        plot(results, table, options.plot)


def plot(results: Sequence[Result], table: Mapping[str, Row], file: Path) -> None:
    """Draws two plots: loss over rounds (mean of the seeds), and last loss against bytes sent."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    over_rounds, over_bytes = figure.subplots(1, 2)
    for index, (name, row) in enumerate(table.items()):
        losses = [one.losses for one in results if one.method == name]
        means = [statistics.mean(values) for values in zip(*losses, strict=True)]
        style = {"color": f"C{index % 10}", "linestyle": "-" if index < 10 else "--"}
        over_rounds.plot(range(1, len(means) + 1), means, label=name, **style)
        over_bytes.plot(row.sent, row.loss, "o", color=style["color"])
        over_bytes.annotate(name, (row.sent, row.loss), (5, 4), textcoords="offset points", fontsize=7)
    over_rounds.set(xlabel="rounds of 30 steps", ylabel="held-out loss, nats per byte")
    over_rounds.legend(fontsize=7)
    over_bytes.set(xlabel="bytes that a trainer sent", xscale="log", ylabel="loss after the last round")
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
