"""Run prediction steps, collect their outputs and compute metrics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset

from ...callbacks.recording import RecordedValues
from ...lightning_modules.common.collectives import gather_objects
from ...lightning_modules.common.nested import count_rows, map_nested, nested_detach
from ...lightning_modules.common.version_behavior import version_behavior
from ...lightning_modules.data.iteration import iterate
from ...lightning_modules.data.lengths import has_length
from ...lightning_modules.data.uneven_inputs import UnevenInputs, may_be_uneven
from ...lightning_modules.evaluation.collecting import (
    BatchCollector,
    LossCollector,
    ObjectCollector,
    move_to_host,
)
from ...lightning_modules.models.signatures import accepted_arguments
from ..arguments.rank_groups import data_parallel_size
from ..distributed.collectives import pad_rows
from .live_metrics import LiveMetrics, consists_of_metrics, samples_that_count
from .metrics import denumpify_detensorize
from .results import EvalLoopOutput, EvalPrediction

if TYPE_CHECKING:
    from .. import Trainer


class EvaluationFeed:
    """Wrap the loader of an evaluation for Lightning.

    Nothing is read before the first `next()`. `is_last` refers to the batch that was read last.

    Args:
        loader: the Trainer's loader.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        # Lightning's loop disables gradients, but the user's code may need them.
        # `Trainer.prediction_step` only disables them for the model.
        self.gradients = torch.is_grad_enabled()
        self.is_last = False
        self.rounds: UnevenInputs | None = None

    def __len__(self) -> int:
        """Return the number of batches; raise TypeError if it is not exact.

        Lightning reads no further. The length of a stream with workers, of a custom batch sampler
        or of a class of the user may be an estimate.
        """
        batch_sampler = getattr(self.loader, "batch_sampler", None)
        batches = getattr(batch_sampler, "batch_sampler", batch_sampler)
        is_stream = isinstance(_dataset_of(self.loader), IterableDataset)
        if is_stream or type(batches) is not BatchSampler:
            raise TypeError("The number of batches is not known exactly.")
        return len(self.loader)

    def __iter__(self) -> Iterator[object]:
        return torch.set_grad_enabled(self.gradients)(self._batches)()

    def _batches(self) -> Iterator[object]:
        batches = iterate(self.loader)
        if may_be_uneven(self.loader):
            self.rounds = UnevenInputs("Evaluation", same_size=True, ends=self._ends)
            batches = self.rounds(batches)
        for batch in batches:
            self.is_last = self._ends() if self.rounds is None else self.rounds.is_last
            yield batch

    @property
    def remainder(self) -> int:
        """Return `EpochLoader.remainder`; -1 (unknown) if processes have different numbers of
        batches.
        """
        if self.rounds is not None and self.rounds.uneven:
            return -1
        return getattr(self.loader, "remainder", -1)

    def _ends(self) -> bool:
        return getattr(self.loader, "end_of_loader", False)


