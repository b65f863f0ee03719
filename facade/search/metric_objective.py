"""Compute the objective of a trial from the metrics of an evaluation."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...lightning_modules.common.metric_directions import known_direction
from ...lightning_modules.common.suggestions import did_you_mean
from ..evaluation.missing_metrics import MissingMetricError

if TYPE_CHECKING:
    from optuna import Study

logger = logging.getLogger(__name__)

Compute = Callable[[dict[str, float]], Any]
"""Computes the objective from the metrics of an evaluation: a number, or a list of numbers."""


def objective_names(metrics: Sequence[str], count: int) -> list[str]:
    """Return names for objectives: their metrics, or default names if there are no metrics.

    Args:
        metrics: one for each objective; empty if the objectives have no names.
        count: number of objectives.
    """
    if metrics:
        return list(metrics)
    if count == 1:
        return ["the objective"]
    return [f"objective {index}" for index in range(count)]


def describe_goal(directions: Sequence[str], metrics: Sequence[str]) -> str:
    """Describe objectives, such as `maximize accuracy`; see `objective_names`."""
    names = objective_names(metrics, len(directions))
    goals: list[str] = []
    for direction, name in zip(directions, names, strict=True):
        goals.append(f"{direction} {name}")
    return ", ".join(goals)


def directions_of(study: Study) -> list[str]:
    """Return `minimize` or `maximize` for each objective of a study."""
    return [direction.name.lower() for direction in study.directions]


def require_same_objectives(
    study: Study, where: str, directions: Sequence[str], metrics: Sequence[str]
) -> None:
    """Raise for a study whose values cannot be compared with those of a search.

    Args:
        study: the study.
        where: the origin of the study, for the message.
        directions: the directions of the search.
        metrics: the metrics of the search; empty if the objectives have no names.

    Raises:
        ValueError: the study has other directions or metrics.
    """
    study_directions = directions_of(study)
    study_metrics = study.metric_names or []

    # Compare only the directions if the objectives of the study or of the search have no names.
    same_metrics = not study_metrics or not metrics
    if not same_metrics:
        same_metrics = _short_names(study_metrics) == _short_names(metrics)
    if study_directions == list(directions) and same_metrics:
        return
    raise ValueError(
        f"{where}: the study {study.study_name!r} has direction={study_directions} and metrics "
        f"{', '.join(study_metrics) or 'without names'}, but this search has "
        f"direction={list(directions)} and metrics {', '.join(metrics) or 'without names'}. "
        "Search for the same metrics in the same directions, or use another study."
    )


def _short_names(metrics: Sequence[str]) -> list[str]:
    """Return names without `eval_`, so that `loss` and `eval_loss` are the same."""
    return [metric.removeprefix("eval_") for metric in metrics]


def usual_directions(names: Sequence[str]) -> list[str]:
    """Return the usual direction, `minimize` or `maximize`, of each metric of a sweep.

    Raises:
        ValueError: a metric has no usual direction.
    """
    directions = []
    for name in names:
        direction = known_direction(name)
        if direction is None:
            raise ValueError(
                f"--metric {name}: it is unknown whether lower or higher values are better. Pass "
                "--direction minimize or --direction maximize, for each metric."
            )
        directions.append(direction)
    return directions


def look_up(metrics: Mapping[str, float], name: str) -> float:
    """Return a metric by name, with or without `eval_`.

    Raises:
        MissingMetricError: the metric does not exist; the message lists those that do.
    """
    if name in metrics:
        return metrics[name]
    if f"eval_{name}" in metrics:
        return metrics[f"eval_{name}"]
    raise _missing_metric(name, metrics)


def objective_value(
    compute: Compute, metrics: Mapping[str, float], objectives: int
) -> float | list[float]:
    """Compute the objective of an evaluation.

    Args:
        compute: see `Trainer.hyperparameter_search`.
        metrics: the metrics of the evaluation.
        objectives: number of directions of the study.

    Returns:
        One number, or a list of them for several objectives. A number may be NaN.

    Raises:
        MissingMetricError: `compute` uses a metric that does not exist.
        ValueError: `compute` does not return a number for each direction.
    """
    try:
        result = compute(dict(metrics))
    except MissingMetricError:
        raise
    except KeyError as error:
        name = str(error.args[0]) if error.args else ""
        raise _missing_metric(name, metrics) from error

    # Accept a list with one number for a single objective.
    if not isinstance(result, (list, tuple)):
        result = [result]
    numbers = [_as_number(value, metrics) for value in result]
    if len(numbers) != objectives:
        raise ValueError(
            f"compute_objective gives {len(numbers)} values, but direction has {objectives}. "
            "Return a list, and pass a direction for each: ['minimize', 'maximize']."
        )
    if objectives == 1:
        return numbers[0]
    return numbers


def why_unusable(
    value: float | Sequence[float], directions: Sequence[str], names: Sequence[str] | None = None
) -> str | None:
    """Return the reason why a trial with this objective counts as failed; None if it does not.

    An objective is unusable if it is NaN, or infinite in the direction of the search, because no
    later trial could be better. Infinity in the other direction is the worst valid objective.

    Args:
        value: the objective, or one for each direction.
        directions: `minimize` or `maximize`.
        names: the names of the objectives, for the reason.
    """
    if not isinstance(value, Sequence):
        value = [value]
    if names is None:
        names = ["the objective"] * len(value)

    # Report the first unusable objective.
    for number, direction, name in zip(value, directions, names, strict=True):
        best_infinity = -math.inf
        if direction == "maximize":
            best_infinity = math.inf
        if math.isnan(number) or number == best_infinity:
            return f"{name} is {number}"
    return None


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Format metrics for a message."""
    entries = []
    for name, value in metrics.items():
        entry = name
        if isinstance(value, float):
            entry = f"{name}={value:.6g}"
        entries.append(entry)
    return ", ".join(entries)


def _as_number(value: Any, metrics: Mapping[str, float]) -> float:
    """Return a number, which may be in a tensor or an array with one element."""
    # `item` raises if there are several elements.
    if hasattr(value, "item"):
        with contextlib.suppress(ValueError, RuntimeError):
            value = value.item()
    if isinstance(value, (int, float)):
        return value
    raise ValueError(
        f"compute_objective returned {value!r:.60}, which is not a number. The metrics of the "
        f"evaluation are: {format_metrics(metrics)}."
    )


def _missing_metric(name: str, metrics: Mapping[str, float]) -> MissingMetricError:
    """Return the error about a metric that the evaluation does not have."""
    return MissingMetricError(
        f"The objective uses the metric {name!r}, which the evaluation does not "
        f"have.{did_you_mean(name, metrics)} It has: {', '.join(metrics) or 'none'}."
    )
