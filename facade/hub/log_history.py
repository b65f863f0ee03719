"""From the history of logs to evaluations: one row each, as a model card shows them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ...callbacks._log_values import number_of, split_history

_PREFIX = "eval_"
_ABOUT_SPEED = ("runtime", "samples_per_second", "steps_per_second", "jit_compilation_time", "preparation_time")


@dataclass
class Evaluation:
    """What was measured at one step; several evaluation sets of one step are one evaluation."""

    step: int
    epoch: float | None
    training_loss: float | None
    """The last one that was logged before."""
    metrics: dict[str, float] = field(default_factory=dict)
    """By their names without `eval_`; nothing about speed or memory."""
    after_training: bool = False
    """Of the model that was there after the end, which may be the best one, or somebody's own."""


def evaluations(log_history: list[dict[str, Any]]) -> list[Evaluation]:
    """As `transformers.modelcard.parse_log_history`, but evaluations without a loss count too.

    Args:
        log_history: of a `TrainerState`.

    Returns:
        one entry for each step at which something was evaluated, in their order; of two values the later one. Those
        after the end of the training follow, apart: one entry for each time that something was evaluated.
    """
    training, after = split_history(log_history)
    found: dict[int, Evaluation] = {}
    loss = None
    for entry in training:
        if number_of(entry.get("step", 0)) is None:
            continue
        loss = entry.get("loss", loss)
        metrics = _metrics(entry)
        if metrics:
            step = entry.get("step", 0)
            row = found.setdefault(step, Evaluation(step, entry.get("epoch"), loss))
            row.metrics.update(metrics)
    return [*found.values(), *_later(after)]


def _later(entries: list[dict[str, Any]]) -> list[Evaluation]:
    """Evaluations after the training; several sets, one after the other, are one."""
    rows: list[Evaluation] = []
    for entry in entries:
        metrics = _metrics(entry)
        if metrics and (not rows or rows[-1].metrics.keys() & metrics.keys()):
            rows.append(Evaluation(entry.get("step", 0), entry.get("epoch"), None, after_training=True))
        if metrics:
            rows[-1].metrics.update(metrics)
    return rows


def pretty(name: str) -> str:
    """`f1_macro` as a heading."""
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def number(value: Any) -> str:
    """A number as short as it can be read."""
    if not isinstance(value, float):
        return str(value)
    small = value != 0 and not 1e-3 <= abs(value) < 1e5
    return f"{value:.4g}" if small else f"{value:.4f}".rstrip("0").rstrip(".")


def _metrics(entry: dict[str, Any]) -> dict[str, float]:
    named = {name[len(_PREFIX) :]: value for name, value in entry.items() if str(name).startswith(_PREFIX)}
    numbers = {name: _plain(value) for name, value in named.items()}
    return {name: value for name, value in numbers.items() if value is not None and not _is_technical(name)}


def _plain(value: Any) -> float | None:
    """NumPy's numbers as Python's, for YAML knows no others; None for what is no number."""
    value = value.item() if hasattr(value, "item") and getattr(value, "size", 2) == 1 else value
    plain = number_of(value)
    return None if plain is None or (math.isinf(plain) and isinstance(value, int)) else value


def _is_technical(name: str) -> bool:
    return name.endswith(_ABOUT_SPEED) or "mem_" in name or name == "num_input_tokens_seen"
