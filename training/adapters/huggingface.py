"""Hugging Face models as a Task, and export of a run's result as a model folder.

A model is made from its configuration by `AutoModelForCausalLM.from_config`, with classes of the installed
transformers: nothing is downloaded, no other code runs, weights are read and written as safetensors only. Needs the
extra `hf`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when the library below is imported

import torch
from torch import Tensor, nn
from torch.nn import functional

from earnest.base.strict_json import read_json
from earnest.training.adapters.memmap import TokenFile, Windows
from earnest.training.diloco.state import Parameters, Spec, read_parameters, write_parameters
from earnest.training.tasks.task import Batch, Task

FORBIDDEN = frozenset(
    {
        "auto_map",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "experts_implementation",
        "_experts_implementation",
        "quantization_config",
        "use_kernels",
    }
)
"""Keys of a configuration that would load code or kernels, or change the meaning of a parameter."""

IGNORED = frozenset(
    {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
)


MAX_COUNT = 1 << 16
"""Limit of every count in a configuration: layers, heads, experts. Some become lists before any model is built."""

MAX_SIZE = 1 << 31
"""Limit of any other number in a configuration."""

MAX_TENSORS = 1 << 14
"""Limit of a model's parameters and buffers; an update's header has room for fewer."""


class CausalLm(Task):
    """A causal language model of transformers, on the windows of a token file.

    `config`: the text of a config.json (as in a recipe), a dict, or a Path. `tokens`, `dtype`, `root`: see TokenFile;
    the root is required, because it proves that all nodes train on the same data. `bytes_per_token`, bytes of the data
    / tokens, converts losses to nats per byte, the unit of scores.

    Raises ValueError for a configuration that transformers does not know, or that needs other code.
    """

    def __init__(
        self,
        config: str | Mapping[str, Any] | Path,
        tokens: str,
        root: str,
        dtype: str = "uint16",
        context: int = 256,
        bytes_per_token: float = 1.0,
        warmup: int = 0,
        report_share: float = 0.05,
    ) -> None:
        if not bytes_per_token > 0:
            raise ValueError("bytes_per_token must be positive")
        self.config = checked_config(config)
        check_memory(self.config, physical_memory())
        most = int(getattr(self.config, "max_position_embeddings", context) or context)
        if not 1 <= context <= most:
            raise ValueError(f"context must be 1 to {most} tokens for this model, not {context}")
        file = TokenFile(tokens, dtype, int(self.config.vocab_size), root)
        if not root:
            raise ValueError(f"root is missing; the root of this file is {file.root()}")
        self.windows = Windows(file, context, warmup, report_share)
        self.bytes_per_token = bytes_per_token
        self.pool_size = self.windows.pool_size
        self.warmup_ids, self.report_ids = self.windows.warmup_ids, self.windows.report_ids

    def build_model(self, seed: int) -> nn.Module:
        return build(self.config, seed)

    def batches(self, split: str, seed: int, sample_ids: Sequence[int], batch: int) -> Iterator[Batch]:
        return self.windows.batches(split, sample_ids, batch)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(input_ids=batch.inputs, use_cache=False).logits.float()  # [B, T, vocab]
        losses = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
        return losses.view(batch.targets.shape).mean(1) / self.bytes_per_token

    def export(self, parameters: Parameters, folder: Path) -> None:
        """Writes the folder of a model with these parameters; see `export_model`."""
        export_model(self.config, parameters, folder)


def checked_config(config: str | Mapping[str, Any] | Path) -> Any:
    """Returns the configuration object of transformers. Raises ValueError; see `CausalLm`."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    fields = _fields(config)
    kind = fields.pop("model_type", None)
    if bad := sorted(_keys(fields) & FORBIDDEN):
        raise ValueError(f"a configuration must not contain {bad[0]!r}")
    if not isinstance(kind, str) or kind not in _causal_kinds():
        raise ValueError(f"transformers has no causal language model of type {kind!r}")
    if (large := _too_large(fields)) is not None:
        raise ValueError(f"the configuration's {large[0]} is too large: {large[1]}")
    known = {name: value for name, value in fields.items() if name not in IGNORED}
    try:
        checked = AutoConfig.for_model(kind, **known)
    except (
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
        LookupError,
        StrictDataclassError,
    ) as error:
        raise ValueError(f"not a configuration of {kind}: {error}") from error
    checked.dtype = torch.float32
    return checked


def physical_memory() -> int:
    """Returns the size of this machine's memory, bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(config: Any, memory: int) -> None:
    """Raises ValueError for a model whose tensors have more than `memory` bytes, before allocating any.

    Builds the model on the meta device and stops at the first tensor over a limit. A model that cannot be built there
    is not checked.
    """
    from torch.nn.modules import module

    total, tensors, thread = 0, 0, threading.get_ident()

    def count(_: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal total, tensors
        if tensor is None or threading.get_ident() != thread:
            return
        total += tensor.numel() * tensor.element_size()
        tensors += 1
        if total > memory or tensors > MAX_TENSORS:
            raise ValueError(
                f"the model is too large: its first {tensors} tensors have {total} bytes; this machine has "
                f"{memory} bytes of memory, and a model may have {MAX_TENSORS} tensors"
            )

    hooks = [
        module.register_module_parameter_registration_hook(count),
        module.register_module_buffer_registration_hook(count),
    ]
    try:
        with torch.device("meta"):
            build(config, 0)
    except (NotImplementedError, RuntimeError):
        return
    except (TypeError, ArithmeticError, AttributeError, LookupError) as error:
        raise ValueError(f"no model can be built from this configuration: {error}") from error
    finally:
        for hook in hooks:
            hook.remove()


def build(config: Any, seed: int) -> nn.Module:
    """Returns a new float32 model, initialised by transformers from the seed; the global generator is restored."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False
        )
    return model.train()


def export_model(config: Any, parameters: Parameters, folder: Path) -> None:
    """Writes `config.json`, `generation_config.json` and `model.safetensors` (in several files, if large).

    `from_pretrained(folder)` gives the same logits. Tied weights are one parameter of a state and stay tied. Raises
    ValueError for parameters of another model.
    """
    model = build(config, 0)
    if Spec.of(parameters) != Spec.of(read_parameters(model)):
        raise ValueError("these are not the parameters of this configuration's model")
    write_parameters(model, parameters)
    model.eval().save_pretrained(folder)  # type: ignore[operator]


def _fields(config: str | Mapping[str, Any] | Path) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    try:
        fields = read_json(config.read_text() if isinstance(config, Path) else config)
    except (OSError, ValueError) as error:
        raise ValueError(f"config is not the text of a config.json: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("config is not a JSON object")
    return fields


def _too_large(value: Any, key: str = "") -> tuple[str, int] | None:
    """Returns the first (key, number), at any depth, that is above its limit."""
    if isinstance(value, Mapping):
        results = (_too_large(inner, str(name)) for name, inner in value.items())
    elif isinstance(value, list):
        results = (_too_large(inner, key) for inner in value)
    else:
        counts = key.startswith("num_") or "layer" in key or "head" in key
        large = type(value) is int and abs(value) > (MAX_COUNT if counts else MAX_SIZE)
        return (key[:64], value) if large else None
    return next((result for result in results if result is not None), None)


def _keys(value: Any) -> set[str]:
    """Returns all keys, at every depth."""
    if isinstance(value, Mapping):
        return {str(key) for key in value}.union(*(_keys(inner) for inner in value.values()))
    return set().union(*(_keys(inner) for inner in value)) if isinstance(value, list) else set()


def _causal_kinds() -> set[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
