"""Broadcast tensors and models over a process group, and choose the device for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def broadcast_from_rank_zero(value: torch.Tensor) -> torch.Tensor:
    """Return the tensor of rank 0 on every process; without a process group, this process's own.

    Args:
        value: of the same shape and dtype everywhere; not changed.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return value
    shared = value.to(transport_device(), copy=True)
    dist.broadcast(shared, src=0)
    return shared.to(value.device)


def gather_objects(value: Any) -> list[Any]:
    """Return the objects of all processes, by rank; without a process group, this process's own
    alone.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def transport_device() -> torch.device:
    """Return the device for tensors of collectives: the GPU with NCCL, else the CPU."""
    nccl = str(dist.get_backend()) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


def broadcast_weights(model: nn.Module, device: torch.device | None = None) -> None:
    """Broadcast the parameters and buffers of rank 0 to all processes.

    Args:
        model: stays on its device.
        device: device of the broadcast tensors; by default that of the model.
    """
    broadcast_tensors((*model.parameters(), *model.buffers()), device)


def broadcast_tensors(tensors: Iterable[torch.Tensor], device: torch.device | None = None) -> None:
    """Broadcast tensors of rank 0 to all processes, in place; see `broadcast_weights` for the
    device.
    """
    with torch.no_grad():
        for tensor in tensors:
            sent = tensor.to(device).contiguous()
            dist.broadcast(sent, src=0)
            if sent is not tensor:
                tensor.copy_(sent)
