"""Find parameters with several names in a model, and keep them tied."""

from __future__ import annotations

import torch
from torch import nn


def tied_names(model: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several names."""
    names_by_id: dict[int, list[str]] = {}
    # Call torch's method, because an override may lack the argument.
    for name, parameter in nn.Module.named_parameters(model, remove_duplicate=False):
        names_by_id.setdefault(id(parameter), []).append(name)

    tied: list[list[str]] = []
    for names in names_by_id.values():
        if len(names) > 1:
            tied.append(names)
    return tied


def tie(model: nn.Module, names_of_parameters: list[list[str]]) -> None:
    """Assign the parameter with the first of several names to the other names as well.

    Args:
        model: the model, which is changed in place.
        names_of_parameters: the result of `tied_names`, from before the parameters were replaced.
    """
    for first_name, *other_names in names_of_parameters:
        shared = model.get_parameter(first_name)
        for name in other_names:
            if model.get_parameter(name) is shared:
                continue
            module_name, _, attribute = name.rpartition(".")
            module = model.get_submodule(module_name)
            setattr(module, attribute, shared)


def move_model(model: nn.Module, device: torch.device) -> None:
    """Move a model to a device in place, and keep tied weights tied on torch_xla too."""
    names_of_parameters = tied_names(model)
    # On torch_xla, this creates a new parameter for each name of a tied one.
    model.to(device)
    tie(model, names_of_parameters)