class Evaluation:
    """Process the batches of `Trainer.evaluation_loop`, and compute its result.

    Args:
        trainer: the Trainer, whose `prediction_step` and callbacks are called.
        feed: the batches.
        description: `Evaluation` or `Prediction`.
        prediction_loss_only: whether to keep only the loss.
        ignore_keys: outputs of the model that are not predictions.
        prefix: metrics are named `{prefix}_...`.
        to_device: moves inputs to the device, for metrics.
        gather_losses: the function that gathers losses; by default the Trainer's `gather_function`.
    """

    def __init__(
        self,
        trainer: Trainer,
        feed: EvaluationFeed,
        *,
        description: str,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None,
        prefix: str,
        to_device: Callable[[object], object],
        gather_losses: Callable[..., torch.Tensor] | None = None,
    ) -> None:
        args = trainer.args
        self.trainer = trainer
        self.feed = feed
        self.prediction_loss_only = prediction_loss_only
        self.ignore_keys = ignore_keys
        self.prefix = prefix
        self.to_device = to_device
        self.gather_losses = gather_losses
        self.batch_size = args.eval_batch_size
        self.is_alone = data_parallel_size(args) == 1
        self.expected = _expected_samples(feed.loader)

        # Metrics are computed by torchmetrics, batch by batch, or once from all predictions.
        self.live: LiveMetrics | None = None
        if consists_of_metrics(trainer.compute_metrics):
            self.live = LiveMetrics(trainer, to_device)
        self.is_batchwise = args.batch_eval_metrics and self.live is None
        self.keeps_predictions = description == "Prediction" or not (
            self.is_batchwise or self.live is not None
        )
        self.metrics: dict[str, Any] | None = None
        self.waiting_batch: EvalPrediction | None = None

        # What is collected from the batches.
        self.recorded = RecordedValues(functools.partial(_samples, trainer))
        self.losses = LossCollector(args.eval_do_concat_batches, rows=self.expected)
        self.predictions = self._collector()
        self.labels = self._collector()
        self.inputs = self._collector()
        self.steps = 0
        self.seen = 0
        """Samples processed so far, counted if the length of the dataset is unknown."""
        self.columns: list[str] | None = None
        """Keys of the batches."""
        self.found_labels = False

    def _collector(self) -> BatchCollector:
        args = self.trainer.args
        if args.eval_use_gather_object:
            return ObjectCollector(args.eval_do_concat_batches)
        return BatchCollector(args.eval_do_concat_batches, rows=self.expected)

    def step(self, batch: Any) -> dict[str, object]:
        """Process one batch.

        Returns:
            Loss, predictions and labels of this process, for Lightning callbacks.
        """
        trainer = self.trainer
        args = trainer.args
        accelerator = trainer.accelerator

        # Position in the loader, because the last batch may contain duplicate samples to remove.
        is_last = self.feed.is_last
        remainder = self.feed.remainder if is_last else -1
        accelerator.gradient_state.loader_end = (is_last, remainder)

        # At the first step, the strategy has set up the model.
        if self.steps == 0:
            self.model = accelerator.strategy.evaluation_model
            self.columns = _keys_of(batch)
        if not self.expected:
            self.seen += count_rows(batch) or 0

        # Forward pass.
        self.recorded.batch = batch
        results = trainer.prediction_step(
            self.model, batch, self.prediction_loss_only, ignore_keys=self.ignore_keys
        )
        loss, logits, labels = nested_detach(results)
        self.recorded.batch = None
        self.found_labels = self.found_labels or loss is not None or labels is not None
        outputs = {"loss": loss, "predictions": logits, "label_ids": labels}

        # Metrics that each process updates with its own samples.
        inputs = None
        if self.live is not None:
            logits = self._preprocessed(logits, labels)
            self.live.update(loss, batch, logits, labels)
            if not self.keeps_predictions:
                logits = None
                labels = None
        elif "inputs" in args.include_for_metrics:
            main_input = getattr(trainer.model, "main_input_name", "input_ids")
            inputs = self.to_device(batch[main_input])

        # Gather and keep. A single process has no duplicates to remove, so it only calls a gather
        # function of the user.
        gathers = not self.is_alone or trainer.gather_function != accelerator.gather_for_metrics
        losses = None
        if loss is not None:
            # Gathering the losses of the last batch leaves one for each of its samples. A view of a
            # scalar loss suffices, unless it is passed to the gather function.
            gathers_losses = gathers or is_last
            if loss.ndim == 0 and not gathers_losses:
                losses = loss.expand(self.batch_size)
            else:
                losses = loss.repeat(self.batch_size)
            if self.gather_losses is not None:
                losses = self.gather_losses(losses)
            elif gathers_losses:
                losses = trainer.gather_function(losses)
            self.losses.add(losses)
        if gathers:
            inputs, logits, labels = self._gathered(inputs, logits, labels, count_rows(batch))
        elif self.live is None:
            logits = self._preprocessed(logits, labels)
        if self.keeps_predictions:
            self._keep(inputs, logits, labels)
        trainer.control = trainer.callback_handler.on_prediction_step(
            args, trainer.state, trainer.control
        )

        self.steps += 1
        steps_on_device = args.eval_accumulation_steps
        if self.is_batchwise:
            self._update_metrics(losses, batch, logits, labels)
        elif steps_on_device is not None and self.steps % steps_on_device == 0:
            self._to_host()
        return outputs

    def _keep(self, inputs: object, logits: object, labels: object) -> None:
        if inputs is not None:
            self.inputs.add(inputs)
        if logits is not None:
            self.predictions.add(logits)
        if labels is not None:
            if self.steps == 0 and _lists_samples(labels):
                self.labels = ObjectCollector(self.trainer.args.eval_do_concat_batches)
            self.labels.add(labels)

    def _to_host(self) -> None:
        move_to_host(self.losses, self.predictions, self.labels, self.inputs)

    def numbers(self) -> dict[str, float]:
        """Return the numeric metrics, for Lightning callbacks."""
        numbers: dict[str, float] = {}
        for name, value in (self.result.metrics or {}).items():
            if isinstance(value, (int, float)):
                numbers[name] = float(value)
        return numbers

    @functools.cached_property
    def result(self) -> EvalLoopOutput:
        """Return arrays and metrics over all samples; computed on first access."""
        # Arrays over all samples.
        self._to_host()
        losses = self.losses.result()
        predictions = self.predictions.result()
        labels = self.labels.result()
        inputs = self.inputs.result()

        # The user's metrics.
        compute_metrics = self.trainer.compute_metrics
        has_both = predictions is not None and labels is not None
        if self.live is not None:
            self.metrics = self.live.values()
        elif self.is_batchwise:
            self._call_with_waiting_batch(compute_result=True)
        elif compute_metrics is not None and has_both:
            prediction = self._prediction(predictions, labels, inputs, losses)
            self.metrics = compute_metrics(prediction)
        if not isinstance(self.metrics, (Mapping, type(None))):
            raise TypeError(
                f"compute_metrics returned {type(self.metrics).__name__} ({self.metrics!r:.60}), "
                "but has to return a dict of values by name, such as {'accuracy': 0.5}."
            )
        metrics = self._recorded()
        metrics |= denumpify_detensorize(dict(self.metrics or {}))

        # Add the prefix to the user's metrics; the metrics of this loop already have it.
        prefix = f"{self.prefix}_"
        if losses is not None:
            metrics[f"{prefix}loss"] = _mean(losses, self.trainer.args.logging_nan_inf_filter)
        if hasattr(self.trainer, "model_preparation_time"):
            metrics[f"{prefix}model_preparation_time"] = self.trainer.model_preparation_time
        for name in list(metrics):
            if not name.startswith(prefix):
                metrics[f"{prefix}{name}"] = metrics.pop(name)
        return EvalLoopOutput(predictions, labels, metrics, self._number_of_samples())

    def _recorded(self) -> dict[str, float]:
        """Return the means of all values that were passed to `record` on any rank."""
        accelerator = self.trainer.accelerator
        has_values = bool(self.recorded)
        if accelerator.num_processes > 1:
            flag = torch.tensor(int(has_values), device=accelerator.device)
            has_values = bool(accelerator.reduce(flag, "max"))
        if not has_values:
            return {}
        return self.recorded.take(gather_objects)

    def _gathered(
        self, inputs: object, logits: object, labels: object, samples: int | None
    ) -> tuple[object, object, object]:
        """Gather inputs, predictions and labels of all processes in the order of samples.

        Args:
            inputs: the main input of the batch, or None.
            logits: its predictions, or None.
            labels: its labels, or None.
            samples: its number of samples; None if unknown.
        """
        trainer = self.trainer
        gather: Callable[..., object] = trainer.gather_function
        if trainer.args.eval_use_gather_object:
            options = accepted_arguments(gather, use_gather_object=True)
            gather = functools.partial(gather, **options)
        elif not self.is_alone:
            # Tensors must have the same shape on all processes.
            inputs = self._padded(inputs)
            if not _lists_samples(labels):
                labels = self._padded(labels)
            logits = self._padded(logits)
            if isinstance(logits, (tuple, list)):
                logits = map_nested(functools.partial(pad_rows, samples=samples), logits)

        if self.live is None:
            logits = self._preprocessed(logits, labels)
        if inputs is not None:
            inputs = gather(inputs)
        if logits is not None:
            logits = gather(logits)
        if labels is not None:
            options = {}
            if _lists_samples(labels):
                options = accepted_arguments(trainer.gather_function, use_gather_object=True)
            labels = gather(labels, **options)
        return inputs, logits, labels

    def _padded(self, value: object) -> object:
        """Pad the second dimension to the maximum over all processes."""
        if value is None:
            return None
        return self.trainer.accelerator.pad_across_processes(value, dim=1, pad_index=-100)

    def _preprocessed(self, logits: object, labels: object) -> object:
        preprocess = self.trainer.preprocess_logits_for_metrics
        if logits is None or preprocess is None:
            return logits
        return preprocess(logits, labels)

    def _update_metrics(self, loss: object, batch: object, logits: object, labels: object) -> None:
        """Call `compute_metrics` with the batch before this one (`batch_eval_metrics`).

        The current batch has to wait, because some loaders cannot tell whether it is the last one.
        """
        if self.trainer.compute_metrics is None or logits is None or labels is None:
            return
        self._call_with_waiting_batch(compute_result=False)
        self.waiting_batch = self._prediction(logits, labels, batch, loss)

    def _call_with_waiting_batch(self, *, compute_result: bool) -> None:
        compute = self.trainer.compute_metrics
        if compute is not None and self.waiting_batch is not None:
            self.metrics = compute(self.waiting_batch, compute_result=compute_result)

    def _prediction(
        self, predictions: object, labels: object, inputs: object, losses: object
    ) -> EvalPrediction:
        """Return the argument of `compute_metrics`, with inputs and losses if requested."""
        included = self.trainer.args.include_for_metrics
        if "inputs" not in included:
            inputs = None
        if "loss" not in included:
            losses = None
        return EvalPrediction(
            predictions=predictions, label_ids=labels, inputs=inputs, losses=losses
        )

    def _number_of_samples(self) -> int:
        loader = self.feed.loader
        dataset = _dataset_of(loader)
        if has_length(dataset):
            count = len(dataset)
        elif has_length(loader):
            count = self.trainer.num_examples(loader)
        else:
            count = self.seen
        return count or self.seen


