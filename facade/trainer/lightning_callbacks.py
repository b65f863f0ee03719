"""Callbacks of Lightning under the facade: which of them can be, and in which runs."""

from __future__ import annotations

from typing import Any

from torch import nn

_WINDOW = "one batch of Lightning is a whole step here, with all its micro-batches"
_NOT_HERE = {
    "GradientAccumulationScheduler": (
        f"{_WINDOW}, so there is nothing for it to accumulate",
        "set gradient_accumulation_steps, which holds for the whole training",
    ),
    "BatchSizeFinder": (
        "the loaders are the Trainer's, which makes them of the arguments",
        "set auto_find_batch_size=True",
    ),
    "LearningRateFinder": (
        "the optimizer is made of the arguments when the training begins, and its schedule belongs to the whole of it",
        "use `hyperparameter_search`, or the finder of Lightning's Tuner with a LossModule",
    ),
    "LightningBridge": (
        "it is the home of TrainerCallbacks without a Trainer, and there is one",
        "pass the TrainerCallbacks themselves",
    ),
}
_AVERAGING = ("StochasticWeightAveraging", "WeightAveraging")


def check_callback(callback: Any) -> None:
    """Refuse what could have no effect, or a wrong one, as soon as it is passed.

    Args:
        callback: a Lightning callback, or a class of such.

    Raises:
        ValueError: it cannot be; says why, and what to use.
    """
    for name, (reason, instead) in _NOT_HERE.items():
        if _is(callback, name):
            raise ValueError(f"{name} cannot be used with this Trainer: {reason}. Instead, {instead}.")


def check_training(callbacks: list[Any], model: nn.Module, *, sharded: bool) -> None:
    """Refuse what cannot be with this model, or when it is spread over processes.

    Raises:
        ValueError: as in `check_callback`.
    """
    for callback in callbacks:
        if sharded and any(_is(callback, name) for name in _AVERAGING):
            raise ValueError(
                f"{type(callback).__name__} averages whole models, but this one is sharded over processes. Leave it "
                "out, or train with DDP."
            )
        normalised = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
        if normalised and _is(callback, "StochasticWeightAveraging"):
            raise ValueError(
                "StochasticWeightAveraging runs one more epoch, without steps, for the statistics of BatchNorm layers, "
                "which this model has, and the Trainer ends when all its steps are done. Use Lightning's "
                "WeightAveraging or EMAWeightAveraging, which average these statistics too."
            )


def _is(callback: Any, name: str) -> bool:
    cls = callback if isinstance(callback, type) else type(callback)
    return any(base.__name__ == name for base in cls.__mro__)
