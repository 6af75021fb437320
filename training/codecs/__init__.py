"""Codecs: the encoding of a trainer's update on the wire (Protocol sections 5 and 13, docs/codecs.md).

Every codec is canonical: an update has exactly one encoding, and the decoder refuses every other byte string with a
reason. Decoded numbers and norms are the same on every machine. Their interface is `Codec` in `codec.py`.

To add one: CONTRIBUTING.md, "A codec".
"""

from earnest.protocol.recipe import CodecChoice
from earnest.training.codecs.adaptive import inner_steps
from earnest.training.codecs.codec import Codec, CodecState, Encoded
from earnest.training.codecs.dense import DenseBf16
from earnest.training.codecs.feedback import undo_feedback
from earnest.training.codecs.int8 import Int8
from earnest.training.codecs.lowrank import LowrankInt4
from earnest.training.codecs.topk import Topk2Bit
from earnest.training.codecs.update import Update, exact_norm
from earnest.training.diloco.state import Spec
from earnest.training.diloco.tensorfile import PayloadError

__all__ = [
    "Codec",
    "CodecState",
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
    "undo_feedback",
]


def make_codec(choice: CodecChoice, spec: Spec) -> Codec:
    """Returns the codec that a recipe names, for one model. Raises ValueError for an unknown name."""
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
