"""Move a model to a device."""

from __future__ import annotations

import torch
from torch import nn


def move_model(model: nn.Module, device: torch.device) -> None:
    """Move a model to a device, in place; shared weights stay shared on torch_xla, too."""
    # torch's own method is called, since an override may not have the argument.
    names_of_parameters: dict[int, list[str]] = {}
    for name, parameter in nn.Module.named_parameters(model, remove_duplicate=False):
        names_of_parameters.setdefault(id(parameter), []).append(name)

    # On torch_xla this makes a new parameter for each name of a shared one.
    model.to(device)

    # Let all names of a shared parameter have the same one again.
    for first_name, *other_names in names_of_parameters.values():
        for name in other_names:
            shared = model.get_parameter(first_name)
            if model.get_parameter(name) is not shared:
                owner, _, attribute = name.rpartition(".")
                setattr(model.get_submodule(owner), attribute, shared)
