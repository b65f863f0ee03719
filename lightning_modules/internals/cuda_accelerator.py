"""CUDA accelerator for scripts that set the float32 matmul precision by torch's newer names."""

from __future__ import annotations

import torch
from lightning.pytorch.accelerators import CUDAAccelerator


class QuietCudaAccelerator(CUDAAccelerator):
    """Lightning's `CUDAAccelerator` without its advice on TF32.

    To give that advice, Lightning calls `torch.get_float32_matmul_precision()`, which raises if a
    script has set `torch.backends.cuda.matmul.fp32_precision`, as torch recommends since 2.9.
    """

    def setup_device(self, device: torch.device) -> None:
        """Make a GPU the current device of this process."""
        torch.cuda.set_device(device)
