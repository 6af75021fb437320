"""The device that trains, and its precision: float32, or bfloat16 and float16 on devices that support them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn, optim

from earnest.base.errors import EarnestError

REDUCED = {"bf16": torch.bfloat16, "fp16": torch.float16}


class DeviceError(EarnestError):
    """A device is not available, or does not support the recipe's precision."""


def choose_device(name: str = "auto") -> torch.device:
    """Returns the named device; `auto`: CUDA, else Apple's MPS, else the CPU. Raises DeviceError if not available."""
    if name == "auto":
        cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise DeviceError(
            f"device {name!r} is not available: {reason}", "name cpu, cuda, cuda:1, mps or auto"
        ) from error
    return device


class Precision:
    """Computes an optimizer's steps on a device in the recipe's precision. fp16 scales the loss against underflow.

    A step: `with forward(): loss`, `backward(loss)` once per micro-batch, `step(...)`. Raises DeviceError if the
    device does not support the precision.
    """

    def __init__(self, device: torch.device, precision: str) -> None:
        self._device = device
        self._dtype = REDUCED.get(precision)
        if self._dtype is not None:
            self._check(precision)
        self._scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    def _check(self, precision: str) -> None:
        kind = self._device.type
        has = torch.amp.is_autocast_available(kind)
        if kind == "cuda" and precision == "bf16":
            has = torch.cuda.is_bf16_supported(including_emulation=False)
        if not has:
            raise DeviceError(
                f"the recipe trains in {precision}, which {self._device} does not support",
                "train this run on another device",
            )

    def forward(self) -> AbstractContextManager[object]:
        """Returns the context for the forward pass and the loss."""
        return nullcontext() if self._dtype is None else torch.autocast(self._device.type, self._dtype)

    def backward(self, loss: Tensor) -> None:
        """Adds the scaled gradients of `loss` (a scalar) to those of the parameters."""
        self._scaler.scale(loss).backward()

    def step(
        self, optimizer: optim.Optimizer, parameters: Iterable[nn.Parameter], clip: float
    ) -> float | None:
        """Unscales, clips to the norm `clip` (0: no clipping) and steps. Returns the norm before clipping, or None.

        Under fp16 a step whose gradients overflowed is skipped, and the scale is lowered.
        """
        self._scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, clip).item() if clip else None
        self._scaler.step(optimizer)
        self._scaler.update()
        return None if self._scaler.is_enabled() else norm

    def saved(self) -> dict[str, Tensor]:
        """Returns the loss scaler's state, float32: `scaler/scale`, `scaler/_growth_tracker`; {} without a scaler."""
        values = self._scaler.state_dict()
        names = [name for name in ("scale", "_growth_tracker") if name in values]
        return {f"scaler/{name}": torch.tensor(float(values[name])) for name in names}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Restores the result of `saved`; ignores tensors that are missing."""
        if self._scaler.is_enabled() and "scaler/scale" in saved:
            tracker = int(saved["scaler/_growth_tracker"])
            values = {"scale": float(saved["scaler/scale"]), "_growth_tracker": tracker}
            self._scaler.load_state_dict(self._scaler.state_dict() | values)
