"""Evaluations of the sets of a dict: metrics of each set, and aggregates over all of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...lightning_modules.common.suggestions import did_you_mean

if TYPE_CHECKING:
    from .. import Trainer

_NO_METRICS = (
    "runtime",
    "_per_second",
    "preparation_time",
    "compilation_time",
    "_delta",
    "epoch",
    "tokens_seen",
)


def metrics_of_sets(compute_metrics: Any, sets: Any) -> dict[Any, Any]:
    """Return `compute_metrics` by set where it is a dict by the names of sets; otherwise itself,
    under no name.
    """
    if (
        isinstance(compute_metrics, Mapping)
        and isinstance(sets, Mapping)
        and compute_metrics.keys() & sets.keys()
    ):
        return dict(compute_metrics)
    return {"": compute_metrics}


@contextmanager
def metrics_of(trainer: Trainer, name: Any) -> Iterator[None]:
    """Let `trainer.compute_metrics` be that of one set within the block; unchanged where it is
    that of all sets.
    """
    given = trainer.compute_metrics
    by_set = metrics_of_sets(given, trainer.eval_dataset)
    if "" not in by_set:
        trainer.compute_metrics = by_set.get(name) if isinstance(name, str) else None
    try:
        yield
    finally:
        trainer.compute_metrics = given


def sets_problem(args: Any, compute_metrics: Any, sets: Any) -> str | None:
    """Return the problem of the names of sets, for `eval_aggregate` or in `compute_metrics`, or
    None.
    """
    kind = args.eval_aggregate
    has_names = isinstance(sets, Mapping)
    listed = ", ".join(map(str, sets)) if has_names else f"a {type(sets).__name__}"
    if kind is not None and sets is not None and (not has_names or kind in sets):
        return (
            f"eval_aggregate={kind!r} is over the sets of a dict, none of them called {kind!r}, "
            f"but eval_dataset is {listed}. Pass eval_dataset={{'name': dataset, ...}}, or leave "
            "it out."
        )
    if not has_names or not isinstance(compute_metrics, Mapping):
        return None

    # Either all names are those of sets, or all are those of metrics, whose functions take two
    # arguments.
    others = {str(name): value for name, value in compute_metrics.items() if name not in sets}
    takes_one = any(map(_takes_one_argument, others.values()))
    if not takes_one and len(others) in (0, len(compute_metrics)):
        return None
    return (
        f"compute_metrics has {', '.join(others)}, which is not a set of eval_dataset: "
        f"{listed}.{did_you_mean(next(iter(others)), map(str, sets or ()))} Its names are those "
        "of sets, each with its own metrics, or those of metrics, each a torchmetrics Metric or "
        "a function of (predictions, labels), for all sets."
    )


def _takes_one_argument(value: Any) -> bool:
    return inspect.isfunction(value) and len(inspect.signature(value).parameters) < 2


def aggregate(kind: str, metrics: Mapping[str, Mapping[str, Any]], prefix: str) -> dict[str, float]:
    """Return the mean, median, min or max over sets of each number that all of them have, but of
    times.

    Args:
        kind: which of them.
        metrics: those of each set, under `{prefix}_{set}_...`.
        prefix: of the names.
    """
    sets = []
    for name, values in metrics.items():
        sets.append({key.removeprefix(f"{prefix}_{name}_"): value for key, value in values.items()})

    aggregated = {}
    for key in sets[0] if sets else ():
        values = [values_of_set.get(key) for values_of_set in sets]
        if not key.endswith(_NO_METRICS) and all(
            isinstance(value, (int, float)) for value in values
        ):
            aggregated[f"{prefix}_{kind}_{key}"] = float(getattr(np, kind)(values))
    return aggregated
