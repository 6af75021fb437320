"""Attacks on the judgement of a round, and what they earn: engine, codec, judge and outer step, without a chain.

Plays an honest run with four trainers, and in its last rounds judges every attack in place of the last seats' honest
updates. Writes benchmarks/results/verification.json. `--model demo` is the demo's (0.1 M parameters, minutes); `small`
is that of the validator's tests (0.02 M, one minute).

    python -m benchmarks.mechanism [--model small] [--seeds 1] [--rounds 6] [--codec dense-bf16] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from earnest.client.run.record import LogPosition
from earnest.protocol.constants import WEIGHT_ONE
from earnest.protocol.recipe import CodecChoice, Inner, Outer, Recipe, Scoring
from earnest.protocol.verdicts import Verdict
from earnest.training.diloco.engine import TrainerState, train_round
from earnest.training.tasks.shakespeare import Shakespeare, demo_recipe
from earnest.validator.gain import Meter
from earnest.validator.judge import Judgement, RoundInputs, judge_round
from tests.validator.arena import Arena

SEATS = 4
ATTACKER = 3
VICTIM = 0
RESULTS = Path(__file__).parent / "results" / "verification.json"


@dataclass(frozen=True)
class Outcome:
    """One attack on one round: mean weight of the honest seats, and what the attacking seats get together."""

    honest: float
    attackers: float
    lost: int
    """Honest seats that did not count, or with weight 0."""

    slashed: int
    """Honest seats with a verdict that costs bond."""


class Site:
    """A round of an honest run with its updates, and methods that make dishonest ones."""

    def __init__(self, arena: Arena, inputs: RoundInputs) -> None:
        self.arena, self.inputs = arena, inputs
        self.flats = {s: arena.codec.decode(arena.published[s][arena.round]).flat() for s in range(SEATS)}

    def train(self, ids: Sequence[int], inner: Inner) -> Tensor:
        """Returns the pseudo-gradient [size] of a local round under other inner settings, with a new optimizer."""
        scoring = replace(self.arena.recipe.scoring, own=2)  # must not exceed the samples of the round
        recipe = replace(self.arena.recipe, inner=inner, scoring=scoring)
        local = train_round(
            self.arena.task,
            recipe,
            self.arena.state,
            ids,
            self.arena.round,
            self.arena.rounds,
            TrainerState(),
        )
        return self.arena.codec.spec.join(local.pseudo_gradient)

    def half_steps(self, seat: int = ATTACKER) -> Tensor:
        """Returns the update of a trainer that stops after half of its samples."""
        inner = self.arena.recipe.inner
        ids = self.inputs.assigned[seat]
        return self.train(ids[: len(ids) // 2], replace(inner, steps=inner.steps // 2))

    def judge(self, updates: dict[int, Tensor | bytes], block: int = 1) -> Judgement:
        """Judges the round with these updates, committed before all others, in place of the honest ones."""
        submissions = list(self.inputs.submissions)
        for seat, update in updates.items():
            payload = update if isinstance(update, bytes) else self._encoded(update)
            forged = self.arena.with_payload(submissions[seat], payload)
            submissions[seat] = replace(forged, position=LogPosition(block, seat))
        return judge_round(replace(self.inputs, submissions=tuple(submissions)))

    def _encoded(self, flat: Tensor) -> bytes:
        return self.arena.codec.encode(self.arena.codec.spec.split(flat)).payload


Attack = Callable[[Site], dict[int, Tensor | bytes]]


def framing(site: Site) -> dict[int, Tensor | bytes]:
    """Commits first to the victim's exact update."""
    return {ATTACKER: site.arena.published[VICTIM][site.arena.round]}


def framing_part(site: Site) -> dict[int, Tensor | bytes]:
    """Commits first to the first chunk of the victim's update only."""
    part = torch.zeros_like(site.flats[VICTIM])
    part[: site.arena.recipe.codec.chunk] = site.flats[VICTIM][: site.arena.recipe.codec.chunk]
    return {ATTACKER: part}


def dust(site: Site) -> dict[int, Tensor | bytes]:
    """Publishes honest updates scaled to a ten-thousandth, on half of the seats."""
    return {seat: site.flats[seat] * 1e-4 for seat in (2, 3)}


def halves(site: Site) -> dict[int, Tensor | bytes]:
    """Takes half of the steps, on one seat."""
    return {ATTACKER: site.half_steps()}


def split_in_two(site: Site) -> dict[int, Tensor | bytes]:
    """Splits one machine over two seats: half of the steps on each."""
    return {seat: site.half_steps(seat) for seat in (2, 3)}


def scaled(site: Site) -> dict[int, Tensor | bytes]:
    """Publishes the honest update, one and a half times as large."""
    return {ATTACKER: site.flats[ATTACKER] * 1.5}


ATTACKS: dict[str, Attack] = {
    "honest": lambda site: {},
    "framing": framing,
    "framing, one chunk": framing_part,
    "dust on half of the seats": dust,
    "half of the steps": halves,
    "two seats, half of the steps each": split_in_two,
    "scaled by 1.5": scaled,
}


