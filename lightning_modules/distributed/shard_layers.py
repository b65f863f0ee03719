"""What both versions of FSDP do to a model before it is sharded."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn


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


def checkpoint_layers(model: nn.Module, layers: list[str]) -> None:
    """Let the activations of the modules of these names be computed again in the backward pass."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for name in layers:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, checkpoint_wrapper(model.get_submodule(name)))
