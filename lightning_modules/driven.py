"""The LightningModule behind the facade: Lightning's loops call it, and it calls the driver of the run."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from .engine import LeanModule
from .windows import Window


class Driver(Protocol):
    """What a run does at each point of Lightning's loops. The facade implements it."""

    def optimizers(self) -> tuple[Optimizer, Any]:
        """Optimizer and learning rate scheduler, made when the model is wrapped and on its device."""
        ...

    def train_begin(self) -> None:
        """Everything is set up; nothing has been read yet."""
        ...

    def epoch_begin(self) -> None:
        """A pass over the data begins."""
        ...

    def step_begin(self, window: Window) -> None:
        """A window has been read."""
        ...

    def step(self, window: Window) -> torch.Tensor | None:
        """Forward, backward, clipping and the optimizer step of a window; returns its loss."""
        ...

    def step_end(self, window: Window) -> None:
        """The optimizer has stepped: the place to log, evaluate and save."""
        ...

    def epoch_end(self) -> None:
        """A pass over the data ended."""
        ...

    def train_end(self) -> None:
        """The last epoch ended; the model is still wrapped and on its device."""
        ...

    def evaluation_step(self, inputs: Any) -> Any:
        """One batch of an evaluation."""
        ...


class DrivenModule(LeanModule):
    """Manual optimization, one window of micro-batches a step, under the command of a `Driver`.

    The user's `Trainer.training_step` runs the backward pass itself, and clipping, callbacks and the scheduler happen
    in the documented order, so Lightning's automatic optimization cannot be used here. `LossModule` is for Lightning
    users. Batches stay where they are: `Trainer._prepare_inputs`, an override point, moves them.

    Args:
        model: the user's model; its parameters are this module's.
        driver: the run.
    """

    def __init__(self, model: nn.Module, driver: Driver) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.driver = driver

    def configure_optimizers(self) -> Any:
        """Optimizer and scheduler of the run; Lightning callbacks such as LearningRateMonitor see them."""
        optimizer, scheduler = self.driver.optimizers()
        return [optimizer], ([] if scheduler is None else [scheduler])

    def training_step(self, batch: Window, batch_idx: int) -> torch.Tensor | None:
        """One optimizer step."""
        return self.driver.step(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """One batch of `evaluate`."""
        return self.driver.evaluation_step(batch)

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """One batch of `predict`."""
        return self.driver.evaluation_step(batch)

    def on_train_start(self) -> None:
        """Begin the run."""
        self.driver.train_begin()

    def on_train_epoch_start(self) -> None:
        """Begin an epoch."""
        self.driver.epoch_begin()

    def on_train_batch_start(self, batch: Window, batch_idx: int) -> None:
        """Begin a step."""
        self.driver.step_begin(batch)

    def on_train_batch_end(self, outputs: Any, batch: Window, batch_idx: int) -> None:
        """End a step."""
        self.driver.step_end(batch)

    def on_train_epoch_end(self) -> None:
        """End an epoch."""
        self.driver.epoch_end()

    def on_train_end(self) -> None:
        """End the run."""
        self.driver.train_end()

    def cpu(self) -> DrivenModule:
        """Stay on the device: Lightning empties it after each run, but the model is used afterwards."""
        return self
