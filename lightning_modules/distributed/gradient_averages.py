"""Averages of gradients over processes, for parameters that no wrapper exchanges."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist


def average_used_gradients(parameters: Sequence[torch.Tensor]) -> None:
    """Average the gradients that at least one process has, over all processes."""
    has_gradient = [parameter.grad is not None for parameter in parameters]
    device = parameters[0].device
    flags = torch.tensor(has_gradient, dtype=torch.int32, device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)

    # A flag is 1 if any process has the gradient.
    any_has_gradient = flags.tolist()
    used = itertools.compress(parameters, any_has_gradient)
    average_gradients(used)


def average_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """Average gradients over all processes as `DistributedDataParallel` does.

    A process without a gradient counts with zeros.
    """
    size = dist.get_world_size()
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)

        # With the operations of DDP, so that the gradients are the same to the last bit.
        if parameter.grad.is_sparse:
            dist.all_reduce(parameter.grad.div_(size))
        else:
            mean = parameter.grad.mul_(1 / size).contiguous()
            dist.all_reduce(mean)
            parameter.grad.copy_(mean)
