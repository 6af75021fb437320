"""Effect of clipping and noise on a run on private data: loss and epsilon, on the bundled text.

    python -m benchmarks.privacy [--trainers 8] [--rounds 8] [--seed 0]

Each noise is one simulated run with the same data and seeds. The unit that epsilon protects is all the data of one
trainer, against anyone who sees each of its updates (earnest.training.privacy).
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from earnest.protocol.recipe import Inner, Outer, Privacy
from earnest.training.diloco.initial import initial_state
from earnest.training.local import report_loss, simulate
from earnest.training.privacy import epsilon, noise_to_signal
from earnest.training.tasks.own import recipe_for
from earnest.training.tasks.shakespeare import Shakespeare

TASK = "earnest.training.tasks.shakespeare:Shakespeare"
OPTIONS: dict[str, int | float | str | bool] = {"layers": 1, "width": 32, "heads": 2, "context": 32}
CLIP = 1.0
NOISES = (None, 0.0, 0.001, 0.003, 0.01, 0.03, 0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    task = Shakespeare(**OPTIONS)  # type: ignore[arg-type]
    inner, outer = Inner(steps=30, batch=16, lr=3e-3), Outer(0.7, 0.9)
    plain = recipe_for(
        task, TASK, task_options=OPTIONS, inner=inner, outer=outer, seed=options.seed, data="private"
    )
    start = initial_state(task, plain)
    size = start.spec.size
    print(f"{size:,} parameters, {options.trainers} trainers, {options.rounds} rounds of {inner.steps} steps")
    print(f"before: loss {report_loss(task, plain, start):.3f} nats per byte")
    print("noise / clip    epsilon (1e-5)    noise / update    in the mean    loss")
    for noise in NOISES:
        privacy = Privacy() if noise is None else Privacy(CLIP, noise)
        recipe = replace(plain, privacy=privacy)
        *_, last = simulate(task, recipe, trainers=options.trainers, rounds=options.rounds)
        name = "no clip" if noise is None else f"{noise:g}"
        promised = epsilon(privacy, options.rounds)
        buried, mean = noise_to_signal(privacy, size), noise_to_signal(privacy, size, options.trainers)
        print(
            f"{name:>12}    {promised:>14.4g}    {buried:>14.3g}    {mean:>11.3g}    {last.report_loss:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
