"""Group the log history into panels of curves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .._log_values import numbers_in, split_history

Points = list[tuple[float, float]]
"""Steps and values, by ascending step."""

_MAX_LAYERS = 8
_NOT_DRAWN = (
    "epoch",
    "total_flos",
    "num_input_tokens_seen",
    "steps_per_second",
    "train_tokens_per_second",
)
_NOT_METRICS = (  # endings of the names of evaluation logs that are no metrics
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "preparation_time",
    "compilation_time",
)
_PANELS_AND_LABELS = {
    "loss": ("Loss", "training"),
    "learning_rate": ("Learning rate", "learning rate"),
    "grad_norm": ("Gradient norm", "gradient norm"),
    "samples_per_second": ("Samples per second", "samples"),
    "tokens_per_second": ("Tokens per second", "tokens"),
    "flops_per_second": ("Operations per second", "operations"),
    "mfu": ("Share of the peak (MFU)", "share"),
    "host_memory_gib": ("Memory (GiB)", "main memory"),
    "device_memory_peak_gib": ("Memory (GiB)", "accelerator, peak"),
}
"""The panel and the label of each value that the Trainer and its callbacks log."""


@dataclass(frozen=True)
class Panel:
    """One chart."""

    title: str
    curves: dict[str, Points] = field(default_factory=dict[str, Points])
    """The points of each curve, by label; values may be NaN or infinite."""


def panels(log_history: Iterable[dict[str, Any]]) -> list[Panel]:
    """Return the charts of a run, the losses first; empty if no numbers were logged.

    Evaluations after the end of the training are left out, and so is the summary of the training.
    """
    # The value at each step, by name. A value that is logged twice at a step replaces the first.
    curves: dict[str, dict[float, float]] = {}
    of_training, _ = split_history(log_history)
    for step, values in numbers_in(of_training):
        is_summary = "train_runtime" in values
        if is_summary:
            continue
        for name, value in values.items():
            curves.setdefault(name, {})[step] = value

    # An empty panel for the losses, so that they come first.
    panels_by_title = {"Loss": Panel("Loss")}
    for name in _limit_layers(curves):
        panel_and_label = _panel_and_label(name)
        if panel_and_label is None:
            continue
        title, label = panel_and_label
        panel = panels_by_title.setdefault(title, Panel(title))
        panel.curves[label] = sorted(curves[name].items())
    return [panel for panel in panels_by_title.values() if panel.curves]


def _panel_and_label(name: str) -> tuple[str, str] | None:
    """Return the panel and the label of a logged value; None for values that are not drawn."""
    if name in _NOT_DRAWN:
        return None
    if name.startswith("grad_norm/"):
        return "Gradient norm by layer", name.removeprefix("grad_norm/")
    if not name.startswith("eval_"):
        return _PANELS_AND_LABELS.get(name, (name, name))

    # The name of an evaluation: eval_[SET_]METRIC.
    metric = name.removeprefix("eval_").replace("_", " ")
    if name.endswith("loss"):
        dataset = metric.removesuffix("loss").strip()
        label = f"evaluation: {dataset}" if dataset else "evaluation"
        return "Loss", label
    if name.endswith(_NOT_METRICS):
        return None
    title = metric[:1].upper() + metric[1:]
    return title, "evaluation"


def _limit_layers(names: Iterable[str]) -> list[str]:
    """Return the names of all curves, with at most `_MAX_LAYERS` layers.

    Of more layers evenly spaced ones are returned, with the first and the last.
    """
    names = list(names)
    layers = [name for name in names if name.startswith("grad_norm/")]
    if len(layers) <= _MAX_LAYERS:
        return names
    spacing = (len(layers) - 1) / (_MAX_LAYERS - 1)
    selected_layers = {layers[round(index * spacing)] for index in range(_MAX_LAYERS)}
    left_out = set(layers) - selected_layers
    return [name for name in names if name not in left_out]
