"""Attacks on the judgement of a round, and what they earn: engine, codec, judge and outer step, without a chain.

Plays an honest run, and beside it every attack as if it had gone on since round 1: in each round the attacking seats'
updates take the place of their honest ones, and the round is judged with the attack's own history. The model follows
the honest run. `pay` is what the attacking seats earn together, as a multiple of what one of them earns when all are
honest, same rounds and samples. The former rule (mean margins less one standard error, one round at a time, reference
at the upper quartile) is computed from the same measurements.

    python -m benchmarks.mechanism [--model small|demo|large] [--codec dense-bf16] [--seeds 1] [--seats 4]
        [--rounds 11] [--first 3] [--attacks half-steps,tuned-half] [--schedule decay] [--folder build/mechanism]
        [--json benchmarks/results/verification.json] [--show]

Every played attack is one file in `--folder`, so an interrupted benchmark continues where it stopped. small has 0.02
million parameters, demo 0.1, large 3.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from earnest.client.run.record import LogPosition
from earnest.demo.attacks.trainers import Attack, Deviant, Forgery, make_attack
from earnest.demo.attacks.workshop import Deviation, Workshop
from earnest.protocol.constants import WEIGHT_ONE
from earnest.protocol.recipe import CodecChoice, Inner, Outer, Recipe, Scoring
from earnest.protocol.verdicts import Verdict
from earnest.protocol.weights import upper_quartile
from earnest.training.diloco.engine import TrainerState
from earnest.training.tasks.shakespeare import Shakespeare, demo_recipe
from earnest.training.tasks.task import Batch
from earnest.validator.gain import Losses, Meter, Parameters, summarise
from earnest.validator.judge import History, Judgement, RoundInputs, judge_round
from tests.validator.arena import Arena

RESULTS = Path(__file__).parent / "results" / "verification.json"
COSTLY = (Verdict.MALFORMED, Verdict.HARMFUL, Verdict.COPIED)
PLAYED = (
    *("half-steps", "tuned-half", "straggler", "split-2", "split-4", "disguise"),
    *(
        "framing",
        "framing-sparse",
        "dust",
        "backdoor",
        "scaled-1.5",
        "constant-rate",
        "linear-rate",
        "half-tokens",
    ),
)
DEVIATIONS = {
    "scaled-1.5": Deviation(scale=1.5),
    "constant-rate": Deviation(shape="constant"),
    "linear-rate": Deviation(shape="linear", scale=1.5),
    "half-tokens": Deviation(tokens=0.5, scale=1.5),
}
"""Deviations that the demo does not name."""


def attack_named(name: str) -> Attack:
    """Returns a new attack of the demo's, or a deviation of this benchmark's."""
    return Deviant(DEVIATIONS[name]) if name in DEVIATIONS else make_attack(name)


def settings(model: str, codec: str, seats: int, seed: int, schedule: str) -> tuple[Shakespeare, Recipe]:
    """Returns task and recipe of one of the three sizes."""
    if model == "demo":
        task, recipe = Shakespeare(), demo_recipe(codec, seats, seed)
    else:
        sizes: dict[str, dict[str, Any]] = {
            "small": {"layers": 1, "width": 32, "heads": 2, "context": 32},
            "large": {"layers": 4, "width": 256, "heads": 8, "context": 64},
        }
        task = Shakespeare(**sizes[model])
        recipe = Recipe(
            task="earnest.training.tasks.shakespeare:Shakespeare",
            task_options=dict(sizes[model]),
            pool_size=task.pool_size,
            seed=seed,
            inner=Inner(steps=60, batch=8, lr=1e-2) if model == "small" else Inner(steps=60, lr=1e-3),
            scoring=Scoring(own=480, clip_norm=8.0, trial_rounds=0),
        )
        if codec == "topk-2bit":
            recipe = replace(
                recipe,
                codec=CodecChoice(codec, k=64, error_feedback=0.5),
                outer=Outer(lr=0.7, momentum=0.0, aggregation="contributor-mean"),
                scoring=replace(recipe.scoring, clip_norm=2.0),
                warmup_steps=60,
            )
    return task, replace(recipe, inner=replace(recipe.inner, round_schedule=schedule))


class CachingMeter(Meter):
    """A meter that measures the same state on the same sequences once: attacks share most of both."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena.task, arena.recipe.seed)
        self._known: dict[tuple[int, int], Losses] = {}
        self._batches: dict[tuple[int, ...], tuple[Batch, ...]] = {}
        self.passes = 0
        """Sequences measured."""

    def batches(self, sample_ids: Sequence[int]) -> tuple[Batch, ...]:
        key = tuple(sample_ids)
        if key not in self._batches:
            self._batches[key] = super().batches(sample_ids)
        return self._batches[key]

    def losses(self, parameters: Parameters, batches: Iterable[Batch]) -> Losses:
        batches = tuple(batches)
        state = hash(b"".join(value.numpy().tobytes() for value in parameters.values()))
        key = (state, id(batches[0]) if batches else 0)
        if key not in self._known:
            self._known[key] = super().losses(parameters, batches)
            self.passes += len(self._known[key])
        return self._known[key]


