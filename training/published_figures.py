"""Compares the planning model with published figures, one by one; where they differ, `note` says why.

Marks: [V] read in the paper's own table or abstract; [S] second-hand, from a summary. ASSUMED lists what the model
needs and the sources available to us do not state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from earnest.training.planning import (
    BACKWARD,
    Link,
    Training,
    needed_bandwidth,
    ring_bits,
    speedup,
    stalled_training_s,
)

STREAMING = "Streaming DiLoCo 2501.18512, Eager Updates 2502.12996"
COVENANT = "Covenant-72B 2603.08163"
DILOCOX = "DiLoCoX 2506.21263"

GRID = 10 ** (4 / 49)
"""Ratio of neighbours on the published grid: 50 logarithmic points from 0.1 to 1000 Gbit/s."""

FLAT_TOPK_BITS = 64 / 4096 * (12 + 2)
"""Bits per parameter of SparseLoCo's reference code: 64 of 4096 kept, 12 bits of index and 2 of value."""

ASSUMED = (
    "bandwidths: two workers; bfloat16 unless fp4; a reduction hides behind the backward pass, two thirds of a step; "
    "24, 48 and 108 layers, three to a fragment",
    "Dolma: the bandwidth table's 0.1 s a step, H 100, 8 fragments, one step hidden; 2^20 tokens a step, fitted once "
    "to all nine hours",
    "Covenant: flat 14 bits per kept number; each trainer uploads one copy and fetches those of 15.9 others, in turn",
    "DiLoCoX: two clusters; everything but the step hidden",
)

STEP_TOKENS = 1 << 20


@dataclass(frozen=True)
class PublishedFigure:
    """A published figure and the model's; they agree if the larger is at most `within` times the smaller.

    `tested` is false if an unpublished quantity was solved for: agreement then proves nothing.
    """

    source: str
    mark: str
    what: str
    unit: str
    published: float
    model: float
    within: float = 1.1
    note: str = ""
    tested: bool = True

    @property
    def ratio(self) -> float:
        """Model / published."""
        return self.model / self.published

    @property
    def agrees(self) -> bool:
        return 1 / self.within <= self.ratio <= self.within


def published_figures() -> list[PublishedFigure]:
    """Returns every figure, in the order of docs/plan.md."""
    return [*_bandwidths(), *_dolma(), *_covenant(), *_dilocox()]


# Gbit/s for 95 % utilisation

_METHODS = (
    "data parallel",
    "streaming, H 100",
    "inner overlap, fp4, H 30",
    "inner overlap, fp4, H 100",
    "outer overlap, fp4, H 30",
    "outer overlap, fp4, H 100",
)
_TABLE = (  # parameters, step seconds, fragments, published
    ("1B", 10**9, 0.1, 8, (222.3, 16.0, 4.3, 2.0, 2.0, 0.2)),
    ("10B", 10**10, 0.8, 16, (268.3, 13.3, 3.0, 1.4, 1.4, 0.3)),
    ("100B", 10**11, 4.9, 36, (390.7, 11.0, 2.0, 1.1, 0.9, 0.3)),
)
_REASONS = {
    "1B, outer overlap, fp4, H 30": "published: H 30 needs ten times H 100, yet moves only 3.3 times as much",
    "100B, inner overlap, fp4, H 30": "a fragment is due every 0.83 steps: below the mean rate the link falls behind",
    "inner": "would fit with two steps hidden instead of one; how many were is not in what we could read",
    "outer": "published is below the mean rate: 4 bits of every parameter each H steps do not fit through it",
}


def _bandwidths() -> list[PublishedFigure]:
    """Returns the bandwidths that the papers' authors simulated."""
    figures = []
    for name, size, step, fragments, published in _TABLE:
        rates = (
            needed_bandwidth(size, 16, step, every=1),
            needed_bandwidth(size, 16, step, every=100, fragments=fragments),
            *(
                needed_bandwidth(size, 4, step, every=h, fragments=fragments, hidden_steps=1)
                for h in (30, 100)
            ),
            *(needed_bandwidth(size, 4, step, every=h, hidden_steps=h) for h in (30, 100)),
        )
        for method, rate, figure in zip(_METHODS, rates, published, strict=True):
            check = PublishedFigure(STREAMING, "V", f"{name}, {method}", "Gbit/s", figure, rate / 1e9, GRID)
            figures.append(check if check.agrees else replace(check, note=_reason(check.what)))
    return figures


