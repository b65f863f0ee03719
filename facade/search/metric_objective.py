"""The objective of a trial: numbers computed from the metrics of an evaluation, and their usual
direction.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...lightning_modules.common.metric_directions import known_direction
from ...lightning_modules.common.suggestions import did_you_mean
from ..evaluation.best_metric import MissingMetricError
from .hyperparameters import default_compute_objective

logger = logging.getLogger(__name__)

Compute = Callable[[dict[str, float]], Any]


def objective_from(compute: Compute | str | Sequence[str] | None) -> Compute:
    """Return the function that `compute_objective` stands for: itself, or a look-up of metrics by
    name.

    Args:
        compute: a function of the metrics, the name of a metric, a list of names for several
            objectives, or None for `default_compute_objective`.

    Raises:
        TypeError: it is none of these.
    """
    if compute is None:
        return default_compute_objective
    if callable(compute):
        return compute
    if isinstance(compute, str):
        return lambda metrics: look_up(metrics, compute)
    if isinstance(compute, (list, tuple)):
        return lambda metrics: [look_up(metrics, name) for name in compute]
    raise TypeError(
        f"compute_objective={compute!r:.60} must be a function of the metrics, or the name of one."
    )


def metric_names(compute: Any) -> list[str]:
    """Return the metrics that `compute_objective` names; none for a function or the default."""
    if isinstance(compute, str):
        return [compute]
    return list(compute) if isinstance(compute, (list, tuple)) else []


def directions_of(names: Sequence[str], option: str, metric: str) -> list[str]:
    """Return the usual direction of each metric.

    Args:
        names: of the metrics.
        option: the option that sets a direction, for the error.
        metric: the option that names the metrics, for the error.

    Raises:
        ValueError: a metric has no usual direction.
    """
    found = {name: known_direction(name) for name in names}
    unknown = next((name for name in names if found[name] is None), None)
    if unknown is not None:
        ways = f"{option} minimize or {option} maximize"
        if not option.startswith("-"):
            ways = f"{option}='minimize' or {option}='maximize'"
        each = f", one for each of the {len(names)} metrics" if len(names) > 1 else ""
        raise ValueError(
            f"{metric} {unknown!r}: whether less or more of it is better is not known. Pass "
            f"{ways}{each}."
        )
    return [str(found[name]) for name in names]


def look_up(metrics: Mapping[str, float], name: str) -> float:
    """Return a metric by its name, with or without `eval_`.

    Raises:
        MissingMetricError: it does not exist; names the metrics that do.
    """
    for known in (name, f"eval_{name}"):
        if known in metrics:
            return metrics[known]
    raise _missing(name, metrics)


def objective_value(
    compute: Compute, metrics: Mapping[str, float], objectives: int
) -> float | list[float]:
    """Compute the value of an evaluation for the study.

    Args:
        compute: see `Trainer.hyperparameter_search`.
        metrics: of the evaluation.
        objectives: number of directions of the study.

    Returns:
        One number, or a list of them for several objectives; may be NaN.

    Raises:
        MissingMetricError: `compute` uses a metric that does not exist.
        ValueError: it returns no number, or not one for each direction.
    """
    try:
        found = compute(dict(metrics))
    except MissingMetricError:
        raise
    except KeyError as error:
        raise _missing(str(error.args[0]) if error.args else "", metrics) from error
    several = isinstance(found, (list, tuple))
    numbers = [_number(one, metrics) for one in (found if several else [found])]
    if len(numbers) != objectives:
        raise ValueError(
            f"compute_objective gives {len(numbers)} values, but direction has {objectives}. "
            "Return a list, and pass a direction for each: ['minimize', 'maximize']."
        )
    return numbers if several and objectives > 1 else numbers[0]


def report_position(state: Any, step: int, unit: str) -> int | None:
    """Return the step or the completed epochs to report an evaluation under; None before the first
    epoch is complete.

    Args:
        state: of the training.
        step: optimizer steps done.
        unit: `steps` or `epochs`.
    """
    if unit == "steps":
        return step
    return math.floor((state.epoch or 0.0) + 1e-6) or None


def why_unusable(
    value: float | Sequence[float], directions: Sequence[str], names: Sequence[str] | None = None
) -> str | None:
    """Return why an objective cannot be that of a completed trial, None if it can.

    NaN cannot, and neither can infinity in the direction that is searched for, which would be best
    for ever. The other infinity is the worst value.

    Args:
        value: the objective, or one for each direction.
        directions: `minimize` or `maximize`.
        names: of the objectives, for the reason.
    """
    values = value if isinstance(value, Sequence) else [value]
    for index, (one, direction) in enumerate(zip(values, directions, strict=True)):
        too_good = math.inf if direction == "maximize" else -math.inf
        if math.isnan(one) or one == too_good:
            return f"{names[index] if names else 'the objective'} is {one}"
    return None


def listed_metrics(metrics: Mapping[str, float]) -> str:
    """Format metrics for a message."""
    return ", ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else name
        for name, value in metrics.items()
    )


def _number(value: Any, metrics: Mapping[str, float]) -> float:
    value = (
        value.item() if hasattr(value, "item") and getattr(value, "size", 1) in (1, ()) else value
    )
    if isinstance(value, (int, float)):
        return value
    raise ValueError(
        f"compute_objective returned {value!r:.60}, which is not a number. The metrics of the "
        f"evaluation are: {listed_metrics(metrics)}."
    )


def _missing(name: str, metrics: Mapping[str, float]) -> MissingMetricError:
    return MissingMetricError(
        f"The objective uses the metric {name!r}, which the evaluation does not "
        f"have.{did_you_mean(name, metrics)} It has: {', '.join(metrics) or 'none'}."
    )
