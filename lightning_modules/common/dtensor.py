"""Helpers for DTensors that do not import `torch.distributed.tensor`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import Placement


def is_dtensor(value: object) -> bool:
    """Return whether a value is a DTensor."""
    # Check for an attribute, because importing torch.distributed.tensor is slow.
    return isinstance(value, torch.Tensor) and hasattr(value, "full_tensor")


def gather_dtensor(value: Any) -> Any:
    """Gather a DTensor, which is a collective. Other values are returned unchanged."""
    if is_dtensor(value):
        return value.full_tensor()
    return value


def local_shard(value: Any) -> Any:
    """Return this rank's shard of a DTensor. Other values are returned unchanged."""
    if is_dtensor(value):
        return value.to_local()
    return value


def shard_like(value: object, like: Any) -> Any:
    """Shard a full tensor like a DTensor. Values of another shape are returned unchanged.

    All ranks have the full tensor, so this does not communicate.
    """
    if not is_dtensor(like) or not isinstance(value, torch.Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import DTensor

    mesh = like.device_mesh
    placements: tuple[Placement, ...] = like.placements

    # `_StridedShard` means that the last mesh dimension was sharded first.
    dimensions = list(range(len(placements)))
    if any(type(placement).__name__ == "_StridedShard" for placement in placements):
        dimensions.reverse()

    local = value
    for dimension in dimensions:
        placement = placements[dimension]
        if hasattr(placement, "dim"):
            shard = cast("Shard", placement)
            index = mesh.get_local_rank(dimension)
            local = _chunk(local, shard.dim, index, mesh.size(dimension))

    # `run_check` would communicate to compare the shards.
    return DTensor.from_local(
        local.to(like.device).contiguous(),
        mesh,
        placements,
        run_check=False,
        shape=value.shape,
        stride=value.stride(),
    )


def _chunk(tensor: torch.Tensor, dim: int, index: int, count: int) -> torch.Tensor:
    """Return one of `count` chunks of a tensor.

    torch may return fewer chunks. The missing ones are empty.
    """
    chunks = tensor.chunk(count, dim)
    if index < len(chunks):
        return chunks[index]
    return tensor.narrow(dim, 0, 0)


def meta_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return meta tensors with the same unsharded shapes and dtypes.

    Tied tensors stay tied.
    """
    by_identity: dict[int, torch.Tensor] = {}
    by_name: dict[str, torch.Tensor] = {}
    for name, tensor in named:
        # DeepSpeed's sharded parameters are empty and store their full shape in an attribute.
        shape = getattr(tensor, "ds_shape", tensor.shape)
        if id(tensor) not in by_identity:
            by_identity[id(tensor)] = torch.empty(shape, dtype=tensor.dtype, device="meta")
        by_name[name] = by_identity[id(tensor)]
    return by_name
