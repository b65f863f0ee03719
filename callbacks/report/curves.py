"""Group the log history into panels of curves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .._log_values import number_of, split_history

Points = list[tuple[float, float]]
"""Pairs of a step and a value, in the order of the steps."""

_NOT_DRAWN = ("epoch", "total_flos", "num_input_tokens_seen")
"""Names of values that are not drawn."""
_ENDINGS_OF_SPEEDS = ("runtime", "per_second", "preparation_time", "compilation_time")
"""Values of evaluations that are not drawn, by the endings of their names."""


@dataclass(frozen=True)
class Panel:
    """One chart."""

    title: str
    curves: dict[str, Points] = field(default_factory=dict[str, Points])
    """The points of each curve, by label; values may be NaN or infinite."""


def panels(log_history: Iterable[dict[str, Any]]) -> list[Panel]:
    """Return the charts of a run, the losses first; empty if no numbers were logged.

    Each value has a chart with its name, except that the losses share one, and so do the gradient
    norms of layers. Evaluations after the end of the training are left out, and so is the summary
    of the training.
    """
    # Collect the values of each name by step. If a value is logged twice at a step, the second one
    # counts.
    curves: dict[str, dict[float, float]] = {}
    of_training, _ = split_history(log_history)
    for step, values in _numbers_in(of_training):
        is_summary = "train_runtime" in values
        if is_summary:
            continue
        for name, value in values.items():
            curves.setdefault(name, {})[step] = value

    # The panel of the losses is made first, so that it comes first.
    panels_by_title = {"loss": Panel("loss")}
    for name, curve in curves.items():
        if not _is_drawn(name):
            continue
        title = _title_of(name)
        panel = panels_by_title.setdefault(title, Panel(title))
        panel.curves[name] = sorted(curve.items())
    return [panel for panel in panels_by_title.values() if panel.curves]


def _is_drawn(name: str) -> bool:
    """Return whether a logged value is drawn; speeds of evaluations and counters are not."""
    if name in _NOT_DRAWN:
        return False
    is_of_evaluation = name.startswith("eval_")
    return not (is_of_evaluation and name.endswith(_ENDINGS_OF_SPEEDS))


def _title_of(name: str) -> str:
    """Return the title of the panel that a logged value is drawn in."""
    is_of_evaluation = name.startswith("eval_")
    if is_of_evaluation and name.endswith("loss"):
        return "loss"
    if name.startswith("grad_norm/"):
        return "grad_norm by layer"
    return name


def _numbers_in(log_history: Iterable[dict[str, Any]]) -> Iterator[tuple[float, dict[str, float]]]:
    """Yield the step of each entry with its numbers by name; entries without a step are skipped."""
    for entry in log_history:
        step = number_of(entry.get("step"))
        if step is None:
            continue
        numbers: dict[str, float] = {}
        for name, value in entry.items():
            number = number_of(value)
            if name != "step" and number is not None:
                numbers[name] = number
        yield step, numbers
