"""Reject incompatible Lightning callbacks, and step schedules that a callback has replaced."""

from __future__ import annotations

from typing import Any

from torch import nn

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
REFUSED = {
    "GradientAccumulationScheduler": (
        "a batch of Lightning is a whole step here. Set gradient_accumulation_steps"
    ),
    "BatchSizeFinder": "the loaders are the Trainer's. Set auto_find_batch_size=True",
    "LearningRateFinder": (
        "the schedule belongs to the whole training. Run the script with `lightrainer lr-find`"
    ),
    "BaseFinetuning": (
        "the schedule knows only the first groups of the optimizer. Set requires_grad of the "
        "layers in on_epoch_begin of a TrainerCallback, or use a LossModule with "
        "lightning.Trainer"
    ),
    "BasePredictionWriter": (
        "`predict` runs Lightning's test loop. Write the predictions that it returns"
    ),
    "OnExceptionCheckpoint": (
        "Lightning would begin with its file. Set save_strategy, and resume_from_checkpoint=True"
    ),
    "LightningBridge": "it is for a plain lightning.Trainer. Pass the TrainerCallbacks themselves",
}
"""Callbacks that would have no effect or a wrong effect, with the reason and an alternative."""
_AVERAGING = ("StochasticWeightAveraging", "WeightAveraging")


def is_lightning_callback(callback: object) -> bool:
    """Return whether this is a callback or callback class of Lightning, without importing it."""
    for base in _class_of(callback).__mro__:
        is_of_lightning = base.__module__.startswith(("lightning.pytorch", "pytorch_lightning"))
        if base.__name__ == "Callback" and is_of_lightning:
            return True
    return False


def check_callback(callback: object) -> None:
    """Raise an error for a callback that would have no effect, or a wrong effect.

    Args:
        callback: a Lightning callback or its class.

    Raises:
        ValueError: the callback cannot be used; the message has the reason and an alternative.
    """
    for name, reason in REFUSED.items():
        if _is(callback, name):
            described = name
            if type(callback).__name__ != name:
                described = f"{type(callback).__name__}, a {name},"
            raise ValueError(f"{described} cannot be used with this Trainer: {reason}.")


def check_training(callbacks: list[Any], model: nn.Module, *, sharded: bool, resumed: bool) -> None:
    """Raise an error for callbacks that are incompatible with the model, sharding, or resuming.

    Raises:
        ValueError: as in `check_callback`.
    """
    for callback in callbacks:
        if sharded and any(_is(callback, name) for name in _AVERAGING):
            name = type(callback).__name__
            raise ValueError(
                f"{name} averages full models, but this model is sharded. Remove it, or use DDP."
            )
        if resumed and _is(callback, "ModelPruning"):
            raise ValueError(
                "ModelPruning does not save its masks, so a training with it cannot be resumed. "
                "Remove resume_from_checkpoint, or the callback."
            )
        has_batch_norm = any(isinstance(module, _NORMS) for module in model.modules())
        if has_batch_norm and _is(callback, "StochasticWeightAveraging"):
            raise ValueError(
                "StochasticWeightAveraging needs an extra epoch, without steps, for this model's "
                "BatchNorm layers, which the Trainer does not run. Use WeightAveraging or "
                "EMAWeightAveraging."
            )


class ReplacedSchedule:
    """Step the schedule of a Lightning callback that has replaced the Trainer's schedule.

    StochasticWeightAveraging does so from a certain epoch on. The Trainer uses manual optimization,
    so Lightning itself does not step schedules.

    Attributes:
        configured: the schedule returned by `configure_optimizers`. The schedule of the Trainer may
            have been replaced since.
        config: Lightning's config of the callback's schedule; None as long as the Trainer's
            schedule is used.
    """

    def __init__(self) -> None:
        self.configured: Any = None
        self.config: Any = None

    def update(self, lightning_trainer: Any) -> None:
        """Update `config` at the start of an epoch."""
        self.config = None
        configs = lightning_trainer.lr_scheduler_configs
        if configs and configs[0].scheduler is not self.configured:
            self.config = configs[0]

    def step(self) -> float:
        """Step a schedule with the interval `step`; return the learning rate from before."""
        rate = float(self.config.scheduler.optimizer.param_groups[0]["lr"])
        if self.config.interval == "step":
            self.config.scheduler.step()
        return rate

    def epoch_ended(self) -> None:
        """Step a schedule with the interval `epoch`."""
        if self.config is not None and self.config.interval == "epoch":
            self.config.scheduler.step()


def _is(callback: object, name: str) -> bool:
    return any(base.__name__ == name for base in _class_of(callback).__mro__)


def _class_of(callback: object) -> type:
    if isinstance(callback, type):
        return callback
    return type(callback)
