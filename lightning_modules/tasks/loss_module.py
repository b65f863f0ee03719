"""A LightningModule around any model that returns a loss, for `lightning.Trainer` and its users."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..common.class_paths import build_described, is_description
from ..common.nested import find_batch_size
from ..common.stop_iteration import stop_iteration_surfaces
from ..evaluation.metrics import StageMetrics, as_batch_metrics, as_numbers, name_in_stage
from ..internals.lightning_internals import log_of_loader
from ..models.inspection import accepts_loss_kwargs, base_of_adapter, predicts_next_token
from ..models.outputs import CACHES, predictions_in, read_loss
from ..optim.module_optimizers import OptimizerSetting, ScheduleSetting, to_stored_setting
from ..training.label_smoothing import LabelSmoother
from ..training.micro_batch_loss import count_labels
from ..training.noted_items import NotedItems
from .batch_inputs import (
    as_arguments,
    count_targets,
    cut_batch,
    describe_batch,
    needs_all,
    samples_that_count,
    split_labels,
)
from .data_share import data_share
from .model_module import ModelSource
from .optimizer_module import OptimizerModule
from .step_window import batches_per_step

LossFunction = nn.Module | Callable[[Any, Any], torch.Tensor] | dict[str, Any] | None
"""Called with the output of the model and the labels; or {"class_path": ..., "init_args": {...}}
of a module.
"""

_log = logging.getLogger(__name__)

_not_compiled: Any = torch.compiler.disable


class LossModule(OptimizerModule):
    """As a model under the Trainer API, but a plain LightningModule: every feature of
    `lightning.Trainer` works.

    Automatic optimization: `accumulate_grad_batches`, `gradient_clip_val`, `precision`, strategies
    and loggers are Lightning's. Its checkpoints are those of a `ResumableModule`; with the plugin
    `FolderCheckpointIO` they are folders that the Trainer API reads and writes too.

    A batch is a mapping of the arguments of the model's `forward`; or a tuple or list of them in
    order, the labels last, as in `(x, y)`; or one tensor. A model that returns its loss is given
    all of it. With `loss_fn` it is given all but the labels, and the loss is
    `loss_fn(output, labels)`; what comes without labels is compared with itself, as autoencoders
    want it.

    Losses and weights are those of the Trainer API: to the last bit, and with accumulated gradients
    to rounding. So with several batches a step every item counts the same, in a shorter last step
    too, see `step_window`: each label that counts, or each row where the labels are no class
    numbers.

    Several training loaders, in a dict or a list, make one step of a batch of each, as one larger
    batch; each logs `train_<loader>_loss`.

    Logs `train_loss` at each step (over all its batches so far), `val_loss` and `test_loss` over an
    epoch, each sample counting the same, and metrics over an epoch as `val_<name>`, `test_<name>`
    and `train_<name>`. Where there is a dict of validation or test loaders, each has its own:
    `val_<loader>_loss`.

    Args:
        model: returns a loss in a mapping, as the first of a tuple, or as an attribute `loss`; or
            anything, if there is a `loss_fn`. Or a function without
            arguments that makes the model, or `{"class_path": "my.Model", "init_args": {...}}`: it
            is then made in `configure_model`, where strategies that shard it want it. Only the last
            stays in a checkpoint; for the others it is `load_from_checkpoint(path, model=...)`.
        loss_fn: mean loss of a batch, of what the model returned and the labels:
            `nn.CrossEntropyLoss()`, a function, or the description of a class. It is given again to
            `load_from_checkpoint` unless it is a description. Where batches are accumulated they
            are weighed by what it takes the mean of, see `count_targets`.
        optimizer: what `configure_optimizers` makes: an `OptimizerConfig`, a dict of its fields, a
            class of any library as `{"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}`,
            or a function of parameter groups. Weight decay spares biases and normalisation layers.
            Functions are passed again to `load_from_checkpoint`, before the module is trained.
        schedule: learning rate over the steps; constant by default. A `ScheduleConfig`, or one of
            the other forms. Its `total_steps` may be left out: the length of the training is taken.
            Schedules of other libraries are stepped after each epoch, or as `schedule_interval`
            says; plateau schedules with `monitor`.
        parameter_rules: learning rate, decay by layer, weight decay and freezing by patterns of
            names of parameters, as `TrainingArguments(parameter_rules=)`:
            `{"head.*": {"lr_factor": 10}}`. The model is changed where it freezes.
        metrics: torchmetrics objects, a dict of them and of functions of predictions and labels, or
            `BatchMetrics`, as in `Trainer(compute_metrics=...)`: updated with what the model
            returns beside the loss, and the labels, of which functions are given those of all
            batches together. Lightning's sampler for several processes repeats samples where they
            do not divide, and they count twice; `DataModule` makes loaders of other kinds.
        train_metrics: the same for the batches of the training, as the model was when it saw them.
            True stands for those in `metrics`.
        label_names: where the labels are in a batch that is a mapping; several are handed to
            `loss_fn` as a tuple.
        label_smoothing: as `label_smoothing_factor`: the loss is computed from the logits, see
            `LabelSmoother`.
        neftune_noise_alpha: strength of the noise on the input embeddings while training.
        monitor: what a plateau schedule watches; by default the loss of the validation.
        schedule_interval: "step" or "epoch", after which the schedule is stepped. A plateau
            schedule that is stepped after each step watches what is logged then, such as
            "train_loss".
        shard_layers: names of the classes of layers that `ModelParallelStrategy` gathers one by
            one; by default those that the model itself names (`_no_split_modules`).
        log_separator: between the stage and the rest of a name in logs: "/" gives `train/loss` and
            `val/accuracy`.
        train_loss_on_epoch: log the mean over an epoch as well, as `train_loss_epoch`, each sample
            counting the same.

    Attributes:
        learning_rate: the full learning rate, for Lightning's `Tuner.lr_find`.
        metric_values: all values that the metrics computed last. The entries of a vector, such as
            values of classes, are logged as `val_<name>_0`, ...; a confusion matrix is not logged.
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
        watched = monitor
        if watched is None:
            watched = f"val{log_separator}loss"
        super().__init__(
            model,
            optimizer=optimizer,
            schedule=schedule,
            parameter_rules=parameter_rules,
            monitor=watched,
            schedule_interval=schedule_interval,
            label_names=label_names,
            neftune_noise_alpha=neftune_noise_alpha,
            shard_layers=shard_layers,
        )
        if not 0 <= label_smoothing <= 1:
            raise ValueError(
                f"`label_smoothing` is {label_smoothing}, but it is a share: give a number from 0 "
                "to 1."
            )
        if loss_fn is not None and label_smoothing:
            raise ValueError(
                f"{label_smoothing=} has no effect on `loss_fn`: leave it out, and smooth labels "
                "there."
            )
        self.label_smoothing = label_smoothing
        self.log_separator = log_separator
        self.train_loss_on_epoch = train_loss_on_epoch
        self.loss_fn: Any = _as_function(loss_fn)
        self.metric_values: dict[str, Any] = {}
        self._asked = (0, False)
        self._batch: Any = None
        self._not_logged: set[str] = set()
        self._set_metrics(metrics, train_metrics)

        described: dict[str, Any] = {}
        if is_description(loss_fn):
            described["loss_fn"] = loss_fn
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
            **described,
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the model."""
        return self._require_model()(*args, **kwargs)

    @stop_iteration_surfaces
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Compute the loss of a batch; of batches of several loaders each item counts the same."""
        losses: list[torch.Tensor] = []
        numbers: list[Any] = []
        for index, part in self._parts(batch):
            # In the mode "max_size" there are no batches after the end of a loader.
            if part is None:
                continue
            items = self._items(part)
            loss, outputs = self.compute_loss(part, items)
            losses.append(loss)

            number = self._note_trained(part, items, loss, outputs, index)
            numbers.append(number)

        if len(losses) == 1:
            return losses[0]
        return _weighted_mean(losses, numbers)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        """Compute the loss of a batch."""
        return self._evaluated("val", batch, batch_idx, dataloader_idx)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        """Compute the loss of a batch."""
        return self._evaluated("test", batch, batch_idx, dataloader_idx)

    @stop_iteration_surfaces
    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Return the predictions for a batch: the output of the model, without the loss where it
        returns its own.

        The model is called as in the training, but with all of a tuple if `forward` requires every
        part, as none of them is a label then.
        """
        has_names = isinstance(batch, Mapping)
        if not has_names and needs_all(self.model, batch):
            parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
            arguments, keywords = as_arguments(parts)
            outputs = self.model(*arguments, **keywords)
        else:
            withheld: Sequence[str] = ()
            if self.loss_fn is not None or (self.label_smoothing and not has_names):
                withheld = self.label_names
            outputs = self.call_model(batch, without=withheld)

        if self.loss_fn is not None:
            return outputs
        return self.predictions_of(outputs)

    def compute_loss(
        self, batch: Any, items: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Any]:
        """As `Trainer.compute_loss`: the loss of a batch, and the output of the model; the method
        to override.

        Args:
            batch: see the class.
            items: number of labels that count, if the model takes it; else None.

        Returns:
            The loss, a mean over this batch, and the outputs.
        """
        if self.loss_fn is not None:
            labels = self._labels(batch)
            outputs = self.call_model(batch, without=self.label_names)
            return self.loss_fn(outputs, labels), outputs

        keywords: dict[str, Any] = {}
        if items is not None:
            items = self._divisor(items)
            keywords["num_items_in_batch"] = items

        # Smoothed labels are compared here, so that the model need not compute its own loss.
        labels = self._named_labels(batch) if self.label_smoothing else None
        if labels is None:
            outputs = self.call_model(batch, **keywords)
            return self.read_loss(outputs, batch, items), outputs
        outputs = self.call_model(batch, without=("labels",), **keywords)
        return self._smoothed_loss(outputs, labels), outputs

    def _smoothed_loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of the logits in an output, by `label_smoothing`."""
        self._require_classes()
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        smoother = LabelSmoother(epsilon=self.label_smoothing)
        counted = self._divisor(self._count_labels(labels))
        return smoother(
            outputs, labels, shift_labels=self._predicts_next_token(), num_items_in_batch=counted
        )

    def call_model(self, batch: Any, *, without: Sequence[str] = (), **further: Any) -> Any:
        """Return the output of the model for a batch.

        Args:
            batch: see the class.
            without: columns of a mapping that are left out; the last of several tensors is, if this
                names any.
            further: keyword arguments beside it.
        """
        if isinstance(batch, Mapping):
            arguments: tuple[Any, ...] = ()
            keywords = {
                name: value
                for name, value in self.model_inputs(batch).items()
                if name not in without
            }
        else:
            arguments, keywords = self.positional_inputs(batch, labels=not without)
        keywords = {**keywords, **further}
        try:
            return self.model(*arguments, **keywords)
        except TypeError as error:
            _require_parameters(self.model, arguments, keywords, error)
            raise

    def model_inputs(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the model in a batch with names: all of it."""
        return dict(batch)

    def positional_inputs(
        self, batch: Any, *, labels: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the model in a batch without names: all of it, in order.

        Args:
            batch: a tuple, a list, or one tensor.
            labels: include the last of several parts.

        Returns:
            Positional and keyword arguments.
        """
        inputs, last = split_labels(batch)
        if labels and last is not None:
            return (*inputs, last), {}
        return as_arguments(inputs)

    def read_loss(self, outputs: Any, batch: Any, items: torch.Tensor | None) -> torch.Tensor:
        """Return the loss in the output of the model, if labels are not smoothed."""
        return read_loss(outputs, describe_batch(batch), self._LOSS_ADVICE)

    def begin_batch(self, batch: Any) -> None:
        """Keep the batch for a loss that an override of `training_step` computes by itself."""
        super().begin_batch(batch)
        self._batch = batch

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """As Lightning's, but every item of a step counts the same, also in losses of a
        subclass's `training_step`.
        """
        # No method of this class has computed the loss, so nothing has added it to the step.
        is_of_subclass = not self.window.has_current
        if is_of_subclass and self.automatic_optimization:
            counted = None
            if self._is_part_of_step():
                counted = self._items_of_loss(self._batch, None, None)
            # Lightning has divided it.
            mean = loss * self.trainer.accumulate_grad_batches
            self._add_to_step(mean, counted)
        super().backward(loss, *args, **kwargs)

    def begin_epoch(self, stage: str) -> None:
        """Empty metrics."""
        super().begin_epoch(stage)
        self._counted[stage].begin(stage, self._several(stage) or 1, self.device)

    def end_epoch(self, stage: str) -> None:
        """Log the metrics."""
        super().end_epoch(stage)
        self._batch = None
        self._log_metrics(stage)

    def predictions_of(self, outputs: Any) -> Any:
        """Return the predictions in the output of the model: all but the loss, and keys that its
        config ignores.
        """
        return predictions_in(outputs, _not_predicted(self.model))

    def _set_metrics(self, metrics: Any, train_metrics: Any) -> None:
        self.metrics = None
        if metrics is not None:
            self.metrics = as_batch_metrics(metrics)

        self.train_metrics = None
        if train_metrics is True:
            train_metrics = self.metrics
        if train_metrics:
            self.train_metrics = as_batch_metrics(train_metrics)

        for chosen in (self.metrics, self.train_metrics):
            if chosen is not None:
                _require_no_loss(chosen.value_names())
        self._counted = {
            "train": StageMetrics(self.train_metrics),
            "val": StageMetrics(self.metrics),
            "test": StageMetrics(self.metrics),
        }

    @stop_iteration_surfaces
    def _evaluated(self, stage: str, batch: Any, batch_idx: int, loader: int) -> torch.Tensor:
        if self.attached_trainer is None:
            loss, _ = self.compute_loss(batch, self._items(batch))
            return loss

        # Samples that are repeated for other processes are cut off; but every process takes every
        # step.
        counting = self._counting(stage, batch, batch_idx, loader)
        if counting is not None:
            batch = cut_batch(batch, max(counting, 1))
        loss, outputs = self.compute_loss(batch, self._items(batch))
        self._note_evaluated(stage, batch, loader, loss, outputs, counting)
        return loss

    # Lightning's `log` cannot be compiled.

    @_not_compiled
    def _note_trained(
        self,
        batch: Any,
        items: torch.Tensor | None,
        loss: torch.Tensor,
        outputs: Any,
        loader: int | None,
    ) -> torch.Tensor | None:
        """Count and log a batch; return the number of its items, where there are others in this
        step.

        Args:
            batch: of one loader, as are the rest.
            items: the number that the model was given.
            loss: its loss.
            outputs: of the model.
            loader: index of the loader; None if it is one of several, and not known.
        """
        if self.attached_trainer is None:
            return None
        counted = None
        if self._is_part_of_step():
            counted = self._items_of_loss(batch, items, outputs)

        name = f"train{self.log_separator}loss"
        size = find_batch_size(batch)
        loss_so_far = self._add_to_step(loss, counted)
        self.log(name, loss_so_far, prog_bar=True, batch_size=size)
        if self.train_loss_on_epoch:
            size_in_all = self._size_in_all(size)
            self.log(
                f"{name}_epoch",
                loss,
                on_step=False,
                on_epoch=True,
                sync_dist=True,
                batch_size=size_in_all,
            )

        # What is logged for each loader.
        if loader is None:
            return counted
        if self._several("train"):
            own_name = self._name_in_logs("train", "loss", loader)
            self.log(own_name, loss, batch_size=size, add_dataloader_idx=False)
        self._count("train", loader, batch, loss, outputs, counts=True)
        return counted

    @_not_compiled
    def _note_evaluated(
        self,
        stage: str,
        batch: Any,
        loader: int,
        loss: torch.Tensor,
        outputs: Any,
        counting: int | None,
    ) -> None:
        name = self._name_in_logs(stage, "loss", loader)
        size = counting
        if size is None:
            size = find_batch_size(batch)
        size = self._size_in_all(size)
        self.log(
            name, loss, prog_bar=True, batch_size=size, sync_dist=True, add_dataloader_idx=False
        )
        self._count(stage, loader, batch, loss, outputs, counts=counting != 0)

    def _name_in_logs(self, stage: str, name: str, loader: int = 0) -> str:
        return name_in_stage(stage, name, self._loaders(stage), loader, self.log_separator)

    def _size_in_all(self, size: int | None) -> int | None:
        """Return the size of a batch times the processes, as Lightning rounds the mean of these
        sizes over them.
        """
        if size is None:
            return None
        return size * self.trainer.world_size

    def _counting(self, stage: str, batch: Any, batch_idx: int, index: int) -> int | None:
        """Return the number of samples of a batch that are not repeated, if some are."""
        loader = self._loaders(stage)
        if isinstance(loader, Mapping):
            loader = list(loader.values())
        if isinstance(loader, (list, tuple)):
            loader = loader[index]
        own = data_share(self.trainer)
        return samples_that_count(loader, batch, batch_idx, own.share, own.shares)

    def _count(
        self,
        stage: str,
        loader: int,
        batch: Any,
        loss: torch.Tensor,
        outputs: Any,
        *,
        counts: bool,
    ) -> None:
        """Update the metrics of a stage with a batch."""
        if self._counted[stage].metrics is None:
            return
        self._counted[stage].update(
            stage,
            loader,
            self.predictions_of(outputs),
            self._labels(batch),
            inputs=batch,
            loss=loss.detach(),
            shift=self._predicts_next_token(),
            counts=counts,
        )

    def _labels(self, batch: Any) -> Any:
        if not isinstance(batch, Mapping):
            inputs, labels = split_labels(batch)
            if labels is None and self._compares_with_input():
                return inputs[0]
            return labels

        labels = tuple(batch.get(label) for label in self.label_names)
        if len(labels) == 1:
            return labels[0]
        return labels

    def _named_labels(self, batch: Any) -> Any:
        """Return the column `labels`, which the Trainer API counts and smooths for all
        `label_names`.
        """
        if isinstance(batch, Mapping):
            return batch.get("labels")
        return self._labels(batch)

    def _compares_with_input(self) -> bool:
        """Return whether a batch without labels is compared with itself."""
        return self.loss_fn is not None

    def _loaders(self, stage: str) -> Any:
        if stage == "train":
            return self.trainer.train_dataloader
        return getattr(self.trainer, f"{stage}_dataloaders")

    def _several(self, stage: str) -> int:
        """Return the number of loaders in a collection; 0 for a loader alone."""
        loaders = self._loaders(stage)
        if isinstance(loaders, (Mapping, list, tuple)):
            return len(loaders)
        return 0

    def _parts(self, batch: Any) -> list[tuple[int | None, Any]]:
        """Return the batches of the training loaders, which Lightning combines, with the index of
        each loader.

        A mapping with other names than the loaders have is a batch of one of them, which an
        override passes on. A `compute_loss` of a subclass gets the batches of all loaders at once,
        to compute one loss of them.
        """
        if self.attached_trainer is None or self._several("train") == 0:
            return [(0, batch)]
        if type(self).compute_loss is not LossModule.compute_loss:
            return [(None, batch)]

        loaders = self._loaders("train")
        if not isinstance(loaders, Mapping):
            return list(enumerate(batch))
        if isinstance(batch, Mapping) and loaders.keys() == batch.keys():
            return list(enumerate(batch.values()))
        return [(None, batch)]

    @stop_iteration_surfaces
    def _log_metrics(self, stage: str) -> None:
        for index, computed in enumerate(
            self._counted[stage].take(stage, self._processes_with_other_data())
        ):
            _require_no_loss(computed)
            numbers: dict[str, Any] = {}
            for name, value in computed.items():
                full_name = self._name_in_logs(stage, name, index)
                self.metric_values[full_name] = value
                entries = as_numbers(name, value)
                if not entries:
                    self._warn_of_not_logged(full_name, value)
                for entry_name, entry in entries.items():
                    numbers[self._name_in_logs(stage, entry_name, index)] = entry
            self._log_numbers(stage, index, numbers)

    def _processes_with_other_data(self) -> Any:
        """Return the process group over which metrics are added up; None for all."""
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

    def _warn_of_not_logged(self, name: str, value: Any) -> None:
        if name in self._not_logged:
            return
        self._not_logged.add(name)
        kind = type(value).__name__
        if isinstance(value, torch.Tensor):
            kind = f"tensor of shape {tuple(value.shape)}"
        _log.warning(
            "%s is a %s, which cannot be logged. Read it in `module.metric_values`.", name, kind
        )

    def _items(self, batch: Any) -> torch.Tensor | None:
        """Return the number of labels that count, if the model takes it."""
        if self.loss_fn is not None:
            return None
        labels = self._named_labels(batch)
        if not isinstance(labels, torch.Tensor) or not self._wants_items():
            return None
        return NotedItems.of(self._count_labels(labels))

    def _items_of_loss(
        self, batch: Any, items: torch.Tensor | None, outputs: Any
    ) -> torch.Tensor | None:
        """Return the number of items whose mean is the loss of a batch; None if it is no mean.

        Args:
            batch: see the class.
            items: the number that the model was given, and may not have used.
            outputs: of the model; None where they are not known.
        """
        if self.loss_fn is not None:
            return count_targets(self.loss_fn, self._labels(batch), self.device)
        if isinstance(items, NotedItems) and items.use.noted:
            return items.number
        labels = count_labels(self._named_labels(batch), shifted=self._predicts_next_token())
        rows = find_batch_size(batch)
        if labels is None and rows is not None:
            return torch.full((), rows, device=self.device)
        return labels

    def _count_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the number of labels that count for the loss; smoothing drops the first one of
        a row.
        """
        if self.label_smoothing and self._predicts_next_token():
            labels = labels[..., 1:]
        return labels.ne(-100).sum()

    def _divisor(self, items: torch.Tensor) -> torch.Tensor:
        """Return at least 1 for a batch of several, so that the loss of one without items is 0,
        not 0 / 0.
        """
        if self._is_part_of_step():
            return items.clamp(min=1)
        return items

    def _is_part_of_step(self) -> bool:
        """Return whether an optimizer step has several batches, in this process or others."""
        trainer = self.attached_trainer
        if trainer is None or not trainer.training:
            return False
        loaders = self._several("train") or 1
        return trainer.world_size * batches_per_step(trainer) * loaders > 1

    def _wants_items(self) -> bool:
        """Return whether the model takes the number of items; cached, as every step needs it."""
        if self._asked[0] != id(self.model):
            wants_items = accepts_loss_kwargs(base_of_adapter(self.model))
            self._asked = (id(self.model), wants_items)
        return self._asked[1]

    def _add_to_step(self, loss: torch.Tensor, counted: torch.Tensor | None) -> torch.Tensor:
        """Add the loss of a batch to its step, see `_items_of_loss`; return the mean loss of the
        step so far.
        """
        processes = self.trainer.world_size
        if counted is None or processes == 1:
            return self.window.add(loss, counted)
        together: Any = self.trainer.strategy.reduce(counted.clone(), reduce_op="sum")
        return self.window.add(loss, together, share=counted * processes)

    def _predicts_next_token(self) -> bool:
        return predicts_next_token(base_of_adapter(self.model))

    def _require_classes(self) -> None:
        problem = getattr(getattr(self.model, "config", None), "problem_type", None)
        if problem == "multi_label_classification":
            raise ValueError(
                f"label_smoothing={self.label_smoothing} cannot smooth several labels: {problem=}."
            )


def _weighted_mean(losses: list[torch.Tensor], numbers: list[Any]) -> torch.Tensor:
    """Return the mean of losses by their numbers of items; each counts the same where one is not
    known.
    """
    if any(number is None for number in numbers):
        return torch.stack(losses).mean()
    weights = torch.stack(numbers).to(losses[0].dtype)
    stacked = torch.stack(losses)
    # The mean over no items is NaN.
    stacked = torch.where(weights > 0, stacked, torch.zeros_like(stacked))
    return (stacked * weights).sum() / weights.sum().clamp(min=1)


def _require_parameters(
    model: nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any], error: TypeError
) -> None:
    """Replace the error of a model that does not take labels, the usual one where `loss_fn` is
    forgotten.
    """
    signature = inspect.signature(base_of_adapter(model).forward)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError:
        labels = "the batch has labels that the model does not take"
        if arguments:
            labels = "the last part are the labels"
        raise TypeError(
            f"{type(model).__name__}.forward{signature} does not take "
            f"({describe_batch(arguments or keywords)}): {error}. If {labels}, pass a `loss_fn`, "
            "such as nn.CrossEntropyLoss(): the model is then given the others only."
        ) from error


def _require_no_loss(names: Iterable[str]) -> None:
    """Refuse a metric that would be logged in place of the loss, which checkpoints and early
    stopping watch.
    """
    if "loss" in names:
        raise ValueError(
            "`metrics` has a value named 'loss', which is the name of the loss itself: rename the "
            "metric."
        )


def _not_predicted(model: nn.Module) -> list[str]:
    """Return the outputs that are not predictions, by the model's config."""
    config = getattr(model, "config", None)
    return [] if config is None else list(getattr(config, "keys_to_ignore_at_inference", CACHES))


def _as_function(loss_fn: Any) -> Any:
    """Return the loss function, made of its description; refuse values that cannot be one."""
    if is_description(loss_fn):
        loss_fn = build_described(loss_fn, nn.Module, "loss_fn")
    if loss_fn is None:
        return None
    if isinstance(loss_fn, type) or not callable(loss_fn):
        name = loss_fn.__name__ if isinstance(loss_fn, type) else type(loss_fn).__name__
        kind = (
            f"the class {name}: make one of it, as in {name}()"
            if isinstance(loss_fn, type)
            else f"a {name}"
        )
        raise TypeError(
            f"`loss_fn` is {kind}. Expected is a function of the model's output and the labels."
        )
    if isinstance(loss_fn, nn.Module) and any(
        parameter.requires_grad for parameter in loss_fn.parameters()
    ):
        raise ValueError(
            f"`loss_fn` is a {type(loss_fn).__name__} with parameters: make it a part of the model."
        )
    return loss_fn
