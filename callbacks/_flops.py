"""Count floating point operations, and look up the peak of a device."""

from __future__ import annotations

import re
from typing import cast

import torch
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop,  # pyright: ignore[reportUnknownVariableType] - untyped in torch
    sdpa_flop,  # pyright: ignore[reportUnknownVariableType] - untyped in torch
)


def flop_counter() -> FlopCounterMode:
    """Return a context that counts operations: torch's, and attention on the CPU too."""
    counter = FlopCounterMode(display=False)
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    registry = cast("dict[object, object]", counter.flop_registry)  # pyright: ignore[reportUnknownMemberType]
    registry[attention] = sdpa_flop
    registry[attention_backward] = sdpa_backward_flop
    return counter


# A pattern for the name of a device, and its peak in TFLOP/s: in float16 and bfloat16, in float32
# computed as TF32, and in float32. They are those of dense matrices (data sheets also have twice as
# much, for sparse ones), accumulated in float32. The first pattern that matches counts.
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
    (r"MI250X", 191.5, 47.9, 47.9),  # one of the two devices of a card, as for MI250
    (r"MI250\b", 181, 45.3, 45.3),
)


def peak_flops(device_name: str, dtype_name: str, *, tf32: bool = True) -> float | None:
    """Return the peak FLOP/s of a device in dense matrix products; None if unknown.

    Args:
        device_name: as `torch.cuda.get_device_name()` returns it.
        dtype_name: `float32`, `float16` or `bfloat16`; of other dtypes the peak is unknown.
        tf32: whether float32 may be computed as TF32.
    """
    for pattern, half_peak, tf32_peak, float32_peak in _TERA_FLOPS:
        if not re.search(rf"\b(?:{pattern})(?!\d)", device_name):
            continue
        if dtype_name in ("float16", "bfloat16"):
            return half_peak * 1e12
        if dtype_name == "float32":
            peak = tf32_peak if tf32 else float32_peak
            return peak * 1e12
        return None
    return None


def may_use_tf32() -> bool:
    """Return whether float32 matmuls may use TF32.

    True if torch cannot tell, so that the MFU is not overstated.
    """
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # the script has used both the older and the newer settings of torch
        return True
