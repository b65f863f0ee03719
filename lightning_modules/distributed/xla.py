"""Lightning on one device of torch_xla: a TPU chip, or the CPU through PJRT; torch_xla is imported when it is used."""

# pyright: reportMissingImports=false
# torch_xla has wheels for few versions of torch.
from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from lightning.pytorch.accelerators import XLAAccelerator
from lightning.pytorch.plugins.precision import XLAPrecision
from lightning.pytorch.strategies.single_xla import SingleDeviceXLAStrategy


class PjrtAccelerator(XLAAccelerator):
    """As Lightning's `XLAAccelerator`, but any device of PJRT will do, the CPU too."""

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def is_available() -> bool:
        """Always: it is made only where there is a device."""
        return True

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def auto_device_count() -> int:
        """Return one: a process has one device."""
        return 1

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """Return one, whatever was asked for."""
        return 1

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """Return the one of this process."""
        return [torch.device("xla", 0)]


class ForwardXLAPrecision(XLAPrecision):
    """As Lightning's `XLAPrecision`, but the model keeps its format: forward passes are cast, by autocast.

    Args:
        precision: `32-true` or `bf16-mixed`.
    """

    def __init__(self, precision: str) -> None:
        super().__init__("32-true")
        self.forward = precision

    def autocast_context_manager(self) -> contextlib.AbstractContextManager[Any]:
        """Return what forward passes of the model run in."""
        return torch.autocast("xla", dtype=torch.bfloat16) if self.forward == "bf16-mixed" else contextlib.nullcontext()

    def train_step_context(self) -> Any:
        """Nothing: the forward passes in the step are cast."""
        return contextlib.nullcontext()

    val_step_context = test_step_context = predict_step_context = train_step_context

    def optimizer_step(self, optimizer: Any, model: Any, closure: Any, **kwargs: Any) -> Any:
        """Step, as the gradients are there already; then the device computes what has been recorded until now."""
        result = super(XLAPrecision, self).optimizer_step(optimizer, model, closure, **kwargs)
        cut_graph()
        return result


class ModelXLAStrategy(SingleDeviceXLAStrategy):
    """As Lightning's `SingleDeviceXLAStrategy`, for the device of this process."""

    def __init__(self) -> None:
        super().__init__(device=0)


def cut_graph() -> None:
    """Let the device compute what has been recorded until now."""
    import torch_xla

    torch_xla.sync()
