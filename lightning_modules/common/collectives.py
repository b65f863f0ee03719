"""Collectives on tensors, objects and models, and the device that they use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

_T = TypeVar("_T")


def broadcast_from_rank_zero(value: torch.Tensor) -> torch.Tensor:
    """Return the tensor of rank 0 on all ranks. Without a process group, return the argument.

    Args:
        value: a tensor with the same shape and dtype on all ranks. It is not modified.
    """
    if not has_other_processes():
        return value

    # Copy it, because the caller's tensor must not be modified.
    shared = value.to(transport_device(), copy=True)
    dist.broadcast(shared, src=0)
    return shared.to(value.device)


def gather_objects(value: _T, group: dist.ProcessGroup | None = None) -> list[_T]:
    """Return the objects of all ranks, by rank.

    Without a process group, the list only contains the argument.

    Args:
        value: the object of this rank.
        group: the process group. None uses the default one.
    """
    if not has_other_processes():
        return [value]

    # Each element is replaced by the object of its rank.
    ranks = dist.get_world_size()
    values = [value] * ranks
    dist.all_gather_object(values, value, group)
    return values


def min_over_ranks(value: int) -> int:
    """Return the minimum of a number over all ranks. Requires a process group."""
    # All-reduce a tensor of one element.
    smallest = torch.tensor([value], device=transport_device())
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return int(smallest)


def gloo_group() -> dist.ProcessGroup:
    """Create a gloo process group of all ranks, for collectives on the CPU.

    Must be called on all ranks.
    """
    # torch also declares an int, which ranks outside of the group get. All ranks are inside.
    return cast("dist.ProcessGroup", dist.new_group(backend="gloo"))


def transport_device() -> torch.device:
    """Return the device for tensors in collectives: the GPU with NCCL, otherwise the CPU."""
    backend = str(dist.get_backend())
    if backend != "nccl":
        return torch.device("cpu")

    index = torch.cuda.current_device()
    return torch.device("cuda", index)


def has_other_processes() -> bool:
    """Return whether there is a process group with more than one rank."""
    has_group = dist.is_available() and dist.is_initialized()
    return has_group and dist.get_world_size() > 1


def broadcast_weights(model: nn.Module, device: torch.device | None = None) -> None:
    """Broadcast the parameters and buffers of rank 0 to all ranks.

    Args:
        model: the model. It stays on its device.
        device: device for the communication. The default is that of the model.
    """
    tensors = [*model.parameters(), *model.buffers()]
    broadcast_tensors(tensors, device)


def broadcast_tensors(tensors: Iterable[torch.Tensor], device: torch.device | None = None) -> None:
    """Broadcast tensors of rank 0 to all ranks, in place.

    Args:
        tensors: tensors with the same shapes and dtypes on all ranks.
        device: as for `broadcast_weights`.
    """
    with torch.no_grad():
        for tensor in tensors:
            sent = tensor.to(device)
            sent = sent.contiguous()
            dist.broadcast(sent, src=0)

            # Copy back if the tensor is on another device or not contiguous.
            if sent is not tensor:
                tensor.copy_(sent)
