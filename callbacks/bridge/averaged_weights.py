"""Averaged weights in Lightning's checkpoints: a file has the weights that were validated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from ..base import TrainerCallback
from ..ema import EMACallback


def use_evaluated_weights(
    callbacks: Iterable[TrainerCallback], module: nn.Module, state_dict: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Replace weights in a state dict by the averages of an `EMACallback`.

    Args:
        callbacks: the callbacks of the bridge.
        module: the LightningModule.
        state_dict: the state dict of the module, for a checkpoint; changed in place.

    Returns:
        The trained weights that were replaced, under their names in the module.
    """
    evaluated: list[EMACallback] = []
    for callback in _averaging(callbacks):
        if callback.has_evaluated:
            evaluated.append(callback)
    averages = _averages_by_weight(evaluated)

    # Weights without an average, such as frozen ones, are kept.
    trained_weights: dict[str, Tensor] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        average = averages.get(id(weight))
        if average is None or name not in state_dict:
            continue
        trained_weights[name] = state_dict[name]
        state_dict[name] = average.to(weight.dtype)
    return trained_weights


def copy_averaged_weights(
    callbacks: Iterable[TrainerCallback], module: nn.Module
) -> dict[str, Tensor]:
    """Copy the trained weights that an `EMACallback` averages, under their names in the module."""
    averages = _averages_by_weight(_averaging(callbacks))
    copies: dict[str, Tensor] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        if id(weight) in averages:
            copies[name] = weight.detach().clone()
    return copies


def _averaging(callbacks: Iterable[TrainerCallback]) -> list[EMACallback]:
    """Return the callbacks that average weights."""
    averaging: list[EMACallback] = []
    for callback in callbacks:
        if isinstance(callback, EMACallback):
            averaging.append(callback)
    return averaging


def _averages_by_weight(callbacks: Iterable[EMACallback]) -> dict[int, Tensor]:
    """Return the averages of callbacks, by the `id` of the weight."""
    averages: dict[int, Tensor] = {}
    for callback in callbacks:
        for weight, average in callback.averaged_weights():
            averages[id(weight)] = average
    return averages


def load_trained_weights(module: nn.Module, trained_weights: Mapping[str, Tensor]) -> None:
    """Copy trained weights, which a checkpoint has beside the averages, back into the module.

    Args:
        module: the LightningModule, which has the averages.
        trained_weights: the weights, by their names.
    """
    weights = {**module.state_dict(), **trained_weights}
    module.load_state_dict(weights)
