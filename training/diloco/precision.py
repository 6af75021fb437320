"""Which device trains, and in what numbers: float32, or bfloat16 and float16 where the device has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn, optim

from earnest.base.errors import EarnestError

REDUCED = {"bf16": torch.bfloat16, "fp16": torch.float16}


class DeviceError(EarnestError):
    """A device that is not here, or that cannot compute in what the recipe asks for."""


def choose_device(name: str = "auto") -> torch.device:
    """`auto` is CUDA where there is one, else Apple's MPS, else the CPU. Raises DeviceError for one not here."""
    if name == "auto":
        cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise DeviceError(
            f"device {name!r} is not to be had: {reason}", "name cpu, cuda, cuda:1, mps or auto"
        ) from error
    return device


class Precision:
    """How one optimizer's steps are computed on a device. fp16 scales the loss, so that small gradients survive.

    A step: `with forward(): loss`, `backward(loss)` once per micro-batch, `step(...)`. Raises DeviceError where the
    device does not compute in the precision.
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
                f"the recipe trains in {precision}, which {self._device} does not compute in",
                "train this run on another device",
            )

    def forward(self) -> AbstractContextManager[object]:
        """The context of the forward pass and the loss."""
        return nullcontext() if self._dtype is None else torch.autocast(self._device.type, self._dtype)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of `loss` (a scalar) to the parameters', scaled."""
        self._scaler.scale(loss).backward()

    def step(
        self, optimizer: optim.Optimizer, parameters: Iterable[nn.Parameter], clip: float
    ) -> float | None:
        """Unscales, clips to the norm `clip` (0: does not), steps. Returns the norm before clipping, if there is one.

        Under fp16 a step with gradients that overflowed is not taken, and the scale is lowered.
        """
        self._scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, clip).item() if clip else None
        self._scaler.step(optimizer)
        self._scaler.update()
        return None if self._scaler.is_enabled() else norm

    def saved(self) -> dict[str, Tensor]:
        """The loss scaler's state, float32: `scaler/scale`, `scaler/_growth_tracker`; nothing without one."""
        kept = self._scaler.state_dict()
        return {
            f"scaler/{k}": torch.tensor(float(kept[k])) for k in ("scale", "_growth_tracker") if k in kept
        }

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Puts back what `saved` took, as far as it is there."""
        if self._scaler.is_enabled() and "scaler/scale" in saved:
            tracker = int(saved["scaler/_growth_tracker"])
            values = {"scale": float(saved["scaler/scale"]), "_growth_tracker": tracker}
            self._scaler.load_state_dict(self._scaler.state_dict() | values)
