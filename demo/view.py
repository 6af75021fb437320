"""How the demo is shown: a line per round as it closes, a summary in plain words, and a picture."""

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
    """Wei as tokens with two decimals."""
    return f"{int(wei) / TOKEN:,.2f}"


def keys_table(attestation: dict[str, Any]) -> Group:
    """Whose machines an attested run takes, and what the registry said to each trainer's key."""
    table = Table()
    for heading in ("trainer", "what it does", "what the registry said"):
        table.add_column(heading)
    for one in attestation["keys"]:
        refused = "; ".join(one["refused"])
        told = f"refused: {refused}" if refused else f"registered {one['key'][:10]}.."
        table.add_row(one["name"], one["told"], told, style="red" if one["cheat"] else None)
    return Group(
        Text(attestation["warning"], style="bold white on red"),
        Text(f"Root {attestation['root']}, id 0x{attestation['root_id']}"),
        Text("Enclave keys", style="bold"),
        table,
    )


def round_table(report: dict[str, Any], dense_bytes: int) -> Group:
    """One round: what each trainer's update was judged to be, what it was paid, and its bond after.

    In an attested run, instead of the bond, who refused what and why.
    """
    trial = ", a trial that is not paid" if report["trial"] else ""
    title = f"Round {report['round']}{trial}: held-out loss {report['loss']:.3f} nats per byte"
    if report["update_bytes"]:
        title += f", {report['update_bytes']:,} bytes an update ({dense_bytes / report['update_bytes']:.0f} x smaller)"
    reasons: dict[str, list[str]] | None = report.get("reasons")
    last = "bond" if reasons is None else "refused, and why"
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
    """Everyone at the end: what they put up, what they have left, what they earned."""
    table = Table(title="At the end", title_justify="left")
    for heading in ("who", "honest", "bond before", "bond after", "earned"):
        table.add_column(heading, justify="left" if heading in ("who", "honest") else "right")
    for one in result["participants"]:
        table.add_row(
            one["name"],
            "yes" if one["honest"] else one["cheat"] or "no",
            tokens(one["bond_start_wei"]),
            tokens(one["bond_end_wei"]),
            tokens(one["earned_wei"]),
            style=None if one["honest"] else "red",
        )
    return table


def last_line(result: dict[str, Any]) -> str:
    """What happened, in one plain sentence or two."""
    everyone = result["participants"]
    honest = [one for one in everyone if one["honest"] and one["role"] == "trainer"]
    earned = sum(int(one["earned_wei"]) for one in honest) // max(1, len(honest))
    agreed = len(set(result["state_roots"].values())) == 1
    kept = all(one["bond_end_wei"] == one["bond_start_wei"] for one in everyone if one["honest"])
    text = (
        f"The model went from {result['initial_loss']:.2f} to {result['final_loss']:.2f} nats per byte in "
        f"{len(result['rounds'])} rounds; {len(honest)} honest trainers earned {tokens(earned)} on average and "
        + ("lost no bond" if kept else "lost some bond")
    )
    text += "".join(_cheat_told(one, result["attack"]) for one in everyone if not one["honest"])
    if (attestation := result["attestation"]) is not None:
        text += f". Every attestation was SIMULATED, under root 0x{attestation['root_id'][:8]}.."
    root = result["final_state_root"]
    return (
        f"{text}. All {len(result['state_roots'])} nodes hold the same final state, {root}."
        if agreed
        else text + "."
    )


def _cheat_told(one: dict[str, Any], attack: str) -> str:
    lost = int(one["bond_start_wei"]) - int(one["bond_end_wei"])
    who = f"{attack} trainer" if one["role"] == "trainer" else "lying validator"
    if one["cheat"]:
        who = f"trainer with the {one['cheat']}"
    return f"; the {who} earned {tokens(one['earned_wei'])} and lost {tokens(lost)} of its bond"


def show(console: Console, result: dict[str, Any], picture: Path) -> None:
    """The summary, the picture's place, and the last line."""
    console.print(summary_table(result))
    console.print(f"Picture: {picture}")
    console.print(last_line(result))


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes a PNG: the loss after each round, and every trainer's bond and pay over the run."""
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
    """Every trainer's bond over the run; of an attested run, where no bond moves, its pay."""
    attested, rounds = result["attestation"] is not None, result["rounds"]
    trainers = [one for one in result["participants"] if one["role"] == "trainer"]
    for number, one in enumerate(trainers):
        name, start = one["name"], int(one["bond_start_wei"])
        if attested:
            paid = accumulate((int(r["pay_wei"][name]) for r in rounds), initial=0)
            points = list(paid)
        else:
            points = [start, *(int(r["bonds_wei"][name]) for r in rounds), int(one["bond_end_wei"])]
        axes.plot(
            range(len(points)),
            [point / TOKEN for point in points],
            "o-",
            color=COLOURS[number % len(COLOURS)] if one["honest"] else CHEAT,
            label=name if one["honest"] else f"{name} ({one['cheat'] or result['attack']})",
            markersize=4,
        )
    if attested:
        axes.set(title="Trainers' pay; SIMULATED attestation", xlabel="rounds", ylabel="tokens")
    else:
        title, label = "Trainers' bonds", "rounds (last point: after the contest window)"
        axes.set(title=title, xlabel=label, ylabel="tokens")
    axes.legend(frameon=False, fontsize=8)