@dataclass
class Site:
    """One round of the honest run, as everybody finds it."""

    inputs: RoundInputs
    published: dict[int, dict[int, bytes]]
    """Honest payloads by seat and round, up to this one."""

    judgement: Judgement
    loss: float
    """Report loss after the round."""

    judge_s: float
    bare_s: float
    """CPU seconds of the judgement, and of its forward passes alone."""

    meter: CachingMeter = field(repr=False)
    trainers: list[TrainerState] = field(repr=False)
    """State of each trainer before the round."""


class HonestRun:
    """Plays the honest run when it is first asked for: a benchmark that is complete needs none."""

    def __init__(self, task: Shakespeare, recipe: Recipe, seats: int, rounds: int) -> None:
        self.task, self.recipe, self.seats, self.rounds = task, recipe, seats, rounds

    @cached_property
    def sites(self) -> list[Site]:
        """Every round from 0 on."""
        arena = Arena(self.task, self.recipe, ["none"] * self.seats, self.rounds)
        self.codec = arena.codec
        self.with_payload = arena.with_payload
        report_meter = Meter(self.task, self.recipe.seed, split="report")
        report = report_meter.batches(self.task.report_ids)
        sites = []
        for _ in range(self.rounds):
            trainers = deepcopy(arena.trainers)
            inputs = arena.train()
            published = {seat: dict(payloads) for seat, payloads in enumerate(arena.published)}
            started = time.process_time()
            judgement = judge_round(inputs)
            judge_s = time.process_time() - started
            bare_s = bare_passes(self.task, inputs)
            arena.advance(inputs, judgement)
            loss = float(report_meter.losses(arena.state.parameters, report).mean())
            meter = CachingMeter(arena)
            sites.append(Site(inputs, published, judgement, loss, judge_s, bare_s, meter, trainers))
        return sites


def bare_passes(task: Shakespeare, inputs: RoundInputs) -> float:
    """Returns the CPU seconds of a judgement's forward passes alone: 2 on B, and 1 on B and 3 on own samples a seat."""
    meter = Meter(task, inputs.recipe.seed)
    fresh = meter.batches(inputs.held_out)
    own = {s: meter.batches(list(ids)[: inputs.recipe.scoring.own]) for s, ids in inputs.assigned.items()}
    started = time.process_time()
    for _ in range(2 + len(own)):
        meter.losses(inputs.newest.parameters, fresh)
    for batches in own.values():
        for _ in range(3):
            meter.losses(inputs.newest.parameters, batches)
    return time.process_time() - started


def play(run: HonestRun, attacks: Sequence[Attack]) -> list[Judgement]:
    """Returns the judgement of each round from round 1 on, with `attacks` on the last seats; [] is the honest run."""
    seats = range(run.seats - len(attacks), run.seats)
    history, judgements = History(), []
    own: dict[int, dict[int, bytes]] = {seat: {} for seat in seats}
    for seat, attack in zip(seats, attacks, strict=True):
        attack.start(deepcopy(run.sites[1].trainers[seat]))
    for site in run.sites[1:]:
        submissions = list(site.inputs.submissions)
        for seat, attack in zip(seats, attacks, strict=True):
            own[seat][site.inputs.round] = site.published[seat][site.inputs.round]
            payload = attack.forge(_context(run, site, seat, tuple(seats), own[seat]))
            if payload is None:
                continue
            forged = run.with_payload(submissions[seat], payload)
            submissions[seat] = replace(forged, position=LogPosition(1, seat))
        inputs = replace(site.inputs, submissions=tuple(submissions), history=history)
        judgement = judge_round(inputs, meter=site.meter)
        history = judgement.history
        judgements.append(judgement)
    return judgements


