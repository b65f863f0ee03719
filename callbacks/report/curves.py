"""Group the log history into panels of curves."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .._log_values import numbers_in, split_history

Points = list[tuple[float, float]]
"""Steps and values, by ascending step."""

_MOST_METRICS = 24
_MOST_LAYERS = 8
_NO_CURVES = {"step", "epoch", "total_flos", "num_input_tokens_seen", "steps_per_second", "train_tokens_per_second"}
_NO_METRICS = ("runtime", "samples_per_second", "steps_per_second", "preparation_time", "compilation_time")
_MEMORY = {"host_memory_gib": "main memory", "device_memory_peak_gib": "accelerator, peak"}
_SPEEDS = {
    "samples_per_second": ("Samples per second", "", 1.0),
    "tokens_per_second": ("Tokens per second", "", 1.0),
    "flops_per_second": ("Operations per second", "TFLOP/s", 1e-12),
    "mfu": ("Share of the peak (MFU)", "%", 100.0),
}


@dataclass(frozen=True)
class Curve:
    """One line of a chart."""

    label: str
    """Its label in the legend."""
    points: Points
    """All that was logged."""
    is_sparse: bool = False
    """True marks each point."""
    unit: str = ""

    @property
    def finite(self) -> Points:
        """Return the points that can be drawn."""
        return [(step, value) for step, value in self.points if math.isfinite(value)]

    @property
    def others(self) -> Points:
        """Return the points that cannot be drawn: NaN and infinities."""
        return [(step, value) for step, value in self.points if not math.isfinite(value)]


@dataclass(frozen=True)
class Panel:
    """One chart."""

    title: str
    curves: list[Curve]
    from_zero: bool = False
    """True starts the axis at zero."""
    may_be_logarithmic: bool = False
    is_noisy: bool = True
    """True smooths the curve where it has many points."""
    unit: str = ""


def panels(log_history: Iterable[dict[str, Any]]) -> list[Panel]:
    """Return the charts of a run, those that every run has first, without empty ones."""
    curves = _curves(log_history)
    made = [
        Panel("Loss", list(_losses(curves)), may_be_logarithmic=True),
        *_metrics(curves),
        Panel("Learning rate", _of(curves, {"learning_rate": "learning rate"}), from_zero=True, is_noisy=False),
        Panel("Gradient norm", _of(curves, {"grad_norm": "gradient norm"}), from_zero=True, may_be_logarithmic=True),
        Panel("Gradient norm by layer", _layers(curves), may_be_logarithmic=True),
        *(_speed(curves, name) for name in _SPEEDS),
        Panel("Memory", _of(curves, _MEMORY), from_zero=True, is_noisy=False, unit="GiB"),
        *_rest(curves),
    ]
    return [panel for panel in made if panel.curves]


def by_name(log_history: Iterable[dict[str, Any]], name: str) -> Points:
    """Return the curve of one name in the logs."""
    return _curves(log_history).get(name, [])


def thinned(points: Points, most: int) -> Points:
    """Return at most about so many points: of each stretch the lowest and the highest, so that no peak gets lost."""
    if len(points) <= most:
        return points
    size = math.ceil(len(points) / (most // 2))
    kept: Points = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def smoothed(points: Points, *, is_logarithmic: bool = False) -> Points:
    """Return running means over a twentieth of the points; over fewer at the ends, which then bend less.

    Args:
        points: finite ones.
        is_logarithmic: take the geometric mean; all values are above zero.
    """
    reach = max(len(points) // 40, 1)
    sums = [0.0]
    for _, value in points:
        sums.append(sums[-1] + (math.log(value) if is_logarithmic else value))
    means: Points = []
    for index, (step, _) in enumerate(points):
        near = max(min(reach, index, len(points) - 1 - index), reach // 4)
        first, end = max(index - near, 0), min(index + near + 1, len(points))
        mean = (sums[end] - sums[first]) / (end - first)
        means.append((step, math.exp(mean) if is_logarithmic else mean))
    return means


def _curves(log_history: Iterable[dict[str, Any]]) -> dict[str, Points]:
    """Return every number in the logs by its name; the last value logged for a step counts."""
    found: dict[str, dict[float, float]] = {}
    for step, values in numbers_in(split_history(log_history)[0]):
        if "train_runtime" in values:  # the end of a training sums it up
            continue
        for name, value in values.items():
            if name not in _NO_CURVES:
                found.setdefault(name, {})[step] = value
    return {name: sorted(points.items()) for name, points in found.items()}


def _losses(curves: dict[str, Points]) -> Iterable[Curve]:
    if "loss" in curves:
        yield Curve("training", curves["loss"])
    for name, points in curves.items():
        if name.startswith("eval_") and name.endswith("loss"):
            of = name.removeprefix("eval_").removesuffix("loss").strip("_")
            yield Curve(f"evaluation: {of}" if of else "evaluation", points, is_sparse=True)


def _metrics(curves: dict[str, Points]) -> list[Panel]:
    names = [name for name in curves if name.startswith("eval_") and not name.endswith(("loss", *_NO_METRICS))]
    titles = {name: name.removeprefix("eval_").replace("_", " ") for name in names[:_MOST_METRICS]}
    return [
        Panel(f"{title[:1].upper()}{title[1:]}", [Curve("evaluation", curves[name], is_sparse=True)])
        for name, title in titles.items()
    ]


def _layers(curves: dict[str, Points]) -> list[Curve]:
    """Return a curve for each layer; of many, evenly spaced ones with the first and the last."""
    names = [name for name in curves if name.startswith("grad_norm/")]
    if len(names) > _MOST_LAYERS:
        names = [names[round(i * (len(names) - 1) / (_MOST_LAYERS - 1))] for i in range(_MOST_LAYERS)]
    return [Curve(name.removeprefix("grad_norm/"), curves[name]) for name in names]


def _speed(curves: dict[str, Points], name: str) -> Panel:
    title, unit, factor = _SPEEDS[name]
    points = [(step, value * factor) for step, value in curves.get(name, [])]
    return Panel(title, [Curve(title, points, unit=unit)] if points else [], from_zero=True, unit=unit)


def _rest(curves: dict[str, Points]) -> list[Panel]:
    """Return a panel for each value that a script logs itself."""
    known = {"loss", "learning_rate", "grad_norm", *_SPEEDS, *_MEMORY}
    names = [name for name in curves if name not in known and not name.startswith(("eval_", "grad_norm/"))]
    return [Panel(name, [Curve(name, curves[name])]) for name in names[:_MOST_METRICS]]


def _of(curves: dict[str, Points], labels: dict[str, str]) -> list[Curve]:
    return [Curve(label, curves[name]) for name, label in labels.items() if name in curves]
