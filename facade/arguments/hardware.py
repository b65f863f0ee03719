"""Detect the number formats that this machine's GPU supports; each function imports torch."""

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar

from ..distributed.xla_device import xla_is_chosen

_planning = ContextVar("_planning", default=False)


@contextlib.contextmanager
def on_paper() -> Iterator[None]:
    """Report all formats as supported, so that arguments can be made for a GPU elsewhere."""
    before = _planning.set(True)
    try:
        yield
    finally:
        _planning.reset(before)


def supports_bf16() -> bool:
    """Return True if the accelerator of this machine computes in bfloat16; False without one."""
    import torch

    if _planning.get() or xla_is_chosen():
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

    if _planning.get():
        return True
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_properties(torch.cuda.current_device()).major >= 8


def set_tf32(enable: bool) -> None:
    """Turn TF32 on or off for matrix products and convolutions.

    torch 2.9 and later also has `torch.backends.fp32_precision`; once that is set,
    `torch.get_float32_matmul_precision()` raises, which Lightning calls whenever it sets up a GPU.
    """
    import torch

    torch.set_float32_matmul_precision("high" if enable else "highest")
    torch.backends.cudnn.allow_tf32 = enable
