"""One evaluation: every batch through the model, what comes out collected, metrics at the end."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

from ..lightning_modules.collect import BatchCollector, find_batch_size
from .contracts import EvaluationHost
from .metrics import denumpify_detensorize
from .results import EvalLoopOutput, EvalPrediction
from .sizes import has_length


class EvaluationFeed:
    """The loader of an evaluation as Lightning is given it.

    Nothing is read before the first `next()`. Lightning may read one batch ahead, so whether a batch is the last one
    is noted down when it is read, for the step that works on it.

    Args:
        loader: the Trainer's loader.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.is_last: collections.deque[bool] = collections.deque()

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.is_last.append(getattr(self.loader, "end_of_loader", False))
            yield batch


class Evaluation:
    """What `Trainer.evaluation_loop` does with each batch, and makes of all of them.

    Args:
        trainer: the Trainer, whose `prediction_step` and callbacks are called.
        feed: the batches.
        description: `Evaluation` or `Prediction`.
        prediction_loss_only: keep nothing but the loss.
        ignore_keys: outputs of the model that are no predictions.
    """

    def __init__(
        self,
        trainer: EvaluationHost,
        feed: EvaluationFeed,
        *,
        description: str,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None,
    ) -> None:
        args = trainer.args
        self.trainer = trainer
        self.feed = feed
        self.prediction_loss_only = prediction_loss_only
        self.ignore_keys = ignore_keys
        self.keep = not args.batch_eval_metrics or description == "Prediction"
        self.losses, self.predictions, self.labels, self.inputs = (
            BatchCollector(args.eval_do_concat_batches) for _ in range(4)
        )
        self.steps = 0
        self.seen = 0
        self.metrics: dict[str, Any] | None = None

    def step(self, batch: Any) -> None:
        """Work on one batch."""
        trainer, args = self.trainer, self.trainer.args
        self._tell_accelerator_where_it_ends()
        self.seen += find_batch_size(batch) or 0
        loss, logits, labels = trainer.prediction_step(
            trainer.model, batch, self.prediction_loss_only, ignore_keys=self.ignore_keys
        )
        inputs = self._main_input(batch) if "inputs" in args.include_for_metrics else None
        loss, inputs, logits, labels = self._gathered(loss, inputs, logits, labels)
        self._collect(loss, inputs, logits, labels)
        trainer.control = trainer.callback_handler.on_prediction_step(args, trainer.state, trainer.control)
        self.steps += 1
        if args.batch_eval_metrics:
            self._update_metrics(loss, batch, logits, labels)
        elif args.eval_accumulation_steps is not None and self.steps % args.eval_accumulation_steps == 0:
            self._to_host()

    def output(self, prefix: str) -> EvalLoopOutput:
        """Arrays and metrics over all samples; metrics are named `{prefix}_...`."""
        losses, predictions = self.losses.result(), self.predictions.result()
        labels, inputs = self.labels.result(), self.inputs.result()
        compute = None if self.trainer.args.batch_eval_metrics else self.trainer.compute_metrics
        if compute is not None and predictions is not None and labels is not None:
            self.metrics = compute(self._prediction(predictions, labels, inputs, losses))
        metrics = denumpify_detensorize(dict(self.metrics or {}))
        if losses is not None:
            metrics[f"{prefix}_loss"] = _mean(losses)
        if hasattr(self.trainer, "model_preparation_time"):
            metrics[f"{prefix}_model_preparation_time"] = self.trainer.model_preparation_time
        for name in [name for name in metrics if not name.startswith(f"{prefix}_")]:
            metrics[f"{prefix}_{name}"] = metrics.pop(name)
        return EvalLoopOutput(predictions, labels, metrics, self._number_of_samples())

    def _tell_accelerator_where_it_ends(self) -> None:
        accelerator, loader = self.trainer.accelerator, self.feed.loader
        accelerator.end_of_dataloader = self.feed.is_last.popleft() if self.feed.is_last else False
        accelerator.remainder = getattr(loader, "remainder", -1)

    def _main_input(self, batch: Any) -> Any:
        name = getattr(self.trainer.model, "main_input_name", "input_ids")
        return self.trainer._prepare_input(batch[name])

    def _gathered(self, loss: Any, inputs: Any, logits: Any, labels: Any) -> tuple[Any, Any, Any, Any]:
        """What all processes have of it, in the order of the samples."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        gather: Callable[[Any], Any] = trainer.gather_function
        inputs, labels, logits = (
            None if value is None else accelerator.pad_across_processes(value, dim=1, pad_index=-100)
            for value in (inputs, labels, logits)
        )
        if logits is not None and trainer.preprocess_logits_for_metrics is not None:
            logits = trainer.preprocess_logits_for_metrics(logits, labels)
        loss = None if loss is None else loss.repeat(trainer.args.eval_batch_size)
        gathered = (None if value is None else gather(value) for value in (loss, inputs, logits, labels))
        return tuple(gathered)  # type: ignore[return-value]

    def _collect(self, loss: Any, inputs: Any, logits: Any, labels: Any) -> None:
        if loss is not None:
            self.losses.add(loss)
        if not self.keep:
            return
        for collector, value in ((self.inputs, inputs), (self.predictions, logits), (self.labels, labels)):
            if value is not None:
                collector.add(value)

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

    def _to_host(self) -> None:
        for collector in (self.losses, self.predictions, self.labels, self.inputs):
            collector.to_host()

    def _number_of_samples(self) -> int:
        loader = self.feed.loader
        dataset = getattr(loader, "dataset", None)
        if has_length(dataset):
            count = len(dataset)  # type: ignore[arg-type]
        else:
            count = self.trainer.num_examples(loader) if has_length(loader) else self.seen
        return count or self.seen


def _mean(losses: Any) -> float:
    import numpy as np

    return (np.concatenate(losses) if isinstance(losses, list) else losses).mean().item()
