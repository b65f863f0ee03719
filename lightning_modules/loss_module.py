"""A LightningModule around any model that returns a loss, for `lightning.Trainer` and its users."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .collect import find_batch_size
from .metrics import as_batch_metrics
from .names import SchedulerType
from .next_token import predicts_next_token
from .optimizers import OptimizerConfig, steps_in_backward
from .outputs import read_loss, split_outputs
from .resumable import ResumableModule
from .schedules import ScheduleConfig


class LossModule(ResumableModule):
    """As a model under the Trainer API, but a plain LightningModule: every feature of `lightning.Trainer` works.

    Automatic optimization: `accumulate_grad_batches`, `gradient_clip_val`, `precision`, strategies and loggers are
    Lightning's. A batch is a mapping of the arguments of the model's `forward`. Its checkpoints are those of a
    `ResumableModule`; with the plugin `FolderCheckpointIO` they are folders that the Trainer API reads and writes too.

    Logs `train_loss` at each step, `val_loss` and `test_loss` over an epoch, each sample counting the same, and the
    metrics over an epoch as `val_<name>` and `test_<name>`.

    Args:
        model: returns a loss in a mapping, as the first of a tuple, or as an attribute `loss`.
        optimizer: what `configure_optimizers` makes; weight decay spares biases and normalisation layers.
        schedule: learning rate over the steps; constant by default. Its `total_steps` may be left out: the length of
            the training is taken. A plateau schedule watches `val_loss`.
        metrics: torchmetrics objects, or `BatchMetrics` of them, as in `Trainer(compute_metrics=...)`: updated with
            what the model returns beside the loss, and the labels. Lightning's sampler for several processes repeats
            samples where they do not divide, and they count twice; `build_loader` makes loaders of other kinds.
        label_names: where the labels are in a batch.

    Attributes:
        metric_values: all that the metrics said last; what is no number, such as a confusion matrix, is not logged.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: OptimizerConfig | None = None,
        schedule: ScheduleConfig | None = None,
        metrics: Any = None,
        label_names: Sequence[str] = ("labels",),
    ) -> None:
        super().__init__()
        self.model = model
        self.optimizer_config = OptimizerConfig() if optimizer is None else optimizer
        self.schedule_config = schedule
        self._in_backward: Any = None  # the optimizer, if it steps there
        self.metrics = None if metrics is None else as_batch_metrics(metrics)
        self.metric_values: dict[str, Any] = {}
        self.label_names = list(label_names)

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
        return self._evaluated("val_loss", batch)

    def test_step(self, batch: Mapping[str, Any], batch_idx: int) -> torch.Tensor:
        """Loss of a batch."""
        return self._evaluated("test_loss", batch)

    def on_validation_epoch_start(self) -> None:
        """Empty metrics."""
        self._reset_metrics()

    def on_test_epoch_start(self) -> None:
        """Empty metrics."""
        self._reset_metrics()

    def on_validation_epoch_end(self) -> None:
        """Log the metrics."""
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics."""
        self._log_metrics("test")

    def predict_step(self, batch: Mapping[str, Any], batch_idx: int) -> Any:
        """What the model returns for a batch."""
        return self.model(**batch)

    def configure_optimizers(self) -> Any:
        """The optimizer, and the schedule, stepped after each optimizer step."""
        optimizer = self.optimizer_config.build(self.model)
        self._in_backward = optimizer if steps_in_backward(optimizer) else None
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

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Torch's own, or that of an optimizer that steps in it, such as LOMO."""
        if self._in_backward is None:
            super().backward(loss, *args, **kwargs)
        else:
            self._in_backward.fused_backward(loss, self._in_backward.param_groups[0]["lr"])

    def _loss(self, batch: Mapping[str, Any]) -> torch.Tensor:
        return read_loss(self.model(**batch), batch)

    def _evaluated(self, name: str, batch: Mapping[str, Any]) -> torch.Tensor:
        outputs = self.model(**batch)
        loss = read_loss(outputs, batch)
        self.log(name, loss, prog_bar=True, batch_size=find_batch_size(batch), sync_dist=True)
        if self.metrics is not None:
            predictions = split_outputs(outputs, _not_predicted(self.model), has_loss=True)
            labels = tuple(batch.get(label) for label in self.label_names)
            self.metrics.update(
                predictions[0] if len(predictions) == 1 else predictions,
                labels[0] if len(labels) == 1 else labels,
                inputs=batch,
                loss=loss,
                shift=predicts_next_token(self.model),
            )
        return loss

    def _reset_metrics(self) -> None:
        if self.metrics is not None:
            self.metrics.reset()

    def _log_metrics(self, stage: str) -> None:
        if self.metrics is None:
            return
        self.metric_values = {f"{stage}_{name}": value for name, value in self.metrics.compute().items()}
        numbers = {name: value for name, value in self.metric_values.items() if _is_number(value)}
        self.log_dict(numbers, prog_bar=True, sync_dist=True)
        self.metrics.reset()


def _not_predicted(model: nn.Module) -> list[str]:
    """Outputs that are no predictions, as the model's config says."""
    config = getattr(model, "config", None)
    return [] if config is None else list(getattr(config, "keys_to_ignore_at_inference", ["past_key_values"]))


def _is_number(value: Any) -> bool:
    """Whether it can be logged: a matrix of confusion, or a value for each class, cannot."""
    return isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)
