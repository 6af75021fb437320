"""Estimates of a planned run: bytes, seconds and gas of a round.

The model is deliberately simple: a link has an upload and a download rate and no latency, a step takes the same time on
every device, and a round waits for its slowest part. `training/published_figures.py` compares it with published
measurements.

    sent by a trainer    U = payload * copies                              copies: 1 with a bucket or mirror
    fetched by it        D = payload * (trainers - 1)
    on the wire          w = 8 U / up + 8 D / down
    a round, no overlap  H * step + w + windows                            windows: judging and settling on chain
    a round, overlap     max(H * step, w + windows)
    utilisation          H * step / round
    AllReduce, a step    step + max(0, ring / rate - 2/3 step)             hidden behind the backward pass
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from earnest.protocol.recipe import CodecChoice
from earnest.training.codecs import make_codec
from earnest.training.diloco.state import Spec

BACKWARD = 2 / 3
"""Share of a step that is the backward pass, which a reduction of gradients can overlap."""

SAMPLED = 1 << 22
"""Parameters for which a chunked codec's size is computed; larger models take the same bits per parameter."""

GAS_SEATS, GAS_VALIDATORS = 256, 16
"""Trainers and validators of the round in which contracts/gas.json was measured."""

Overlap = Literal["none", "delayed", "eager"]


@dataclass(frozen=True)
class Link:
    """A trainer's connection: upload and download, bits per second."""

    up: float
    down: float

    def __post_init__(self) -> None:
        if not (self.up > 0 and self.down > 0):
            raise ValueError("the upload and download rates of a link must be positive")


@dataclass(frozen=True)
class Training:
    """A planned run."""

    parameters: int
    trainers: int
    inner_steps: int
    """H: steps between two exchanges."""

    step_s: float
    """Seconds of one inner step on a trainer's device."""

    step_tokens: int
    """Tokens in one step of one trainer."""

    link: Link
    bits: float
    """Bits per parameter of an update on the wire: `bits_per_parameter` of a codec."""

    copies: int = 1
    """Times that a trainer uploads its payload: 1 to a bucket; trainers - 1 + validators if it serves all of them."""

    windows_s: float = 0.0
    """Seconds of the reveal, report-commit and report-reveal windows of a round."""

    overlap: Overlap = "none"

    def __post_init__(self) -> None:
        whole = (self.parameters, self.trainers, self.inner_steps, self.step_tokens, self.copies)
        if min(whole) < 1 or self.step_s <= 0 or self.bits <= 0 or self.windows_s < 0:
            raise ValueError("sizes, steps and rates must be positive, windows not negative")


@dataclass(frozen=True)
class Round:
    """One round of a planned run, for one trainer."""

    payload_bytes: float
    sent_bytes: float
    fetched_bytes: float
    compute_s: float
    wire_s: float
    round_s: float
    idle_s: float
    utilisation: float
    """Share of the round in which the device trains."""

    tokens_per_s: float
    """Tokens per second of all trainers together."""


def plan_round(training: Training) -> Round:
    """Returns bytes and seconds of one round."""
    t = training
    payload = t.parameters * t.bits / 8
    sent, fetched = payload * t.copies, payload * (t.trainers - 1)
    wire = 8 * sent / t.link.up + 8 * fetched / t.link.down
    compute = t.inner_steps * t.step_s
    apart = wire + t.windows_s
    length = compute + apart if t.overlap == "none" else max(compute, apart)
    tokens = t.trainers * t.inner_steps * t.step_tokens / length
    return Round(
        payload, sent, fetched, compute, wire, length, max(0.0, length - compute), compute / length, tokens
    )


def ring_bits(parameters: int, workers: int, bits: float) -> float:
    """Returns the bits that each worker sends, and receives, in one ring AllReduce of all parameters."""
    return 2 * (workers - 1) / workers * parameters * bits


def allreduce_step_s(training: Training, bits: float = 32) -> float:
    """Returns the seconds of a data-parallel step over the same links, with a ring AllReduce behind the backward pass.

    This is the baseline's best case: perfect overlap, no latency, the slower direction of the link fully used. `bits`
    is 32 for float32 gradients, 16 for bfloat16.
    """
    t = training
    wire = ring_bits(t.parameters, t.trainers, bits) / min(t.link.up, t.link.down)
    return t.step_s + max(0.0, wire - BACKWARD * t.step_s)


def speedup(training: Training, bits: float = 32) -> float:
    """Returns the planned run's throughput / that of AllReduce at every step, on the same links and devices."""
    return allreduce_step_s(training, bits) * training.inner_steps / plan_round(training).round_s


