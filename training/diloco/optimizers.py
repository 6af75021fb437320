"""Inner optimizers, learning rates, and optimizer state by parameter name.

`adamw` trains everything with AdamW. `muon` trains the matrices inside the model with Muon and vectors, embeddings and
the output layer with AdamW, as in MuLoCo (arXiv 2505.23725). Muon's step is scaled to the size of AdamW's (arXiv
2502.16982), so both use the same rate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn, optim

from earnest.protocol.recipe import Inner

COSINE_FLOOR = 0.1
"""The last step's rate as a share of the highest (cosine and wsd)."""

WSD_DECAY = 0.2
"""Share of the run over which wsd brings the rate down."""

OUTPUT_NAMES = ("lm_head", "head", "output", "unembed")
"""Usual names of an output layer, for models without `get_output_embeddings`."""


def learning_rate(inner: Inner, position: float, total: int) -> float:
    """Returns the learning rate at `position` in [0, total), steps from the run's start; total = rounds * inner.steps.

    Step s of a round of h steps is at `round * steps + s * steps / h`, so trainers that take fewer steps, or join
    late, use the same rates as the others. constant; cosine: half a cosine down to a tenth; wsd: constant, then linear
    down to a tenth in the last fifth. All rise linearly over the first `lr_warmup_steps`. Inside a
    round the rate falls to 0 after the last step: linearly from its middle (`round_schedule` decay) or its first step
    (linear).
    """
    done = min(max(position / total, 0.0), 1.0)
    match inner.lr_schedule:
        case "constant":
            share = 1.0
        case "cosine":
            share = COSINE_FLOOR + (1 - COSINE_FLOOR) * 0.5 * (1 + math.cos(math.pi * done))
        case "wsd":
            share = 1 - (1 - COSINE_FLOOR) * max(0.0, done - (1 - WSD_DECAY)) / WSD_DECAY
    rise = min(1.0, (position + 1) / inner.lr_warmup_steps) if inner.lr_warmup_steps else 1.0
    left = 1 - position % inner.steps / inner.steps
    fall = {"constant": 1.0, "decay": min(1.0, 2 * left), "linear": left}[inner.round_schedule]
    return inner.lr * share * rise * fall


def muon_names(model: nn.Module) -> frozenset[str]:
    """Returns the names that Muon trains: matrices that are neither an embedding nor the output layer.

    The output layer is what `get_output_embeddings` returns (Hugging Face), the last linear layer if it has an
    embedding's shape, or a layer with one of OUTPUT_NAMES. Call it with the whole model: a pipeline stage may lack the
    embedding.
    """
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    linear = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    outputs = [m for name, m in linear if name.rpartition(".")[2] in OUTPUT_NAMES]
    outputs += [m for _, m in linear[-1:] if m.weight.shape in {e.weight.shape for e in embeddings}]
    if (declared := getattr(model, "get_output_embeddings", lambda: None)()) is not None:
        outputs.append(declared)
    spared = {id(module.weight) for module in (*embeddings, *outputs)}
    return frozenset(n for n, p in model.named_parameters() if p.dim() == 2 and id(p) not in spared)


def inner_optimizer(model: nn.Module, inner: Inner, muon: Collection[str] | None = None) -> optim.Optimizer:
    """Returns the optimizer that the recipe names, for all parameters of `model`, at `inner.lr`.

    `muon`: names of the matrices for Muon, if `model` is only a part of a model; default `muon_names(model)`.
    """
    if inner.optimizer == "adamw":
        return _adamw([*model.parameters()], inner)
    names = muon_names(model) if muon is None else frozenset(muon)
    matrices = [p for name, p in model.named_parameters() if name in names]
    others = [p for name, p in model.named_parameters() if name not in names]
    return MuonAdamW(matrices, others, inner)


class MuonAdamW(optim.Optimizer):
    """Muon and AdamW as one optimizer: both take a step or, if a gradient overflows, neither does."""

    def __init__(self, matrices: list[nn.Parameter], others: list[nn.Parameter], inner: Inner) -> None:
        super().__init__([*matrices, *others], {"lr": inner.lr})
        self._parts: list[optim.Optimizer] = []
        if matrices:
            self._parts.append(
                optim.Muon(
                    matrices,
                    lr=inner.lr,
                    weight_decay=inner.weight_decay,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        if others:
            self._parts.append(_adamw(others, inner))
        self.param_groups = [group for part in self._parts for group in part.param_groups]
        for part in self._parts:
            part.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for part in self._parts:
            part.step()


def _adamw(parameters: list[nn.Parameter], inner: Inner) -> optim.Optimizer:
    decay = inner.weight_decay
    return optim.AdamW(parameters, lr=inner.lr, betas=inner.betas, weight_decay=decay, fused=True)


def set_rate(optimizer: optim.Optimizer, rate: float) -> None:
    """Sets the learning rate of every parameter."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def saved_state(optimizer: optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Copies the optimizer's tensors, float32 on the CPU, by `<parameter>/<slot>`. Rates are not included."""
    return {
        f"{name}/{slot}": torch.as_tensor(value).detach().to("cpu", torch.float32, copy=True)
        for name, parameter in model.named_parameters()
        for slot, value in optimizer.state.get(parameter, {}).items()
    }


def restore_state(optimizer: optim.Optimizer, model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Restores the result of `saved_state`. Raises KeyError for a parameter that the model does not have."""
    parameters = dict(model.named_parameters())
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for key, value in saved.items():
        name, _, slot = key.rpartition("/")
        parameter = parameters[name]
        group = groups[id(parameter)]
        on_host = slot == "step" and not (group.get("fused") or group.get("capturable"))
        optimizer.state[parameter][slot] = value.to("cpu" if on_host else parameter.device, copy=True)
