"""Detect the number formats that the GPU of this machine supports."""

import contextlib
import sys
from collections.abc import Generator
from contextvars import ContextVar

from ..distributed.xla_device import xla_is_chosen

_is_planning = ContextVar("_is_planning", default=False)


@contextlib.contextmanager
def assume_all_formats() -> Generator[None]:
    """Report all formats as supported, so that arguments can be made for another machine's GPU."""
    token = _is_planning.set(True)
    try:
        yield
    finally:
        _is_planning.reset(token)


def supports_bf16() -> bool:
    """Return True if the accelerator of this machine computes in bfloat16; False without one."""
    import torch

    if _is_planning.get() or xla_is_chosen():
        return True
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return torch.backends.mps.is_available() and torch.backends.mps.is_macos_or_newer(14, 0)


def has_mps() -> bool:
    """Return True if there is an Apple GPU; torch is imported on a Mac only."""
    if sys.platform != "darwin":
        return False
    import torch

    return torch.backends.mps.is_available()


def supports_tf32() -> bool:
    """Return True if the GPU has TF32: NVIDIA, Ampere or newer."""
    import torch

    if _is_planning.get():
        return True
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return False
    major_version, _ = torch.cuda.get_device_capability()
    return major_version >= 8


def set_tf32(enable: bool) -> None:
    """Turn TF32 on or off for matrix products and convolutions.

    Uses the older interface on purpose: once `torch.backends.fp32_precision` of torch 2.9 is set,
    `torch.get_float32_matmul_precision()` raises, which Lightning calls whenever it sets up a GPU.
    """
    import torch

    precision = "high" if enable else "highest"
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = enable
