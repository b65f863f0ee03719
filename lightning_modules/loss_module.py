"""A LightningModule around any model that returns a loss, for `lightning.Trainer` and its users."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ._lightning import LightningModule
from .collect import find_batch_size
from .names import SchedulerType
from .optimizers import OptimizerConfig
from .outputs import read_loss
from .schedules import ScheduleConfig


class LossModule(LightningModule):
    """As a model under the Trainer API, but a plain LightningModule: every feature of `lightning.Trainer` works.

    Automatic optimization: `accumulate_grad_batches`, `gradient_clip_val`, `precision`, strategies and loggers are
    Lightning's. A batch is a mapping of the arguments of the model's `forward`.

    Logs `train_loss` at each step, `val_loss` and `test_loss` over an epoch, each sample counting the same.

    Args:
        model: returns a loss in a mapping, as the first of a tuple, or as an attribute `loss`.
        optimizer: what `configure_optimizers` makes; weight decay spares biases and normalisation layers.
        schedule: learning rate over the steps; constant by default. Its `total_steps` may be left out: the length of
            the training is taken. A plateau schedule watches `val_loss`.
    """

    def __init__(
        self, model: nn.Module, *, optimizer: OptimizerConfig | None = None, schedule: ScheduleConfig | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.optimizer_config = OptimizerConfig() if optimizer is None else optimizer
        self.schedule_config = schedule

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns."""
        return self.model(*args, **kwargs)

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> torch.Tensor:
        """Loss of a batch."""
        loss = self._loss(batch)
        self.log("train_loss", loss, prog_bar=True, batch_size=find_batch_size(batch))
        return loss

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int) -> torch.Tensor:
        """Loss of a batch."""
        return self._logged_loss("val_loss", batch)

    def test_step(self, batch: Mapping[str, Any], batch_idx: int) -> torch.Tensor:
        """Loss of a batch."""
        return self._logged_loss("test_loss", batch)

    def predict_step(self, batch: Mapping[str, Any], batch_idx: int) -> Any:
        """What the model returns for a batch."""
        return self.model(**batch)

    def configure_optimizers(self) -> Any:
        """The optimizer, and the schedule, stepped after each optimizer step."""
        optimizer = self.optimizer_config.build(self.model)
        if self.schedule_config is None:
            return optimizer
        config = self.schedule_config
        if SchedulerType(config.name) is SchedulerType.REDUCE_ON_PLATEAU:
            timing = {"interval": "epoch", "monitor": "val_loss"}
        else:
            timing = {"interval": "step"}
            if config.total_steps is None:
                config = dataclasses.replace(config, total_steps=int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": config.build(optimizer), **timing}}

    def _loss(self, batch: Mapping[str, Any]) -> torch.Tensor:
        return read_loss(self.model(**batch), batch)

    def _logged_loss(self, name: str, batch: Mapping[str, Any]) -> torch.Tensor:
        loss = self._loss(batch)
        self.log(name, loss, prog_bar=True, batch_size=find_batch_size(batch), sync_dist=True)
        return loss
