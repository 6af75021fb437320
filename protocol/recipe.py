"""The recipe: the file that fixes how a model is trained and judged. Protocol sections 3 and 7.

A recipe file is JSON. Its hash is keccak256 of the canonical bytes (sorted keys, no spaces, ASCII, floats in
shortest form and always with a point or exponent), so that layout does not matter and every value does.
A run stores the hash.
"""

from dataclasses import asdict, dataclass, field, fields, is_dataclass
from math import isfinite
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from eth_hash.auto import keccak

from earnest.base.strict_json import JsonError, read_json, write_json
from earnest.protocol.assignment import SamplePool
from earnest.protocol.harm import HarmTerms

MAX_FILE_BYTES = 1 << 16

Option = int | float | str | bool


class RecipeError(ValueError):
    """An invalid recipe file; the message names the path of the value."""


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise ValueError(reason)


@dataclass(frozen=True)
class Inner:
    """Local training: `steps` (H) optimizer steps of `batch` samples each."""

    steps: int = 150
    steps_min: int = 0
    """Fewest steps of a round if an adaptive codec lowers H; 0: H is always `steps`."""

    batch: int = 16
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon: the matrices inside the model by Muon; vectors, embeddings and the output layer by AdamW."""

    lr: float = 3e-3
    lr_schedule: Literal["constant", "cosine", "wsd"] = "constant"
    """Over the run's rounds * steps. wsd: stable, then down in the run's last fifth."""

    round_schedule: Literal["constant", "decay", "linear"] = "decay"
    """Rate inside a round. decay: constant for half of the round, then linear to 0; linear: to 0 from the first step.

    A rate that ends at 0 leaves the clearest mark of a trainer's samples in its update. Where the recipe's does not,
    deviating to one that does pays (docs/verification.md).
    """

    lr_warmup_steps: int = 0
    """Steps at the run's start over which the rate rises to `lr`, under every schedule."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the multiplications in the forward pass; parameters and optimizer are always float32."""

    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    clip: float = 1.0
    """Largest norm of a local gradient; 0: not clipped."""

    def __post_init__(self) -> None:
        _require(self.steps >= 1 and self.batch >= 1, "steps and batch are at least 1")
        _require(0 <= self.steps_min <= self.steps, "steps_min lies in [0, steps]")
        _require(self.lr_warmup_steps >= 0, "lr_warmup_steps is not negative")
        _require(self.lr > 0, "lr is positive")
        _require(all(0 <= beta < 1 for beta in self.betas), "betas lie in [0, 1)")
        _require(self.weight_decay >= 0 and self.clip >= 0, "weight_decay and clip are not negative")


CodecName = Literal["dense-bf16", "int8", "topk-2bit", "lowrank-int4"]
CODECS: tuple[CodecName, ...] = get_args(CodecName)
"""Every codec. To add one: CONTRIBUTING.md, "A codec"."""


@dataclass(frozen=True)
class CodecChoice:
    """The encoding of updates (section 13)."""

    name: str = "dense-bf16"
    """One of CODECS."""

    k: int = 64
    """Entries kept of a chunk (topk-2bit); the largest number if `energy` is set."""

    k_min: int = 0
    """Smallest number of entries kept of a chunk if `energy` is set."""

    chunk: int = 4096
    """Numbers that share their scales (topk-2bit, int8)."""

    rank: int = 8
    """Rank kept of a matrix (lowrank-int4); the highest if `energy` is set."""

    rank_min: int = 0
    """Lowest rank kept of a matrix if `energy` is set."""

    energy: float = 0.0
    """Share of the update's energy that k or rank must keep, within its limits; 0: k and rank are fixed."""

    error_feedback: float = 0.0
    """Share of what was not sent that the trainer adds to its next update."""

    def __post_init__(self) -> None:
        _require(self.name in CODECS, f"no codec named {self.name!r}; the codecs are {', '.join(CODECS)}")
        _require(1 <= self.k <= self.chunk <= 65_536, "1 <= k <= chunk <= 65536")
        _require(0 <= self.k_min <= self.k, "k_min lies in [0, k]")
        _require(1 <= self.rank <= 64, "rank lies in [1, 64]")
        _require(0 <= self.rank_min <= self.rank, "rank_min lies in [0, rank]")
        _require(0 <= self.energy < 1, "energy lies in [0, 1)")
        _require(0 <= self.error_feedback <= 1, "error_feedback lies in [0, 1]")
        adapts = {"topk-2bit": self.k_min, "lowrank-int4": self.rank_min}
        lowest = adapts.pop(self.name, 0)
        _require(not any(adapts.values()), "k_min is for topk-2bit, rank_min for lowrank-int4")
        _require(
            (lowest > 0) == (self.energy > 0), "an adaptive codec has both energy and its k_min or rank_min"
        )

    @property
    def adaptive(self) -> bool:
        """True if k or rank follows the update's spectrum."""
        return self.energy > 0


