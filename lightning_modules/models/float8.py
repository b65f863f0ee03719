"""Linear layers that multiply in 8-bit floating point, by torchao; the reference has them
through `accelerate` only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_MULTIPLE = 16
"""Both sizes of a layer have to be a multiple of this, by the kernels."""


def require_float8(device: torch.device) -> None:
    """Require torchao, and a device that multiplies in 8-bit floating point.

    Raises:
        ImportError: torchao is not installed.
        ValueError: the device cannot; says why.
    """
    try:
        import torchao.float8  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            f"fp8=True needs `pip install 'lightrainer[torchao]'` ({error})."
        ) from error
    missing = _missing(device)
    if missing:
        raise ValueError(
            f"fp8=True: {missing}. Leave it out; bf16=True is the next smaller format."
        )


def _missing(device: torch.device) -> str | None:
    if device.type != "cuda":
        return (
            f"{device.type} has no units for 8-bit floating point; GPUs from compute capability "
            "8.9 on have them"
        )
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < (8, 9):
        return (
            f"{name} has compute capability {capability[0]}.{capability[1]}, and 8-bit units come "
            "with 8.9"
        )
    return None


def convert_to_float8(model: nn.Module) -> list[str]:
    """Exchange linear layers in place, but the first and the last one; parameters and their names
    stay.

    Args:
        model: the module.

    Returns:
        the names of the exchanged layers.

    Raises:
        ValueError: no layer can be exchanged.
    """
    from torchao.float8 import convert_to_float8_training  # pyright: ignore[reportMissingImports]

    layers = {name: one for name, one in model.named_modules() if isinstance(one, nn.Linear)}
    inner = list(layers)[1:-1]  # those at the ends decide most about the numbers, as in accelerate
    names = [
        name for name in inner if not any(size % _MULTIPLE for size in layers[name].weight.shape)
    ]
    if not names:
        raise ValueError(
            f"fp8=True: {type(model).__name__} has {len(layers)} linear layers, and none between "
            f"the first and the last has sizes that are multiples of {_MULTIPLE}. Leave it out."
        )

    def is_named(module: Any, name: str) -> bool:
        return name in names

    convert_to_float8_training(model, module_filter_fn=is_named)
    return names
