"""Evaluation and prediction by Lightning's evaluation loop, within `fit` or as a separate run."""

from __future__ import annotations

import collections
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ...callbacks.recording import recording_into
from ...lightning_modules.data.batch_samplers import last_round_filled
from ...lightning_modules.data.lengths import has_length, length_or_none
from ...lightning_modules.distributed.health import name_first_error
from ..arguments.rank_groups import data_parallel_size, samples_of_rank
from ..distributed.consistency import require_same_evaluation
from ..evaluation.loop import Evaluation, EvaluationFeed
from ..evaluation.metrics import StartTime, metrics_of_runtime
from ..evaluation.out_of_memory_advice import evaluating
from ..evaluation.results import EvalLoopOutput
from ..evaluation.sets import aggregate, metrics_of
from .tracebacks import ShortTraceback

if TYPE_CHECKING:
    from torch import nn

    from .. import Trainer
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)


def evaluate_loader(
    trainer: Trainer, dataloader: Any, description: str, **settings: Any
) -> EvalLoopOutput:
    """Run the batches of a loader through `prediction_step`.

    Args:
        trainer: the Trainer.
        dataloader: the batches.
        description: see `Trainer.evaluation_loop`.
        settings: parameters of `Evaluation`.
    """
    components = trainer._lightrainer
    started = StartTime()
    num_examples: int | str = "unknown"
    if has_length(dataloader):
        num_examples = trainer.num_examples(dataloader)
    logger.info("***** Running %s *****", description)
    logger.info("  Num examples = %s", num_examples)
    logger.info("  Batch size = %s", trainer.args.eval_batch_size)

    # Model and optimizer stay in evaluation mode until the next training step, even if the
    # evaluation fails, because overrides of `log` read `model.training` to distinguish evaluation
    # metrics from training metrics.
    trainer.callback_handler.eval_dataloader = dataloader
    if not trainer.is_in_train:
        _cast_for_evaluation(trainer.model, trainer.args)
    trainer.model.eval()
    if callable(getattr(trainer.optimizer, "eval", None)):
        trainer.optimizer.eval()

    with (
        # All ranks process the same number of batches. The results of extra batches, which fill up
        # the last round, are dropped.
        last_round_filled(getattr(dataloader, "batch_sampler", None)),
        name_first_error(),
        evaluating(trainer.args),
        trainer.accelerator.keep_loader_position(),
    ):
        evaluation = Evaluation(
            trainer,
            EvaluationFeed(dataloader),
            description=description,
            to_device=trainer._prepare_input,
            gather_losses=components.gather_losses,
            **settings,
        )
        # During a training the ranks have already been compared at its start.
        if components.fitting is None:
            require_same_evaluation(
                trainer,
                dataloader,
                distributes_model=components.strategy.configures_model,
            )
        with recording_into(evaluation.recorded):
            _run_lightning(trainer, evaluation, started, test=description == "Prediction")
        trainer.gather_function = trainer.accelerator.gather_for_metrics
        output = evaluation.result

    # An evaluation without a loss and without metrics indicates that the labels are missing.
    components.metric_of_best.columns = evaluation.columns
    has_results = evaluation.found_labels or evaluation.metrics or not evaluation.steps
    if description == "Evaluation" and not has_results:
        needs_metrics = trainer.compute_metrics is not None and not evaluation.prediction_loss_only
        components.metric_of_best.warn_of_missing_labels(needs_metrics=needs_metrics)
    return output


def _cast_for_evaluation(model: nn.Module, args: TrainingArguments) -> None:
    """Cast the model according to `bf16_full_eval` and `fp16_full_eval`."""
    if args.fp16_full_eval:
        model.to(dtype=torch.float16, device=args.device)
    elif args.bf16_full_eval:
        model.to(dtype=torch.bfloat16, device=args.device)


