"""The state of GrokAdamW, which it keeps in its parameter groups, each under the parameter itself."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

__all__ = ["save_state_of_groups"]

_KEY = "state"


def save_state_of_groups(optimizer: Any) -> None:
    """Save such a state under the places of the parameters, so that it is found again when it is loaded.

    A parameter that is read from a file is not the one that the model has, so that a training that is resumed would
    begin with an empty state.

    Args:
        optimizer: any; only those of `grokadamw` are concerned.
    """
    if type(optimizer).__module__.partition(".")[0] == "grokadamw":
        optimizer.register_state_dict_post_hook(_under_places)
        optimizer.register_load_state_dict_post_hook(_under_parameters)


def _under_places(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        if _KEY in saved:
            places = {parameter: place for place, parameter in enumerate(group["params"])}
            saved[_KEY] = {places[parameter]: state for parameter, state in saved[_KEY].items()}


def _under_parameters(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        states = group.get(_KEY, {}).items()
        if states:
            group[_KEY] = {group["params"][place]: state for place, state in states if isinstance(place, int)}
