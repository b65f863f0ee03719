"""Helpers for DTensors that do not import `torch.distributed.tensor`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def is_part(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor."""
    # By its attribute, since the import of torch.distributed.tensor is slow.
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, "full_tensor")


def whole(tensor: Any) -> Any:
    """Gather a DTensor, collectively; return another value unchanged."""
    return tensor.full_tensor() if is_part(tensor) else tensor


def own_part(tensor: Any) -> Any:
    """Return this process's shard of a DTensor; return another value unchanged."""
    return tensor.to_local() if is_part(tensor) else tensor


def part_like(value: Any, like: Any) -> Any:
    """Shard a whole tensor as `like`; return a value of another shape unchanged.

    Every process has the whole tensor, so that nothing is communicated.
    """
    if not is_part(like) or not isinstance(value, torch.Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import DTensor

    mesh, placements, local = like.device_mesh, like.placements, value
    steps = list(enumerate(placements))
    # the last dimension split first
    if any(type(placed).__name__ == "_StridedShard" for placed in placements):
        steps.reverse()
    for dimension, placed in steps:
        if hasattr(placed, "dim"):
            chunks = local.chunk(mesh.size(dimension), placed.dim)
            mine = mesh.get_local_rank(dimension)
            local = chunks[mine] if mine < len(chunks) else local.narrow(placed.dim, 0, 0)
    local = local.to(like.device).contiguous()
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=value.shape, stride=value.stride()
    )


def without_values(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return tensors of the same whole shapes and dtypes on the meta device; tied tensors stay
    tied.
    """
    made: dict[int, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for name, tensor in named:
        # DeepSpeed's sharded parameters are empty
        shape = getattr(tensor, "ds_shape", tensor.shape)
        if id(tensor) not in made:
            made[id(tensor)] = torch.empty(shape, dtype=tensor.dtype, device="meta")
        found[name] = made[id(tensor)]
    return found
