"""Averaged weights in Lightning's checkpoints: a file holds those that its validation measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..ema import EMACallback


def use_evaluated_weights(callbacks: Iterable[Any], module: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Put the averages of an `EMACallback` in the place of the weights that a checkpoint is about to hold.

    Args:
        callbacks: of the bridge.
        module: the LightningModule.
        state_dict: of the module; changed.

    Returns:
        The weights that were trained, under their names in the module; empty without averages.
    """
    averages: dict[int, Any] = {}
    for callback in callbacks:
        if isinstance(callback, EMACallback):
            averages |= {id(weight): average for weight, average in callback.evaluated_weights()}

    trained: dict[str, Any] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        average = averages.get(id(weight))
        if average is not None and name in state_dict:
            trained[name] = state_dict[name]
            state_dict[name] = average.to(weight.dtype)
    return trained


def load_trained_weights(module: Any, trained: Mapping[str, Any]) -> None:
    """Copy what `use_evaluated_weights` returned back into the module.

    Args:
        module: the LightningModule, which has the averages.
        trained: weights by their names.
    """
    module.load_state_dict({**module.state_dict(), **trained})
