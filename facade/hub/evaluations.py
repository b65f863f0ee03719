"""The evaluations of a training, from its log history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...callbacks._log_values import number_of, split_history

_PREFIX = "eval_"
_ABOUT_SPEED = (
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "jit_compilation_time",
    "preparation_time",
)


@dataclass
class Evaluation:
    """Metrics of one step, over all evaluation sets."""

    step: int
    epoch: float | None
    training_loss: float | None
    """The last one logged before."""
    metrics: dict[str, float] = field(default_factory=dict)
    """By name without `eval_`; without speed and memory."""
    after_training: bool = False
    """Measured after the end of the training, possibly on the best model or another one."""


def evaluations(log_history: list[dict[str, Any]]) -> list[Evaluation]:
    """As `transformers.modelcard.parse_log_history`, but including evaluations without a loss.

    Args:
        log_history: of a `TrainerState`.

    Returns:
        one entry per evaluated step, in order, with the later of two values; then one entry per
        evaluation after the end of the training.
    """
    training, after = split_history(log_history)
    by_step: dict[int, Evaluation] = {}
    loss = None
    for entry in training:
        step = entry.get("step", 0)
        if number_of(step) is None:
            continue
        loss = entry.get("loss", loss)
        metrics = _metrics(entry)
        if metrics:
            evaluation = by_step.setdefault(step, Evaluation(step, entry.get("epoch"), loss))
            evaluation.metrics.update(metrics)
    return [*by_step.values(), *_later(after)]


def _later(entries: list[dict[str, Any]]) -> list[Evaluation]:
    """Return the evaluations after the training; consecutive ones on several sets are merged."""
    found: list[Evaluation] = []
    for entry in entries:
        metrics = _metrics(entry)
        if not metrics:
            continue
        if not found or found[-1].metrics.keys() & metrics.keys():
            found.append(
                Evaluation(entry.get("step", 0), entry.get("epoch"), None, after_training=True)
            )
        found[-1].metrics.update(metrics)
    return found


def _metrics(entry: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of an evaluation by name, without the prefix; without speed, memory and
    what is no number.
    """
    metrics = {}
    for key, value in entry.items():
        name = str(key).removeprefix(_PREFIX)
        if (
            name == key
            or name.endswith(_ABOUT_SPEED)
            or "mem_" in name
            or name == "num_input_tokens_seen"
        ):
            continue
        number = _plain(value)
        if number is not None:
            metrics[name] = number
    return metrics


def _plain(value: Any) -> float | None:
    """Convert NumPy numbers to Python numbers, as YAML has no others; None for other values."""
    if hasattr(value, "item") and getattr(value, "size", 2) == 1:
        value = value.item()
    if number_of(value) is None:
        return None
    return value
