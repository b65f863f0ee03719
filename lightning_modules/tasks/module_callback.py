"""Work of the modules at Lightning's hooks, in a callback: users override the empty hooks
without `super()`.
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from ..internals.lightning_import import Callback, LightningModule, Trainer
from .resuming import ResumableModule


class HookedModule(ResumableModule):
    """The part of `LossModule` by which its own work at hooks does not depend on the hooks of
    the module.
    """

    @property
    def attached_trainer(self) -> Trainer | None:
        """Return the trainer; None in Fabric, a unit test, or a loop of the user's own."""
        if self.fabric is not None:
            return None
        try:
            return self.trainer
        except RuntimeError:
            return None

    def own_callbacks(self) -> list[Callback]:
        """Return the callbacks that this module needs."""
        return [*super().own_callbacks(), ModuleCallback()]

    def begin_fit(self) -> None:
        """Prepare a training."""

    def end_fit(self) -> None:
        """Undo what `begin_fit` did."""

    def begin_epoch(self, stage: str) -> None:
        """Prepare an epoch.

        Args:
            stage: train, val or test.
        """

    def end_epoch(self, stage: str) -> None:
        """Log what was counted in an epoch.

        Args:
            stage: train, val or test.
        """

    def begin_batch(self, batch: Any) -> None:
        """Prepare a batch of the training.

        Args:
            batch: on the device.
        """

    def end_step(self) -> None:
        """Prepare the gradients for the step of an optimizer."""


class ModuleCallback(Callback):
    """Call the methods of a `HookedModule`, before the hooks of the same name of the module
    itself.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prepare the training."""
        if isinstance(pl_module, HookedModule):
            pl_module.begin_fit()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the model as it was."""
        if isinstance(pl_module, HookedModule):
            pl_module.end_fit()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an epoch of the training."""
        if isinstance(pl_module, HookedModule):
            pl_module.begin_epoch("train")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
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
