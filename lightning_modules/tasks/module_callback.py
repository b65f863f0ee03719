"""Callback that runs the work of our modules at Lightning's hooks.

This way users can override the hooks of a module without calling `super()`.
"""

from __future__ import annotations

from torch.optim import Optimizer

from ..internals.lightning_import import Callback, LightningModule, Trainer
from .resuming import ResumableModule


class HookedModule(ResumableModule):
    """Base class of `LossModule` that allows users to override hooks without calling `super()`.

    Subclasses override `begin_fit` and the methods below it; `ModuleCallback` calls them.
    """

    @property
    def attached_trainer(self) -> Trainer | None:
        """Return the trainer; None in Fabric, in a unit test, or in a loop that the user wrote."""
        if self.fabric is not None:
            return None
        try:
            return self.trainer
        except RuntimeError:
            return None

    def required_callbacks(self) -> list[Callback]:
        """Return the callbacks that this module needs."""
        return [*super().required_callbacks(), ModuleCallback()]

    def begin_fit(self) -> None:
        """Prepare a training."""

    def end_fit(self) -> None:
        """Undo what `begin_fit` did."""

    def begin_training(self) -> None:
        """Prepare the first batch of a training, which may resume within an epoch."""

    def begin_epoch(self, stage: str) -> None:
        """Prepare an epoch.

        Args:
            stage: train, val or test.
        """

    def end_epoch(self, stage: str) -> None:
        """Log the metrics of an epoch.

        Args:
            stage: train, val or test.
        """

    def begin_batch(self, batch: object) -> None:
        """Prepare a batch of the training.

        Args:
            batch: the batch, on the device.
        """

    def end_step(self) -> None:
        """Prepare the gradients for the step of an optimizer."""


class ModuleCallback(Callback):
    """Calls the methods of a `HookedModule`, before Lightning calls the hooks of the module."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prepare the training."""
        if isinstance(pl_module, HookedModule):
            pl_module.begin_fit()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the model as it was."""
        if isinstance(pl_module, HookedModule):
            pl_module.end_fit()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the training."""
        if isinstance(pl_module, HookedModule):
            pl_module.begin_training()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an epoch of the training."""
        if isinstance(pl_module, HookedModule):
            pl_module.begin_epoch("train")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Begin a batch of the training."""
        if isinstance(pl_module, HookedModule):
            pl_module.begin_batch(batch)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """End a step."""
        if isinstance(pl_module, HookedModule):
            pl_module.end_step()

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a validation."""
        if isinstance(pl_module, HookedModule):
            pl_module.begin_epoch("val")

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a test."""
        if isinstance(pl_module, HookedModule):
            pl_module.begin_epoch("test")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log metrics of the training."""
        if isinstance(pl_module, HookedModule):
            pl_module.end_epoch("train")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log metrics of the validation."""
        if isinstance(pl_module, HookedModule):
            pl_module.end_epoch("val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log metrics of the test."""
        if isinstance(pl_module, HookedModule):
            pl_module.end_epoch("test")
