"""A LightningModule around any model that returns a loss, for `lightning.Trainer` and its users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .collect import find_batch_size
from .label_smoothing import LabelSmoother
from .metrics import as_batch_metrics
from .model_module import ModelSource
from .models import accepts_loss_kwargs, base_of_adapter
from .module_optimizers import OptimizerSetting, ScheduleSetting, to_plain_setting
from .next_token import predicts_next_token
from .optimized_module import OptimizedModule
from .outputs import predictions_in, read_loss
from .own_samples import cut_batch, samples_that_count
from .stage_metrics import StageMetrics, is_number, name_in_stage
from .step_window import batches_per_step

__all__ = ["LossModule"]

_not_compiled: Any = torch.compiler.disable


class LossModule(OptimizedModule):
    """As a model under the Trainer API, but a plain LightningModule: every feature of `lightning.Trainer` works.

    Automatic optimization: `accumulate_grad_batches`, `gradient_clip_val`, `precision`, strategies and loggers are
    Lightning's. A batch is a mapping of the arguments of the model's `forward`. Its checkpoints are those of a
    `ResumableModule`; with the plugin `FolderCheckpointIO` they are folders that the Trainer API reads and writes too.

    Losses and weights are those of the Trainer API: to the last bit, and with accumulated gradients to rounding. So
    with several batches a step every item counts the same, in a shorter last step too, see `step_window`.

    Logs `train_loss` at each step (over all its batches so far), `val_loss` and `test_loss` over an epoch, each sample
    counting the same, and metrics over an epoch as `val_<name>`, `test_<name>` and `train_<name>`. Where there is a
    dict of validation or test loaders, each has its own: `val_<loader>_loss`.

    Args:
        model: returns a loss in a mapping, as the first of a tuple, or as an attribute `loss`. Or a function without
            arguments that makes the model, or `{"class_path": "my.Model", "init_args": {...}}`: it is then made in
            `configure_model`, where strategies that shard it want it. Only the last stays in a checkpoint; for the
            others it is `load_from_checkpoint(path, model=...)`.
        optimizer: what `configure_optimizers` makes: an `OptimizerConfig`, a dict of its fields, a class of any library
            as `{"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}`, or a function of parameter groups. Weight
            decay spares biases and normalisation layers.
        schedule: learning rate over the steps; constant by default. A `ScheduleConfig`, or one of the other forms. Its
            `total_steps` may be left out: the length of the training is taken. Schedules of other libraries are stepped
            after each epoch, plateau schedules with `monitor`.
        metrics: torchmetrics objects, or `BatchMetrics` of them, as in `Trainer(compute_metrics=...)`: updated with
            what the model returns beside the loss, and the labels. Lightning's sampler for several processes repeats
            samples where they do not divide, and they count twice; `DataModule` makes loaders of other kinds.
        train_metrics: the same for the batches of the training, as the model was when it saw them. True stands for
            those in `metrics`.
        label_names: where the labels are in a batch.
        label_smoothing: as `label_smoothing_factor`: the loss is computed from the logits, see `LabelSmoother`.
        neftune_noise_alpha: strength of the noise on the input embeddings while training.
        monitor: what a plateau schedule watches.
        shard_layers: names of the classes of layers that `ModelParallelStrategy` gathers one by one; by default those
            that the model itself names (`_no_split_modules`).

    Attributes:
        learning_rate: the full learning rate, for Lightning's `Tuner.lr_find`.
        metric_values: all that the metrics said last; what is no number, such as a confusion matrix, is not logged.
    """

    def __init__(
        self,
        model: ModelSource = None,
        *,
        optimizer: OptimizerSetting = None,
        schedule: ScheduleSetting = None,
        metrics: Any = None,
        train_metrics: Any = None,
        label_names: Sequence[str] = ("labels",),
        label_smoothing: float = 0.0,
        neftune_noise_alpha: float | None = None,
        monitor: str = "val_loss",
        shard_layers: Sequence[str] = (),
    ) -> None:
        super().__init__(
            model,
            optimizer=optimizer,
            schedule=schedule,
            monitor=monitor,
            label_names=label_names,
            neftune_noise_alpha=neftune_noise_alpha,
            shard_layers=shard_layers,
        )
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"`label_smoothing` is {label_smoothing}, but it is a share: give a number from 0 to 1.")
        self.label_smoothing = label_smoothing
        self.metric_values: dict[str, Any] = {}
        self._asked = (0, False)
        self._set_metrics(metrics, train_metrics)
        self.keep_hyperparameters(
            optimizer=to_plain_setting(self.optimizer_config),
            schedule=to_plain_setting(self.schedule_config),
            label_names=self.label_names,
            label_smoothing=label_smoothing,
            neftune_noise_alpha=neftune_noise_alpha,
            monitor=monitor,
            shard_layers=self.shard_layers,
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns."""
        return self._require_model()(*args, **kwargs)

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> torch.Tensor:
        """Loss of a batch."""
        items = self._items(batch)
        loss, outputs = self.compute_loss(batch, items)
        self._note_trained(batch, items, loss, outputs)
        return loss

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        """Loss of a batch."""
        return self._evaluated("val", batch, dataloader_idx)

    def test_step(self, batch: Mapping[str, Any], batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        """Loss of a batch."""
        return self._evaluated("test", batch, dataloader_idx)

    def predict_step(self, batch: Mapping[str, Any], batch_idx: int, dataloader_idx: int = 0) -> Any:
        """What the model returns for a batch."""
        return self.model(**batch)

    def compute_loss(self, batch: Mapping[str, Any], items: torch.Tensor | None = None) -> tuple[torch.Tensor, Any]:
        """As `Trainer.compute_loss`: the loss of a batch, and what the model returned; the place to override.

        Args:
            batch: a mapping of the arguments of the model's `forward`.
            items: how many labels of it count, where the model wants to know; else None.

        Returns:
            The loss, a mean over this batch, and the outputs.
        """
        inputs = self.model_inputs(batch)
        labels = batch.get("labels") if self.label_smoothing else None
        if labels is not None:
            inputs.pop("labels", None)
        if items is not None:
            # Where one batch of several has none of them its loss is 0, not 0 / 0.
            several = self.trainer.training and self.trainer.world_size * batches_per_step(self.trainer) > 1
            items = inputs["num_items_in_batch"] = items.clamp(min=1) if several else items
        outputs = self.model(**inputs)
        if labels is None:
            return self.read_loss(outputs, batch, items), outputs
        self._require_classes()
        smoother = LabelSmoother(epsilon=self.label_smoothing)
        alone = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        return smoother(alone, labels, shift_labels=self._predicts_next_token()), outputs

    def model_inputs(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """What of a batch the model is given: all of it."""
        return dict(batch)

    def read_loss(self, outputs: Any, batch: Mapping[str, Any], items: torch.Tensor | None) -> torch.Tensor:
        """The loss in what the model returned, where labels are not smoothed."""
        return read_loss(outputs, batch)

    def on_train_epoch_start(self) -> None:
        """Empty metrics."""
        super().on_train_epoch_start()
        self._counted["train"].begin("train", 1, self.device)

    def on_validation_epoch_start(self) -> None:
        """Empty metrics."""
        self._begin("val")

    def on_test_epoch_start(self) -> None:
        """Empty metrics."""
        self._begin("test")

    def on_train_epoch_end(self) -> None:
        """Log the metrics."""
        self._log_metrics("train")

    def on_validation_epoch_end(self) -> None:
        """Log the metrics."""
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics."""
        self._log_metrics("test")

    def predictions_of(self, outputs: Any) -> Any:
        """What counts as predictions in what the model returned: all but the loss, and what its config leaves out."""
        return predictions_in(outputs, _not_predicted(self.model))

    def _set_metrics(self, metrics: Any, train_metrics: Any) -> None:
        self.metrics = None if metrics is None else as_batch_metrics(metrics)
        chosen = self.metrics if train_metrics is True else train_metrics or None
        self.train_metrics = None if chosen is None else as_batch_metrics(chosen)
        self._counted = {name: StageMetrics(self.metrics) for name in ("val", "test")}
        self._counted["train"] = StageMetrics(self.train_metrics)

    def _evaluated(self, stage: str, batch: Mapping[str, Any], loader: int) -> torch.Tensor:
        counting = self._counting(stage, batch, loader)
        if counting is not None:
            batch = cut_batch(batch, max(counting, 1))  # every process takes part in every step
        loss, outputs = self.compute_loss(batch, self._items(batch))
        self._note_evaluated(stage, batch, loader, loss, outputs, counting)
        return loss

    # Lightning's `log` cannot be compiled.

    @_not_compiled
    def _note_trained(self, batch: Any, items: torch.Tensor | None, loss: torch.Tensor, outputs: Any) -> None:
        self._add_to_step(loss, items)
        self.log("train_loss", self.window.loss, prog_bar=True, batch_size=find_batch_size(batch))
        self._count("train", 0, batch, loss, outputs, counts=True)

    @_not_compiled
    def _note_evaluated(
        self, stage: str, batch: Any, loader: int, loss: torch.Tensor, outputs: Any, counting: int | None
    ) -> None:
        name = name_in_stage(stage, "loss", self._loaders(stage), loader)
        size = find_batch_size(batch) if counting is None else counting
        if size is not None:  # Lightning rounds the mean of these over the processes
            size *= self.trainer.world_size
        self.log(name, loss, prog_bar=True, batch_size=size, sync_dist=True, add_dataloader_idx=False)
        self._count(stage, loader, batch, loss, outputs, counts=counting != 0)

    def _counting(self, stage: str, batch: Any, index: int) -> int | None:
        """The samples of a batch that are no repetitions, where there are any."""
        loaders = self._loaders(stage)
        if isinstance(loaders, (Mapping, list, tuple)):
            loaders = list(loaders.values() if isinstance(loaders, Mapping) else loaders)[index]
        return samples_that_count(loaders, batch, self.trainer.global_rank, self.trainer.world_size)

    def _count(
        self, stage: str, loader: int, batch: Mapping[str, Any], loss: torch.Tensor, outputs: Any, *, counts: bool
    ) -> None:
        if self._counted[stage].metrics is not None:
            predictions, shift = self.predictions_of(outputs), self._predicts_next_token()
            further = {"inputs": batch, "loss": loss.detach(), "shift": shift, "counts": counts}
            self._counted[stage].update(stage, loader, predictions, self._labels(batch), **further)

    def _labels(self, batch: Mapping[str, Any]) -> Any:
        labels = tuple(batch.get(label) for label in self.label_names)
        return labels[0] if len(labels) == 1 else labels

    def _begin(self, stage: str) -> None:
        loaders = self._loaders(stage)
        several = len(loaders) if isinstance(loaders, (Mapping, list, tuple)) else 1
        self._counted[stage].begin(stage, several, self.device)

    def _loaders(self, stage: str) -> Any:
        return getattr(self.trainer, f"{stage}_dataloaders")

    def _log_metrics(self, stage: str) -> None:
        loaders = self._loaders(stage) if stage != "train" else None
        values: dict[str, Any] = {}
        for index, found in enumerate(self._counted[stage].take(stage)):
            values |= {name_in_stage(stage, name, loaders, index): value for name, value in found.items()}
        self.metric_values = {**self.metric_values, **values}
        numbers = {name: value for name, value in values.items() if is_number(value)}
        if numbers:
            self.log_dict(numbers, prog_bar=True, sync_dist=True, add_dataloader_idx=False)

    def _items(self, batch: Any) -> torch.Tensor | None:
        """The labels that count, where the model wants to be told; smoothing shifts them by itself."""
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        if not isinstance(labels, torch.Tensor) or not self._wants_items():
            return None
        shifted = self.label_smoothing and self._predicts_next_token()
        return (labels[..., 1:] if shifted else labels).ne(-100).sum()

    def _wants_items(self) -> bool:
        if self._asked[0] != id(self.model):  # asked once: this is wanted at every step
            self._asked = (id(self.model), accepts_loss_kwargs(base_of_adapter(self.model)))
        return self._asked[1]

    def _add_to_step(self, loss: torch.Tensor, items: torch.Tensor | None) -> None:
        processes = self.trainer.world_size
        if items is None or processes == 1:
            self.window.add(loss, items)
        else:
            together: Any = self.trainer.strategy.reduce(items.clone(), reduce_op="sum")
            self.window.add(loss, together, share=items * processes)

    def _predicts_next_token(self) -> bool:
        return predicts_next_token(base_of_adapter(self.model))

    def _require_classes(self) -> None:
        problem = getattr(getattr(self.model, "config", None), "problem_type", None)
        if problem == "multi_label_classification":
            raise ValueError(
                f"`label_smoothing` is {self.label_smoothing}, but the model's problem_type is {problem!r}: several "
                "labels cannot be smoothed over classes. Leave label_smoothing out."
            )


def _not_predicted(model: nn.Module) -> list[str]:
    """Outputs that are no predictions, as the model's config says."""
    config = getattr(model, "config", None)
    return [] if config is None else list(getattr(config, "keys_to_ignore_at_inference", ["past_key_values"]))