def outcome(judgement: Judgement, attackers: Sequence[int]) -> Outcome:
    """Summarises a judgement; weights are 0 to 1."""
    honest = [judgement.votes[seat] for seat in range(SEATS) if seat not in attackers]
    costly = (Verdict.MALFORMED, Verdict.HARMFUL, Verdict.COPIED)
    return Outcome(
        honest=statistics.mean(vote.counted_weight / WEIGHT_ONE for vote in honest),
        attackers=sum(judgement.votes[seat].counted_weight / WEIGHT_ONE for seat in attackers),
        lost=sum(vote.counted_weight == 0 for vote in honest),
        slashed=sum(vote.verdict in costly for vote in honest),
    )


def small_run(codec: str, seed: int) -> tuple[Shakespeare, Recipe]:
    """Returns task and recipe of a model of one layer."""
    options: dict[str, Any] = {"layers": 1, "width": 32, "heads": 2, "context": 32}
    task = Shakespeare(**options)
    recipe = Recipe(
        task="earnest.training.tasks.shakespeare:Shakespeare",
        task_options=options,
        pool_size=task.pool_size,
        seed=seed,
        inner=Inner(steps=60, batch=8, lr=1e-2),
        scoring=Scoring(held_out=256, own=256, clip_norm=8.0, trial_rounds=0),
    )
    if codec == "topk-2bit":
        recipe = replace(
            recipe,
            codec=CodecChoice(codec, k=64, error_feedback=0.5),
            outer=Outer(lr=0.7, momentum=0.0, aggregation="contributor-mean"),
            scoring=replace(recipe.scoring, clip_norm=2.0),
            warmup_steps=60,
        )
    return task, recipe


def play(model: str, codec: str, seed: int, rounds: int) -> tuple[dict[str, list[Outcome]], list[float]]:
    """Plays one honest run; returns the outcomes of every attack from round 2 on, and the loss after each round."""
    if model == "demo":
        task, recipe = Shakespeare(), demo_recipe(codec, SEATS, seed)
    else:
        task, recipe = small_run(codec, seed)
    arena = Arena(task, recipe, ["none"] * SEATS, rounds)
    meter = Meter(task, recipe.seed, split="report")
    report = meter.batches(task.report_ids)
    outcomes: dict[str, list[Outcome]] = {name: [] for name in ATTACKS}
    losses: list[float] = []
    for round_ in range(rounds):
        inputs = arena.train()
        honest = judge_round(inputs)
        if round_ >= 2:
            site = Site(arena, inputs)
            for name, attack in ATTACKS.items():
                updates = attack(site)
                judgement = site.judge(updates) if updates else honest
                outcomes[name].append(outcome(judgement, list(updates)))
        arena.advance(inputs, honest)
        losses.append(float(meter.losses(arena.state.parameters, report).mean()))
    return outcomes, losses


def main() -> None:
    """Plays, prints the table and writes the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("small", "demo"), default="small")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--codec", default="dense-bf16")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started, total = time.process_time(), {name: [] for name in ATTACKS}
    final: list[float] = []
    for seed in range(options.seeds):
        outcomes, losses = play(options.model, options.codec, seed, options.rounds)
        final.append(losses[-1])
        for name, found in outcomes.items():
            total[name] += found
    print(
        f"{options.codec}, {options.seeds} seeds, rounds 2 to {options.rounds - 1}; loss {statistics.mean(final):.3f}"
    )
    print("| attack | honest weight | attackers together, honest seats | honest seats lost | slashed |")
    print("|---|---|---|---|---|")
    share = statistics.mean(row.honest for row in total["honest"])
    rows = {name: summary(found, share) for name, found in total.items()}
    for name, row in rows.items():
        print(
            f"| {name} | {row['honest']:.2f} | {row['pay']:.2f} | {row['lost']} of {row['seats']} | {row['slashed']} |"
        )
    print(f"{time.process_time() - started:.0f} CPU seconds")
    write(options.json, f"{options.model} {options.codec}", rows, total["honest"])


def summary(found: Sequence[Outcome], share: float) -> dict[str, Any]:
    """Returns means over rounds; `pay` is that of all attacking seats, in pays of a seat of the honest run."""
    return {
        "honest": statistics.mean(row.honest for row in found),
        "pay": statistics.mean(row.attackers for row in found) / share,
        "lost": sum(row.lost for row in found),
        "slashed": sum(row.slashed for row in found),
        "seats": len(found) * SEATS,
    }


def write(path: Path, name: str, rows: dict[str, dict[str, Any]], honest: Sequence[Outcome]) -> None:
    """Adds the results of one model and codec to the file."""
    known = json.loads(path.read_text()) if path.exists() else {}
    attacked = [row for name, row in rows.items() if name != "honest"]
    seats = len(honest) * SEATS
    known[name] = {
        "half_steps_pay": rows["half of the steps"]["pay"],
        "split_max": rows["two seats, half of the steps each"]["pay"],
        "best_response_max": max(row["pay"] for row in attacked),
        "honest_rounds_lost_under_attack": sum(row["lost"] for row in attacked),
        "false_slashes": sum(row["slashed"] for row in rows.values()),
        "honest_rounds": seats,
        "honest_zero_weight_share": sum(row.lost for row in honest) / seats,
        "attacks": rows,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