def _run_lightning(
    trainer: Trainer, evaluation: Evaluation, started: StartTime, *, test: bool
) -> None:
    """Run Lightning's evaluation loop, either inside of `fit` or as a separate `validate` or
    `test`.

    Args:
        trainer: the Trainer.
        evaluation: processes each batch.
        started: when the preparation of the evaluation started.
        test: whether to run `test` instead of `validate`.
    """
    components = trainer._lightrainer
    from ...lightning_modules.internals import lightning_internals
    from ..evaluation.module import EvaluationModule
    from .lightning_trainer import lightning_run

    fitting = components.fitting
    if fitting is not None:
        components.setup_seconds = 0.0

    # Do not pass a loader without batches to Lightning, which would warn about it. Iterate over it
    # nevertheless: each iteration draws a seed for workers from the global generator, so skipping
    # it would change the random numbers of the next training step.
    if length_or_none(evaluation.feed.loader) == 0:
        collections.deque(evaluation.feed, maxlen=0)
        return

    if fitting is not None:
        fitting.module.evaluate(evaluation)
        return

    module = EvaluationModule(trainer.model, evaluation)
    with ShortTraceback(), lightning_run(trainer, module) as lightning_trainer:
        # Exclude the preparation from the reported speed.
        components.setup_seconds = started.seconds_ago
        if not components.was_prepared:
            components.was_prepared = True
            trainer.model_preparation_time = round(components.setup_seconds, 4)

        loop = lightning_trainer.validate
        if test:
            loop = lightning_trainer.test
        loader = lightning_internals.combined(evaluation.feed, training=False)
        loop(module, loader, verbose=False)


def data_to_evaluate(trainer: Trainer, eval_dataset: Any) -> Any:
    """Return the dataset passed to `evaluate`, or the `eval_dataset` of the Trainer.

    If the Trainer's `eval_dataset` is a dict, return a dict that maps each name to itself, because
    persistent loaders are cached by these names.
    """
    if eval_dataset is None:
        eval_dataset = trainer.eval_dataset
        if isinstance(eval_dataset, dict):
            return {name: name for name in eval_dataset}
    return eval_dataset


def evaluate_each(
    trainer: Trainer,
    datasets: Mapping[str, object],
    ignore_keys: Any,
    prefix: str,
    **gen_kwargs: Any,
) -> dict[str, float]:
    """Evaluate several datasets, each under `{prefix}_{name}`.

    With `eval_aggregate`, the aggregate over all of them is logged like the metrics of another
    dataset.

    Returns:
        The metrics of all datasets.
    """
    metrics_by_name: dict[str, dict[str, float]] = {}
    metrics: dict[str, float] = {}
    # Values may also be names of the Trainer's datasets.
    for name, dataset in datasets.items():
        with metrics_of(trainer, name):
            metrics_of_dataset = trainer.evaluate(
                eval_dataset=dataset,
                ignore_keys=ignore_keys,
                metric_key_prefix=f"{prefix}_{name}",
                **gen_kwargs,
            )
        metrics_by_name[name] = metrics_of_dataset
        metrics |= metrics_of_dataset

    if trainer.args.eval_aggregate is not None:
        aggregated = aggregate(trainer.args.eval_aggregate, metrics_by_name, prefix)
        trainer.log(aggregated)
        # After the event of each dataset, fire one for all of them.
        trainer.control = trainer.callback_handler.on_evaluate(
            trainer.args, trainer.state, trainer.control, aggregated
        )
        metrics |= aggregated

    trainer._lightrainer.search.record_evaluation(metrics, prefix)
    return metrics


def add_speed(
    output: EvalLoopOutput, prefix: str, seconds: float, args: TrainingArguments
) -> dict[str, float]:
    """Add the speed to the metrics of an evaluation, and return them."""
    metrics = output.metrics
    if metrics is None:
        metrics = {}

    samples = output.num_samples or 0
    samples_of_step = samples_of_rank(args, args.eval_batch_size) * data_parallel_size(args)
    steps = math.ceil(samples / samples_of_step)
    metrics.update(metrics_of_runtime(prefix, seconds, samples=samples, steps=steps))
    return metrics
