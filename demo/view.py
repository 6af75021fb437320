"""Shows a demo: a table for each settled round, a summary as text, and a picture."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from earnest.protocol.constants import WEIGHT_ONE

TOKEN = 10**18
CHEAT = "#cc3344"
COLOURS = ("#3366aa", "#2a9d8f", "#8a6fb0", "#cc3344", "#777777", "#999999", "#bbbbbb")


def tokens(wei: str | int) -> str:
    """Formats wei as tokens with two decimals."""
    return f"{int(wei) / TOKEN:,.2f}"


def keys_table(attestation: dict[str, Any]) -> Group:
    """Shows the root of an attested run and how the registry answered each trainer's key."""
    table = Table()
    for heading in ("trainer", "what it does", "answer of the registry"):
        table.add_column(heading)
    for key in attestation["keys"]:
        refused = "; ".join(key["refused"])
        answer = f"refused: {refused}" if refused else f"registered {key['key'][:10]}.."
        table.add_row(key["name"], key["description"], answer, style="red" if key["cheat"] else None)
    return Group(
        Text(attestation["warning"], style="bold white on red"),
        Text(f"Root {attestation['root']}, id 0x{attestation['root_id']}"),
        Text("Enclave keys", style="bold"),
        table,
    )


def round_table(report: dict[str, Any], dense_bytes: int) -> Group:
    """Shows a round: the verdict, weight (0 to 1) and pay of each trainer's update, and the trainer's bond afterwards.

    An attested run shows the reasons for refusals instead of the bond.
    """
    trial = " (trial round, pays next to nothing)" if report["trial"] else ""
    title = f"Round {report['round']}{trial}: held-out loss {report['loss']:.3f} nats per byte"
    if report["update_bytes"]:
        ratio = dense_bytes / report["update_bytes"]
        title += f", {report['update_bytes']:,} bytes per update (1/{ratio:.0f} of dense)"
    reasons: dict[str, list[str]] | None = report.get("reasons")
    last = "bond" if reasons is None else "reasons"
    table = Table()
    for heading in ("trainer", "verdict", "weight", "pay", last):
        table.add_column(heading, justify="right" if heading in ("weight", "pay", "bond") else "left")
    for name, verdict in report["verdicts"].items():
        style = None if verdict in ("accepted", "absent") else "red"
        table.add_row(
            name,
            verdict.replace("_", " "),
            f"{report['weights'][name] / WEIGHT_ONE:.3f}",
            tokens(report["pay_wei"][name]),
            tokens(report["bonds_wei"][name]) if reasons is None else "\n".join(reasons[name]),
            style=style,
        )
    return Group(Text(title, style="bold"), table)


def summary_table(result: dict[str, Any]) -> Table:
    """Shows for each account what it bonded, has left and earned."""
    table = Table(title="At the end (tokens)", title_justify="left")
    for heading in ("who", "honest", "bond before", "bond after", "earned"):
        table.add_column(heading, justify="left" if heading in ("who", "honest") else "right")
    for member in result["participants"]:
        table.add_row(
            member["name"],
            "yes" if member["honest"] else member["cheat"] or "no",
            tokens(member["bond_start_wei"]),
            tokens(member["bond_end_wei"]),
            tokens(member["earned_wei"]),
            style=None if member["honest"] else "red",
        )
    return table


def summary(result: dict[str, Any]) -> str:
    """Returns a summary of the run as text."""
    everyone = result["participants"]
    honest = [member for member in everyone if member["honest"]]
    trainers = [member for member in honest if member["role"] == "trainer"]
    mean = sum(int(member["earned_wei"]) for member in trainers) // max(1, len(trainers))
    unharmed = all(member["bond_end_wei"] == member["bond_start_wei"] for member in honest)
    rounds, roots = len(result["rounds"]), result["state_roots"]
    sentences = [
        f"In {rounds} round{'s' * (rounds > 1)} the model's held-out loss went from {result['initial_loss']:.2f} to "
        f"{result['final_loss']:.2f} nats per byte.",
        f"The {len(trainers)} honest trainers earned {tokens(mean)} tokens on average, and no honest node lost bond."
        if unharmed
        else f"The {len(trainers)} honest trainers earned {tokens(mean)} tokens on average; honest nodes lost bond!",
        *(_cheat_summary(member, result["attack"]) for member in everyone if not member["honest"]),
    ]
    if (attestation := result["attestation"]) is not None:
        sentences.append(f"Every attestation was SIMULATED, under root 0x{attestation['root_id'][:8]}...")
    if len(set(roots.values())) == 1:
        root = result["final_state_root"]
        sentences.append(f"All {len(roots)} nodes computed the same final state, {root}.")
    else:
        sentences.append("The nodes do not agree on the final state!")
    return "\n".join(sentences)


def _cheat_summary(member: dict[str, Any], attack: str) -> str:
    lost = int(member["bond_start_wei"]) - int(member["bond_end_wei"])
    who = f"{attack} attacker" if member["role"] == "trainer" else "lying validator"
    if member["cheat"]:
        who = f"trainer with the {member['cheat']}"
    earned = tokens(member["earned_wei"])
    return f"The {who} ({member['name']}) earned {earned} tokens and lost {tokens(lost)} of its bond."


def show(console: Console, result: dict[str, Any], output: Path) -> None:
    """Prints a summary, and the names of the files in `output` that have the details."""
    console.print(summary_table(result))
    console.print(summary(result), highlight=False)
    console.print(
        f"\nLook at {output}/demo.png (losses and bonds), {output}/demo.json (every number above, and more)\n"
        f"and {output}/nodes/ (the files of every node: payloads, states, measurements, journals).",
        soft_wrap=True,
        highlight=False,
    )


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes a PNG: the loss after each round, and every trainer's bond (attested: pay) over the run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rounds = result["rounds"]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)

    steps = range(len(rounds) + 1)
    left.plot(steps, [result["initial_loss"], *(r["loss"] for r in rounds)], "o-", color=COLOURS[0])
    left.axhline(2.51, color="#999999", linewidth=1, linestyle=":")
    left.annotate(
        "one-byte-context n-gram",
        (0.72, 2.54),
        xycoords=("axes fraction", "data"),
        fontsize=8,
        color="#777777",
    )
    left.set(title="Held-out loss of the shared model", xlabel="rounds", ylabel="nats per byte")

    _draw_money(right, result)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_money(axes: Any, result: dict[str, Any]) -> None:
    """Draws every trainer's bond over the run; in an attested run, where no bond moves, its pay."""
    attested = result["attestation"] is not None
    rounds = result["rounds"]
    trainers = [member for member in result["participants"] if member["role"] == "trainer"]
    for number, member in enumerate(trainers):
        name, start = member["name"], int(member["bond_start_wei"])
        if attested:
            paid = accumulate((int(r["pay_wei"][name]) for r in rounds), initial=0)
            points = list(paid)
        else:
            points = [start, *(int(r["bonds_wei"][name]) for r in rounds), int(member["bond_end_wei"])]
        axes.plot(
            range(len(points)),
            [point / TOKEN for point in points],
            "o-",
            color=COLOURS[number % len(COLOURS)] if member["honest"] else CHEAT,
            label=name if member["honest"] else f"{name} ({member['cheat'] or result['attack']})",
            markersize=4,
        )
    if attested:
        axes.set(title="Trainers' pay; SIMULATED attestation", xlabel="rounds", ylabel="tokens")
    else:
        title, label = "Trainers' bonds", "rounds (last point: after the contest window)"
        axes.set(title=title, xlabel=label, ylabel="tokens")
    axes.legend(frameon=False, fontsize=8)
