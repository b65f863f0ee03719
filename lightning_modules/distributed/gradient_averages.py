"""Average gradients over ranks, for parameters that no wrapper (such as DDP) synchronises."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist


def average_used_gradients(parameters: Sequence[torch.Tensor]) -> None:
    """Average gradients over all ranks, skipping parameters without a gradient on any rank."""
    has_gradient = [parameter.grad is not None for parameter in parameters]
    device = parameters[0].device
    flags = torch.tensor(has_gradient, dtype=torch.int32, device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)

    # A flag is 1 if any rank has the gradient.
    any_has_gradient = flags.tolist()
    used = itertools.compress(parameters, any_has_gradient)
    average_gradients(used)


def average_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """Average gradients over all ranks as `DistributedDataParallel` does.

    A missing gradient counts as zeros.
    """
    size = dist.get_world_size()
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)

        # Use the same operations as DDP, so that the gradients are bitwise equal.
        if parameter.grad.is_sparse:
            dist.all_reduce(parameter.grad.div_(size))
        else:
            mean = parameter.grad.mul_(1 / size).contiguous()
            dist.all_reduce(mean)
            parameter.grad.copy_(mean)
