"""Read gradients, which may be sparse, and their norms, which may be sharded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer


def gather_full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the values of all ranks; only a DTensor lacks some of them."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def is_sharded_by_fsdp1(model: nn.Module) -> bool:
    """Return whether version 1 of FSDP leaves parts of the weights of a model.

    It marks the weights that it manages, and flattens those that it shards.
    """
    is_managed = False
    for weight in model.parameters():
        if not hasattr(weight, "_fsdp_flattened"):
            continue
        is_managed = True
        if weight.ndim != 1:
            return False
    return is_managed


def dense_values(gradient: torch.Tensor) -> torch.Tensor:
    """Return the values of a gradient; of a sparse one those that it stores."""
    if gradient.is_sparse:
        return gradient.coalesce().values()
    return gradient


def ids_of_weights(optimizer: Optimizer) -> set[int]:
    """Return the `id` of each weight that an optimizer trains."""
    ids: set[int] = set()
    for group in optimizer.param_groups:
        ids.update(map(id, group["params"]))
    return ids
