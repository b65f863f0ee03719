"""Which batches one graph serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def kind_of(value: Any, of_shape: Callable[[Any], Any] = tuple) -> Any:
    """Return what two values have in common that one graph serves: their nesting, types, and what is no tensor.

    Args:
        value: tensors of torch, nested in any way, and hashable others.
        of_shape: what counts of the shape of a tensor.
    """
    if isinstance(value, Tensor):
        return value.dtype, of_shape(value.shape)
    if isinstance(value, Mapping):
        return type(value), *((key, kind_of(part, of_shape)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), *(kind_of(part, of_shape) for part in value)
    return type(value), value
