"""`evaluate` and `predict`, over Lightning's evaluation loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...lightning_modules.data.lengths import has_length
from ..arguments import TrainingArguments
from ..arguments.enums import DebugOption
from ..arguments.parallelism import data_ranks, samples_of_rank
from ..distributed.consistency import monitored, require_same_evaluation
from ..distributed.xla_device import print_metrics
from ..evaluation.best_metric import BestMetric
from ..evaluation.loop import Evaluation, EvaluationFeed
from ..evaluation.out_of_memory_advice import evaluating
from ..evaluation.results import EvalLoopOutput, PredictionOutput
from ..evaluation.speed import Moment, metrics_of_runtime
from .data import TrainerData
from .reporting import TrainerLogging
from .steps import TrainerSteps

logger = logging.getLogger(__name__)


class TrainerEvaluation(TrainerData, TrainerSteps, TrainerLogging):
    """From datasets to metrics and predictions."""

    _gather_losses: Callable[..., Any] | None = None
    """For losses alone, in the place of `gather_function`."""

    _best_metric = cached_property(BestMetric)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """As `transformers.Trainer.evaluate`, but linear in the number of predictions.

        Args:
            eval_dataset: a dataset, a dict of them, or the name of one; by default the Trainer's.
            ignore_keys: outputs of the model that are no predictions.
            metric_key_prefix: the metrics are called `{prefix}_loss`, ...; for a dict `{prefix}_{name}_loss`.

        Returns:
            The metrics.
        """
        if self._run is None:
            self._apply_arguments()
        given = eval_dataset is not None
        eval_dataset = eval_dataset if given else self.eval_dataset
        if isinstance(eval_dataset, dict):
            metrics: dict[str, float] = {}
            for name, dataset in eval_dataset.items():
                prefix = f"{metric_key_prefix}_{name}"
                metrics.update(self.evaluate(dataset if given else name, ignore_keys, metric_key_prefix=prefix))
            self._search.note(metrics, metric_key_prefix)
            return metrics
        self._memory_tracker.start("eval")
        dataloader = self.get_eval_dataloader(eval_dataset)
        start_time = Moment()
        output = self.evaluation_loop(
            dataloader,
            description="Evaluation",
            prediction_loss_only=True if self.compute_metrics is None else None,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        found = _add_speed(output, metric_key_prefix, start_time.seconds_ago - self._setup_seconds, self.args)
        self.log(found)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        if DebugOption.TPU_METRICS_DEBUG in self.args.debug:
            print_metrics()
        self._memory_tracker.stop("eval", found)
        self._search.note(found, metric_key_prefix)
        return found

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """As `transformers.Trainer.predict`, but linear in the number of predictions.

        Args:
            test_dataset: the dataset.
            ignore_keys: outputs of the model that are no predictions.
            metric_key_prefix: the metrics are called `{prefix}_loss`, ...

        Returns:
            Predictions and labels as arrays over all samples, shorter rows filled up with -100, and the metrics.
        """
        if self._run is None:
            self._apply_arguments()
        self._memory_tracker.start("test")
        dataloader = self.get_test_dataloader(test_dataset)
        start_time = Moment()
        output = self.evaluation_loop(
            dataloader, description="Prediction", ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
        )
        metrics = _add_speed(output, metric_key_prefix, start_time.seconds_ago - self._setup_seconds, self.args)
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, metrics)
        self._memory_tracker.stop("test", metrics)
        return PredictionOutput(predictions=output.predictions, label_ids=output.label_ids, metrics=metrics)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """As `transformers.Trainer.evaluation_loop`; it is Lightning's evaluation loop that runs.

        In the middle of a training it runs inside of `fit`; Lightning callbacks see the validation hooks. Otherwise
        `evaluate` is a `validate`, and `predict` a `test`, of Lightning. The hooks after a batch get `loss`,
        `predictions` and `label_ids` of it; those after the loop find the metrics in `callback_metrics`.

        Args:
            dataloader: the batches, the Trainer's or another one.
            description: `Evaluation`, or `Prediction` for predictions that are returned whatever the metrics need.
            prediction_loss_only: keep nothing but the loss; by default what the argument of that name says.
            ignore_keys: outputs of the model that are no predictions.
            metric_key_prefix: the metrics are called `{prefix}_loss`, ...

        Returns:
            Predictions and labels as arrays over all samples, None where nothing was kept, the metrics, and the number
            of samples.
        """
        started = Moment()
        from .lightning_trainer import run_evaluation

        only_loss = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        logger.info("***** Running %s *****", description)
        logger.info("  Num examples = %s", self.num_examples(dataloader) if has_length(dataloader) else "unknown")
        logger.info("  Batch size = %s", self.args.eval_batch_size)
        self.callback_handler.eval_dataloader = dataloader
        if not self.is_in_train:
            _cast_for_evaluation(self.model, self.args)
        if callable(getattr(self.optimizer, "eval", None)):
            self.optimizer.eval()
        self.model.eval()  # and so it stays until the next training step, also where the evaluation fails
        evaluation = Evaluation(
            self,
            EvaluationFeed(dataloader),
            description=description,
            prediction_loss_only=only_loss,
            ignore_keys=ignore_keys,
            prefix=metric_key_prefix,
            to_device=self._prepare_input,
            gather_losses=self._gather_losses,
        )
        with monitored(self), evaluating(self.args), self.accelerator.other_loader():
            if self._run is None:  # otherwise it was done before
                require_same_evaluation(self, dataloader)
            run_evaluation(self, evaluation, started=started, test=description == "Prediction")
            self.gather_function = self.accelerator.gather_for_metrics
            output = evaluation.result()
        self._best_metric.columns = evaluation.columns
        nothing = not (evaluation.found_labels or evaluation.metrics) and evaluation.steps
        if description == "Evaluation" and nothing:
            self._best_metric.warn_of_missing_labels(wanted=self.compute_metrics is not None and not only_loss)
        return output

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        self._report_to_hp_search(trial, self.state.global_step, metrics)
        if isinstance(self.lr_scheduler, ReduceLROnPlateau) and not skip_scheduler:
            self.lr_scheduler.step(self._best_metric.value(metrics))
        return metrics

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Tell a search about an evaluation in the middle of a training; an override point."""
        self._search.report(trial, step, metrics)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        return self._best_metric.note(metrics)


def _cast_for_evaluation(model: nn.Module, args: TrainingArguments) -> None:
    """Cast the whole model as `bf16_full_eval` and `fp16_full_eval` ask for."""
    if args.fp16_full_eval or args.bf16_full_eval:
        model.to(dtype=torch.float16 if args.fp16_full_eval else torch.bfloat16, device=args.device)


def _add_speed(output: EvalLoopOutput, prefix: str, seconds: float, args: TrainingArguments) -> dict[str, float]:
    """The metrics of an evaluation, to which its speed has been added."""
    metrics = output.metrics if output.metrics is not None else {}
    samples = output.num_samples or 0
    steps = math.ceil(samples / (samples_of_rank(args, args.eval_batch_size) * data_ranks(args)))
    metrics.update(metrics_of_runtime(prefix, seconds, num_samples=samples, num_steps=steps))
    return metrics
