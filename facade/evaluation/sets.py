"""Evaluate a dict of datasets: metrics of each dataset, and aggregates over all of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...lightning_modules.common.suggestions import did_you_mean

if TYPE_CHECKING:
    from .. import Trainer
    from ..arguments.training_arguments import TrainingArguments

_NO_METRICS = (
    "runtime",
    "_per_second",
    "preparation_time",
    "compilation_time",
    "_delta",
    "epoch",
    "tokens_seen",
)


def metrics_of_sets(compute_metrics: object, sets: object) -> dict[Any, Any]:
    """Return `compute_metrics` by dataset name if it is a dict of this form.

    Otherwise it applies to all datasets, and is returned under the name "".
    """
    if isinstance(compute_metrics, Mapping) and isinstance(sets, Mapping):
        names_of_both = compute_metrics.keys() & sets.keys()
        if names_of_both:
            return dict(compute_metrics)
    return {"": compute_metrics}


def evaluation_parts(trainer: Trainer) -> tuple[object, ...]:
    """Return the objects that draw random numbers in evaluations: the collator and the datasets."""
    sets: Any = trainer.eval_dataset
    if isinstance(sets, Mapping):
        return trainer.eval_data_collator, *sets.values()
    return trainer.eval_data_collator, sets


@contextmanager
def metrics_of(trainer: Trainer, name: object) -> Iterator[None]:
    """Set `trainer.compute_metrics` to that of an evaluation dataset within the block.

    A `compute_metrics` that applies to all datasets is not changed.
    """
    compute_metrics = trainer.compute_metrics
    by_set = metrics_of_sets(compute_metrics, trainer.eval_dataset)
    if "" not in by_set:
        trainer.compute_metrics = by_set.get(name) if isinstance(name, str) else None
    try:
        yield
    finally:
        trainer.compute_metrics = compute_metrics


def sets_problem(args: TrainingArguments, compute_metrics: object, sets: object) -> str | None:
    """Return the problem with the names of evaluation datasets, or None.

    `eval_aggregate` and `compute_metrics` refer to these names.
    """
    kind = args.eval_aggregate
    has_names = isinstance(sets, Mapping)
    listed = f"a {type(sets).__name__}"
    if has_names:
        listed = ", ".join(map(str, sets))
    if kind is not None and sets is not None and (not has_names or kind in sets):
        return (
            f"eval_aggregate={kind!r} is over the sets of a dict, none of them called {kind!r}, "
            f"but eval_dataset is {listed}. Pass eval_dataset={{'name': dataset, ...}}, or leave "
            "it out."
        )
    if not has_names or not isinstance(compute_metrics, Mapping):
        return None

    # The names must either all be datasets, or all be metrics, whose functions take two arguments.
    not_sets = {str(name): value for name, value in compute_metrics.items() if name not in sets}
    takes_one = any(map(_takes_one_argument, not_sets.values()))
    if not takes_one and len(not_sets) in (0, len(compute_metrics)):
        return None
    suggestion = did_you_mean(next(iter(not_sets)), map(str, sets or ()))
    return (
        f"compute_metrics has {', '.join(not_sets)}, which is not a set of eval_dataset: "
        f"{listed}.{suggestion} Name either sets, each with its own metrics, or metrics, each a "
        "torchmetrics Metric or a function of (predictions, labels), for all sets."
    )


def _takes_one_argument(value: object) -> bool:
    return inspect.isfunction(value) and len(inspect.signature(value).parameters) < 2


def aggregate(kind: str, metrics: Mapping[str, Mapping[str, Any]], prefix: str) -> dict[str, float]:
    """Aggregate each number that all datasets have, except runtimes and rates.

    Args:
        kind: "mean", "median", "min" or "max".
        metrics: the metrics of each dataset, named `{prefix}_{dataset}_...`.
        prefix: the prefix of the names.
    """
    if not metrics:
        return {}
    sets: list[dict[str, Any]] = []
    for name, values in metrics.items():
        prefix_of_set = f"{prefix}_{name}_"
        sets.append({key.removeprefix(prefix_of_set): value for key, value in values.items()})

    function = getattr(np, kind)
    aggregated: dict[str, float] = {}
    for key in sets[0]:
        values = [values_of_set.get(key) for values_of_set in sets]
        are_numbers = all(isinstance(value, (int, float)) for value in values)
        if are_numbers and not key.endswith(_NO_METRICS):
            aggregated[f"{prefix}_{kind}_{key}"] = float(function(values))
    return aggregated