def fewer_bytes(training: Training, bits: float = 32) -> float:
    """Returns bytes sent with AllReduce at every step / bytes that a trainer sends."""
    every_step = ring_bits(training.parameters, training.trainers, bits) / 8 * training.inner_steps
    return every_step / plan_round(training).sent_bytes


# Codecs


def decoder_spec(parameters: int) -> Spec:
    """Returns the tensor shapes of a decoder with exactly that many parameters; allocates nothing.

    `layers` blocks of 12 width^2, width = 128 * layers (usual for models of 1 B and more); the rest is an embedding
    and a vector. Shapes matter to codecs that factor matrices.
    """
    if parameters < 1:
        raise ValueError("a model has at least one parameter")
    layers = max(1, round((parameters / (12 * 128**2)) ** (1 / 3)))
    width = max(1, math.isqrt(int(parameters * 0.9) // (12 * layers)))
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        for name, shape in (("qkv", (3, 1)), ("out", (1, 1)), ("up", (4, 1)), ("down", (1, 4))):
            shapes[f"blocks.{layer}.{name}"] = (shape[0] * width, shape[1] * width)
    left = parameters - sum(math.prod(shape) for shape in shapes.values())
    if left < 0:
        return Spec((("weight", (parameters,)),))
    rows, rest = divmod(left, width)
    shapes |= ({"embedding": (rows, width)} if rows else {}) | ({"bias": (rest,)} if rest else {})
    return Spec(tuple(sorted(shapes.items())))


def bits_per_parameter(choice: CodecChoice, parameters: int) -> float:
    """Returns the largest payload in bits per parameter, from the codec's size formula.

    For chunked codecs and larger models, that of SAMPLED parameters. Raises ValueError for an unknown codec.
    """
    measured = parameters if choice.name == "lowrank-int4" else min(parameters, SAMPLED)
    return 8 * make_codec(choice, decoder_spec(measured)).payload_bytes / measured


# Bandwidth as in published simulations, which overlap by steps, not by rounds


def needed_bandwidth(
    parameters: int,
    bits: float,
    step_s: float,
    *,
    every: int,
    fragments: int = 1,
    hidden_steps: float = BACKWARD,
    utilisation: float = 0.95,
    workers: int = 2,
) -> float:
    """Returns the bits per second at which devices compute for `utilisation` of the time.

    The model is exchanged in `fragments`, each once in `every` steps, each overlapping `hidden_steps` steps of compute
    (a data-parallel step: one fragment, every step, overlapping its backward pass). Two limits: a fragment must fit in
    its overlap plus its share of the idle time, and the mean rate must not exceed the link's.
    """
    fragment = ring_bits(parameters, workers, bits) / fragments
    interval = every / fragments * step_s
    idle = interval * (1 / utilisation - 1)
    return max(fragment / (hidden_steps * step_s + idle), fragment / (interval + idle))


def stalled_training_s(
    steps: int, step_s: float, wire_bits: float, rate: float, *, every: int, hidden_s: float
) -> float:
    """Returns the seconds of `steps` steps that exchange `wire_bits` once in `every` steps, overlapping `hidden_s`."""
    return steps * step_s + steps / every * max(0.0, wire_bits / rate - hidden_s)


# The chain


@dataclass(frozen=True)
class RoundGas:
    """Gas of one round. `trainer`: of a trainer's two transactions; `all`: of all accounts, settling included."""

    trainer: int
    validator: int
    all: int


def round_gas(measured: Mapping[str, int], trainers: int, validators: int) -> RoundGas:
    """Returns the gas of a round from contracts/gas.json, measured with 256 trainers and 16 validators.

    Exact for that size, an upper bound for fewer: reports and settling are priced as in the large run.
    """
    m = measured
    trainer = m["commit"] + m["reveal"]
    validator = m["report_commit"] + m["report_reveal_256"]
    fixed = m["seed"]
    known = GAS_SEATS * (trainer + m["settle_seat_16"]) + GAS_VALIDATORS * validator + fixed
    rest = max(0, m["trainer_round_256x16"] * GAS_SEATS - known)
    seats = trainers * (trainer + m["settle_seat_16"]) + validators * validator
    return RoundGas(trainer, validator, seats + fixed + math.ceil(rest * trainers / GAS_SEATS))


def gas_cost(gas: int, gwei: float) -> float:
    """Returns the cost of gas at a price in gwei, in the chain's coin."""
    return gas * gwei * 1e-9
