"""Measures loss and cost of the demo's recipes with honest trainers, in training alone.

It has no chain: a chain changes neither the loss nor the cost of honest training, and without one a recipe is tried in
minutes. `earnest demo` plays the whole run.

`python -m benchmarks.pilot [--codec dense-bf16|topk-2bit] [--reset] [--seed N]` prints held-out loss per round beside
the byte n-grams' (training/tasks/corpus/README.md), bytes per update beside dense float32, CPU seconds per round, and
forward-only speed. `--reset` forgets the inner optimizer between rounds, as a baseline.
"""

import argparse
import time
from dataclasses import replace

import torch

from earnest.protocol.recipe import Recipe
from earnest.protocol.seed import fallback_seed
from earnest.protocol.step import clip_norm
from earnest.training.codecs import make_codec
from earnest.training.diloco.clip_and_aggregate import aggregate
from earnest.training.diloco.engine import TrainerState, train_round
from earnest.training.diloco.initial import initial_state
from earnest.training.diloco.outer_step import outer_step
from earnest.training.diloco.state import State, write_parameters
from earnest.training.tasks.shakespeare import Shakespeare, demo_recipe

TRAINERS, ROUNDS = 4, 6
N_GRAMS = {1: 2.51, 2: 2.06}  # bytes of context: nats per byte


def report(task: Shakespeare, state: State, batch: int = 32) -> float:
    """Returns the mean loss on the report split, in nats per byte."""
    model = task.build_model(0)
    write_parameters(model, state.parameters)
    with torch.inference_mode():
        batches = task.batches("report", 0, task.report_ids, batch)
        return torch.cat([task.loss(model, b) for b in batches]).mean().item()


def run(task: Shakespeare, recipe: Recipe, reset: bool) -> None:
    state, pool = initial_state(task, recipe), recipe.sample_pool()
    codec = make_codec(recipe.codec, state.spec)
    trainer_states = [TrainerState() for _ in range(TRAINERS)]
    ratio = state.spec.dense_bytes / codec.payload_bytes
    print(f"{codec.name}: {codec.payload_bytes} bytes per update, 1/{ratio:.1f} of dense float32")
    print(f"start    {report(task, state):.3f} nats per byte")
    for round in range(ROUNDS):
        samples = pool.assign(fallback_seed(1, round), range(TRAINERS))
        updates, started = [], time.process_time()
        for seat, trainer_state in enumerate(trainer_states):
            trainer_state.inner = {} if reset else trainer_state.inner
            local = train_round(task, recipe, state, samples.assigned[seat], round, ROUNDS, trainer_state)
            encoded = codec.encode(local.pseudo_gradient, trainer_state.codec)
            trainer_state.codec = encoded.state
            updates.append((seat, encoded.update))
        spent = time.process_time() - started
        norms = [(update.norm, 1) for _, update in updates]
        shares = dict.fromkeys(range(TRAINERS), 1 / TRAINERS)
        gradient = aggregate(updates, shares, state.clip_norm, recipe.outer.aggregation)
        stepped = outer_step(state, gradient, recipe.outer.lr, recipe.outer.momentum)
        state = replace(stepped, clip_norm=clip_norm(norms, state.clip_norm))
        largest = max(norm for norm, _ in norms)
        print(
            f"round {round}  {report(task, state):.3f}   norm {largest:.2f}   {spent:.1f} CPU-s", flush=True
        )
    print("byte n-grams: " + ", ".join(f"{loss} with {n} of context" for n, loss in N_GRAMS.items()))


def speed(task: Shakespeare) -> None:
    """Returns the sequences per CPU-second of forward passes, on one thread."""
    model, ids = task.build_model(0), range(2048)
    for size in (16, 32, 64):
        batches = list(task.batches("train", 0, ids, size))
        with torch.inference_mode():
            task.loss(model, batches[0])
            started = time.process_time()
            for batch in batches:
                task.loss(model, batch)
        print(f"forward, batch {size}: {len(ids) / (time.process_time() - started):.0f} sequences per CPU-s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codec", default="dense-bf16")
    parser.add_argument("--reset", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = Shakespeare()
    run(task, demo_recipe(options.codec, TRAINERS, options.seed), options.reset)
    speed(task)


if __name__ == "__main__":
    main()
