"""Detect torch_xla, and return its device and number of processes. It is only imported if used."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ...lightning_modules.common.libraries import is_installed

INSTALL = "pip install torch_xla, in the version of your torch, on a machine with TPUs"

# Device files of a machine with TPUs, checked first because importing torch_xla takes seconds.
_CHIPS = ("/dev/accel0", "/dev/vfio/0")


def xla_is_chosen() -> bool:
    """Return True if torch_xla is installed and there are TPUs, or PJRT_DEVICE names a device.

    The reference uses torch_xla whenever it is installed.
    """
    if not has_xla():
        return False
    if os.environ.get("PJRT_DEVICE"):
        return True
    return any(Path(chip).exists() for chip in _CHIPS)


@lru_cache(maxsize=1)
def has_xla() -> bool:
    """Return True if torch_xla is installed, without importing it."""
    return is_installed("torch_xla")


def require_xla(argument: str) -> None:
    """Require torch_xla to be installed.

    Args:
        argument: the argument that needs it, with its value, such as `optim='adamw_torch_xla'`.

    Raises:
        ImportError: it is not installed.
    """
    if not has_xla():
        raise ImportError(
            f"{argument} needs the package torch_xla, which is not installed: {INSTALL}"
        )


def xla_device() -> Any:
    """Return the device of torch_xla in this process."""
    return import_module("torch_xla").device()


def xla_process_count() -> int:
    """Return the number of processes of torch_xla's own launcher on this machine."""
    return int(os.environ.get("PJRT_LOCAL_PROCESS_COUNT") or 1)


def print_metrics() -> None:
    """Print the metrics of torch_xla: compilations, transfers, fallbacks to the CPU."""
    print(import_module("torch_xla.debug.metrics").metrics_report(), flush=True)
