"""Run Lightning on one torch_xla device, a TPU chip or the CPU. torch_xla is imported lazily."""

# pyright: reportMissingImports=false
# torch_xla has wheels for few versions of torch.
from __future__ import annotations

import functools
from typing import Any

import torch
from lightning.pytorch.accelerators import XLAAccelerator
from lightning.pytorch.plugins.precision import XLAPrecision
from lightning.pytorch.strategies.single_xla import SingleDeviceXLAStrategy

from ..internals.precision import ForwardCasting


class PjrtAccelerator(XLAAccelerator):
    """Accelerator for any PJRT device, including the CPU. Lightning's supports only TPUs."""

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def is_available() -> bool:
        """Return True, because this accelerator is used only if there is a device."""
        return True

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def auto_device_count() -> int:
        """Return 1: a process has one device."""
        return 1

    @staticmethod
    def parse_devices(devices: object) -> int:
        """Return 1."""
        return 1

    @staticmethod
    def get_parallel_devices(devices: object) -> list[torch.device]:
        """Return the device of this process."""
        return [torch.device("xla", 0)]


class ForwardXLAPrecision(ForwardCasting, XLAPrecision):
    """XLA precision plugin that keeps the dtype of the model, and casts only forward passes.

    Args:
        precision: `32-true` or `bf16-mixed`.
    """

    def __init__(self, precision: Any) -> None:
        # Lightning's plugin does not support mixed precision, and rejects its name.
        super().__init__("32-true")
        self.precision = precision
        self.device = "xla"

    def optimizer_step(self, optimizer: Any, model: Any, closure: Any, **kwargs: Any) -> object:
        """Take a step, then execute the recorded graph."""
        import torch_xla

        result = super(XLAPrecision, self).optimizer_step(optimizer, model, closure, **kwargs)
        torch_xla.sync()
        return result


class ModelXLAStrategy(SingleDeviceXLAStrategy):
    """Strategy for the single XLA device of this process."""

    def __init__(self) -> None:
        super().__init__(device=0)
