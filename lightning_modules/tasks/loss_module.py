"""LightningModule around any model that returns a loss, for users of `lightning.Trainer`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from ..common.batch_rows import slice_rows
from ..common.class_paths import build_described, is_description
from ..common.nested import count_rows, find_batch_size, map_nested
from ..common.stop_iteration import stop_iteration_guard
from ..internals.precision import to_float32
from ..models.outputs import CACHES, predictions_in, read_loss
from ..models.pretrained import predicts_next_token
from ..models.signatures import accepts_loss_kwargs
from ..models.wrappers import base_of_adapter
from ..optim.module_optimizers import OptimizerSetting, ScheduleSetting, to_stored_setting
from ..training.label_smoothing import LabelSmoother
from ..training.micro_batch_loss import count_labels, ignored_labels
from ..training.tracked_items import TrackedItems
from .batch_inputs import (
    as_arguments,
    count_targets,
    count_unrepeated_samples,
    describe_batch,
    parts_of,
    requires_all_parts,
    split_labels,
)
from .data_share import data_share
from .metrics_module import MetricsModule
from .model_module import ModelSource
from .step_window import batches_per_step, zero_without_items

LossFunction = nn.Module | Callable[[Any, Any], torch.Tensor] | dict[str, Any] | None
"""Function of the model's output and the labels.