@dataclass(frozen=True)
class Outer:
    """The Nesterov step on the aggregate (section 10)."""

    lr: float = 0.7
    momentum: float = 0.9
    aggregation: Literal["mean", "contributor-mean"] = "mean"

    def __post_init__(self) -> None:
        _require(self.lr > 0, "lr is positive")
        _require(0 <= self.momentum < 1, "momentum lies in [0, 1)")


@dataclass(frozen=True)
class Privacy:
    """Differential privacy of updates on private data, applied before encoding: (epsilon, delta) over the run."""

    clip: float = 0.0
    """Largest norm of an update before noise; 0: privacy is off."""

    noise: float = 0.0
    """Standard deviation of the noise on every coordinate, in units of `clip`; 0: clipped only."""

    delta: float = 1e-5
    """The delta for which epsilon is stated."""

    def __post_init__(self) -> None:
        _require(self.clip >= 0 and self.noise >= 0, "clip and noise are not negative")
        _require(self.clip > 0 or self.noise == 0, "noise needs a clip")
        _require(0 < self.delta < 1, "delta lies in (0, 1)")


@dataclass(frozen=True)
class Scoring:
    """Parameters of the judgement (section 7)."""

    held_out: int = 512
    """Sequences in the held-out sample B of a round."""

    own: int = 512
    """Sequences drawn from the samples that a trainer was assigned."""

    strength: float = 0.5
    """Share of a clipped update that is applied for scoring."""

    overlap_similarity: float = 0.4
    cosine_similarity: float = 0.65
    norm_limit: float = 5.0
    """Updates with a norm above this many clip norms are not counted."""

    clip_norm: float = 1.0
    """Clip norm of round 0."""

    trial_rounds: int = 1
    """Rounds at the start in which no weight exceeds 1; 0 for a run that starts from a trained model."""

    harm: HarmTerms = field(default_factory=HarmTerms)

    def __post_init__(self) -> None:
        _require(self.held_out >= 2 and self.own >= 2, "held_out and own are at least 2")
        _require(0 < self.strength <= 1, "strength lies in (0, 1]")
        _require(
            0 < self.overlap_similarity <= 1 and 0 < self.cosine_similarity <= 1,
            "similarities lie in (0, 1]",
        )
        _require(self.norm_limit >= 1 and self.clip_norm > 0, "norm_limit >= 1 and clip_norm > 0")
        _require(self.trial_rounds >= 0, "trial_rounds is not negative")


