"""`evaluate` and `predict`, over Lightning's evaluation loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...lightning_modules.data.lengths import has_length
from ..arguments.enums import DebugOption
from ..arguments.parallelism import data_ranks, samples_of_rank
from ..distributed.consistency import monitored, require_same_evaluation
from ..distributed.xla_device import print_metrics
from ..evaluation.loop import Evaluation, EvaluationFeed
from ..evaluation.missing_metrics import missing_metric, why_no_labels
from ..evaluation.out_of_memory_advice import evaluating
from ..evaluation.results import EvalLoopOutput, PredictionOutput
from ..evaluation.speed import Moment, metrics_of_runtime
from .data import TrainerData
from .reporting import TrainerLogging
from .steps import TrainerSteps

logger = logging.getLogger(__name__)


class TrainerEvaluation(TrainerData, TrainerSteps, TrainerLogging):
    """From datasets to metrics and predictions."""

    _evaluated_columns: list[str] | None = None
    """What a batch of the last evaluation held."""
    _labels_are_known_to_miss = False
    _nan_was_told = False

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
        found = self._with_speed(output, metric_key_prefix, start_time)
        self._log(found)
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
        metrics = self._with_speed(output, metric_key_prefix, start_time)
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
        self._reduce_precision()
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
        )
        with monitored(self), evaluating(self.args), self.accelerator.other_loader():
            if self._run is None:  # otherwise it was done before
                require_same_evaluation(self, dataloader)
            run_evaluation(self, evaluation, started=started, test=description == "Prediction")
            self.gather_function = self.accelerator.gather_for_metrics
            output = evaluation.result()
        self._evaluated_columns = evaluation.columns
        if description == "Evaluation":
            self._warn_of_missing_labels(evaluation, only_loss)
        return output

    def _warn_of_missing_labels(self, evaluation: Evaluation, only_loss: bool) -> None:
        """Say once that an evaluation found neither a loss nor anything for `compute_metrics`."""
        found = evaluation.found_labels or evaluation.metrics or not evaluation.steps
        if found or self._labels_are_known_to_miss:
            return
        self._labels_are_known_to_miss = True
        wanted = self.compute_metrics is not None and not only_loss
        lost = "compute_metrics was not called." if wanted else "The evaluation found nothing."
        logger.warning("%s %s", lost, why_no_labels(self, self._evaluated_columns, look=False))

    def _reduce_precision(self) -> None:
        """Cast the whole model, outside of a training, as `bf16_full_eval` and `fp16_full_eval` ask for."""
        if self.is_in_train:
            return
        if self.args.fp16_full_eval:
            self.model.to(dtype=torch.float16, device=self.args.device)
        elif self.args.bf16_full_eval:
            self.model.to(dtype=torch.bfloat16, device=self.args.device)

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        self._report_to_hp_search(trial, self.state.global_step, metrics)
        if isinstance(self.lr_scheduler, ReduceLROnPlateau) and not skip_scheduler:
            self.lr_scheduler.step(self._best_metric_of(metrics))
        return metrics

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Tell a search about an evaluation in the middle of a training; an override point."""
        self._search.report(trial, step, metrics)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Note down the metric if it is the best so far, and say whether it is."""
        if self.args.metric_for_best_model is None:
            return False
        value = self._best_metric_of(metrics)
        better = np.greater if self.args.greater_is_better else np.less
        if self.state.best_metric is None:
            self.state.best_metric = float("-inf") if self.args.greater_is_better else float("inf")
        if not better(value, self.state.best_metric):
            self._warn_of_nan(value)
            return False
        self.state.best_metric = value
        if self.args.save_strategy != "no":
            self.state.best_global_step = self.state.global_step
        return True

    def _warn_of_nan(self, value: Any) -> None:
        """Say once that an evaluation cannot be the best one."""
        if self._nan_was_told or not np.isnan(value):
            return
        self._nan_was_told = True
        logger.warning(
            "metric_for_best_model=%r is nan at step %s: such an evaluation is never the best one, and no checkpoint "
            "is kept for it.",
            self.args.metric_for_best_model,
            self.state.global_step,
        )

    def _best_metric_of(self, metrics: dict[str, float]) -> float:
        name = str(self.args.metric_for_best_model)
        name = name if name.startswith("eval_") else f"eval_{name}"
        if name in metrics:
            value = metrics[name]
            if isinstance(value, (str, Mapping)) or value is None or np.ndim(value) > 0:
                raise TypeError(
                    f"metric_for_best_model={self.args.metric_for_best_model!r} is {value!r:.60}, a "
                    f"{type(value).__name__}, but which one is better can only be said of a number. Let "
                    f"compute_metrics give one under {name.removeprefix('eval_')!r}, or choose another metric."
                )
            return value
        raise missing_metric(self, name, metrics, self._evaluated_columns)

    def _with_speed(self, output: EvalLoopOutput, prefix: str, start_time: Moment) -> dict[str, float]:
        metrics = output.metrics if output.metrics is not None else {}
        seconds = start_time.seconds_ago - self._setup_seconds
        samples = output.num_samples or 0
        steps = math.ceil(samples / (samples_of_rank(self.args, self.args.eval_batch_size) * data_ranks(self.args)))
        metrics.update(metrics_of_runtime(prefix, seconds, num_samples=samples, num_steps=steps))
        return metrics
