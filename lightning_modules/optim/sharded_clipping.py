"""Clipping a part of the gradients that `FullyShardedDataParallel` spreads over the processes."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .gradient_norms import clip_gradients

__all__ = ["clip_of_sharded"]


def clip_of_sharded(
    model: Any, parameters: list[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """As `torch.nn.utils.clip_grad_norm_`, with the norm over all processes; all of them have to call it.

    Args:
        model: the outermost `FullyShardedDataParallel`.
        parameters: some of its parameters, all of them, or others.
        max_norm: what the norm is to be at most.
        norm_type: which norm; `inf` is the largest value.

    Returns:
        The norm that the gradients had.
    """
    own = {id(parameter) for parameter in model.parameters()}
    given = {id(parameter) for parameter in parameters}
    if given == own:
        return model.clip_grad_norm_(max_norm, norm_type)
    if not given & own or model.sharding_strategy.name == "NO_SHARD":
        return clip_gradients(parameters, max_norm, norm_type)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = _norm_of_all(gradients, norm_type, model)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.detach().mul_(scale.to(gradient.device))
    return norm


def _norm_of_all(gradients: list[torch.Tensor], norm_type: float, model: Any) -> torch.Tensor:
    """From what each process has of the gradients, which may be nothing."""
    own = nn.utils.get_total_norm(gradients, norm_type).to(model.compute_device)
    group = model.process_group
    if math.isinf(norm_type):
        dist.all_reduce(own, dist.ReduceOp.MAX, group=group)
        return own
    powers = own**norm_type
    dist.all_reduce(powers, group=group)
    return powers ** (1.0 / norm_type)
