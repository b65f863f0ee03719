"""Compute norms of gradients and clip them, even if they are sharded over several device meshes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..common.dtensor import gather_dtensor, local_shard

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def total_norm(gradients: Iterable[torch.Tensor], norm_type: float = 2.0) -> torch.Tensor:
    """Return the norm of gradients over all shards, as torch's `get_total_norm`.

    Must be called on all ranks.
    """
    groups = _group_by_mesh(gradients)
    if not groups:
        return nn.utils.get_total_norm([], norm_type)

    # Compute a scalar norm for each group. For a sharded group it is reduced over its ranks.
    norms: list[torch.Tensor] = []
    for group in groups:
        norm_of_group = nn.utils.get_total_norm(group, norm_type)
        norms.append(gather_dtensor(norm_of_group))
    if len(norms) == 1:
        return norms[0]

    # The total norm is the norm of the groups' norms.
    device = norms[0].device
    stacked = torch.stack([norm.to(device) for norm in norms])
    return torch.linalg.vector_norm(stacked, norm_type)


def clip_gradients(
    parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """Clip gradients by their norm over all shards, and return the norm before clipping.

    Works like `torch.nn.utils.clip_grad_norm_`, but gradients may be sharded over several meshes.
    """
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    parameters = list(parameters)  # read twice; it may be a generator

    # Checking the few distinct classes is faster than checking each parameter. A gradient is
    # sharded like its parameter.
    classes = set(map(type, parameters))
    are_sharded = any(hasattr(cls, "device_mesh") for cls in classes)
    if not are_sharded:
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    # As in `clip_grad_norm_`, gradients are never scaled up, and 1e-6 avoids a division by zero.
    # All ranks have the same norm, so each can scale its own shards.
    gradients: list[torch.Tensor] = []
    for parameter in parameters:
        if parameter.grad is not None:
            gradients.append(parameter.grad)
    norm = total_norm(gradients, norm_type)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    with torch.no_grad():
        for gradient in gradients:
            local_gradient = local_shard(gradient)
            local_gradient.mul_(scale.to(gradient.device))
    return norm


def _group_by_mesh(gradients: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group gradients by device mesh. Unsharded gradients form a separate group."""
    groups: dict[DeviceMesh | None, list[torch.Tensor]] = {}
    for gradient in gradients:
        mesh = getattr(gradient, "device_mesh", None)
        groups.setdefault(mesh, []).append(gradient)
    return list(groups.values())
