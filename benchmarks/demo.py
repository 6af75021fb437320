"""Measures what every attack costs, and whom: the demo over several seeds, on the embedded chain.

    python -m benchmarks.demo [--seeds 10] [--attacks sign-flip,copy] [--codec dense-bf16] [--output build/bench-demo]

Each demo is a process of its own and writes its result to a file, so an interrupted benchmark continues where it
stopped. The three validators of a demo judge the same inputs, so these are judged once per round. The row `none` is the
baseline.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from earnest.demo.attacks.trainers import ATTACKS, make_attack
from earnest.demo.options import DemoOptions
from earnest.demo.play import set_up
from earnest.training.codecs import Update
from earnest.validator.judge import Judgement, RoundInputs, judge_round

AT_ONCE = 2


def judge_once() -> Callable[[RoundInputs], Judgement]:
    """Returns `judge_round` with a cache over base states, seeds and submissions."""
    known: dict[tuple[Any, ...], Judgement] = {}

    def judge(inputs: RoundInputs) -> Judgement:
        key = (
            inputs.newest_root,
            inputs.seed,
            tuple((s.seat, s.manifest.update, isinstance(s.update, Update)) for s in inputs.submissions),
        )
        if key not in known:
            known[key] = judge_round(inputs)
        return known[key]

    return judge


def play(attack: str, seed: int, codec: str, file: Path) -> None:
    """Plays a demo and writes its result to `file`."""
    trainers = max(4, 2 * make_attack(attack).seats)
    options = DemoOptions(
        file.with_suffix(""), seed=seed, attack=attack, codec=codec, trainers=trainers, judge=judge_once()
    )
    with set_up(options) as demo:
        result = demo.play(lambda report: None)
    file.write_text(json.dumps(result))


def play_all(jobs: Sequence[tuple[str, int]], codec: str, output: Path) -> None:
    """Plays the demos that have no file yet, two at a time."""

    def run(job: tuple[str, int]) -> None:
        attack, seed = job
        command = [
            sys.executable,
            "-m",
            "benchmarks.demo",
            "--one",
            attack,
            str(seed),
            "--codec",
            codec,
            "--output",
            str(output),
        ]
        subprocess.run(command, check=True)
        print(f"played {attack}, seed {seed}", file=sys.stderr)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(run, jobs))


def facts(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of one demo that a row summarises."""
    people = result["participants"]
    honest = [p for p in people if p["honest"]]
    trainers = [p for p in honest if p["role"] == "trainer"]
    cheats = [p for p in people if not p["honest"] and p["role"] == "trainer"]
    mean_pay = statistics.mean(int(p["earned_wei"]) for p in trainers)
    first_loss = None
    for cheat in cheats:
        start = int(cheat["bond_start_wei"])
        falls = [r["round"] for r in result["rounds"] if int(r["bonds_wei"][cheat["name"]]) < start]
        first_loss = falls[0] if falls else ("end" if int(cheat["bond_end_wei"]) < start else None)
    return {
        "loss": result["final_loss"],
        "honest_lost": sum(int(p["bond_start_wei"]) - int(p["bond_end_wei"]) for p in honest),
        "least_pay": min(int(p["earned_wei"]) for p in trainers),
        "share": max((int(p["earned_wei"]) / mean_pay for p in cheats), default=None),
        "lost": sum(int(p["bond_start_wei"]) - int(p["bond_end_wei"]) for p in cheats),
        "first_loss": first_loss,
        "verdict": next(
            (
                r["round"]
                for r in result["rounds"]
                for c in cheats
                if r["verdicts"][c["name"]] in ("harmful", "copied", "malformed")
            ),
            None,
        ),
        "agree": len(set(result["state_roots"].values())) == 1,
    }


def row(attack: str, results: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the table row of an attack over all seeds that were played."""
    figures = [facts(result) for result in results]
    shares = [f["share"] for f in figures if f["share"] is not None]
    verdicts = [f["verdict"] for f in figures if f["verdict"] is not None]
    bonds = [f["lost"] / 1e18 for f in figures]
    return [
        attack,
        str(len(figures)),
        f"{statistics.mean(f['loss'] for f in figures):.3f} ({max(f['loss'] for f in figures):.3f})",
        str(sum(f["honest_lost"] for f in figures)),
        f"{min(f['least_pay'] for f in figures) / 1e18:.2f}",
        f"{100 * statistics.mean(shares):.2f} ({100 * max(shares):.2f})" if shares else "–",
        f"{len(verdicts)}, latest in round {max(verdicts)}" if verdicts else "0",
        f"{min(bonds):.2f} to {max(bonds):.2f}",
        "yes" if all(f["agree"] for f in figures) else "NO",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--codec", default="dense-bf16")
    parser.add_argument("--output", type=Path, default=Path("build/bench-demo"))
    parser.add_argument("--show", action="store_true", help="print the demos played so far, play none")
    parser.add_argument("--one", nargs=2, metavar=("ATTACK", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    attacks = options.attacks.split(",")

    def file(attack: str, seed: int) -> Path:
        return options.output / options.codec / f"{attack}-{seed}.json"

    file("", 0).parent.mkdir(parents=True, exist_ok=True)
    if options.one:
        attack, seed = options.one[0], int(options.one[1])
        play(attack, seed, options.codec, file(attack, seed))
        return 0
    jobs = [(a, s) for s in range(options.seeds) for a in attacks]
    if not options.show:
        play_all([job for job in jobs if not file(*job).exists()], options.codec, options.output)

    table = Table(title=f"{options.codec}: each attack over the seeds played", title_justify="left")
    for heading in (
        "attack",
        "seeds",
        "final loss: mean (worst)",
        "wei of bond honest nodes lost",
        "least an honest trainer earned",
        "attacker's pay, % of honest mean: mean (worst)",
        "runs with a penalised verdict",
        "bond the attacker lost",
        "all nodes agree",
    ):
        table.add_column(heading)
    for attack in attacks:
        played = [file(attack, s) for s in range(options.seeds) if file(attack, s).exists()]
        if played:
            table.add_row(*row(attack, [json.loads(path.read_text()) for path in played]))
    Console(width=150).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