@dataclass(frozen=True)
class Recipe:
    """Everything that two machines need to train and judge alike."""

    task: str
    """Dotted path of the task, `module:Class`."""

    pool_size: int
    """Sample ids are 0 .. pool_size - 1."""

    task_options: dict[str, Option] = field(default_factory=dict)
    seed: int = 0
    inner: Inner = field(default_factory=Inner)
    codec: CodecChoice = field(default_factory=CodecChoice)
    outer: Outer = field(default_factory=Outer)
    scoring: Scoring = field(default_factory=Scoring)
    warmup_steps: int = 0
    """Shared steps before round 0: they make the initial state."""

    overlap: Literal["none", "delayed", "eager"] = "none"
    """Start of the local steps while the round before is still judged (section 4); none: rounds do not overlap."""

    data: Literal["assigned", "private"] = "assigned"
    """private: trainers use data of their own, and no margin is measured."""

    privacy: Privacy = field(default_factory=Privacy)
    max_payload_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        module, colon, name = self.task.partition(":")
        _require(bool(module and colon and name), "task is module:Class")
        _require(0 <= self.seed < 2**64, "seed lies in [0, 2^64)")
        _require(1 <= self.pool_size <= 2**32, "pool_size lies in [1, 2^32]")
        _require(not self.inner.steps_min or self.codec.adaptive, "inner.steps_min needs an adaptive codec")
        _require(self.scoring.own <= self.judged_per_seat, "scoring.own exceeds inner.steps * inner.batch")
        _require(self.warmup_steps >= 0, "warmup_steps is not negative")
        _require(self.max_payload_bytes >= 1, "max_payload_bytes is at least 1")
        _require(self.privacy.clip == 0 or self.data == "private", "privacy is for private data")

    @property
    def samples_per_seat(self) -> int:
        """H * batch: number of ids that a trainer is assigned in a round."""
        return self.inner.steps * self.inner.batch

    @property
    def judged_per_seat(self) -> int:
        """Number of ids, from the first, that a trainer has trained on even with the fewest steps that are allowed."""
        return (self.inner.steps_min or self.inner.steps) * self.inner.batch

    def sample_pool(self) -> SamplePool:
        """Returns the pool of sample ids as it is before round 0, with nothing assigned."""
        return SamplePool(self.pool_size, self.samples_per_seat, self.scoring.held_out)

    def to_json(self) -> bytes:
        """Returns the canonical bytes. Raises RecipeError if a value is not of its field's type."""
        try:
            document = read_json(write_json(asdict(self)))
        except JsonError as error:
            raise RecipeError(f"recipe: {error}") from error
        return write_json(asdict(_value(Recipe, document, "recipe")))

    def hash(self) -> bytes:
        """Returns keccak256 of the canonical bytes: the run's `recipe_hash`."""
        return keccak(self.to_json())

    @classmethod
    def from_json(cls, data: bytes) -> "Recipe":
        """Parses a recipe file in any layout.

        Raises RecipeError on anything but exactly the known keys, each once, with the right types and ranges.
        Integers are accepted where floats are expected, never the reverse.
        """
        try:
            document = read_json(data, max_bytes=MAX_FILE_BYTES)
        except JsonError as error:
            raise RecipeError(f"recipe: {error}") from error
        return _value(cls, document, "recipe")


def _value(kind: Any, value: Any, path: str) -> Any:
    """`value` as `kind`: a dataclass, tuple, dict, literal, union or scalar."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _record(kind, value, path)
    if origin is Literal:
        if value in parts and isinstance(value, str):
            return value
        raise RecipeError(f"{path}: {value!r} is none of {', '.join(parts)}")
    if origin is tuple:
        if not isinstance(value, list) or len(value) != len(parts):
            raise RecipeError(f"{path}: not a list of {len(parts)}")
        return tuple(
            _value(part, item, f"{path}[{i}]")
            for i, (part, item) in enumerate(zip(parts, value, strict=True))
        )
    if origin is dict:
        if not isinstance(value, dict):
            raise RecipeError(f"{path}: not an object")
        return {key: _value(parts[1], item, f"{path}.{key}") for key, item in value.items()}
    return _scalar(parts if origin in (Union, UnionType) else (kind,), value, path)


def _record(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise RecipeError(f"{path}: not an object")
    names = {f.name for f in fields(kind)}
    if odd := sorted(names ^ value.keys()):
        raise RecipeError(f"{path}: {'unknown' if odd[0] in value else 'missing'} key {odd[0]!r}")
    hints = get_type_hints(kind)
    read = {name: _value(hints[name], value[name], f"{path}.{name}") for name in names}
    try:
        return kind(**read)
    except ValueError as error:
        raise RecipeError(f"{path}: {error}") from error


def _scalar(kinds: tuple[type, ...], value: Any, path: str) -> Any:
    """`value` if it is of exactly one of the kinds (bool is no int); an int where only float fits is one."""
    if type(value) is int and int not in kinds and float in kinds and abs(value) < 2**53:
        value = float(value)
    if type(value) not in kinds or (type(value) is float and not isfinite(value)):
        raise RecipeError(f"{path}: {value!r} is not {' or '.join(kind.__name__ for kind in kinds)}")
    return value
