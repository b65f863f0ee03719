"""Evaluation loop: prediction steps, collection of outputs, metrics."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ...callbacks.recording import RecordedValues
from ...lightning_modules.common.collectives import gather_objects
from ...lightning_modules.common.followed import followed
from ...lightning_modules.common.nested import find_batch_size
from ...lightning_modules.data.iteration import iterate
from ...lightning_modules.data.lengths import has_length
from ...lightning_modules.data.uneven_inputs import UnevenInputs, may_be_uneven
from ...lightning_modules.evaluation.collecting import BatchCollector, LossCollector, ObjectCollector, move_to_host
from ...lightning_modules.models.inspection import accepted_arguments
from ..arguments.parallelism import data_rank, data_ranks
from .live_metrics import LiveMetrics, consists_of_metrics
from .metrics import denumpify_detensorize
from .results import EvalLoopOutput, EvalPrediction

if TYPE_CHECKING:
    from .. import Trainer


class EvaluationFeed:
    """Wrap the loader of an evaluation for Lightning.

    Nothing is read before the first `next()`. Lightning may prefetch one batch, so `is_last` is queued when a batch is
    read, for the step that processes it.

    Args:
        loader: the Trainer's loader.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.is_last: collections.deque[bool] = collections.deque()
        self.rounds: UnevenInputs | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        batches = iterate(self.loader)
        if may_be_uneven(self.loader):
            self.rounds = UnevenInputs("Evaluation", same_size=True, ends=self._ends)
            batches = self.rounds(batches)
        for batch in batches:
            self.is_last.append(self._ends() if self.rounds is None else self.rounds.is_last)
            yield batch

    @property
    def remainder(self) -> int:
        """Return `EpochLoader.remainder`; -1 (unknown) with uneven processes."""
        return -1 if self.rounds is not None and self.rounds.uneven else getattr(self.loader, "remainder", -1)

    def _ends(self) -> bool:
        return getattr(self.loader, "end_of_loader", False)