May also be the description of a module: {"class_path": ..., "init_args": {...}}.
"""

_not_compiled: Any = torch.compiler.disable


class LossModule(MetricsModule):
    """LightningModule that trains any model with a loss, with the results of the Trainer API.

    Every feature of `lightning.Trainer` works with it.

    It uses automatic optimization: `accumulate_grad_batches`, `gradient_clip_val`, `precision`,
    strategies and loggers are those of Lightning. Checkpoints can be resumed exactly (see
    `ResumableModule`); with the plugin `FolderCheckpointIO` they are folders that the Trainer API
    can read and write too.

    A batch is a mapping of the arguments of the model's `forward`, a tuple or list of them in order
    with the labels last, as in `(x, y)`, or a single tensor. A model that returns its loss receives
    the whole batch. With `loss_fn` it receives everything except the labels, and the loss is
    `loss_fn(output, labels)`; a batch without labels is its own target (autoencoders).

    Losses and weights are bitwise identical to those of the Trainer API, or equal up to rounding
    with gradient accumulation. With several batches per step, all items have the same weight, even
    in a shorter last step (see `step_window`). An item is a label that is not ignored, or a row if
    the labels are not class indices.

    With several training loaders, in a dict or a list, each step combines a batch of each loader
    into one larger batch, and logs `train_<loader>_loss` for each loader.

    Logs `train_loss` at each step (over its batches so far), `val_loss` and `test_loss` averaged
    over all samples of an epoch, and metrics over an epoch as `val_<name>`, `test_<name>` and
    `train_<name>`. With a dict of validation or test loaders, `val_<loader>_loss` is logged for
    each.

    Args:
        model: a module that returns a loss in a mapping, as the first element of a tuple, or as an
            attribute `loss`; with `loss_fn` it may return anything. May also be a function without
            arguments that creates the model, or `{"class_path": "my.Model", "init_args": {...}}`,
            from which the model is created in `configure_model`, as sharding strategies expect.
            Only a description is stored in checkpoints; pass any other model to
            `load_from_checkpoint(path, model=...)` again.
        loss_fn: computes the mean loss of a batch from the output of the model and the labels:
            `nn.CrossEntropyLoss()`, a function, or the description of a class. Pass it to
            `load_from_checkpoint` again unless it is a description. Accumulated batches are
            weighted by the number of items in the mean (see `count_targets`).
        optimizer: an `OptimizerConfig`, a dict of its fields, a class of any library as
            `{"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}`, or a function of
            parameter groups. Weight decay is not applied to biases and normalisation layers. Pass
            functions to `load_from_checkpoint` again before training.
        schedule: the learning rate schedule; constant by default. A `ScheduleConfig`, or one of the
            other forms that `optimizer` accepts. `total_steps` defaults to the length of the
            training. Schedules of other libraries are stepped after each epoch, or at the
            `schedule_interval`; plateau schedules follow `monitor`.
        parameter_rules: learning rate, layer-wise decay, weight decay and freezing by patterns of
            parameter names, like `TrainingArguments(parameter_rules=)`, for example `{"head.*":
            {"lr_factor": 10}}`. `requires_grad` of frozen parameters is changed in place.
        metrics: torchmetrics objects, a dict of them and of functions of predictions and labels, or
            `BatchMetrics`, as in `Trainer(compute_metrics=...)`. They are updated with the labels
            and with all outputs of the model except the loss; functions receive all batches of an
            epoch at once. Lightning's distributed sampler duplicates samples if their number is not
            divisible, and these count twice; loaders of `DataModule` avoid that.
        train_metrics: metrics of the training batches, with the predictions of the training step.
            True means the same as in `metrics`.
        label_names: names of the labels if a batch is a mapping; several are passed to `loss_fn` as
            a tuple.
        label_smoothing: like `label_smoothing_factor`: the loss is computed from the logits; see
            `LabelSmoother`.
        neftune_noise_alpha: strength of the noise that is added to input embeddings in training.
        monitor: the metric that a plateau schedule follows; by default the validation loss.
        schedule_interval: "step" or "epoch", after which to step the schedule. A plateau schedule
            with the interval "step" must follow a value that is logged in each step, such as
            "train_loss".
        shard_layers: class names of the layers that `ModelParallelStrategy` shards as units; by
            default those in the model's `_no_split_modules`.
        log_separator: separator after the stage in logged names: "/" logs `train/loss` and
            `val/accuracy`.
        train_loss_on_epoch: whether to log the mean over all samples of an epoch as
            `train_loss_epoch` as well.

    Attributes:
        learning_rate: the peak learning rate, for Lightning's `Tuner.lr_find`.
        metric_values: the last values of all metrics. The elements of a vector, such as per-class
            values, are logged as `val_<name>_0`, ...; a confusion matrix is not logged.
    """

    _LOSS_ADVICE = (
        "Most models compute one only when they are given `labels`. Otherwise pass `loss_fn`, "
        "such as nn.CrossEntropyLoss(), or override `compute_loss`."
    )

    def __init__(
        self,
        model: ModelSource = None,
        *,
        loss_fn: LossFunction = None,
        optimizer: OptimizerSetting = None,
        schedule: ScheduleSetting = None,
        parameter_rules: dict[str, dict[str, Any]] | None = None,
        metrics: Any = None,
        train_metrics: Any = None,
        label_names: Sequence[str] = ("labels",),
        label_smoothing: float = 0.0,
        neftune_noise_alpha: float | None = None,
        monitor: str | None = None,
        schedule_interval: str | None = None,
        shard_layers: Sequence[str] = (),
        log_separator: str = "_",
        train_loss_on_epoch: bool = False,
    ) -> None:
        monitor_or_default = monitor
        if monitor_or_default is None:
            monitor_or_default = f"val{log_separator}loss"
        super().__init__(
            model,
            metrics=metrics,
            train_metrics=train_metrics,
            log_separator=log_separator,
            optimizer=optimizer,
            schedule=schedule,
            parameter_rules=parameter_rules,
            monitor=monitor_or_default,
            schedule_interval=schedule_interval,
            label_names=label_names,
            neftune_noise_alpha=neftune_noise_alpha,
            shard_layers=shard_layers,
        )
        if not 0 <= label_smoothing <= 1:
            raise ValueError(
                f"`label_smoothing` is {label_smoothing}, but it is a fraction: pass a number from "
                "0 to 1."
            )
        if loss_fn is not None and label_smoothing:
            raise ValueError(
                f"{label_smoothing=} has no effect on `loss_fn`. Remove it, and smooth the labels "
                "in the loss function."
            )
        self.label_smoothing = label_smoothing
        self.train_loss_on_epoch = train_loss_on_epoch
        self.loss_fn: Any = _build_loss_fn(loss_fn)
        # Id of the model, and whether it accepts `num_items_in_batch`.
        self._accepts_items_of = (0, False)
        self._batch: Any = None

        # A loss function is only saved in checkpoints if it is a description.
        stored_loss_fn: dict[str, Any] = {}
        if is_description(loss_fn):
            stored_loss_fn["loss_fn"] = loss_fn
        self.keep_hyperparameters(
            optimizer=to_stored_setting(self.optimizer_config),
            schedule=to_stored_setting(self.schedule_config),
            parameter_rules=parameter_rules,
            label_names=self.label_names,
            label_smoothing=label_smoothing,
            neftune_noise_alpha=neftune_noise_alpha,
            monitor=monitor,
            schedule_interval=schedule_interval,
            shard_layers=self.shard_layers,
            log_separator=log_separator,
            train_loss_on_epoch=train_loss_on_epoch,
            **stored_loss_fn,
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the model.

        Args:
            args: positional arguments of the model.
            kwargs: keyword arguments of the model.
        """
        return self._require_model()(*args, **kwargs)

    @stop_iteration_guard
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Compute the loss of a batch; those of several loaders are weighted by their items.

        Args:
            batch: as in the class; with several loaders a dict or list of them.
            batch_idx: its number in the epoch.

        Returns:
            The loss, a scalar with gradients.
        """
        losses: list[torch.Tensor] = []
        items_of_losses: list[torch.Tensor | None] = []
        for loader_index, loader_batch in self._batches_of_loaders(batch):
            # In the mode "max_size", exhausted loaders provide None.
            if loader_batch is None:
                continue
            items = self._items(loader_batch)
            loss, outputs = self.compute_loss(loader_batch, items)
            losses.append(loss)

            loss_items = self._log_training_batch(loader_batch, items, loss, outputs, loader_index)
            items_of_losses.append(loss_items)

        if len(losses) == 1:
            return losses[0]
        return _weighted_mean(losses, items_of_losses)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        """Compute the loss of a validation batch, and update the metrics.

        Args:
            batch: as in the class.
            batch_idx: its number in the loader.
            dataloader_idx: number of the loader.

        Returns:
            The loss, a scalar.
        """
        return self._compute_evaluation_loss("val", batch, batch_idx, dataloader_idx)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        """Compute the loss of a test batch, and update the metrics.

        Args:
            batch: as in the class.
            batch_idx: its number in the loader.
            dataloader_idx: number of the loader.

        Returns:
            The loss, a scalar.
        """
        return self._compute_evaluation_loss("test", batch, batch_idx, dataloader_idx)

    @stop_iteration_guard
    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Return the predictions for a batch: the output of the model without the loss.

        The model is called as in training. If the batch is a tuple and `forward` requires all of
        its parts, then none of them is a label, and all are passed.

        Args:
            batch: as in the class; labels are not passed to the model.
            batch_idx: its number in the loader.
            dataloader_idx: number of the loader.
        """
        has_names = isinstance(batch, Mapping)
        if not has_names and requires_all_parts(self.model, batch):
            args, kwargs = as_arguments(parts_of(batch))
            outputs = self.model(*args, **kwargs)
        else:
            excluded: Sequence[str] = ()
            if self.loss_fn is not None or (self.label_smoothing and not has_names):
                excluded = self.label_names
            outputs = self.call_model(batch, without=excluded)

        if self.loss_fn is not None:
            return outputs
        return self.predictions_of(outputs)

    def compute_loss(
        self, batch: Any, items: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Any]:
        """Compute the loss of a batch; override it to use another loss.

        Called by the steps of training, validation and test.

        Args:
            batch: as in the class.
            items: number of labels that are not ignored, if the model accepts it; otherwise None.

        Returns:
            The loss, a mean over this batch, and the output of the model.
        """
        if self.loss_fn is not None:
            labels = self._labels(batch)
            outputs = self.call_model(batch, without=self.label_names)
            return self.loss_fn(outputs, labels), outputs

        model_kwargs: dict[str, Any] = {}
        if items is not None:
            items = self._divisor(items)
            model_kwargs["num_items_in_batch"] = items

        # The smoothed loss is computed here, so labels are not passed to the model.
        labels = None
        if self.label_smoothing:
            labels = self._labels_by_name(batch)
        if labels is None:
            outputs = self.call_model(batch, **model_kwargs)
            return self.read_loss(outputs, batch, items), outputs
        outputs = self.call_model(batch, without=("labels",), **model_kwargs)
        return self._smoothed_loss(outputs, labels), outputs

    def _smoothed_loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the label-smoothed loss of the logits in an output."""
        self._require_single_label()
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        # As in the Trainer API, only the forward pass is autocast.
        if torch.is_autocast_enabled(labels.device.type):
            outputs = map_nested(to_float32, outputs)
        smoother = LabelSmoother(epsilon=self.label_smoothing)
        items = self._divisor(self._count_labels(labels))
        return smoother(
            outputs, labels, shift_labels=self._predicts_next_token(), num_items_in_batch=items
        )

    def call_model(self, batch: Any, *, without: Sequence[str] = (), **model_kwargs: Any) -> Any:
        """Return the output of the model for a batch.

        Args:
            batch: as in the class.
            without: columns of a mapping to omit. If this is not empty, the last of several tensors
                is omitted from an unnamed batch, and decoders of transformers get inputs from the
                omitted labels.
            model_kwargs: additional keyword arguments of the model.
        """
        if isinstance(batch, Mapping):
            args: tuple[Any, ...] = ()
            inputs = self.model_inputs(batch)
            kwargs = {name: value for name, value in inputs.items() if name not in without}
        else:
            args, kwargs = self.positional_inputs(batch, labels=not without)
        kwargs = {**kwargs, **model_kwargs}
        try:
            if without:
                kwargs |= self._decoder_inputs(batch, args, kwargs)
            return self.model(*args, **kwargs)
        except TypeError as error:
            _explain_refused_arguments(self.model, args, kwargs, error)
            raise

    def _decoder_inputs(
        self, batch: object, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the inputs that a decoder of transformers makes of its labels, if it gets none."""
        prepare = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        labels = self._labels_by_name(batch)
        if prepare is None or not isinstance(labels, torch.Tensor):
            return {}
        signature = inspect.signature(base_of_adapter(self.model).forward)
        passed_names = {*kwargs, *signature.bind_partial(*args, **kwargs).arguments}
        if passed_names & {"decoder_input_ids", "decoder_inputs_embeds"}:
            return {}
        return {"decoder_input_ids": prepare(labels=labels)}

    def model_inputs(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return all items of a batch that is a mapping, as the keyword arguments of the model.

        Called by `call_model`. An override may remove some.

        Args:
            batch: a mapping.
        """
        return dict(batch)

    def positional_inputs(
        self, batch: Any, *, labels: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the model for an unnamed batch: all of its parts, in order.

        Args:
            batch: a tuple, a list, or one tensor.
            labels: whether to include the last of several parts.

        Returns:
            Positional and keyword arguments.
        """
        inputs, last = split_labels(batch)
        if labels and last is not None:
            return (*inputs, last), {}
        return as_arguments(inputs)

    def read_loss(self, outputs: Any, batch: Any, items: torch.Tensor | None) -> torch.Tensor:
        """Return the loss in the output of the model, if labels are not smoothed.

        Called by `compute_loss`.

        Args:
            outputs: what the model returned.
            batch: as in the class.
            items: number of labels that count, or None.
        """
        return read_loss(outputs, describe_batch(batch), self._LOSS_ADVICE)

    def begin_batch(self, batch: Any) -> None:
        """Store the batch, in case an override of `training_step` computes the loss itself."""
        super().begin_batch(batch)
        self._batch = batch

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass with equal weight for all items of a step.

        This includes losses that an override of `training_step` computes itself.

        Args:
            loss: the loss of a batch.
            args: those of Lightning's hook.
            kwargs: those of Lightning's hook.
        """
        if self.automatic_optimization:
            # Undo Lightning's division.
            self._add_own_loss(loss * self.trainer.accumulate_grad_batches)
        super().backward(loss, *args, **kwargs)

    def _add_own_loss(self, loss: torch.Tensor) -> None:
        """Add the loss of an override of `training_step` to the step."""
        if self.window.has_current:
            # The override has changed the losses that `super().training_step` returned.
            if type(self).training_step is not LossModule.training_step:
                self.window.replace_loss(loss)
            return
        loss_items = None
        if self._is_part_of_step():
            loss_items = self._items_of_loss(self._batch, None, None)
        self._add_to_step(loss, loss_items)

    def end_epoch(self, stage: str) -> None:
        """Drop the last batch, and log the metrics of the stage.

        Args:
            stage: "train", "val" or "test".
        """
        self._batch = None
        super().end_epoch(stage)

    def predictions_of(self, outputs: Any) -> Any:
        """Return the predictions in the output of the model.

        These are all outputs except the loss and the keys that the model's config ignores.

        Args:
            outputs: what the model returned.
        """
        config = getattr(self.model, "config", None)
        ignored: list[str] = []
        if config is not None:
            ignored = list(getattr(config, "keys_to_ignore_at_inference", CACHES))
        return predictions_in(outputs, ignored)

    @stop_iteration_guard
    def _compute_evaluation_loss(
        self, stage: str, batch: object, batch_idx: int, loader: int
    ) -> torch.Tensor:
        if self.attached_trainer is None:
            loss, _ = self.compute_loss(batch, self._items(batch))
            return loss

        # Remove duplicate samples. If all are duplicates, keep one, because every process must run
        # every step.
        unrepeated = self._count_unrepeated(stage, batch, batch_idx, loader)
        if unrepeated is not None:
            batch = slice_rows(batch, 0, max(unrepeated, 1))
        loss, outputs = self.compute_loss(batch, self._items(batch))
        self._log_evaluation_batch(stage, batch, loader, loss, outputs, unrepeated)
        return loss

    # Lightning's `log` cannot be compiled.

    @_not_compiled
    def _log_training_batch(
        self,
        batch: object,
        items: torch.Tensor | None,
        loss: torch.Tensor,
        outputs: object,
        loader: int | None,
    ) -> torch.Tensor | None:
        """Log a batch, and update the metrics of the training.

        Args:
            batch: of one loader.
            items: the number of items that was passed to the model.
            loss: the loss of the batch.
            outputs: the outputs of the model.
            loader: index of the loader; None if it is unknown which of several it is.

        Returns:
            The number of items of the loss; None if this is the only batch of the step.
        """
        if self.attached_trainer is None:
            return None
        loss_items = None
        if self._is_part_of_step():
            loss_items = self._items_of_loss(batch, items, outputs)

        name = f"train{self.log_separator}loss"
        size = find_batch_size(batch)
        loss_of_batch, loss_so_far = self._add_to_step(loss, loss_items)
        self.log(name, loss_so_far, prog_bar=True, batch_size=size)
        if self.train_loss_on_epoch:
            self.log(
                f"{name}_epoch",
                loss,
                on_step=False,
                on_epoch=True,
                sync_dist=True,
                batch_size=self._size_over_all_ranks(size),
            )

        # Each loader logs its own loss and metrics.
        if loader is None:
            return loss_items
        if self._count_loaders("train"):
            loader_name = self._name_in_logs("train", "loss", loader)
            self.log(loader_name, loss_of_batch, batch_size=size, add_dataloader_idx=False)
        self._update_metrics("train", loader, batch, loss, outputs, counts=True)
        return loss_items

    @_not_compiled
    def _log_evaluation_batch(
        self,
        stage: str,
        batch: object,
        loader: int,
        loss: torch.Tensor,
        outputs: object,
        unrepeated: int | None,
    ) -> None:
        size = unrepeated
        if size is None:
            size = find_batch_size(batch)
        # The loss of duplicates has no weight, but may be NaN.
        logged_loss = loss
        if size == 0:
            logged_loss = torch.zeros_like(loss)
        self.log(
            self._name_in_logs(stage, "loss", loader),
            logged_loss,
            prog_bar=True,
            batch_size=self._size_over_all_ranks(size),
            sync_dist=True,
            add_dataloader_idx=False,
        )
        self._update_metrics(stage, loader, batch, loss, outputs, counts=unrepeated != 0)

    def _size_over_all_ranks(self, size: int | None) -> int | None:
        """Return the size of a batch times the number of processes.

        Lightning averages the sizes over the processes and rounds the mean; with this factor it is
        an integer.
        """
        if size is None:
            return None
        return size * self.trainer.world_size

    def _count_unrepeated(
        self, stage: str, batch: object, batch_idx: int, index: int
    ) -> int | None:
        """Return the number of samples that are not duplicates, if there are duplicates."""
        loader = self._loaders(stage)
        if isinstance(loader, Mapping):
            loader = list(loader.values())
        if isinstance(loader, (list, tuple)):
            loader = loader[index]
        share = data_share(self.trainer)
        return count_unrepeated_samples(loader, batch, batch_idx, share.index, share.count)

    def _update_metrics(
        self,
        stage: str,
        loader: int,
        batch: object,
        loss: torch.Tensor,
        outputs: object,
        *,
        counts: bool,
    ) -> None:
        """Update the metrics of a stage with a batch."""
        if self._stage_metrics[stage].metrics is None:
            return
        predictions, labels = self._metric_inputs(stage, batch, outputs)
        self._stage_metrics[stage].update(
            stage,
            loader,
            predictions,
            labels,
            inputs=batch,
            loss=loss.detach(),
            shift=self._predicts_next_token(),
            counts=counts,
        )

    def _metric_inputs(self, stage: str, batch: object, outputs: object) -> tuple[Any, Any]:
        """Return predictions and labels of a batch for the metrics of a stage."""
        return self.predictions_of(outputs), self._labels(batch)

    def _labels(self, batch: object) -> Any:
        if not isinstance(batch, Mapping):
            inputs, labels = split_labels(batch)
            if labels is None and self._uses_inputs_as_labels():
                return inputs[0]
            return labels

        labels = tuple(batch.get(label) for label in self.label_names)
        if len(labels) == 1:
            return labels[0]
        return labels

    def _labels_by_name(self, batch: object) -> Any:
        """Return the column `labels`.

        The Trainer API counts and smooths this column regardless of `label_names`.
        """
        if isinstance(batch, Mapping):
            return batch.get("labels")
        return self._labels(batch)

    def _uses_inputs_as_labels(self) -> bool:
        """Return whether a batch without labels is its own target."""
        return self.loss_fn is not None

    def _batches_of_loaders(self, batch: Any) -> list[tuple[int | None, Any]]:
        """Return the batches of the training loaders, which Lightning combines, with their indices.

        A mapping with other keys than the names of the loaders is a batch of a single loader,
        passed by an override of `training_step`. An override of `compute_loss` receives the batches
        of all loaders at once, to compute a joint loss.
        """
        if self.attached_trainer is None or self._count_loaders("train") == 0:
            return [(0, batch)]
        if type(self).compute_loss is not LossModule.compute_loss:
            return [(None, batch)]

        loaders = self._loaders("train")
        if not isinstance(loaders, Mapping):
            return list(enumerate(batch))
        if isinstance(batch, Mapping) and loaders.keys() == batch.keys():
            return list(enumerate(batch.values()))
        return [(None, batch)]

    def _items(self, batch: object) -> torch.Tensor | None:
        """Return the number of labels that are not ignored, if the model accepts it."""
        if self.loss_fn is not None:
            return None
        labels = self._labels_by_name(batch)
        if not isinstance(labels, torch.Tensor) or not self._model_accepts_items():
            return None
        return TrackedItems.of(self._count_labels(labels))

    def _items_of_loss(
        self, batch: object, items: torch.Tensor | None, outputs: object
    ) -> torch.Tensor | None:
        """Return the number of items whose mean is the loss of a batch; None if it is not a mean.

        Args:
            batch: as in the class.
            items: the number of items that was passed to the model, which may not have used it.
            outputs: the outputs of the model; None if unknown.
        """
        if self.loss_fn is not None:
            return count_targets(self.loss_fn, self._labels(batch), self.device)

        # The model has divided by the number of items.
        if isinstance(items, TrackedItems) and items.use.is_used:
            return items.number

        # The loss is a mean over the labels, or over the rows if the labels are not class indices.
        label_count = count_labels(
            self._labels_by_name(batch),
            shifted=self._predicts_next_token(),
            ignored=self._ignored_labels,
        )
        rows = count_rows(batch)
        if label_count is None and rows is not None:
            return torch.full((), rows, device=self.device)
        return label_count

    def _count_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the number of labels that are not ignored by the loss.

        Smoothing shifts the labels of models that predict the next token, which drops the first.
        """
        if self.label_smoothing and self._predicts_next_token():
            labels = labels[..., 1:]
        return labels.ne(-100).sum()

    def _divisor(self, items: torch.Tensor) -> torch.Tensor:
        """Return the divisor, which is at least 1 in a step of several batches, to avoid 0 / 0."""
        if self._is_part_of_step():
            return items.clamp(min=1)
        return items

    def _is_part_of_step(self) -> bool:
        """Return whether an optimizer step has several batches, in this process or others."""
        trainer = self.attached_trainer
        if trainer is None or not trainer.training:
            return False
        loaders = self._count_loaders("train") or 1
        return trainer.world_size * batches_per_step(trainer) * loaders > 1

    def _model_accepts_items(self) -> bool:
        """Return whether the model accepts the number of items; cached for all steps."""
        model_id, accepts_items = self._accepts_items_of
        if model_id != id(self.model):
            accepts_items = accepts_loss_kwargs(base_of_adapter(self.model))
            self._accepts_items_of = (id(self.model), accepts_items)
        return accepts_items

    def _add_to_step(
        self, loss: torch.Tensor, loss_items: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the loss of a batch to its step.

        Args:
            loss: the mean over the batch of this process.
            loss_items: what `_items_of_loss` returned.

        Returns:
            The mean losses over the batches of all processes, and over the step so far.
        """
        loss = loss.detach()
        world_size = self.trainer.world_size
        if world_size == 1:
            return loss, self.window.add(loss, loss_items)

        strategy = self.trainer.strategy
        if loss_items is None:
            # Copy it, because it is reduced in place.
            mean = cast("torch.Tensor", strategy.reduce(loss.clone(), reduce_op="mean"))
            return mean, self.window.add(mean)

        # Losses in half precision are not precise enough for their items.
        items = loss_items.to(torch.promote_types(loss.dtype, torch.float32))
        total = zero_without_items(loss * items, items)
        sums = strategy.reduce(torch.stack([total, items]), reduce_op="sum")
        total_of_all, items_of_all = cast("torch.Tensor", sums).unbind()
        mean = total_of_all / items_of_all.clamp(min=1)
        return mean, self.window.add(mean, items_of_all, share=items * world_size)

    @functools.cached_property
    def _ignored_labels(self) -> Sequence[int]:
        return ignored_labels(self.model)

    def _predicts_next_token(self) -> bool:
        return predicts_next_token(base_of_adapter(self.model))

    def _require_single_label(self) -> None:
        config = getattr(self.model, "config", None)
        problem_type = getattr(config, "problem_type", None)
        if problem_type == "multi_label_classification":
            raise ValueError(
                f"label_smoothing={self.label_smoothing} cannot smooth several labels a sample "
                f"({problem_type=}). Set it to 0."
            )


def _weighted_mean(
    losses: list[torch.Tensor], items_of_losses: list[torch.Tensor | None]
) -> torch.Tensor:
    """Return the mean of losses, weighted by their numbers of items.

    If one of the numbers is unknown, all losses have equal weight.
    """
    stacked = torch.stack(losses)
    known_items = [items for items in items_of_losses if items is not None]
    if len(known_items) < len(losses):
        return stacked.mean()

    weights = torch.stack(known_items).to(stacked.dtype)
    stacked = zero_without_items(stacked, weights)
    return (stacked * weights).sum() / weights.sum().clamp(min=1)


def _explain_refused_arguments(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], error: TypeError
) -> None:
    """Raise an error that suggests `loss_fn` if the model does not accept the arguments.

    The usual reason is a model without a labels parameter, for which `loss_fn` was forgotten.
    """
    signature = inspect.signature(base_of_adapter(model).forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        condition = "the batch has labels that the model does not accept"
        if args:
            condition = "the last part of the batch is the labels"
        raise TypeError(
            f"{type(model).__name__}.forward{signature} does not accept "
            f"({describe_batch(args or kwargs)}): {error}. If {condition}, pass a `loss_fn`, "
            "such as nn.CrossEntropyLoss(); the labels are then not passed to the model."
        ) from error


def _build_loss_fn(loss_fn: LossFunction) -> Callable[..., torch.Tensor] | None:
    """Return the loss function; create it if a description was passed.

    Raises:
        TypeError: it is not a function.
        ValueError: it has parameters to train.
    """
    if is_description(loss_fn):
        loss_fn = build_described(loss_fn, nn.Module, "loss_fn")
    if loss_fn is None:
        return None

    if isinstance(loss_fn, type):
        name = loss_fn.__name__
        raise TypeError(f"`loss_fn` is the class {name}: pass an instance, as in {name}().")
    if not callable(loss_fn):
        raise TypeError(
            f"`loss_fn` is a {type(loss_fn).__name__}: pass a function of the model's output and "
            "the labels."
        )
    if isinstance(loss_fn, nn.Module):
        has_trained_parameters = any(parameter.requires_grad for parameter in loss_fn.parameters())
        if has_trained_parameters:
            raise ValueError(
                f"`loss_fn` is a {type(loss_fn).__name__} with parameters to train: make it a part "
                "of the model."
            )
    return loss_fn
