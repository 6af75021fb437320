"""What every attack costs whom: the demo over several seeds, on the embedded chain.

    python -m benchmarks.demo [--seeds 10] [--attacks sign-flip,copy] [--codec dense-bf16] [--output build/bench-demo]

Each demo is a process of its own and leaves its result as a file, so an interrupted run goes on where it stopped. The
three validators of a demo hold the same inputs on the same machine, so what one has judged is not measured again for
the others; everything else is the demo as it is. The row `none` is the baseline.
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

from earnest.demo.adversaries import ATTACKS
from earnest.demo.demo import DemoOptions, set_up
from earnest.validator.judge import Judgement, RoundInputs, judge_round

AT_ONCE = 2


def judge_once() -> Callable[[RoundInputs], Judgement]:
    """`judge_round`, computed once per distinct round and submissions."""
    known: dict[tuple[Any, ...], Judgement] = {}

    def judge(inputs: RoundInputs) -> Judgement:
        key = (inputs.newest_root, inputs.seed, tuple((s.seat, s.payload) for s in inputs.submissions))
        if key not in known:
            known[key] = judge_round(inputs)
        return known[key]

    return judge


def play(attack: str, seed: int, codec: str, file: Path) -> None:
    """One demo; its result goes to `file`."""
    options = DemoOptions(file.with_suffix(""), seed=seed, attack=attack, codec=codec)
    with set_up(options, judge_once()) as demo:
        result = demo.play(lambda report: None)
    file.write_text(json.dumps(result))


def play_all(jobs: Sequence[tuple[str, int]], codec: str, output: Path) -> None:
    """Plays what is missing, two at once, each on one core."""

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
    """The numbers that a row is made of."""
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
    """One attack over all seeds that were played."""
    found = [facts(result) for result in results]
    shares = [f["share"] for f in found if f["share"] is not None]
    verdicts = [f["verdict"] for f in found if f["verdict"] is not None]
    bonds = [f["lost"] / 1e18 for f in found]
    return [
        attack,
        str(len(found)),
        f"{statistics.mean(f['loss'] for f in found):.3f} ({max(f['loss'] for f in found):.3f})",
        str(sum(f["honest_lost"] for f in found)),
        f"{min(f['least_pay'] for f in found) / 1e18:.2f}",
        f"{100 * statistics.mean(shares):.2f} ({100 * max(shares):.2f})" if shares else "–",
        f"{len(verdicts)}, latest in round {max(verdicts)}" if verdicts else "0",
        f"{min(bonds):.2f} to {max(bonds):.2f}",
        "yes" if all(f["agree"] for f in found) else "NO",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--codec", default="dense-bf16")
    parser.add_argument("--output", type=Path, default=Path("build/bench-demo"))
    parser.add_argument("--show", action="store_true", help="print what was played so far, play nothing")
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
            table.add_row(*row(attack, [json.loads(one.read_text()) for one in played]))
    Console(width=150).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
