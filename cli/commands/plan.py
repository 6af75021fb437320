"""`earnest plan`: what a run will cost, before anybody opens it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from importlib.resources import files
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from earnest.cli.app import make_group
from earnest.cli.exits import UsageError
from earnest.cli.flags import Flags
from earnest.cli.output import Answer, table
from earnest.protocol.constants import BPS, MAX_PENALTY_BPS
from earnest.protocol.penalties import PenaltyTerms

if TYPE_CHECKING:
    from earnest.protocol.recipe import CodecChoice
    from earnest.training.planning import Round, Training
    from earnest.training.published_figures import PublishedFigure

app = make_group("plan")
PLAIN = Flags()

LEAST, MOST = 1e-12, 10**15
"""Of what is planned with: nothing is smaller or larger, and no product of such numbers is infinite."""

Count = Annotated[int, Parameter(validator=Number(gte=1, lte=MOST))]
Above0 = Annotated[float, Parameter(validator=Number(gte=LEAST, lte=MOST))]
NotBelow0 = Annotated[float, Parameter(validator=Number(gte=0, lte=MOST))]
CodecName = Literal["dense-bf16", "int8", "topk-2bit", "lowrank-int4"]
OVERLAPS = ("none", "delayed", "eager")


@app.command
def training(
    *,
    parameters: str = "1B",
    trainers: Count = 8,
    validators: Count = 4,
    h: Annotated[Count, Parameter(name=["--h", "--inner-steps"])] = 30,
    step_s: Above0 = 1.0,
    step_tokens: Count = 262_144,
    tokens_per_s: Above0 | None = None,
    up_mbps: Above0 = 100.0,
    down_mbps: Above0 = 500.0,
    codec: CodecName = "topk-2bit",
    k: Count = 64,
    chunk: Count = 4096,
    rank: Count = 8,
    overlap: Literal["none", "delayed", "eager"] = "none",
    copies: Count | None = None,
    windows_s: NotBelow0 | None = None,
    rounds: Count = 100,
    gwei: NotBelow0 | None = None,
    coin_price: NotBelow0 | None = None,
    bond: NotBelow0 | None = None,
    check_published: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    flags: Flags = PLAIN,
) -> Answer:
    """Bytes, seconds, utilisation and gas of a round, and how that compares with AllReduce at every step.

    Links have a rate and nothing else, devices never differ: real runs do worse. docs/plan.md has the formulas.

    Example: earnest plan training --parameters 72B --trainers 20 --h 30 --step-s 40 --up-mbps 110 --down-mbps 500

    Parameters
    ----------
    parameters
        Size of the model: 3000000, 350M, 1.3B.
    trainers
        Trainers that submit in every round.
    validators
        Validators: each fetches every payload.
    h
        Inner steps between two exchanges.
    step_s
        Seconds of one inner step on a trainer's device. `earnest task check` measures it.
    step_tokens
        Tokens in one step of one trainer.
    tokens_per_s
        Tokens that a trainer's device takes per second, in place of --step-s.
    up_mbps
        A trainer's upload rate, Mbit/s.
    down_mbps
        A trainer's download rate, Mbit/s.
    codec
        How updates are encoded.
    k
        Numbers kept of a chunk (topk-2bit).
    chunk
        Numbers in a chunk (topk-2bit, int8).
    rank
        Rank kept of a matrix (lowrank-int4).
    overlap
        Whether training goes on while the round before is exchanged and settled.
    copies
        Uploads of a payload (default: one to every other trainer and validator; 1 with a bucket or mirror).
    windows_s
        Seconds of the windows in which updates are revealed and judged (default: a fifth of the training time).
    rounds
        Rounds of the run, for its totals.
    gwei
        Gas price, for the cost of gas.
    coin_price
        Price of the chain's coin in any currency, for the cost in it.
    bond
        A trainer's bond in tokens, for what a round puts at risk.
    check_published
        Print the model's own figures beside published ones instead, and say where they do not agree.
    """
    if check_published:
        return _published()
    from earnest.protocol.recipe import CodecChoice
    from earnest.training.planning import Link, Training, bits_per_parameter

    size = _count(parameters)
    seconds = step_s if tokens_per_s is None else step_tokens / tokens_per_s
    try:
        choice = CodecChoice(codec, k=k, chunk=chunk, rank=rank)
        planned = Training(
            parameters=size,
            trainers=trainers,
            inner_steps=h,
            step_s=seconds,
            step_tokens=step_tokens,
            link=Link(up_mbps * 1e6, down_mbps * 1e6),
            bits=bits_per_parameter(choice, size),
            copies=trainers - 1 + validators if copies is None else copies,
            windows_s=h * seconds / 5 if windows_s is None else windows_s,
            overlap=overlap,
        )
    except ValueError as error:
        raise UsageError(f"no plan: {error}", "see `earnest plan training --help`") from error
    document = {**_exchange(planned), "allreduce": _against(planned), "codecs": _codecs(planned, choice)}
    document["chain"] = _chain(trainers, validators, rounds, gwei, coin_price, bond)
    return Answer({"codec": codec, **asdict(planned), **document}, _shown(planned, codec, document))


@app.command
def privacy(
    *,
    noise: NotBelow0 | None = None,
    epsilon: Above0 | None = None,
    delta: Annotated[float, Parameter(validator=Number(gt=0, lt=1))] = 1e-5,
    rounds: Count = 100,
    parameters: str = "1B",
    trainers: Count = 8,
    flags: Flags = PLAIN,
) -> Answer:
    """The epsilon that a noise gives over a run, or the noise that an epsilon takes, and what it does to an update.

    Protects all of a trainer's private data at once, from anyone who sees every update. docs/own-model.md says more.

    Example: earnest plan privacy --noise 4 --delta 1e-5 --rounds 100

    Parameters
    ----------
    noise
        Standard deviation of the noise on every number, in units of the clip (the recipe's privacy.noise).
    epsilon
        The epsilon wanted, in place of --noise.
    delta
        The delta for which epsilon is stated.
    rounds
        Rounds in which a trainer publishes an update.
    parameters
        Size of the model: 3000000, 350M, 1.3B.
    trainers
        Trainers whose updates are averaged.
    """
    from earnest.protocol.recipe import Privacy
    from earnest.training.privacy import epsilon as epsilon_of
    from earnest.training.privacy import noise_for, noise_to_signal

    if (noise is None) == (epsilon is None):
        raise UsageError("either the noise or the epsilon is given", "give --noise or --epsilon, not both")
    used = noise if epsilon is None else noise_for(epsilon, delta, rounds)
    assert used is not None
    terms, size = Privacy(clip=1.0, noise=used, delta=delta), _count(parameters)
    got = epsilon_of(terms, rounds)
    buried = noise_to_signal(terms, size, trainers)
    document = {
        "noise": used,
        "epsilon": got if isfinite(got) else None,
        "delta": delta,
        "rounds": rounds,
        "unit": "all private data of one trainer",
        "noise_to_signal": noise_to_signal(terms, size),
        "noise_to_signal_of_mean": buried,
    }
    promise = f"epsilon {got:.3g} at delta {delta:g}" if used else "no promise: clipping alone gives none"
    promise = promise if isfinite(got) or not used else "no promise: so little noise hides nothing"
    protected = (
        "Protected: everything in one trainer's private data, against anyone who sees all its updates."
    )
    return Answer(
        document,
        [
            f"Noise {used:.4g} times the clip, {rounds} rounds: {promise}.",
            *([protected] if used and isfinite(got) else []),
            f"Price: with {size:,} parameters the noise is {noise_to_signal(terms, size):,.3g} times as large as a "
            f"clipped update, {buried:,.3g} times in the mean of {trainers}.",
        ],
    )


def _count(text: str) -> int:
    """3000000, 350M, 1.3B."""
    found = re.fullmatch(
        r"(\d+(?:\.\d+)?(?:[eE]\d{1,2})?)([kKmMbBtT]?)", text.replace("_", "").replace(",", "")
    )
    size = (
        0
        if found is None
        else round(float(found[1]) * 10 ** {"": 0, "k": 3, "m": 6, "b": 9, "t": 12}[found[2].lower()])
    )
    if not 1 <= size <= 10**15:
        raise UsageError(f"{text!r} is not a number of parameters", "write 3000000, 350M or 1.3B")
    return size


def _exchange(planned: Training) -> dict[str, Any]:
    from earnest.training.planning import plan_round

    return asdict(plan_round(planned))


def _against(planned: Training) -> dict[str, Any]:
    from earnest.training.planning import allreduce_step_s, fewer_bytes, speedup

    return {
        name: {
            "step_s": allreduce_step_s(planned, bits),
            "utilisation": planned.step_s / allreduce_step_s(planned, bits),
            "speedup": speedup(planned, bits),
            "fewer_bytes": fewer_bytes(planned, bits),
        }
        for name, bits in (("fp32", 32), ("bf16", 16))
    }


def _codecs(planned: Training, choice: CodecChoice) -> list[dict[str, Any]]:
    """Every codec at its own size, with and without overlap, all else as planned."""
    from earnest.protocol.recipe import CODECS
    from earnest.training.planning import bits_per_parameter, plan_round, speedup

    found = []
    for name in CODECS:
        bits = bits_per_parameter(replace(choice, name=name), planned.parameters)
        apart, beside = (replace(planned, bits=bits, overlap=mode) for mode in ("none", "eager"))
        rounds: list[Round] = [plan_round(apart), plan_round(beside)]
        found.append(
            {
                "codec": name,
                "bits": bits,
                "ratio_to_fp32": 32 / bits,
                "payload_bytes": rounds[0].payload_bytes,
                "wire_s": rounds[0].wire_s,
                "utilisation": rounds[0].utilisation,
                "utilisation_overlap": rounds[1].utilisation,
                "speedup": speedup(apart),
                "speedup_overlap": speedup(beside),
            }
        )
    return found


def _chain(
    trainers: int, validators: int, rounds: int, gwei: float | None, price: float | None, bond: float | None
) -> dict[str, Any]:
    from earnest.training.planning import gas_cost, round_gas

    measured = json.loads((files("earnest.contracts") / "gas.json").read_text())
    gas = round_gas(measured, trainers, validators)
    found: dict[str, Any] = {"gas": asdict(gas), "gwei": gwei}
    if gwei is not None:
        coins = {name: gas_cost(amount, gwei) for name, amount in asdict(gas).items()}
        found |= {"coins": coins, "coins_run": coins["all"] * rounds}
        if price is not None:
            found |= {
                "cost": {n: c * price for n, c in coins.items()},
                "cost_run": coins["all"] * rounds * price,
            }
    if bond is not None:
        risk = {
            "unrevealed": bond * PenaltyTerms().unrevealed_bps / BPS,
            "worst": bond * MAX_PENALTY_BPS / BPS,
        }
        found |= {"bond": bond, "bond_at_risk": risk}
    return found


def _shown(planned: Training, codec: str, document: dict[str, Any]) -> list[Any]:
    exchange, copies = document, f"{planned.copies} copies" if planned.copies > 1 else "one copy"
    rows = [
        (
            "an update",
            _bytes(exchange["payload_bytes"]),
            f"at most {planned.bits:.3g} bits per parameter ({codec})",
        ),
        ("sent by a trainer", _bytes(exchange["sent_bytes"]), copies),
        ("fetched by a trainer", _bytes(exchange["fetched_bytes"]), "the updates of all others"),
        ("training", _seconds(exchange["compute_s"]), f"{planned.inner_steps} steps of {planned.step_s:g} s"),
        ("on the wire", _seconds(exchange["wire_s"]), "up, then down"),
        ("windows", _seconds(planned.windows_s), "reveal, judge, agree"),
        ("a round", _seconds(exchange["round_s"]), _length(planned)),
        ("utilisation", f"{exchange['utilisation']:.1%}", "share of the round in which the device trains"),
        ("tokens per second", f"{exchange['tokens_per_s']:,.0f}", f"{planned.trainers} trainers together"),
    ]
    return [
        table("One round of one trainer", ("what", "how much", "why"), rows),
        "",
        table(
            "Against AllReduce at every step (ring, over the same links, hidden behind the backward pass)",
            ("gradients", "a step", "utilisation", "we are faster", "a trainer sends"),
            [
                (
                    name,
                    _seconds(row["step_s"]),
                    f"{row['utilisation']:.1%}",
                    f"{row['speedup']:,.3g} times",
                    f"{row['fewer_bytes']:,.3g} times fewer bytes",
                )
                for name, row in document["allreduce"].items()
            ],
        ),
        "",
        table(
            "The same run with every codec: alone, and with overlap",
            ("codec", "bits", "of fp32", "update", "wire", "utilisation", "overlap", "faster", "overlap"),
            [
                (
                    row["codec"],
                    f"{row['bits']:.3g}",
                    f"1/{row['ratio_to_fp32']:.3g}",
                    _bytes(row["payload_bytes"]),
                    _seconds(row["wire_s"]),
                    f"{row['utilisation']:.1%}",
                    f"{row['utilisation_overlap']:.1%}",
                    f"{row['speedup']:,.3g}",
                    f"{row['speedup_overlap']:,.3g}",
                )
                for row in document["codecs"]
            ],
        ),
        "",
        *_chain_lines(document["chain"]),
    ]


def _length(planned: Training) -> str:
    if planned.overlap == "none":
        return "one after the other"
    return "the longer of training and all the rest"


def _chain_lines(chain: dict[str, Any]) -> list[str]:
    gas = chain["gas"]
    lines = [
        f"Gas of a round: {gas['trainer']:,} per trainer (commit, reveal), {gas['validator']:,} per validator, "
        f"{gas['all']:,} in all, settling included; at most, as measured for 256 trainers and 16 validators."
    ]
    if "coins" in chain:
        cost = f", {chain['cost']['all']:.4g} a round in your currency" if "cost" in chain else ""
        lines.append(
            f"At {chain['gwei']:g} gwei: {chain['coins']['trainer']:.4g} coins per trainer, "
            f"{chain['coins']['all']:.4g} in all{cost}; the run {chain['coins_run']:.4g} coins."
        )
    if "bond" in chain:
        risk = chain["bond_at_risk"]
        lines.append(
            f"Bond {chain['bond']:g} tokens stands for the whole run; a round can cost {risk['unrevealed']:g} for a "
            f"commitment not revealed, at most {risk['worst']:g} by one penalty (default terms)."
        )
    return lines


def _published() -> Answer:
    from earnest.training.published_figures import ASSUMED, published_figures

    found = published_figures()
    tested = [check for check in found if check.tested]
    agreeing = sum(check.agrees for check in tested)
    rows = [
        (
            check.mark,
            check.what,
            f"{check.published:g} {check.unit}",
            f"{check.model:,.3g} {check.unit}",
            f"{check.ratio:.2f}",
            _verdict(check),
            check.note,
        )
        for check in found
    ]
    sources = sorted({f"[{check.mark}] {check.source}" for check in found})
    document = {
        "checks": [{**asdict(check), "ratio": check.ratio, "agrees": check.agrees} for check in found],
        "agreeing": agreeing,
        "tested": len(tested),
        "assumed": list(ASSUMED),
    }
    headings = ("", "what", "published", "model", "ratio", "agrees", "where not, why")
    return Answer(
        document,
        [
            table("The planning model against published figures", headings, rows),
            "",
            f"{agreeing} of {len(tested)} agree: within 10 %, or one place of the published table's grid (21 %).",
            "[V] read in the paper's own table or abstract; [S] second-hand, from somebody's summary.",
            *(f"Source: {source}" for source in sources),
            *(f"Assumed, since we could not read it: {line}." for line in ASSUMED),
        ],
    )


def _verdict(check: PublishedFigure) -> str:
    if not check.tested:
        return "not tested"
    return "yes" if check.agrees else "NO"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.3g} s" if seconds < 10_000 else f"{seconds / 3600:,.3g} h"
