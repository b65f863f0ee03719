"""Track the best evaluation by `metric_for_best_model`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...lightning_modules.common.weak_attribute import WeakAttribute
from ..arguments.derived import watched_metric
from .missing_metrics import missing_metric, why_no_labels

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

    def update(self, metrics: Mapping[str, Any]) -> bool:
        """Store the metric in the state if it is the best so far; return whether it is."""
        args = self.trainer.args
        state = self.trainer.state
        if args.metric_for_best_model is None:
            return False

        value = self.watched_value(metrics)
        better = np.greater if args.greater_is_better else np.less
        if state.best_metric is None:
            # Start with the worst possible value. As in transformers, it stays in the state if the
            # first metrics are NaN.
            state.best_metric = float("-inf") if args.greater_is_better else float("inf")
        if not better(value, state.best_metric):
            self._warn_of_nan(value)
            return False

        state.best_metric = value
        if args.save_strategy != "no":
            state.best_global_step = state.global_step
        return True

    def watched_value(self, metrics: Mapping[str, Any]) -> float:
        """Return `metric_for_best_model` from the metrics of an evaluation; by default the loss.

        The value is returned unconverted, so it may be a NumPy scalar.

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
        """Warn, once, that an evaluation had neither a loss nor labels.

        Args:
            needs_metrics: whether `compute_metrics` should have been called.
        """
        if self._has_warned_of_labels:
            return
        self._has_warned_of_labels = True
        consequence = "The evaluation has no loss and no metrics."
        if needs_metrics:
            consequence = "compute_metrics was not called."
        logger.warning("%s %s", consequence, why_no_labels(self.trainer, self.columns))

    def _warn_of_nan(self, value: Any) -> None:
        """Warn, once, that a metric is NaN and can therefore not be the best."""
        if self._has_warned_of_nan or not np.isnan(value):
            return
        self._has_warned_of_nan = True
        logger.warning(
            "metric_for_best_model=%r is nan at step %s: that evaluation is never the best.",
            self.trainer.args.metric_for_best_model,
            self.trainer.state.global_step,
        )
