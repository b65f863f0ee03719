"""Linear layers that multiply in 8-bit floating point, by torchao.

The reference supports them only through `accelerate`.
"""

from __future__ import annotations

import torch
from torch import nn

_MULTIPLE = 16
"""Both sizes of a layer have to be a multiple of this, by the kernels."""


def require_float8(device: torch.device) -> None:
    """Require torchao, and a device that multiplies in 8-bit floating point.

    Raises:
        ImportError: torchao is not installed.
        ValueError: the device does not support it; the message says why.
    """
    try:
        import torchao.float8  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            f"fp8=True needs `pip install 'lightrainer[torchao]'` ({error})."
        ) from error
    problem = _problem_of_device(device)
    if problem is not None:
        raise ValueError(f"fp8=True is not supported: {problem}. Remove it, or use bf16=True.")


def _problem_of_device(device: torch.device) -> str | None:
    if device.type != "cuda":
        return (
            f"{device.type} has no units for 8-bit floating point; GPUs of compute capability 8.9 "
            "and later have them"
        )
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < (8, 9):
        major, minor = capability
        return (
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}, but "
            "units for 8-bit floating point need 8.9"
        )
    return None


def convert_to_float8(model: nn.Module) -> list[str]:
    """Replace linear layers in place, except the first and the last; parameters keep their names.

    Args:
        model: changed in place.

    Returns:
        The names of the replaced layers.

    Raises:
        ValueError: no layer can be replaced.
    """
    from torchao.float8 import convert_to_float8_training  # pyright: ignore[reportMissingImports]

    layers: dict[str, nn.Linear] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            layers[name] = module

    # The layers at the ends influence the numbers most, so they stay, as in accelerate.
    names: list[str] = []
    for name in list(layers)[1:-1]:
        rows, columns = layers[name].weight.shape
        if rows % _MULTIPLE == 0 and columns % _MULTIPLE == 0:
            names.append(name)
    if not names:
        raise ValueError(
            f"fp8=True has no effect: {type(model).__name__} has {len(layers)} linear layers, but "
            f"none between the first and the last has sizes that are multiples of {_MULTIPLE}. "
            "Remove it."
        )

    def is_replaced(module: nn.Module, name: str) -> bool:
        return name in names

    convert_to_float8_training(model, module_filter_fn=is_replaced)
    return names
