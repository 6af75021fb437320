"""Searches for the deviation that earns most per unit of compute: a grid, then evolution from its best.

A deviation is other local training than the recipe's (steps, batch, tokens, rate and its shape, scale) on one seat or
more, against a fixed honest population; `benchmarks.mechanism` plays and judges it. Its value is what its seats earn
together, in pays of an honest seat, divided by their compute, in that of an honest seat.

    python -m benchmarks.best_response [--budget 24] [--model small] [--codec dense-bf16] [--seed 0] [...]

`--budget` is the number of deviations to play; those in `--folder` are not played again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch

from benchmarks.mechanism import Folder, folder_of, parser_of, row
from earnest.demo.attacks.trainers import Deviant
from earnest.demo.attacks.workshop import Deviation

PARENTS = 4
LIMITS = {
    "steps": (0.1, 2.0),
    "batch": (0.125, 2.0),
    "tokens": (0.25, 1.0),
    "rate": (0.25, 4.0),
    "scale": (0.5, 4.0),
}


@dataclass(frozen=True)
class Response:
    """A deviation on some seats."""

    deviation: Deviation
    seats: int = 1

    @property
    def work(self) -> float:
        return self.seats * self.deviation.work

    @property
    def name(self) -> str:
        one = self.deviation
        numbers = (one.steps, one.batch, one.tokens, one.rate, one.scale)
        return "-".join([f"{number:.3g}" for number in numbers] + [one.shape, str(self.seats)])


def grid(most_seats: int) -> list[Response]:
    """Returns the deviations to start from, the honest one first."""
    found = [Response(Deviation())]
    for share in (0.5, 0.75, 0.25):
        for seats in {1, min(most_seats, round(1 / share))}:
            found += [
                Response(Deviation(batch=share, shape="linear", scale=1.5), seats),
                Response(Deviation(steps=share), seats),
            ]
    found += [
        Response(Deviation(scale=1.5)),
        Response(Deviation(steps=2.0, batch=0.5)),
        Response(Deviation(rate=0.5, scale=2.0)),
        Response(Deviation(rate=1.5)),
        Response(Deviation(shape="constant")),
        Response(Deviation(shape="linear", scale=1.5)),
        Response(Deviation(tokens=0.5, scale=1.5)),
        Response(Deviation(steps=1.25)),
    ]
    return sorted(set(found), key=found.index)


def mutated(parent: Response, most_seats: int, random: Random) -> Response:
    """Returns a deviation like `parent`, with one or two of its numbers changed by a factor of up to 1.5."""
    numbers = {}
    for key in random.sample(list(LIMITS), random.choice((1, 2))):
        low, high = LIMITS[key]
        value = getattr(parent.deviation, key) * 1.5 ** random.uniform(-1, 1)
        numbers[key] = float(f"{min(max(value, low), high):.2g}")
    seats = random.choice((parent.seats, parent.seats, random.randint(1, most_seats)))
    return Response(replace(parent.deviation, **numbers), seats)


def search(
    value: Callable[[Response], float], budget: int, most_seats: int, seed: int
) -> dict[Response, float]:
    """Returns the value of every deviation tried: the grid, then children of the best until the budget is used."""
    random, tried = Random(seed), {}
    for response in grid(most_seats)[:budget]:
        tried[response] = value(response)
    while len(tried) < budget:
        parents = sorted(tried, key=lambda one: -tried[one])[:PARENTS]
        child = mutated(random.choice(parents), most_seats, random)
        if child not in tried:
            tried[child] = value(child)
    return tried


def evaluate(folder: Folder, response: Response, first: int) -> dict[str, Any]:
    """Plays a response, if it is not in the folder; returns its row."""
    attacks = [Deviant(response.deviation) for _ in range(response.seats)]
    played = folder.played(f"response-{response.name}", attacks)
    return row(played, folder.played("honest", []), first)


def main() -> None:
    """Searches, prints every deviation that was tried, best first, and writes the best to the results."""
    parser = parser_of(__doc__)
    parser.add_argument("--budget", type=int, default=24, help="deviations to play")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = folder_of(options, options.seed)
    rows: dict[Response, Mapping[str, Any]] = {}

    def value(response: Response) -> float:
        rows[response] = evaluate(folder, response, options.first)
        return rows[response]["pay"] / response.work

    tried = search(value, options.budget, options.seats // 2, options.seed)
    ranked = sorted(tried, key=lambda one: -tried[one])
    print(
        "| steps | batch | tokens | rate | scale | shape | seats | work | pay | former rule | pay per compute |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for one in ranked:
        d, found = one.deviation, rows[one]
        numbers = (d.steps, d.batch, d.tokens, d.rate, d.scale, d.shape, one.seats, f"{one.work:.2f}")
        values = (found["pay"], found["former_pay"], tried[one])
        print("| " + " | ".join([*map(str, numbers), *(f"{number:.2f}" for number in values)]) + " |")
    write_best(options, ranked[0], tried, rows)


def write_best(
    options: Any, best: Response, tried: Mapping[Response, float], rows: Mapping[Response, Mapping[str, Any]]
) -> None:
    """Adds the best response of one model and codec to the results file."""
    known = json.loads(options.json.read_text()) if options.json.exists() else {}
    entry = known.setdefault(f"{options.model} {options.codec}", {})
    entry["best_response_search"] = {
        "tried": len(tried),
        "best": best.name,
        "pay_per_compute": tried[best],
        "pay": rows[best]["pay"],
        "split_max": max(
            (rows[one]["pay"] for one in tried if one.seats > 1 and one.work <= 1), default=None
        ),
    }
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