class Evaluation:
    """Process the batches of `Trainer.evaluation_loop`, and compute its result.

    Args:
        trainer: the Trainer; its `prediction_step` and callbacks are called.
        feed: the batches.
        description: `Evaluation` or `Prediction`.
        prediction_loss_only: keep only the loss.
        ignore_keys: outputs of the model that are not predictions.
        prefix: metrics are named `{prefix}_...`.
        to_device: moves inputs to the device, for metrics.
        gather_losses: gathers losses in place of the Trainer's `gather_function`.
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
        to_device: Callable[[Any], Any],
        gather_losses: Callable[..., Any] | None = None,
    ) -> None:
        args = trainer.args
        self.trainer, self.feed, self.prediction_loss_only = trainer, feed, prediction_loss_only
        self.ignore_keys, self.prefix, self.to_device = ignore_keys, prefix, to_device
        self.gather_losses = gather_losses
        self.live = LiveMetrics(trainer, to_device) if consists_of_metrics(trainer.compute_metrics) else None
        self.batchwise = args.batch_eval_metrics and self.live is None
        self.keep = description == "Prediction" or not (self.batchwise or self.live is not None)
        self.expected = _expected_samples(feed.loader)
        self.losses = LossCollector(args.eval_do_concat_batches)
        self.recorded = RecordedValues(functools.partial(_samples, trainer))
        joining = functools.partial(BatchCollector, rows=self.expected)
        kind = ObjectCollector if args.eval_use_gather_object else joining
        self.predictions, self.labels, self.inputs = (kind(args.eval_do_concat_batches) for _ in range(3))
        self._collectors = (self.losses, self.predictions, self.labels, self.inputs)
        self.alone = data_ranks(args) == 1
        self.batch_size = args.eval_batch_size
        self.steps = 0
        self.columns: list[str] | None = None
        self.found_labels = False
        self.seen = 0
        self.metrics: dict[str, Any] | None = None
        self._result: EvalLoopOutput | None = None

    def step(self, batch: Any) -> dict[str, Any]:
        """Process one batch; returns loss, predictions and labels of this process, for Lightning callbacks."""
        trainer, args, feed = self.trainer, self.trainer.args, self.feed
        ends = feed.is_last.popleft() if feed.is_last else False
        trainer.accelerator.gradient_state.loader_end = ends, feed.remainder if ends else -1
        if self.steps == 0:
            self._begin(batch)
        if not self.expected:
            self.seen += find_batch_size(batch) or 0
        self.recorded.batch = batch
        loss, logits, labels = trainer.prediction_step(
            self.model, batch, self.prediction_loss_only, ignore_keys=self.ignore_keys
        )
        self.recorded.batch = None
        self.found_labels = self.found_labels or loss is not None or labels is not None
        outputs = {"loss": loss, "predictions": logits, "label_ids": labels}
        inputs = None
        if self.live is not None:
            logits = self._prepared(logits, labels)
            self.live.update(loss, batch, logits, labels)
            logits, labels = (logits, labels) if self.keep else (None, None)
        elif "inputs" in args.include_for_metrics:
            inputs = self.to_device(batch[getattr(trainer.model, "main_input_name", "input_ids")])
        losses = None if loss is None else self._keep_loss(loss)
        if ends or not self.alone or trainer.gather_function != trainer.accelerator.gather_for_metrics:
            inputs, logits, labels = self._gathered(inputs, logits, labels)
        elif self.live is None and trainer.preprocess_logits_for_metrics is not None:
            logits = self._prepared(logits, labels)
        if self.keep:
            kept = (self.inputs, inputs), (self.predictions, logits), (self.labels, labels)
            for collector, value in kept:
                if value is not None:
                    collector.add(value)
        trainer.control = trainer.callback_handler.on_prediction_step(args, trainer.state, trainer.control)
        self.steps += 1
        if self.batchwise:
            self._update_metrics(losses, batch, logits, labels)
        elif args.eval_accumulation_steps is not None and self.steps % args.eval_accumulation_steps == 0:
            self._to_host()
        return outputs

    def _to_host(self) -> None:
        move_to_host(*self._collectors)

    def _begin(self, batch: Any) -> None:
        """Read model and columns at the first batch, once the strategy has set up the model."""
        self.model = self.trainer.accelerator.strategy.evaluated
        self.columns = list(batch) if isinstance(batch, Mapping) else None

    def result(self) -> EvalLoopOutput:
        """Return arrays and metrics over all samples, computed at the first call."""
        if self._result is None:
            self._result = self._make_result()
        return self._result

    def numbers(self) -> dict[str, float]:
        """Return the numeric metrics, for Lightning callbacks."""
        metrics = self.result().metrics or {}
        return {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}

    def _make_result(self) -> EvalLoopOutput:
        prefix = self.prefix
        move_to_host(*self._collectors)
        losses, predictions = self.losses.result(), self.predictions.result()
        labels, inputs = self.labels.result(), self.inputs.result()
        compute = self.trainer.compute_metrics
        if self.live is not None:
            self.metrics = self.live.values()
        elif compute is not None and not self.batchwise and predictions is not None and labels is not None:
            self.metrics = compute(self._prediction(predictions, labels, inputs, losses))
        metrics = {**self._recorded(), **denumpify_detensorize(dict(self.metrics or {}))}
        if losses is not None:
            metrics[f"{prefix}_loss"] = _mean(losses, self.trainer.args.logging_nan_inf_filter)
        if hasattr(self.trainer, "model_preparation_time"):
            metrics[f"{prefix}_model_preparation_time"] = self.trainer.model_preparation_time
        for name in [name for name in metrics if not name.startswith(f"{prefix}_")]:
            metrics[f"{prefix}_{name}"] = metrics.pop(name)
        return EvalLoopOutput(predictions, labels, metrics, self._number_of_samples())

    def _recorded(self) -> dict[str, float]:
        accelerator, there_are = self.trainer.accelerator, bool(self.recorded)
        if accelerator.num_processes > 1:
            there_are = bool(accelerator.reduce(torch.tensor(int(there_are), device=accelerator.device), "max"))
        return self.recorded.take(gather_objects) if there_are else {}

    def _keep_loss(self, loss: torch.Tensor) -> torch.Tensor | None:
        """Collect the loss once per sample; returns the gathered losses for batchwise metrics."""
        accelerator = self.trainer.accelerator
        gather = self.gather_losses or self.trainer.gather_function
        if self.alone and not self.batchwise and gather == accelerator.gather_for_metrics:
            shorter = accelerator.end_of_dataloader and accelerator.remainder > 0
            self.losses.add(loss, self.batch_size, accelerator.remainder if shorter else None)
            return None
        losses = gather(loss.repeat(self.batch_size))
        self.losses.add(losses)
        return losses

    def _gathered(self, inputs: Any, logits: Any, labels: Any) -> tuple[Any, Any, Any]:
        """Gather inputs, predictions and labels of all processes in the order of samples."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        gather: Callable[[Any], Any] = trainer.gather_function
        if trainer.args.eval_use_gather_object:
            gather = functools.partial(gather, **accepted_arguments(gather, use_gather_object=True))
        else:
            inputs, labels, logits = (
                value if self.alone or value is None else accelerator.pad_across_processes(value, dim=1, pad_index=-100)
                for value in (inputs, labels, logits)
            )
        if self.live is None:
            logits = self._prepared(logits, labels)
        inputs, logits, labels = (None if value is None else gather(value) for value in (inputs, logits, labels))
        return inputs, logits, labels

    def _prepared(self, logits: Any, labels: Any) -> Any:
        prepare = self.trainer.preprocess_logits_for_metrics
        return logits if logits is None or prepare is None else prepare(logits, labels)

    def _update_metrics(self, loss: Any, batch: Any, logits: Any, labels: Any) -> None:
        compute = self.trainer.compute_metrics
        if compute is None or logits is None or labels is None:
            return
        prediction = self._prediction(logits, labels, batch, loss)
        self.metrics = compute(prediction, compute_result=self.trainer.accelerator.end_of_dataloader)

    def _prediction(self, predictions: Any, labels: Any, inputs: Any, losses: Any) -> EvalPrediction:
        wanted = self.trainer.args.include_for_metrics
        return EvalPrediction(
            predictions=predictions,
            label_ids=labels,
            inputs=inputs if "inputs" in wanted else None,
            losses=losses if "loss" in wanted else None,
        )

    def _number_of_samples(self) -> int:
        loader = self.feed.loader
        dataset: Any = getattr(loader, "whole_dataset", getattr(loader, "dataset", None))
        if has_length(dataset):
            count = len(dataset)
        else:
            count = self.trainer.num_examples(loader) if has_length(loader) else self.seen
        return count or self.seen


def _expected_samples(loader: Any) -> int | None:
    """Return the number of rows to allocate, or None if unknown."""
    dataset: Any = getattr(loader, "whole_dataset", getattr(loader, "dataset", None))
    if not has_length(dataset):
        return None
    count, batch = len(dataset), getattr(loader, "samples_per_round", getattr(loader, "batch_size", None))
    return min(count, len(loader) * batch) if has_length(loader) and batch else count


def _mean(losses: Any, skip_not_finite: bool) -> float:
    import numpy as np

    losses = np.concatenate(losses) if isinstance(losses, list) else losses
    if skip_not_finite and followed().keeps_nan_out_of_eval_loss:
        finite = np.isfinite(losses)
        losses = losses[finite] if finite.any() else losses
    return losses.mean().item()


def _samples(trainer: Any, batch: Any) -> int:
    """Count the samples of a batch, but those that repeat earlier ones to fill it up."""
    size, accelerator = find_batch_size(batch) or 1, trainer.accelerator
    if accelerator.end_of_dataloader and accelerator.remainder > 0:
        return min(max(accelerator.remainder - data_rank(trainer.args) * size, 0), size)
    return size
