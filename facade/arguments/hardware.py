"""What the GPU of this machine can compute in; each function loads torch."""

import sys

from ..distributed.xla_device import xla_is_chosen


def supports_bf16() -> bool:
    """Whether the accelerator of this machine computes in bfloat16; False where there is none."""
    import torch

    if xla_is_chosen():
        return True
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return torch.backends.mps.is_available() and torch.backends.mps.is_macos_or_newer(14, 0)


def has_mps() -> bool:
    """Whether there is an Apple GPU to compute on; torch is loaded on a Mac only."""
    if sys.platform != "darwin":
        return False
    import torch

    return torch.backends.mps.is_available()


def supports_tf32() -> bool:
    """Whether the GPU has TF32: NVIDIA, Ampere or newer."""
    import torch

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
