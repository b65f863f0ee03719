"""LightningModule that logs metrics of training, validation and test."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..common.stop_iteration import stop_iteration_guard
from ..evaluation.metrics import as_batch_metrics
from ..evaluation.stage_metrics import StageMetrics, as_numbers, name_in_stage
from ..internals.lightning_internals import log_of_loader
from .model_module import ModelSource
from .optimizer_module import OptimizerModule

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_log = logging.getLogger(__name__)


class MetricsModule(OptimizerModule):
    """Base class of `LossModule` that resets metrics at the start of an epoch, and logs them at its
    end.

    `LossModule` updates the metrics with each batch.

    Args:
        model: a module, or a function that creates one.
        metrics: metrics of validation and test; `LossModule` describes their forms.
        train_metrics: metrics of the training; True means those in `metrics`.
        log_separator: between the stage and the rest of a name in logs.
        kwargs: arguments of `OptimizerModule`.
    """

    def __init__(
        self,
        model: ModelSource,
        *,
        metrics: Any,
        train_metrics: Any,
        log_separator: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, **kwargs)
        self.log_separator = log_separator
        self.metric_values: dict[str, Any] = {}
        self._warned_names: set[str] = set()
        self._set_metrics(metrics, train_metrics)

    def begin_training(self) -> None:
        """Reset the metrics of the training.

        A training that resumes within an epoch covers the rest of that epoch, without calling
        `begin_epoch`.
        """
        super().begin_training()
        self._reset_metrics("train")

    def begin_epoch(self, stage: str) -> None:
        """Reset the metrics of the stage; called before the first batch of an epoch.

        Args:
            stage: "train", "val" or "test".
        """
        super().begin_epoch(stage)
        self._reset_metrics(stage)

    def end_epoch(self, stage: str) -> None:
        """Log the metrics of the stage; called after the last batch of an epoch.

        Args:
            stage: "train", "val" or "test".
        """
        super().end_epoch(stage)
        self._log_metrics(stage)

    def _set_metrics(self, metrics: object, train_metrics: object) -> None:
        self.metrics = None
        if metrics is not None:
            self.metrics = as_batch_metrics(metrics)

        self.train_metrics = None
        if train_metrics is True:
            train_metrics = self.metrics
        if train_metrics:
            self.train_metrics = as_batch_metrics(train_metrics)

        for batch_metrics in (self.metrics, self.train_metrics):
            if batch_metrics is not None:
                _require_no_loss(batch_metrics.value_names())

        # Each stage has its own copies, because a validation may run within a training epoch.
        self._stage_metrics = {
            "train": StageMetrics(self.train_metrics),
            "val": StageMetrics(self.metrics),
            "test": StageMetrics(self.metrics),
        }

    def _reset_metrics(self, stage: str) -> None:
        loaders = self._count_loaders(stage) or 1
        self._stage_metrics[stage].begin(stage, loaders, self.device)

    def _name_in_logs(self, stage: str, name: str, loader: int = 0) -> str:
        return name_in_stage(stage, name, self._loaders(stage), loader, self.log_separator)

    def _loaders(self, stage: str) -> Any:
        if stage == "train":
            return self.trainer.train_dataloader
        return getattr(self.trainer, f"{stage}_dataloaders")

    def _count_loaders(self, stage: str) -> int:
        """Return the number of loaders in a collection; 0 for a single loader."""
        loaders = self._loaders(stage)
        if isinstance(loaders, (Mapping, list, tuple)):
            return len(loaders)
        return 0

    @stop_iteration_guard
    def _log_metrics(self, stage: str) -> None:
        values_of_loaders = self._stage_metrics[stage].compute_and_reset(
            stage, self._metrics_process_group()
        )
        for index, values in enumerate(values_of_loaders):
            _require_no_loss(values)
            numbers: dict[str, Any] = {}
            for name, value in values.items():
                full_name = self._name_in_logs(stage, name, index)
                self.metric_values[full_name] = value

                # Log the elements of a vector separately.
                entries = as_numbers(name, value)
                if not entries:
                    self._warn_not_logged(full_name, value)
                for entry_name, entry in entries.items():
                    numbers[self._name_in_logs(stage, entry_name, index)] = entry
            self._log_numbers(stage, index, numbers)

    def _metrics_process_group(self) -> ProcessGroup | None:
        """Return the process group over which metrics are summed; None for all processes."""
        # Processes that share layers process the same samples, which must be counted once.
        mesh = self.device_mesh
        if mesh is None or "data_parallel" not in (mesh.mesh_dim_names or ()):
            return None
        return mesh["data_parallel"].get_group()

    def _log_numbers(self, stage: str, index: int, numbers: dict[str, Any]) -> None:
        options: dict[str, Any] = {
            "prog_bar": True,
            "sync_dist": True,
            "add_dataloader_idx": False,
        }
        if stage == "train":
            self.log_dict(numbers, **options)
        else:
            log_of_loader(self, index, numbers, **options)

    def _warn_not_logged(self, name: str, value: object) -> None:
        if name in self._warned_names:
            return
        self._warned_names.add(name)
        kind = type(value).__name__
        if isinstance(value, torch.Tensor):
            kind = f"tensor of shape {tuple(value.shape)}"
        _log.warning(
            "%s is a %s, which cannot be logged. Read it in `module.metric_values`.", name, kind
        )


def _require_no_loss(names: Iterable[str]) -> None:
    """Raise an error for a metric that would replace the loss in logs.

    Checkpointing and early stopping monitor the loss.
    """
    if "loss" in names:
        raise ValueError(
            "`metrics` has a value named 'loss', which is the name of the loss itself: rename the "
            "metric."
        )
