"""Log host and device memory."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ..lightning_modules.common.libraries import is_installed
from ._log_values import add_to_logs, is_training_log
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from .arguments import CallbackArguments

_GIB = 2**30


class MemoryCallback(TrainerCallback):
    """No counterpart in transformers, whose `skip_memory_metrics=False` measures a whole run:
    memory, in each log.

    Added to each log of the training, of this process, in GiB:

    - `host_memory_gib`: main memory that the process holds now (resident set).
    - `device_memory_peak_gib`: the most that tensors held on the accelerator since the process
      began, where there is one. The peak is never reset, as other code may be measuring too.

    The device is not synchronized.

    Raises:
        ImportError: the system needs psutil for the main memory, and it is not installed.
    """

    adds_to_logs = True

    def __init__(self) -> None:
        if host_memory() is None:
            raise ImportError(
                "MemoryCallback needs psutil on this system: pip install 'lightrainer[memory]'."
            )

    def on_log(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> None:
        """Add the memory in use."""
        if is_training_log(logs):
            add_to_logs(logs, state, memory_in_use())


def memory_in_use() -> dict[str, float]:
    """Return the values that `MemoryCallback` logs, as far as they are known."""
    found = {"host_memory_gib": host_memory(), "device_memory_peak_gib": _device_peak()}
    return {name: round(value / _GIB, 4) for name, value in found.items() if value is not None}


def host_memory() -> int | None:
    """Return the bytes of main memory that this process holds, from psutil or else from Linux."""
    if is_installed("psutil"):
        import psutil

        return psutil.Process().memory_info().rss
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _device_peak() -> int | None:
    """Return the peak of bytes in tensors on the accelerator; None where none is in use."""
    torch = sys.modules.get("torch")
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available() and module.is_initialized():
            return module.max_memory_allocated()
    return None
