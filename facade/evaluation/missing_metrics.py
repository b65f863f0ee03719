"""Explain why an evaluation lacks a metric or labels."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...lightning_modules.common.suggestions import did_you_mean
from ...lightning_modules.models.wrappers import base_of_adapter

if TYPE_CHECKING:
    from .. import Trainer


class MissingMetricError(KeyError):
    """Raised if a metric is missing in an evaluation. A KeyError, as in the reference."""

    def __str__(self) -> str:
        return str(self.args[0])  # without the quotes that KeyError adds


def missing_metric(
    trainer: Trainer, name: str, metrics: Mapping[str, Any], columns: Any
) -> MissingMetricError:
    """Return the error for a missing metric.

    Args:
        trainer: the Trainer that ran the evaluation.
        name: the metric, with its prefix.
        metrics: the metrics of the evaluation.
        columns: keys of the evaluated batches.
    """
    if any(metric.endswith("_loss") for metric in metrics):
        why = _why_no_metric(trainer, name)
    else:
        why = why_no_labels(trainer, columns)
    return MissingMetricError(
        f"The `metric_for_best_model` training argument is set to {name!r}, which is not found in "
        f"the evaluation metrics: {_listed(metrics)}.{did_you_mean(name, metrics)} {why}"
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
