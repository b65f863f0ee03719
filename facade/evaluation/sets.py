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

_NO_METRICS = ("runtime", "_per_second", "preparation_time", "compilation_time", "_delta", "epoch", "tokens_seen")


def metrics_of_sets(compute_metrics: Any, sets: Any) -> dict[Any, Any]:
    """Return `compute_metrics` by set where it is a dict by the names of sets; otherwise itself, under no name."""
    both = isinstance(compute_metrics, Mapping) and isinstance(sets, Mapping)
    return dict(compute_metrics) if both and compute_metrics.keys() & sets.keys() else {"": compute_metrics}


@contextmanager
def metrics_of(trainer: Trainer, name: Any) -> Iterator[None]:
    """Let `trainer.compute_metrics` be that of one set within the block; unchanged where it is that of all sets."""
    given = trainer.compute_metrics
    by_set = metrics_of_sets(given, trainer.eval_dataset)
    trainer.compute_metrics = by_set[""] if "" in by_set else by_set.get(name if isinstance(name, str) else None)
    try:
        yield
    finally:
        trainer.compute_metrics = given


def sets_problem(args: Any, compute_metrics: Any, sets: Any) -> str | None:
    """Return the problem of the names of sets, for `eval_aggregate` or in `compute_metrics`, or None."""
    kind, named = args.eval_aggregate, isinstance(sets, Mapping)
    listed = ", ".join(map(str, sets)) if named else f"a {type(sets).__name__}"
    if kind is not None and sets is not None and (not named or kind in sets):
        needs = f"eval_aggregate={kind!r} is over the sets of a dict, none of them called {kind!r}"
        return f"{needs}, but eval_dataset is {listed}. Pass eval_dataset={{'name': dataset, ...}}, or leave it out."
    given = compute_metrics if named and isinstance(compute_metrics, Mapping) else {}
    others = {str(name): value for name, value in given.items() if name not in sets}
    takes_one = any(inspect.isfunction(it) and len(inspect.signature(it).parameters) < 2 for it in others.values())
    if not takes_one and len(others) in (0, len(given)):
        return None
    return (
        f"compute_metrics has {', '.join(others)}, which is no set of eval_dataset: {listed}."
        f"{did_you_mean(next(iter(others)), map(str, sets or ()))} Its names are those of sets, each with its own "
        "metrics, or those of metrics, each a torchmetrics Metric or a function of (predictions, labels), for all sets."
    )


def aggregate(kind: str, metrics: Mapping[str, Mapping[str, Any]], prefix: str) -> dict[str, float]:
    """Return the mean, median, min or max over sets of each number that all of them have, but of times.

    Args:
        kind: which of them.
        metrics: those of each set, under `{prefix}_{set}_...`.
        prefix: of the names.
    """
    each = [{key.removeprefix(f"{prefix}_{name}_"): it for key, it in metrics[name].items()} for name in metrics]
    found = {key: [one.get(key) for one in each] for key in next(iter(each), ()) if not key.endswith(_NO_METRICS)}
    numbers = {key: values for key, values in found.items() if all(isinstance(it, (int, float)) for it in values)}
    return {f"{prefix}_{kind}_{key}": float(getattr(np, kind)(values)) for key, values in numbers.items()}
