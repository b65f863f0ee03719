"""Count floating point operations as they run, and look up the peak of a device."""

from __future__ import annotations

import re

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop, sdpa_flop


def flop_counter() -> FlopCounterMode:
    """Return a context that counts operations; as torch's, which does not count attention on the
    CPU.
    """
    counter = FlopCounterMode(display=False)
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counter.flop_registry[attention] = sdpa_flop
    counter.flop_registry[torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward] = (
        sdpa_backward_flop
    )
    return counter


# FLOP/s of dense matrices (makers also print twice as many, for sparse ones), sums kept in float32.
# One column each for float16 and bfloat16, for float32 where TF32 may stand in for it, and for
# float32 itself. The first match counts.
_TERA_FLOPS: tuple[tuple[str, float, float, float], ...] = (
    (r"GB200|GB300", 2500, 1250, 80),
    (r"B200|B300", 2250, 1125, 75),
    (r"GH200", 989.4, 494.7, 66.9),
    (r"H200 NVL", 835.5, 417.5, 60),
    (r"H100 PCIe", 756, 378, 51.2),
    (r"H100 NVL", 835.5, 417.5, 60),
    (r"H20\b", 148, 74, 44),
    (r"H100|H200|H800", 989.4, 494.7, 66.9),
    (r"A100|A800", 312, 156, 19.5),
    (r"A30\b", 165, 82, 10.3),
    (r"A40\b", 149.7, 74.8, 37.4),
    (r"A10G", 70, 35, 35),
    (r"A10\b", 125, 62.5, 31.2),
    (r"L40S", 362, 183, 91.6),
    (r"L40\b", 181, 90.5, 90.5),
    (r"L4\b", 121, 60, 30.3),
    (r"RTX 6000 Ada", 364.2, 182.1, 91.1),
    (r"RTX A6000", 154.8, 77.4, 38.7),
    (r"RTX 5090", 209.5, 104.8, 104.8),
    (r"RTX 4090", 165.2, 82.6, 82.6),
    (r"RTX 3090 Ti", 80, 40, 40),
    (r"RTX 3090", 71, 35.6, 35.6),
    (r"V100S", 130, 16.4, 16.4),
    (r"V100.*PCI", 112, 14, 14),
    (r"V100", 125, 15.7, 15.7),
    (r"T4\b", 65, 8.1, 8.1),
    (r"MI325X|MI300X", 1307.4, 653.7, 163.4),
    (r"MI250X", 191.5, 47.9, 47.9),  # of one of the two devices that a card shows itself as
    (r"MI250\b", 181, 45.3, 45.3),
)


def peak_flops(device_name: str, kind: str, *, tf32: bool = True) -> float | None:
    """Return the peak FLOP/s of a device in dense matrix products; None where device or type is
    unknown.

    Args:
        device_name: as `torch.cuda.get_device_name()` returns it.
        kind: the type of the numbers: `float32`, `float16` or `bfloat16`.
        tf32: whether float32 may be multiplied as TF32.
    """
    for name, half, tf, single in _TERA_FLOPS:
        if re.search(rf"\b(?:{name})(?!\d)", device_name):
            peaks = {"float16": half, "bfloat16": half, "float32": tf if tf32 else single}
            return peaks[kind] * 1e12 if kind in peaks else None
    return None


def may_use_tf32() -> bool:
    """Return whether float32 matmuls may use TF32; True where torch cannot tell, so that the MFU
    is not overstated.
    """
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # scripts that mix torch's older and newer settings
        return True