def _context(
    run: HonestRun, site: Site, seat: int, partners: tuple[int, ...], own: Mapping[int, bytes]
) -> Forgery:
    inputs, victim = site.inputs, site.published[0]
    shop = Workshop(
        task=run.task,
        recipe=run.recipe,
        state=inputs.newest,
        round=inputs.round,
        rounds=run.rounds,
        assigned=inputs.assigned,
        seat=seat,
        partners=partners,
    )
    return Forgery(
        round=inputs.round,
        codec=run.codec,
        honest=site.published[seat][inputs.round],
        clip_norm=inputs.clip_norm,
        rng=np.random.default_rng([run.recipe.seed, seat, inputs.round]),
        own=own,
        others={inputs.round - 1: victim[inputs.round - 1]},
        workshop=shop,
    )


def weights(judgement: Judgement) -> list[float]:
    """Returns the counted weight of every seat, 0 to 1."""
    return [vote.counted_weight / WEIGHT_ONE for vote in judgement.votes]


def former_weights(judgement: Judgement) -> list[float]:
    """Returns the weights that the former rule gives to the same measurements, 0 to 1."""
    measured, gains, margins = judgement.measurements, {}, {}
    for seat, score in judgement.scores.items():
        own = measured.own[seat]
        mine = summarise(own.control - own.after)
        fresh = summarise(measured.control - measured.after[seat])
        gains[seat] = score.gain
        margins[seat] = mine.mean - fresh.mean - float(np.hypot(mine.se, fresh.se))
    gain = upper_quartile([g for g in gains.values() if g > 0])
    margin = upper_quartile([margins[seat] for seat, g in gains.items() if g > 0])
    found = [0.0] * len(judgement.votes)
    if gain is not None and margin is not None and margin > 0:
        for seat, g in gains.items():
            found[seat] = float(np.clip(g / gain, 0, 1) * np.clip(margins[seat] / margin, 0, 1) ** 3)
    return found


def outcome(judgements: Sequence[Judgement], attackers: int) -> dict[str, Any]:
    """Summarises an attack by round; weights are 0 to 1."""
    return {
        "attackers": attackers,
        "weights": [weights(one) for one in judgements],
        "former": [former_weights(one) for one in judgements],
        "verdicts": [[int(vote.verdict) for vote in one.votes] for one in judgements],
    }


def row(played: Mapping[str, Any], honest: Mapping[str, Any], first: int) -> dict[str, Any]:
    """Returns the figures of one attack beside the honest run; `first` is the first round that counts."""
    count, start = played["attackers"], first - 1
    attacked, calm = (np.array(one["weights"][start:]) for one in (played, honest))
    seats = attacked.shape[1]
    mine, others = slice(seats - count, seats), slice(0, seats - count)
    verdicts = np.array(played["verdicts"][start:])[:, others]
    former, before = (np.array(one["former"][start:])[:, mine] for one in (played, honest))
    return {
        "pay": float(attacked[:, mine].sum() / calm[:, mine].mean(1).sum()) if count else 1.0,
        "former_pay": float(former.sum() / before.mean(1).sum()) if count else 1.0,
        "honest": float(attacked[:, others].mean()),
        "lost": int(((attacked[:, others] <= 1 / WEIGHT_ONE) & (calm[:, others] > 1 / WEIGHT_ONE)).sum()),
        "slashed": int(np.isin(verdicts, COSTLY).sum()),
        "seat_rounds": int(verdicts.size),
        "work": played.get("work"),
    }


def work_of(attacks: Sequence[Attack]) -> float | None:
    """Returns the compute of all attacking seats as a share of one honest seat's; None where nobody said."""
    shares = [attack.deviation.work for attack in attacks if isinstance(attack, Deviant)]
    return sum(shares) if len(shares) == len(attacks) else None


