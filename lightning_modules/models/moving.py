"""Move a model to a device."""

from __future__ import annotations

import torch
from torch import nn

from .tied_parameters import tie, tied_names


def move_model(model: nn.Module, device: torch.device) -> None:
    """Move a model to a device, in place; shared weights stay shared on torch_xla, too."""
    names_of_parameters = tied_names(model)
    # On torch_xla this makes a new parameter for each name of a shared one.
    model.to(device)
    tie(model, names_of_parameters)
