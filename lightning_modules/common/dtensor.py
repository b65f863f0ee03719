"""Tensors that are spread over processes (DTensors), told apart without an import of what makes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def is_part(tensor: Any) -> bool:
    """Return whether a tensor is spread over processes."""
    # Without an import of torch.distributed.tensor, which takes long, where there is none of them.
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, "full_tensor")


def whole(tensor: Any) -> Any:
    """Gather a tensor that is spread over processes; all of them have to call it. Others stay as they are."""
    return tensor.full_tensor() if is_part(tensor) else tensor


def own_part(tensor: Any) -> Any:
    """Return what this process has of a tensor that is spread over processes. Others stay as they are."""
    return tensor.to_local() if is_part(tensor) else tensor


def part_like(value: Any, like: Any) -> Any:
    """Return this process's part of a whole tensor, spread as `like` is; what has another shape stays as it is.

    Every process has the whole, so that nothing is sent.
    """
    if not is_part(like) or not isinstance(value, torch.Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import DTensor

    mesh, placements, local = like.device_mesh, like.placements, value
    steps = list(enumerate(placements))
    if any(type(placed).__name__ == "_StridedShard" for placed in placements):  # the last dimension split first
        steps.reverse()
    for dimension, placed in steps:
        if hasattr(placed, "dim"):
            chunks = local.chunk(mesh.size(dimension), placed.dim)
            mine = mesh.get_local_rank(dimension)
            local = chunks[mine] if mine < len(chunks) else local.narrow(placed.dim, 0, 0)
    local = local.to(like.device).contiguous()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=value.shape, stride=value.stride())


def without_values(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return tensors of the same whole shapes and formats, but without memory; those that are one tensor stay one."""
    made: dict[int, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for name, tensor in named:
        shape = getattr(tensor, "ds_shape", tensor.shape)  # DeepSpeed leaves none of it in a parameter
        if id(tensor) not in made:
            made[id(tensor)] = torch.empty(shape, dtype=tensor.dtype, device="meta")
        found[name] = made[id(tensor)]
    return found