def agreement(reported: Any, median: Any) -> float:
    """Returns a validator's pay for these weights as a share of full pay: matches within 2 %, seat by seat."""
    paid = median > 0
    matches = np.abs(reported - median) * 50 <= median
    return float((matches & paid).sum(1).mean() / max(1, paid.sum(1).mean()))


def lazy_pay(honest: Mapping[str, Any], first: int) -> dict[str, float]:
    """Returns what the best constant guess, and repeating the round before, earn of a validator's full pay."""
    every = np.array(honest["weights"][first - 2 :])
    before, median = every[:-1], every[1:]
    guesses = [agreement(np.full_like(median, guess), median) for guess in np.linspace(0.02, 1, 99)]
    return {"guess_pay": max(guesses), "repeat_pay": agreement(before, median)}


def figures(files: Mapping[str, Mapping[str, Any]], first: int) -> dict[str, Any]:
    """Returns the result of one model, codec and seed: a row for each attack."""
    honest = files["honest"]
    rows = {name: row(played, honest, first) for name, played in files.items() if name != "honest"}
    calm = np.array(honest["weights"][first - 1 :])
    pays = calm.mean(0) / max(calm.mean(), 1e-9)
    return {
        "rows": rows,
        "honest_seat_rounds": int(calm.size),
        "honest_zero": int((calm <= 1 / WEIGHT_ONE).sum()),
        "honest_weight": float(calm.mean()),
        "honest_slashed": int(np.isin(honest["verdicts"], COSTLY).sum()),
        "pay_spread": float(pays.max() - pays.min()),
        "loss": honest["losses"][-1],
        "cost_ratio": sum(honest["judge_s"]) / sum(honest["bare_s"]),
        **lazy_pay(honest, first),
    }


REASONS = {
    "forward_passes_ratio": "evaluation is not sequential: a clean run takes as many forward passes as before",
}


