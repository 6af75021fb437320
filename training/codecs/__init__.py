"""Codecs: what a trainer's update looks like on the wire (Protocol sections 5 and 13, docs/codecs.md).

All are canonical: one update has one encoding, and the decoder refuses every other byte string with a
reason. All decode to numbers that are the same on every machine, and so is an update's norm.
"""

from earnest.protocol.recipe import CodecChoice
from earnest.training.codecs.adaptive import inner_steps
from earnest.training.codecs.codec import Codec, CodecMemory, Encoded
from earnest.training.codecs.dense import DenseBf16
from earnest.training.codecs.feedback import uncounted
from earnest.training.codecs.int8 import Int8
from earnest.training.codecs.lowrank import LowrankInt4
from earnest.training.codecs.topk import Topk2Bit
from earnest.training.codecs.update import Update, exact_norm
from earnest.training.diloco.state import Spec
from earnest.training.diloco.tensorfile import PayloadError

__all__ = [
    "Codec",
    "CodecMemory",
    "DenseBf16",
    "Encoded",
    "Int8",
    "LowrankInt4",
    "PayloadError",
    "Topk2Bit",
    "Update",
    "exact_norm",
    "inner_steps",
    "make_codec",
    "uncounted",
]


def make_codec(choice: CodecChoice, spec: Spec) -> Codec:
    """The codec that a recipe names, for one model. Raises ValueError for one we don't have."""
    feedback, energy = choice.error_feedback, choice.energy
    match choice.name:
        case "dense-bf16":
            return DenseBf16(spec, feedback)
        case "int8":
            return Int8(spec, choice.chunk, feedback)
        case "topk-2bit":
            return Topk2Bit(spec, choice.k, choice.chunk, feedback, k_min=choice.k_min, energy=energy)
        case "lowrank-int4":
            return LowrankInt4(spec, choice.rank, feedback, rank_min=choice.rank_min, energy=energy)
    raise ValueError(f"no codec named {choice.name!r}")
