"""Norm and clipping of gradients that may be sharded over different groups of processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..common.dtensor import gather_dtensor, local_part

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def total_norm(gradients: Iterable[torch.Tensor], norm_type: float = 2.0) -> torch.Tensor:
    """Return the norm of gradients over all shards, as `get_total_norm` of torch.

    All processes must call this.
    """
    groups = _group_by_mesh(gradients)
    if not groups:
        return nn.utils.get_total_norm([], norm_type)

    # The norm of a group is a scalar; for a sharded group it is combined over its processes.
    norms: list[torch.Tensor] = []
    for group in groups:
        norm_of_group = nn.utils.get_total_norm(group, norm_type)
        norms.append(gather_dtensor(norm_of_group))
    if len(norms) == 1:
        return norms[0]

    # The norm over all gradients is the norm of the norms of the groups.
    device = norms[0].device
    stacked = torch.stack([norm.to(device) for norm in norms])
    return torch.linalg.vector_norm(stacked, norm_type)


def clip_gradients(
    parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """Clip gradients to a norm over all shards; return the norm before clipping.

    Works like `torch.nn.utils.clip_grad_norm_`, but for gradients that are sharded over several
    meshes.
    """
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    parameters = list(parameters)  # read twice; it may be a generator

    # There are few classes, so this is faster than checking each parameter. A gradient is sharded
    # as its parameter is.
    classes = set(map(type, parameters))
    are_sharded = any(hasattr(cls, "device_mesh") for cls in classes)
    if not are_sharded:
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    # As in `clip_grad_norm_`: gradients are never enlarged, and 1e-6 avoids a division by zero. All
    # processes have the same norm, so each can scale its own shards.
    gradients: list[torch.Tensor] = []
    for parameter in parameters:
        if parameter.grad is not None:
            gradients.append(parameter.grad)
    norm = total_norm(gradients, norm_type)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    with torch.no_grad():
        for gradient in gradients:
            local_gradient = local_part(gradient)
            local_gradient.mul_(scale.to(gradient.device))
    return norm


def _group_by_mesh(gradients: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group gradients by device mesh; unsharded gradients form a group, too."""
    groups: dict[DeviceMesh | None, list[torch.Tensor]] = {}
    for gradient in gradients:
        mesh = getattr(gradient, "device_mesh", None)
        groups.setdefault(mesh, []).append(gradient)
    return list(groups.values())
