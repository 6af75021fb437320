"""A run's state between two rounds: parameters, outer momentum, and the state file (Protocol section 10).

A state file is one canonical JSON line with the clip norm (a hexadecimal float) and every tensor (name, dtype, shape;
sorted by name), a line feed, then the tensors, little-endian float32: all parameters, then all momenta. Equal states
have equal files, and so equal roots.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from earnest.protocol.merkle import content_root

Parameters = dict[str, Tensor]

MAX_NUMBER = 32
"""Most characters of a hexadecimal float."""

_CLIP_NORM = re.compile(rb'\{"clip_norm":"([-+.0-9a-fxp]{1,32})"')
_NAME = re.compile(r"[A-Za-z0-9_.]{1,200}")


class StateError(ValueError):
    """The file is not the canonical file of any state of this model."""


@dataclass(frozen=True)
class Spec:
    """Names and shapes of a model's parameters, sorted by name: the order of every concatenation."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.shapes]
        if names != sorted(set(names)) or not names:
            raise ValueError("parameter names must be unique and sorted, at least one")
        for name in names:
            if not _NAME.fullmatch(name):
                raise ValueError(f"parameter name {name!r} has characters other than [A-Za-z0-9_.]")

    @classmethod
    def of(cls, parameters: Mapping[str, Tensor]) -> "Spec":
        return cls(tuple((name, tuple(parameters[name].shape)) for name in sorted(parameters)))

    @cached_property
    def size(self) -> int:
        """Number of scalar parameters."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    @property
    def dense_bytes(self) -> int:
        """Bytes of one update in float32: the base of every compression ratio."""
        return 4 * self.size

    def join(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Returns the name-sorted concatenation of `parameters`: float32 [size] on the CPU."""
        if Spec.of(parameters) != self:
            raise ValueError("tensors do not have the model's names and shapes")
        flat = [parameters[name].detach().to("cpu", torch.float32).reshape(-1) for name, _ in self.shapes]
        return torch.cat(flat)

    def split(self, flat: Tensor) -> Parameters:
        """Reverses `join`: returns views of `flat` [size]."""
        parts = flat.split([math.prod(shape) for _, shape in self.shapes])
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes, parts, strict=True)}


@dataclass(frozen=True)
class State:
    """Float32 CPU tensors by name; `momentum` has the names and shapes of `parameters`.

    `clip_norm`: the norm to which the next round's updates are clipped. It follows from the updates of the round
    before, which a late joiner does not have, so it is part of the state.
    """

    parameters: Parameters
    momentum: Parameters
    clip_norm: float

    @classmethod
    def start(cls, parameters: Parameters, clip_norm: float) -> "State":
        """Returns a state with outer momentum zero. `clip_norm` is the recipe's."""
        momentum = {name: torch.zeros_like(value) for name, value in parameters.items()}
        return cls(parameters, momentum, clip_norm)

    @cached_property
    def spec(self) -> Spec:
        """Names and shapes of the parameters."""
        return Spec.of(self.parameters)


@dataclass(frozen=True)
class RootedState:
    """A state with its root, so that nobody has to serialise the state again to name it."""

    state: State
    root: bytes

    @classmethod
    def of(cls, state: State) -> "RootedState":
        """Serialises and hashes a state that was made here."""
        return cls(state, state_root(state))

    @classmethod
    def read(cls, data: bytes, spec: Spec, root: bytes | None = None) -> "RootedState":
        """Reads a state file. `root` is the root that `data` was verified against; None: hash `data` now.

        Raises StateError unless `data` is the canonical file of a state of this model.
        """
        return cls(from_bytes(data, spec), content_root(data) if root is None else root)


def read_parameters(model: nn.Module) -> Parameters:
    """Copies the model's parameters, float32 on the CPU. Buffers are not part of a state."""
    return {name: p.detach().to("cpu", torch.float32, copy=True) for name, p in model.named_parameters()}


def write_parameters(model: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Overwrites the model's parameters in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(parameters[name])


def to_bytes(state: State) -> bytes:
    """Returns the canonical state file."""
    spec = state.spec
    tensors = torch.cat([spec.join(state.parameters), spec.join(state.momentum)])
    return _header(spec, state.clip_norm) + tensors.numpy().astype("<f4").tobytes()


def from_bytes(data: bytes, spec: Spec) -> State:
    """Reads the state file of a model with these parameters.

    Raises StateError unless `to_bytes` of the result is `data`, with finite numbers only.
    """
    clip_norm = _read_clip_norm(data)
    header = _header(spec, clip_norm)
    if not data.startswith(header):
        raise StateError("state header is not the canonical one of this model")
    if len(data) != len(header) + 2 * spec.dense_bytes:
        raise StateError(f"state has {len(data)} bytes, expected {len(header) + 2 * spec.dense_bytes}")
    numbers = np.frombuffer(data, "<f4", offset=len(header)).astype(np.float32)
    if not np.isfinite(numbers).all():
        raise StateError("state contains a number that is not finite")
    parameters, momentum = torch.from_numpy(numbers).split(spec.size)
    return State(spec.split(parameters), spec.split(momentum), clip_norm)


def state_root(state: State) -> bytes:
    """Returns the state's root, 32 bytes (Protocol section 13). Serialises the state: see `RootedState`."""
    return content_root(to_bytes(state))


def state_bytes(spec: Spec) -> int:
    """Returns the largest size of a state file of this model, bytes."""
    return len(_header(spec, 1.0)) + MAX_NUMBER + 2 * spec.dense_bytes


def _header(spec: Spec, clip_norm: float) -> bytes:
    tensors = [[name, "F32", list(shape)] for name, shape in spec.shapes]
    document = {"clip_norm": clip_norm.hex(), "momentum": tensors, "parameters": tensors}
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _read_clip_norm(data: bytes) -> float:
    match = _CLIP_NORM.match(data)
    try:
        clip_norm = float.fromhex(match[1].decode()) if match else 0.0
    except (ValueError, OverflowError):
        clip_norm = 0.0
    if not 0 < clip_norm < math.inf:
        raise StateError("state header has no clip norm above zero")
    return clip_norm
