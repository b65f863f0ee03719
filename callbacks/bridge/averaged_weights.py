"""Averaged weights in Lightning's checkpoints: a file has the weights that were validated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from ..base import TrainerCallback
from ..ema import AveragedWeight, EMACallback, averaging_among


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
    for callback in averaging_among(callbacks):
        if callback.has_evaluated:
            evaluated.append(callback)
    averaged_weights = _averaged_weights(evaluated, module)

    # Weights without an average, such as frozen ones, are kept.
    trained_weights: dict[str, Tensor] = {}
    for name, averaged in averaged_weights.items():
        if name not in state_dict:
            continue
        trained = averaged.trained
        trained_weights[name] = trained
        state_dict[name] = averaged.average.to(trained.dtype)
    return trained_weights


def copy_averaged_weights(
    callbacks: Iterable[TrainerCallback], module: nn.Module
) -> dict[str, Tensor]:
    """Copy the trained weights that an `EMACallback` averages, under their names in the module."""
    averaging = averaging_among(callbacks)
    averaged_weights = _averaged_weights(averaging, module)
    copies: dict[str, Tensor] = {}
    for name, averaged in averaged_weights.items():
        copies[name] = averaged.trained.clone()
    return copies


def _averaged_weights(
    callbacks: Iterable[EMACallback], module: nn.Module
) -> dict[str, AveragedWeight]:
    """Return the averaged weights of callbacks, under their names in the module.

    A shared weight has several names.
    """
    by_weight: dict[int, AveragedWeight] = {}
    for callback in callbacks:
        for averaged in callback.averaged_weights():
            by_weight[id(averaged.weight)] = averaged

    by_name: dict[str, AveragedWeight] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        averaged_weight = by_weight.get(id(weight))
        if averaged_weight is not None:
            by_name[name] = averaged_weight
    return by_name


def load_trained_weights(module: nn.Module, trained_weights: Mapping[str, Tensor]) -> None:
    """Copy trained weights, which a checkpoint has beside the averages, back into the module.

    Args:
        module: the LightningModule, which has the averages.
        trained_weights: the weights, by their names.
    """
    weights = {**module.state_dict(), **trained_weights}
    module.load_state_dict(weights)
