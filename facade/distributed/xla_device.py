"""Whether this process computes through torch_xla, and what torch_xla tells of it; imported only when it does."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ...lightning_modules.common.libraries import is_installed

INSTALL = "pip install torch_xla, of the version that your torch has, on a machine with TPUs"

# What a machine with TPUs has; looking for it costs nothing, importing torch_xla seconds.
_CHIPS = ("/dev/accel0", "/dev/vfio/0")


def xla_is_chosen() -> bool:
    """Whether to compute through torch_xla: it is installed, and there are TPUs, or PJRT_DEVICE names a device.

    In the reference torch_xla is used wherever it is installed.
    """
    if not has_xla():
        return False
    return bool(os.environ.get("PJRT_DEVICE")) or any(Path(chip).exists() for chip in _CHIPS)


@lru_cache(maxsize=1)
def has_xla() -> bool:
    """Whether torch_xla is installed; it is not imported."""
    return is_installed("torch_xla")


def require_xla(asked: str) -> None:
    """Say how to install torch_xla where it is not.

    Args:
        asked: the argument that needs it, with its value.

    Raises:
        ImportError: it is not there.
    """
    if not has_xla():
        raise ImportError(f"{asked} needs the package torch_xla, which is not installed: {INSTALL}")


def xla_device() -> Any:
    """The device of torch_xla in this process."""
    return import_module("torch_xla").device()


def several_xla_processes() -> int:
    """How many processes torch_xla's own launcher started on this machine."""
    return int(os.environ.get("PJRT_LOCAL_PROCESS_COUNT") or 1)


def print_metrics() -> None:
    """Print what torch_xla has counted: compilations, transfers, what fell back to the CPU."""
    print(import_module("torch_xla.debug.metrics").metrics_report(), flush=True)
