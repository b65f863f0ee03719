"""The LightningModule behind the facade: Lightning's loops call it, and it calls the driver of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from ..internals.fast_path import FastModule
from ..internals.lightning_import import callbacks_of
from ..tasks.resumable import add_process_states
from .accumulation import Window


class Driver(Protocol):
    """What a run does at each point of Lightning's loops. The facade implements it."""

    def set_up(self) -> None:
        """A training is about to begin, and Lightning has set up its callbacks."""
        ...

    def optimizers(self) -> tuple[Optimizer, Any]:
        """Optimizer and learning rate scheduler, made when the model is wrapped and on its device."""
        ...

    def train_begin(self) -> None:
        """Everything is set up; nothing has been read yet."""
        ...

    def epoch_begin(self) -> None:
        """A pass over the data begins."""
        ...

    def step_begin(self, window: Window) -> int | None:
        """A window has been read; -1 ends the epoch without a step."""
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
        """One batch of an evaluation; returns what Lightning callbacks get as its outputs."""
        ...

    def evaluation_end(self) -> dict[str, float]:
        """All batches of an evaluation are done: its metrics, for callbacks that watch one."""
        ...


class DrivenModule(FastModule):
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

    @property
    def device(self) -> torch.device:
        """Where the model is, also before Lightning has moved it: callbacks make their copies there."""
        return next((parameter.device for parameter in self.parameters()), super().device)

    def configure_optimizers(self) -> Any:
        """Optimizer and scheduler of the run; Lightning callbacks such as LearningRateMonitor see them."""
        optimizer, scheduler = self.driver.optimizers()
        if scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def setup(self, stage: str) -> None:
        """The callbacks are set up: those of a resumed training go on from their states."""
        if stage == "fit":
            self.driver.set_up()

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which callbacks that average weights make: without the run, its data and its Trainer."""
        return {**super().__getstate__(), "driver": None}

    def training_step(self, batch: Window, batch_idx: int) -> torch.Tensor | None:
        """One optimizer step."""
        return self.driver.step(batch)

    def backward(self, loss: torch.Tensor, *args: Any, learning_rate: float | None = None, **kwargs: Any) -> None:
        """Torch's own, or with a learning rate that of an optimizer that steps in it."""
        if learning_rate is None:
            loss.backward(*args, **kwargs)
        else:
            optimizer: Any = self.optimizers(use_pl_optimizer=False)
            optimizer.fused_backward(loss, learning_rate)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """One batch of `evaluate`."""
        return self.driver.evaluation_step(batch)

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """One batch of `predict`."""
        return self.driver.evaluation_step(batch)

    def on_validation_epoch_end(self) -> None:
        """End an evaluation."""
        self._log_metrics()

    def on_test_epoch_end(self) -> None:
        """End a prediction."""
        self._log_metrics()

    def _log_metrics(self) -> None:
        """Show the metrics to Lightning callbacks, such as its EarlyStopping and ModelCheckpoint."""
        if callbacks_of(self.trainer):
            with torch.enable_grad():  # as outside of the loop, where metrics are computed otherwise
                metrics = self.driver.evaluation_end()
            self.log_dict(metrics, sync_dist=True, logger=False)  # the Trainer logs them

    def on_train_start(self) -> None:
        """Begin the run."""
        self.driver.train_begin()

    def on_train_epoch_start(self) -> None:
        """Begin an epoch."""
        self.driver.epoch_begin()

    def on_train_batch_start(self, batch: Window, batch_idx: int) -> int | None:
        """Begin a step; -1 ends the epoch without it."""
        return self.driver.step_begin(batch)

    def on_train_batch_end(self, outputs: Any, batch: Window, batch_idx: int) -> None:
        """End a step."""
        self.driver.step_end(batch)

    def on_train_epoch_end(self) -> None:
        """End an epoch."""
        self.driver.epoch_end()

    def on_train_end(self) -> None:
        """End the run."""
        self.driver.train_end()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """For a `ModelCheckpoint` of the user: let its files tell what a folder would."""
        add_process_states(checkpoint, self.trainer)

    def cpu(self) -> DrivenModule:
        """Stay on the device: Lightning empties it after each run, but the model is used afterwards."""
        return self


class ShardedModule(DrivenModule):
    """As `DrivenModule`, for strategies under which the model is spread over processes when Lightning configures it.

    Args:
        model: the user's model.
        driver: the run.
        configure: takes this module, whose strategy is set up by then, and returns what to call in the model's place;
            it is called once a run, also for a model that is spread already.
    """

    def __init__(self, model: nn.Module, driver: Driver, configure: Callable[[Any], nn.Module]) -> None:
        super().__init__(model, driver)
        self._configure = configure

    def configure_model(self) -> None:
        """Spread the model."""
        self.model = self._configure(self)
