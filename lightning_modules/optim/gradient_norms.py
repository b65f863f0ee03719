"""Norm and clipping of gradients that may be sharded over different groups of processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..common.dtensor import gather_dtensor, local_part


def total_norm(gradients: Iterable[torch.Tensor], norm_type: float = 2.0) -> torch.Tensor:
    """As `torch.nn.utils.get_total_norm`, of whole gradients; collective."""
    groups = _by_processes(gradients)
    if len(groups) <= 1:
        return gather_dtensor(
            nn.utils.get_total_norm([one for group in groups for one in group], norm_type)
        )
    norms = [gather_dtensor(nn.utils.get_total_norm(group, norm_type)) for group in groups]
    device = norms[0].device
    return torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms]), norm_type)


def clip_gradients(
    parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """As `torch.nn.utils.clip_grad_norm_`, see `total_norm`; return the norm before clipping."""
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    are_sharded = any(hasattr(kind, "device_mesh") for kind in {*map(type, gradients)})
    if not are_sharded:
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
    norm = total_norm(gradients, norm_type)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    with torch.no_grad():
        for gradient in gradients:
            local_part(gradient).mul_(scale.to(gradient.device))
    return norm


def _by_processes(gradients: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group gradients by device mesh."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(getattr(gradient, "device_mesh", None), []).append(gradient)
    return list(groups.values())
