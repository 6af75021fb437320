"""The layout of a trainer's workers: pipeline stages, replicas of stages, shards."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from earnest.base.errors import EarnestError

_PART = re.compile(r"(pp|dp|fsdp|mb)(\d{1,4})")


class LayoutError(EarnestError):
    """The layout is unknown, or does not fit the model or the number of processes."""


@dataclass(frozen=True)
class Layout:
    """`stages` pipeline stages times `replicas` of each.

    A batch is split evenly over the replicas; within a pipeline a replica's share is split into at most `microbatches`
    equal microbatches. `sharded`: the replicas hold shards of the parameters (FSDP2), not copies (DDP). The rank is
    `stage * replicas + replica`: replicas of a stage are neighbours, usually on one host, because gradients are larger
    than activations and links between hosts are slow.
    """

    stages: int = 1
    replicas: int = 1
    sharded: bool = False
    microbatches: int = 1
    schedule: Literal["gpipe", "1f1b"] = "1f1b"

    def __post_init__(self) -> None:
        if not (1 <= self.stages <= 1024 and 1 <= self.replicas <= 1024 and 1 <= self.microbatches <= 1024):
            raise LayoutError(
                "stages, replicas and microbatches must be between 1 and 1024", "correct the layout"
            )
        if self.sharded and self.stages > 1:
            raise LayoutError(
                "shards inside a pipeline are not supported", "use dp with pp, or fsdp without pp"
            )

    @property
    def processes(self) -> int:
        return self.stages * self.replicas

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Parses `pp4`, `dp2`, `fsdp2`, `pp2-dp2`, with `-mb4` for four microbatches, `-gpipe` for that schedule.

        Raises LayoutError.
        """
        fields: dict[str, int] = {}
        schedule: Literal["gpipe", "1f1b"] = "1f1b"
        for word in text.lower().split("-"):
            match = _PART.fullmatch(word)
            if word in ("gpipe", "1f1b"):
                schedule = "gpipe" if word == "gpipe" else "1f1b"
            elif match and match[1] not in fields:
                fields[match[1]] = int(match[2])
            else:
                raise LayoutError(
                    f"{text!r} is not a layout", "write one like pp4-mb4, dp2, fsdp2 or pp2-dp2"
                )
        if "dp" in fields and "fsdp" in fields:
            raise LayoutError(f"{text!r} has both dp and fsdp", "choose one of them")
        replicas = fields.get("fsdp", fields.get("dp", 1))
        return cls(fields.get("pp", 1), replicas, "fsdp" in fields, fields.get("mb", 1), schedule)

    def __str__(self) -> str:
        words = [f"pp{self.stages}"] if self.stages > 1 else []
        if self.sharded or self.replicas > 1 or not words:
            words.append(f"{'fsdp' if self.sharded else 'dp'}{self.replicas}")
        words += [f"mb{self.microbatches}"] if self.microbatches > 1 else []
        return "-".join(words + (["gpipe"] if self.schedule == "gpipe" else []))
