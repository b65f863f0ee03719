"""Read gradients, which may be sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def dense_values(gradient: torch.Tensor) -> torch.Tensor:
    """Return the values of a gradient; of a sparse one those that it stores."""
    if gradient.is_sparse:
        return gradient.coalesce().values()
    return gradient
