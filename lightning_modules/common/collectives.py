"""Broadcast tensors and models over a process group, and choose the device for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

_T = TypeVar("_T")


def broadcast_from_rank_zero(value: torch.Tensor) -> torch.Tensor:
    """Return the tensor of rank 0 on every process; without a process group, this process's own.

    Args:
        value: of the same shape and dtype everywhere; not changed.
    """
    if not has_other_processes():
        return value

    # A copy, since the caller's tensor must not change.
    shared = value.to(transport_device(), copy=True)
    dist.broadcast(shared, src=0)
    return shared.to(value.device)


def gather_objects(value: _T, group: dist.ProcessGroup | None = None) -> list[_T]:
    """Return the objects of all processes, by rank.

    Without a process group, the list holds this process's own alone.

    Args:
        value: the value of this process.
        group: the group of all processes; None for the default one.
    """
    if not has_other_processes():
        return [value]

    # Each element is replaced by the object of its rank.
    ranks = dist.get_world_size()
    values = [value] * ranks
    dist.all_gather_object(values, value, group)
    return values


def smallest_of_all(value: int) -> int:
    """Return the smallest of the numbers of all processes, which have a process group."""
    # One element, shape (1,), that the reduction replaces in every process.
    smallest = torch.tensor([value], device=transport_device())
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return int(smallest)


def gloo_group() -> dist.ProcessGroup:
    """Make a process group of all processes that works in host memory.

    All processes must call this.
    """
    # torch declares an int too, which it returns to ranks outside of a group; here all are inside.
    return cast("dist.ProcessGroup", dist.new_group(backend="gloo"))


def transport_device() -> torch.device:
    """Return the device for tensors of collectives: the GPU with NCCL, else the CPU."""
    backend = str(dist.get_backend())
    if backend != "nccl":
        return torch.device("cpu")

    index = torch.cuda.current_device()
    return torch.device("cuda", index)


def has_other_processes() -> bool:
    """Return whether the process group has more than this process; without a group, False."""
    has_group = dist.is_available() and dist.is_initialized()
    return has_group and dist.get_world_size() > 1


def broadcast_weights(model: nn.Module, device: torch.device | None = None) -> None:
    """Broadcast the parameters and buffers of rank 0 to all processes.

    Args:
        model: stays on its device.
        device: device of the broadcast tensors; by default that of the model.
    """
    tensors = [*model.parameters(), *model.buffers()]
    broadcast_tensors(tensors, device)


def broadcast_tensors(tensors: Iterable[torch.Tensor], device: torch.device | None = None) -> None:
    """Broadcast tensors of rank 0 to all processes, in place.

    Args:
        tensors: of the same shapes and dtypes everywhere.
        device: as for `broadcast_weights`.
    """
    with torch.no_grad():
        for tensor in tensors:
            sent = tensor.to(device)
            sent = sent.contiguous()
            dist.broadcast(sent, src=0)

            # On another device, or not contiguous: a copy was sent.
            if sent is not tensor:
                tensor.copy_(sent)