def _reason(what: str) -> str:
    return _REASONS.get(what) or _REASONS["inner" if "inner" in what else "outer"]


# A 1B model on Dolma over 1 Gbit/s

_DOLMA = (  # billions of tokens; hours of data parallel, streaming, eager outer overlap; TB of the first two
    (25, (109, 0.88, 0.67), (441, 1.10)),
    (100, (438, 3.5, 2.7), (1767, 4.42)),
    (250, (1097, 8.75, 6.75), (4418, 11.05)),
)


def _dolma() -> list[PublishedFigure]:
    size, step, rate, every, fragments = 10**9, 0.1, 1e9, 100, 8
    dense, small = ring_bits(size, 2, 16), ring_bits(size, 2, 4)
    figures = []
    for billions, hours, terabytes in _DOLMA:
        steps = round(billions * 1e9 / STEP_TOKENS)
        seconds = (
            stalled_training_s(steps, step, dense, rate, every=1, hidden_s=BACKWARD * step),
            stalled_training_s(steps, step, small, rate, every=every, hidden_s=fragments * step),
            stalled_training_s(steps, step, small, rate, every=every, hidden_s=every * step),
        )
        volumes = (dense * steps, small * steps / every)
        names = [
            f"1B, {billions}B tokens, {m}" for m in ("data parallel", "streaming", "eager outer overlap")
        ]
        figures += [
            PublishedFigure(STREAMING, "V", name, "hours", figure, model / 3600)
            for name, figure, model in zip(names, hours, seconds, strict=True)
        ]
        figures += [
            PublishedFigure(
                STREAMING, "V", name, "TB", figure, bits / 8e12, note=_volume_note(figure, bits, rate)
            )
            for name, figure, bits in zip(names[:2], terabytes, volumes, strict=True)
        ]
    return figures


def _volume_note(terabytes: float, bits: float, rate: float) -> str:
    """Explains from the published hours that the published volumes cannot be right."""
    hours = terabytes * 8e12 / rate / 3600
    return (
        f"the published TB alone take {hours:,.3g} h at 1 Gbit/s, more than the published hours; "
        f"read as terabits the ratio is {bits / 1e12 / terabytes:.2f}"
    )


# Covenant-72B and DiLoCoX


def _covenant() -> list[PublishedFigure]:
    payload, others = 72e9 * FLAT_TOPK_BITS, 16.9 - 1
    in_turn = payload / 110e6 + payload * others / 500e6
    return [
        PublishedFigure(COVENANT, "S", "72B, size against fp32", "x", 146, 32 / FLAT_TOPK_BITS),
        PublishedFigure(
            COVENANT, "S", "72B, utilisation: 20 min and 70 s of sync", "%", 94.5, 100 * 1200 / (1200 + 70)
        ),
        PublishedFigure(
            COVENANT,
            "S",
            "72B, sync over 110 and 500 Mbit/s",
            "s",
            70,
            in_turn,
            note="payloads of 2.0 GB do not cross such links in 70 s in any order",
        ),
        PublishedFigure(
            COVENANT,
            "S",
            "72B, sync if those links are in MB/s",
            "s",
            70,
            in_turn / 8,
            note="nearest reading: bytes, and some of it side by side",
        ),
    ]


def _dilocox() -> list[PublishedFigure]:
    note = "solved for the step time, which is not published where we could read: shows what 357 needs, tests nothing"
    figures = []
    for name, bits in (("fp32", 32), ("bf16", 16)):
        step = ring_bits(107 * 10**9, 2, bits) / 1e9 / (357 - 1 + BACKWARD)
        training = Training(107 * 10**9, 2, 1 << 20, step, 1, Link(1e9, 1e9), 1.0, overlap="delayed")
        what = f"107B against {name} AllReduce, a step of {step:.3g} s"
        model = speedup(training, bits)
        figures.append(PublishedFigure(DILOCOX, "V", what, "x", 357, model, note=note, tested=False))
    return figures
