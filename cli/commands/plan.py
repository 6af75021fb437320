"""`earnest plan`: estimates what a run costs, before it is opened."""

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
from earnest.protocol.recipe import CodecName

if TYPE_CHECKING:
    from earnest.protocol.recipe import CodecChoice
    from earnest.training.planning import Round, Training
    from earnest.training.published_figures import PublishedFigure

app = make_group("plan")
PLAIN = Flags()

MIN_INPUT = 1e-12
MAX_INPUT = 10**15
"""Range of every planning input; products of these never overflow a float."""

Count = Annotated[int, Parameter(validator=Number(gte=1, lte=MAX_INPUT))]
Above0 = Annotated[float, Parameter(validator=Number(gte=MIN_INPUT, lte=MAX_INPUT))]
NotBelow0 = Annotated[float, Parameter(validator=Number(gte=0, lte=MAX_INPUT))]
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
    """Estimate bytes, seconds, utilisation and gas of a round, compared with AllReduce at every step.

    The model has links without latency and equal devices: real runs are slower. docs/plan.md has the formulas.

    Example: earnest plan training --parameters 72B --trainers 20 --h 30 --step-s 40 --up-mbps 110 --down-mbps 500

    Parameters
    ----------
    parameters
        Number of parameters of the model: 3000000, 350M, 1.3B.
    trainers
        Number of trainers that submit in every round.
    validators
        Number of validators; each fetches every payload.
    h
        Inner steps per round, between two exchanges.
    step_s
        Seconds per inner step on a trainer's device; `earnest task check` measures it.
    step_tokens
        Training tokens per inner step of one trainer.
    tokens_per_s
        Training tokens per second of a trainer's device, instead of --step-s.
    up_mbps
        Upload rate of a trainer, Mbit/s.
    down_mbps
        Download rate of a trainer, Mbit/s.
    codec
        Encoding of updates.
    k
        Numbers kept per chunk (topk-2bit).
    chunk
        Numbers per chunk (topk-2bit, int8).
    rank
        Rank kept per matrix (lowrank-int4).
    overlap
        Training during the exchange of the previous round: none, delayed or eager.
    copies
        Uploads per payload (default: to every other trainer and every validator; 1 with a bucket or mirror).
    windows_s
        Seconds for revealing and judging updates (default: a fifth of the training time).
    rounds
        Rounds of the run, for the totals.
    gwei
        Gas price in gwei, for the cost of gas.
    coin_price
        Price of a coin of the chain in your currency, for the cost in that currency.
    bond
        Bond of a trainer in tokens, for the amount at risk.
    check_published
        Instead, compare this planning model with published figures, and explain where they differ.
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
        raise UsageError(
            f"these numbers cannot be planned with: {error}", "see `earnest plan training --help`"
        ) from error
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
    """Compute the epsilon of a noise over a run, or the noise for an epsilon, and its effect on an update.

    It protects all private data of a trainer from anyone who sees every update (docs/own-model.md).

    Example: earnest plan privacy --noise 4 --delta 1e-5 --rounds 100

    Parameters
    ----------
    noise
        Standard deviation of the noise, as a multiple of the clip (privacy.noise in the recipe).
    epsilon
        Desired epsilon, instead of --noise.
    delta
        Delta of the privacy guarantee.
    rounds
        Number of rounds in which a trainer publishes an update.
    parameters
        Number of parameters of the model: 3000000, 350M, 1.3B.
    trainers
        Number of trainers whose updates are averaged.
    """
    from earnest.protocol.recipe import Privacy
    from earnest.training.privacy import epsilon as epsilon_of
    from earnest.training.privacy import noise_for, noise_to_signal

    if (noise is None) == (epsilon is None):
        raise UsageError("exactly one of noise and epsilon is needed", "give either --noise or --epsilon")
    used = noise if epsilon is None else noise_for(epsilon, delta, rounds)
    assert used is not None
    terms, size = Privacy(clip=1.0, noise=used, delta=delta), _count(parameters)
    total_epsilon = epsilon_of(terms, rounds)
    mean_noise = noise_to_signal(terms, size, trainers)
    document = {
        "noise": used,
        "epsilon": total_epsilon if isfinite(total_epsilon) else None,
        "delta": delta,
        "rounds": rounds,
        "unit": "all private data of one trainer",
        "noise_to_signal": noise_to_signal(terms, size),
        "noise_to_signal_of_mean": mean_noise,
    }
    promise = (
        f"epsilon {total_epsilon:.3g} at delta {delta:g}" if used else "no promise: clipping alone gives none"
    )
    if used and not isfinite(total_epsilon):
        promise = "no promise: the noise is too small to hide anything"
    protected = (
        "Protected: everything in one trainer's private data, against anyone who sees all its updates."
    )
    return Answer(
        document,
        [
            f"Noise {used:.4g} times the clip, {rounds} rounds: {promise}.",
            *([protected] if used and isfinite(total_epsilon) else []),
            f"Price: with {size:,} parameters the noise is {noise_to_signal(terms, size):,.3g} times as large as a "
            f"clipped update, {mean_noise:,.3g} times in the mean of {trainers}.",
        ],
    )


def _count(text: str) -> int:
    """Parses a number of parameters such as 3000000, 350M or 1.3B. Raises UsageError."""
    match = re.fullmatch(
        r"(\d+(?:\.\d+)?(?:[eE]\d{1,2})?)([kKmMbBtT]?)", text.replace("_", "").replace(",", "")
    )
    size = (
        0
        if match is None
        else round(float(match[1]) * 10 ** {"": 0, "k": 3, "m": 6, "b": 9, "t": 12}[match[2].lower()])
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
    """Returns the same plan with every codec, with and without overlap."""
    from earnest.protocol.recipe import CODECS
    from earnest.training.planning import bits_per_parameter, plan_round, speedup

    rows = []
    for name in CODECS:
        bits = bits_per_parameter(replace(choice, name=name), planned.parameters)
        apart, beside = (replace(planned, bits=bits, overlap=mode) for mode in ("none", "eager"))
        rounds: list[Round] = [plan_round(apart), plan_round(beside)]
        rows.append(
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
    return rows


def _chain(
    trainers: int, validators: int, rounds: int, gwei: float | None, price: float | None, bond: float | None
) -> dict[str, Any]:
    from earnest.training.planning import gas_cost, round_gas

    measured = json.loads((files("earnest.contracts") / "gas.json").read_text())
    gas = round_gas(measured, trainers, validators)
    document: dict[str, Any] = {"gas": asdict(gas), "gwei": gwei}
    if gwei is not None:
        coins = {name: gas_cost(amount, gwei) for name, amount in asdict(gas).items()}
        document |= {"coins": coins, "coins_run": coins["all"] * rounds}
        if price is not None:
            document |= {
                "cost": {n: c * price for n, c in coins.items()},
                "cost_run": coins["all"] * rounds * price,
            }
    if bond is not None:
        risk = {
            "unrevealed": bond * PenaltyTerms().unrevealed_bps / BPS,
            "worst": bond * MAX_PENALTY_BPS / BPS,
        }
        document |= {"bond": bond, "bond_at_risk": risk}
    return document


def _shown(planned: Training, codec: str, document: dict[str, Any]) -> list[Any]:
    exchange = document
    copies = f"{planned.copies} copies" if planned.copies > 1 else "one copy"
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
        table("One round of one trainer", ("quantity", "value", "explanation"), rows),
        "",
        table(
            "Against AllReduce at every step (ring, over the same links, hidden behind the backward pass)",
            ("gradients", "a step", "utilisation", "speed-up of earnest", "bytes sent by a trainer"),
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
        return "all steps in sequence"
    return "the longer of training and all other steps"


def _chain_lines(chain: dict[str, Any]) -> list[str]:
    gas = chain["gas"]
    lines = [
        f"Gas of a round: {gas['trainer']:,} per trainer (commit, reveal), {gas['validator']:,} per validator, "
        f"{gas['all']:,} in total with settlement. Upper bounds, measured with 256 trainers and 16 validators."
    ]
    if "coins" in chain:
        cost = f", {chain['cost']['all']:.4g} a round in your currency" if "cost" in chain else ""
        lines.append(
            f"At {chain['gwei']:g} gwei: {chain['coins']['trainer']:.4g} coins per trainer, "
            f"{chain['coins']['all']:.4g} coins in total{cost}; the whole run costs {chain['coins_run']:.4g} coins."
        )
    if "bond" in chain:
        risk = chain["bond_at_risk"]
        lines.append(
            f"A bond of {chain['bond']:g} tokens is locked for the whole run. With default terms, a commitment that "
            f"is not revealed costs {risk['unrevealed']:g} tokens, and one penalty at most {risk['worst']:g} tokens."
        )
    return lines


def _published() -> Answer:
    from earnest.training.published_figures import ASSUMED, published_figures

    figures = published_figures()
    tested = [check for check in figures if check.tested]
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
        for check in figures
    ]
    sources = sorted({f"[{check.mark}] {check.source}" for check in figures})
    document = {
        "checks": [{**asdict(check), "ratio": check.ratio, "agrees": check.agrees} for check in figures],
        "agreeing": agreeing,
        "tested": len(tested),
        "assumed": list(ASSUMED),
    }
    headings = ("", "what", "published", "model", "ratio", "agrees", "explanation")
    return Answer(
        document,
        [
            table("The planning model against published figures", headings, rows),
            "",
            f"{agreeing} of {len(tested)} agree: within 10 %, or one place of the published table's grid (21 %).",
            "[V] read in the paper's own table or abstract; [S] second-hand, from another author's summary.",
            *(f"Source: {source}" for source in sources),
            *(f"Assumed, since it is not published: {line}." for line in ASSUMED),
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