def _lists_samples(labels: object) -> bool:
    """Return whether labels are a list with a dict for each sample, as in object detection, or
    contain one.

    Its tensors have a row for each object, so their shapes differ between samples.
    """
    if isinstance(labels, tuple):
        return any(_lists_samples(part) for part in cast("tuple[object, ...]", labels))
    if not isinstance(labels, list) or not labels:
        return False
    samples = cast("list[object]", labels)
    return all(isinstance(sample, Mapping) for sample in samples)


def _keys_of(batch: object) -> list[str] | None:
    if isinstance(batch, Mapping):
        return list(batch)
    return None


def _dataset_of(loader: object) -> Any:
    """Return the dataset of a loader that all processes share; None if unknown."""
    return getattr(loader, "full_dataset", getattr(loader, "dataset", None))


def _expected_samples(loader: Any) -> int | None:
    """Return the number of rows to allocate, or None if unknown."""
    dataset = _dataset_of(loader)
    if not has_length(dataset):
        return None
    count = len(dataset)
    batch_size = getattr(loader, "samples_per_round", getattr(loader, "batch_size", None))
    if batch_size and has_length(loader):
        return min(count, len(loader) * batch_size)
    return count


def _mean(losses: np.ndarray | list[np.ndarray], skip_not_finite: bool) -> float:
    """Return the mean of the losses of all samples; optionally of the finite ones only."""
    if isinstance(losses, list):
        losses = np.concatenate(losses)
    if skip_not_finite and version_behavior().keeps_nan_out_of_eval_loss:
        is_finite = np.isfinite(losses)
        if is_finite.any():
            losses = losses[is_finite]
    return losses.mean().item()


def _samples(trainer: Trainer, batch: object) -> int:
    """Count the samples of a batch, without duplicates that fill up the batch."""
    return samples_that_count(trainer, count_rows(batch) or 1)