def combine(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the figures over all seeds of one model and codec."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        for name, one in result["rows"].items():
            rows.setdefault(name, []).append(one)
    mean = {name: _mean_row(ones) for name, ones in rows.items()}
    per_compute = [one["pay"] / one["work"] for one in mean.values() if one["work"]]
    splits = [one["pay"] for name, one in mean.items() if name.startswith(("split", "disguise"))]
    honest = sum(result["honest_seat_rounds"] for result in results)
    return {
        "best_response_max": max(per_compute, default=None),
        "half_steps_pay": mean.get("half-steps", {}).get("pay"),
        "tuned_half_pay": mean.get("tuned-half", {}).get("pay"),
        "split_max": max(splits, default=None),
        "honest_rounds_lost_under_attack": sum(one["lost"] for one in mean.values()),
        "rounds_under_attack": sum(one["seat_rounds"] for one in mean.values()),
        "false_slashes": sum(one["slashed"] for one in mean.values())
        + sum(result["honest_slashed"] for result in results),
        "honest_rounds": honest,
        "honest_zero_weight_share": sum(result["honest_zero"] for result in results) / honest,
        "honest_weight": statistics.mean(result["honest_weight"] for result in results),
        "honest_pay_spread": statistics.mean(result["pay_spread"] for result in results),
        "validator_cost_ratio": statistics.mean(result["cost_ratio"] for result in results),
        "guess_pay": statistics.mean(result["guess_pay"] for result in results),
        "repeat_pay": statistics.mean(result["repeat_pay"] for result in results),
        "forward_passes_ratio": None,
        "reasons": REASONS,
        "final_loss": statistics.mean(result["loss"] for result in results),
        "seeds": len(results),
        "attacks": mean,
    }


def _mean_row(ones: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    means = {key: statistics.mean(one[key] for one in ones) for key in ("pay", "former_pay", "honest")}
    sums = {key: sum(one[key] for one in ones) for key in ("lost", "slashed", "seat_rounds")}
    return {**means, **sums, "work": ones[0]["work"]}


class Folder:
    """One file for every attack that was played on one honest run."""

    def __init__(self, folder: Path, name: str, run: HonestRun) -> None:
        self.path, self.run = folder / name, run
        self.path.mkdir(parents=True, exist_ok=True)

    def known(self, attack: str) -> dict[str, Any] | None:
        file = self.path / f"{attack}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def played(self, name: str, attacks: Sequence[Attack]) -> dict[str, Any]:
        """Returns the outcome of an attack, played now if it is not in the folder."""
        if (known := self.known(name)) is not None:
            return known
        started = time.process_time()
        judgements = play(self.run, attacks)
        result = outcome(judgements, len(attacks)) | {"work": work_of(attacks)}
        if not attacks:
            sites = self.run.sites
            result |= {key: [getattr(site, key) for site in sites] for key in ("judge_s", "bare_s")}
            result["losses"] = [site.loss for site in sites]
        file = self.path / f"{name}.json"
        file.write_text(json.dumps(result) + "\n")
        print(f"played {self.path.name} {name}: {time.process_time() - started:.0f} CPU seconds", flush=True)
        return result


def folder_of(options: argparse.Namespace, seed: int) -> Folder:
    """Returns the folder of one honest run, which is played when it is needed."""
    task, recipe = settings(options.model, options.codec, options.seats, seed, options.schedule)
    name = "-".join(
        map(str, (options.model, options.codec, options.schedule, options.seats, options.rounds, seed))
    )
    return Folder(options.folder, name, HonestRun(task, recipe, options.seats, options.rounds))


def show(name: str, found: Mapping[str, Any], first: int, rounds: int) -> None:
    """Prints the table of one model and codec."""
    print(f"\n{name}: {found['seeds']} seeds, rounds {first} to {rounds - 1}; loss {found['final_loss']:.3f}")
    print(
        "| attack | work | pay | pay by the former rule | honest weight | honest seat-rounds lost | slashed |"
    )
    print("|---|---|---|---|---|---|---|")
    for attack, one in found["attacks"].items():
        work = "" if one["work"] is None else f"{one['work']:.2f}"
        lost = f"{one['lost']} of {one['seat_rounds']}"
        print(
            f"| {attack} | {work} | {one['pay']:.2f} | {one['former_pay']:.2f} | {one['honest']:.2f} | {lost} |"
            f" {one['slashed']} |"
        )
    shown = ("honest_weight", "honest_zero_weight_share", "honest_pay_spread")
    for key in (*shown, "guess_pay", "repeat_pay", "validator_cost_ratio"):
        print(f"{key}: {found[key]:.3f}")


def write(path: Path, name: str, found: Mapping[str, Any]) -> None:
    """Adds the results of one model and codec to the file."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps(known | {name: {**known.get(name, {}), **found}}, indent=1, sort_keys=True) + "\n"
    )


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Returns the options that this benchmark and the search for the best response share."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("small", "demo", "large"), default="small")
    parser.add_argument("--codec", choices=("dense-bf16", "topk-2bit"), default="dense-bf16")
    parser.add_argument("--schedule", choices=("decay", "linear", "constant"), default="decay")
    parser.add_argument("--seats", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--first", type=int, default=3, help="first round that counts")
    parser.add_argument("--folder", type=Path, default=Path("build/mechanism"))
    parser.add_argument("--json", type=Path, default=RESULTS)
    return parser


def main() -> None:
    """Plays what is not played, prints the table and writes the results."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--attacks", default=",".join(PLAYED))
    parser.add_argument("--show", action="store_true", help="print what was played so far, play nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for seed in range(options.seeds):
        folder, files = folder_of(options, seed), {}
        for name in ("honest", *options.attacks.split(",")):
            count = 0 if name == "honest" else attack_named(name).seats
            if 2 * count > options.seats:
                print(f"not played: {name} needs {2 * count} seats or more (--seats)")
                continue
            known = folder.known(name) if options.show else None
            if known is None and not options.show:
                known = folder.played(name, [attack_named(name) for _ in range(count)])
            if known is not None:
                files[name] = known
        if "honest" in files:
            results.append(figures(files, options.first))
    if results:
        name = f"{options.model} {options.codec}"
        name += (
            ""
            if (options.schedule, options.seats) == ("decay", 4)
            else f" {options.schedule} {options.seats} seats"
        )
        found = combine(results)
        show(name, found, options.first, options.rounds)
        write(options.json, name, found)


if __name__ == "__main__":
    main()
