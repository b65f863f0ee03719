"""Tracking of `metric_for_best_model`, and errors for missing metrics and labels."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...lightning_modules.common.suggestions import did_you_mean
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.models.inspection import base_of_adapter
from ..arguments.derived import watched_metric

if TYPE_CHECKING:
    from .. import Trainer


logger = logging.getLogger(__name__)


class BestMetric:
    """Track the best evaluation of a Trainer by `metric_for_best_model`.

    Args:
        trainer: the Trainer; its `state` holds the best metric and its step.

    Attributes:
        columns: keys of the batches in the last evaluation; None if unknown.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.columns: list[str] | None = None
        self._has_warned_of_labels = False
        self._has_warned_of_nan = False

    def note(self, metrics: Mapping[str, Any]) -> bool:
        """Store the metric in the state if it is the best so far; returns whether it is."""
        args = self.trainer.args
        state = self.trainer.state
        if args.metric_for_best_model is None:
            return False

        value = self.value(metrics)
        better = np.greater if args.greater_is_better else np.less
        if state.best_metric is None:
            # Any number is better than this.
            state.best_metric = float("-inf") if args.greater_is_better else float("inf")
        if not better(value, state.best_metric):
            self._warn_of_nan(value)
            return False

        state.best_metric = value
        if args.save_strategy != "no":
            state.best_global_step = state.global_step
        return True

    def value(self, metrics: Mapping[str, Any]) -> float:
        """Return `metric_for_best_model` from the metrics of an evaluation; by default the loss.

        Raises:
            MissingMetricError: the metric is missing.
            TypeError: it is not a number.
        """
        watched = watched_metric(self.trainer.args)
        name = watched if watched.startswith("eval_") else f"eval_{watched}"
        if name not in metrics:
            raise missing_metric(self.trainer, name, metrics, self.columns)
        value = metrics[name]
        if isinstance(value, (str, Mapping)) or value is None or np.ndim(value) > 0:
            raise TypeError(
                f"metric_for_best_model={watched!r} is {value!r:.60}, a {type(value).__name__}. "
                "Let compute_metrics return a number."
            )
        return value

    def warn_of_missing_labels(self, *, needs_metrics: bool) -> None:
        """Warn once that an evaluation yielded neither a loss nor labels for `compute_metrics`,
        if `needs_metrics`.
        """
        if self._has_warned_of_labels:
            return
        self._has_warned_of_labels = True
        consequence = (
            "compute_metrics was not called." if needs_metrics else "The evaluation found nothing."
        )
        logger.warning("%s %s", consequence, why_no_labels(self.trainer, self.columns))

    def _warn_of_nan(self, value: Any) -> None:
        """Warn once that a metric is NaN, which is never the best."""
        if self._has_warned_of_nan or not np.isnan(value):
            return
        self._has_warned_of_nan = True
        logger.warning(
            "metric_for_best_model=%r is nan at step %s: that evaluation is never the best.",
            self.trainer.args.metric_for_best_model,
            self.trainer.state.global_step,
        )


class MissingMetricError(KeyError):
    """The metric is missing in the evaluation; a KeyError, as in the reference."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show it in quotes


def missing_metric(
    trainer: Trainer, name: str, metrics: Mapping[str, Any], columns: Any
) -> MissingMetricError:
    """Return the error for a missing metric.

    Args:
        trainer: the Trainer that evaluated.
        name: the metric, with its prefix.
        metrics: the metrics of the evaluation.
        columns: keys of the evaluated batches.
    """
    if any(metric.endswith("_loss") for metric in metrics):
        why = _why_no_metric(trainer, name)
    else:
        why = why_no_labels(trainer, columns)
    return MissingMetricError(
        f"metric_for_best_model is {watched_metric(trainer.args)!r}, but the evaluation has no "
        f"{name!r}: it has {_listed(metrics)}.{did_you_mean(name, metrics)} {why}"
    )


def why_no_labels(trainer: Trainer, columns: Sequence[str] | None) -> str:
    """Explain why no labels were found in batches with these columns, and what to set."""
    model = base_of_adapter(trainer.model)
    parameters = _listed(inspect.signature(model.forward).parameters)
    return (
        "The batches have no labels, so the evaluation has neither a loss nor metrics. "
        f"{type(model).__name__} takes: {parameters}. A batch has: {_listed(columns)}. "
        f"label_names={trainer.label_names}: set it to the columns that hold labels. Columns that "
        f"forward does not take are dropped (remove_unused_columns="
        f"{trainer.args.remove_unused_columns}): give its argument the name of the column."
    )


def _why_no_metric(trainer: Trainer, name: str) -> str:
    if trainer.args.prediction_loss_only:
        return "prediction_loss_only=True leaves out all but the loss: set it to False."
    remedy = (
        f"Pass a compute_metrics that returns {name.removeprefix('eval_')!r}, or set "
        "metric_for_best_model to one of these."
    )
    if isinstance(trainer.eval_dataset, Mapping):
        remedy += (
            " With a dict of datasets each is called eval_<dataset>_<metric>; with "
            "eval_aggregate='mean' there is eval_mean_<metric> of each metric that all of them "
            f"({_listed(trainer.eval_dataset)}) have."
        )
    return remedy


def _listed(columns: Iterable[str] | None) -> str:
    if columns is None:
        return "unknown"
    return ", ".join(map(str, columns)) or "nothing"
