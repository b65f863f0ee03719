"""Group the log history into panels of curves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .._log_values import numbers_in, split_history

Points = list[tuple[float, float]]
"""Steps and values, by ascending step."""

_MOST_LAYERS = 8
_LEFT_OUT = (
    "epoch",
    "total_flos",
    "num_input_tokens_seen",
    "steps_per_second",
    "train_tokens_per_second",
)
_NOT_METRICS = (
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "preparation_time",
    "compilation_time",
)
_PLACES = {
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
    curves: dict[str, Points] = field(default_factory=dict)
    """By label. They include NaN and infinities."""


def panels(log_history: Iterable[dict[str, Any]]) -> list[Panel]:
    """Return the charts of a run, the losses first; none where no numbers were logged.

    Evaluations after the end of the training are left out, and so is the summary of the training.
    """
    curves: dict[str, dict[float, float]] = {}
    for step, values in numbers_in(split_history(log_history)[0]):
        if "train_runtime" not in values:
            for name, value in values.items():
                # A value that is logged again at a step replaces the first one.
                curves.setdefault(name, {})[step] = value

    by_title = {"Loss": Panel("Loss")}
    for name in _without_most_layers(curves):
        place = _place(name)
        if place is not None:
            title, label = place
            by_title.setdefault(title, Panel(title)).curves[label] = sorted(curves[name].items())
    return [panel for panel in by_title.values() if panel.curves]


def _place(name: str) -> tuple[str, str] | None:
    """Return the panel and the label of a logged value; None for values that are not drawn."""
    if name in _LEFT_OUT:
        return None
    if name.startswith("grad_norm/"):
        return "Gradient norm by layer", name.removeprefix("grad_norm/")
    if not name.startswith("eval_"):
        return _PLACES.get(name, (name, name))
    metric = name.removeprefix("eval_").replace("_", " ")
    if name.endswith("loss"):
        dataset = metric.removesuffix("loss").strip()
        return "Loss", f"evaluation: {dataset}" if dataset else "evaluation"
    if name.endswith(_NOT_METRICS):
        return None
    return f"{metric[:1].upper()}{metric[1:]}", "evaluation"


def _without_most_layers(names: Iterable[str]) -> list[str]:
    """Return the names; of many layers evenly spaced ones, with the first and the last."""
    names = list(names)
    layers = [name for name in names if name.startswith("grad_norm/")]
    if len(layers) <= _MOST_LAYERS:
        return names
    spacing = (len(layers) - 1) / (_MOST_LAYERS - 1)
    kept = {layers[round(index * spacing)] for index in range(_MOST_LAYERS)}
    return [name for name in names if name in kept or name not in layers]
