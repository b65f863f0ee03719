"""Give all processes of a group what one of them has, and where tensors have to be for that."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn


def from_first_process(value: torch.Tensor) -> torch.Tensor:
    """Return the tensor of process 0, on every process; where there is no process group, this process's own.

    Args:
        value: of the same shape and type everywhere; it is not changed.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return value
    shared = value.to(transport_device(), copy=True)
    dist.broadcast(shared, src=0)
    return shared.to(value.device)


def transport_device() -> torch.device:
    """Return the device from which the process group sends tensors: the GPU with NCCL, else main memory."""
    nccl = str(dist.get_backend()) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


def broadcast_weights(model: nn.Module, device: torch.device | None = None) -> None:
    """Give all processes the parameters and buffers of the first.

    Args:
        model: stays where it is.
        device: what the processes exchange has to be on; by default it is there already.
    """
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            sent = tensor.to(device).contiguous()
            dist.broadcast(sent, src=0)
            if sent is not tensor:
                tensor.copy_(sent)
