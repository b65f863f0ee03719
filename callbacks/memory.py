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
    from ..facade import TrainingArguments

_GIB = 2**30


class MemoryCallback(TrainerCallback):
    """Adds memory to each log of the training. Not in transformers.

    The `skip_memory_metrics=False` of transformers measures a whole run. Here each log has, for
    this process, in GiB:

    - `host_memory_gib`: main memory that the process holds now (resident set).
    - `device_memory_peak_gib`: the peak of the memory of tensors on the accelerator since the
      process began, if there is one. It is never reset, as other code may be measuring too.

    The device is not synchronized.

    Raises:
        ImportError: psutil is not installed, and this system has no other measure of main memory.
    """

    adds_to_logs = True

    def __init__(self) -> None:
        if host_memory() is None:
            raise ImportError(
                "MemoryCallback needs psutil on this system. Install it with "
                "pip install 'lightrainer[memory]'."
            )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> None:
        """Add the memory in use."""
        if is_training_log(logs):
            add_to_logs(logs, state, memory_in_use())


def memory_in_use() -> dict[str, float]:
    """Return the values that `MemoryCallback` logs; unknown ones are left out."""
    sizes = {"host_memory_gib": host_memory(), "device_memory_peak_gib": _device_peak()}
    return {name: round(size / _GIB, 4) for name, size in sizes.items() if size is not None}


def host_memory() -> int | None:
    """Return the bytes of main memory that this process holds; None if unknown.

    psutil measures them; without psutil they are read from Linux's `/proc`.
    """
    if is_installed("psutil"):
        import psutil

        return psutil.Process().memory_info().rss

    try:
        with open("/proc/self/statm", "rb") as file:
            resident_pages = int(file.read().split()[1])
    except OSError:
        return None
    return resident_pages * os.sysconf("SC_PAGE_SIZE")


def _device_peak() -> int | None:
    """Return the peak of bytes in tensors on the accelerator; None if none is in use."""
    # Looked up in sys.modules: without torch there is nothing to measure.
    torch = sys.modules.get("torch")
    for device_type in ("cuda", "xpu"):
        module = getattr(torch, device_type, None)
        if module is not None and module.is_available() and module.is_initialized():
            return module.max_memory_allocated()
    return None
