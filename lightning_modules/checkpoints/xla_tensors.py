"""Tensors of torch_xla, which have no memory that could be written to a file, as tensors in main memory."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from ..evaluation.collecting import map_nested


def on_host(values: Any) -> Any:
    """Nested values with their tensors of torch_xla in main memory; the very same values where there are none."""
    if "torch_xla" not in sys.modules:
        return values
    return map_nested(_copied, values)


def state_on_host(model: nn.Module) -> dict[str, Any] | None:
    """The state dict of a model of torch_xla, in main memory, tied weights as one tensor; None of other models."""
    if "torch_xla" not in sys.modules or not any(tensor.device.type == "xla" for tensor in model.parameters()):
        return None
    copies: dict[int, Any] = {}
    state = model.state_dict(keep_vars=True)  # these are the same objects where weights are tied
    return {name: copies.setdefault(id(value), _copied(value)) for name, value in state.items()}


def _copied(leaf: Any) -> Any:
    return leaf.detach().cpu() if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla" else leaf
