"""Read the evaluations of a training from its log history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...callbacks._log_values import number_of, split_history

_PREFIX = "eval_"
_SPEED_SUFFIXES = (
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
    """The training loss in the last log before this evaluation."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics by name without `eval_`, excluding speed and memory."""
    after_training: bool = False
    """True if the evaluation ran after the training, possibly on another model than the last."""


def evaluations(log_history: list[dict[str, Any]]) -> list[Evaluation]:
    """List the evaluations in the history of a training, for a model card.

    Works like `transformers.modelcard.parse_log_history`, but including evaluations without a loss.

    Args:
        log_history: the `log_history` of a `TrainerState`.

    Returns:
        One entry per evaluated step, in order, with the last value of each metric; then one entry
        per evaluation after the end of the training.
    """
    training_entries, later_entries = split_history(log_history)
    by_step: dict[int, Evaluation] = {}
    training_loss = None
    for entry in training_entries:
        step = entry.get("step", 0)
        if number_of(step) is None:
            continue

        # An evaluation entry has no training loss, so remember the last one.
        training_loss = entry.get("loss", training_loss)
        metrics = _metrics(entry)
        if metrics:
            new_evaluation = Evaluation(step, entry.get("epoch"), training_loss)
            by_step.setdefault(step, new_evaluation).metrics.update(metrics)
    return [*by_step.values(), *_evaluations_after_training(later_entries)]


def _evaluations_after_training(entries: list[dict[str, Any]]) -> list[Evaluation]:
    """Return the evaluations after the training; consecutive ones on several sets are merged."""
    merged: list[Evaluation] = []
    for entry in entries:
        metrics = _metrics(entry)
        if not metrics:
            continue

        # If the last entry already has one of these metrics, it belongs to another evaluation.
        if not merged or merged[-1].metrics.keys() & metrics.keys():
            step = entry.get("step", 0)
            merged.append(Evaluation(step, entry.get("epoch"), None, after_training=True))
        merged[-1].metrics.update(metrics)
    return merged


def _metrics(entry: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of an evaluation by name, without the prefix.

    Speed, memory, and values that are not numbers are left out.
    """
    metrics: dict[str, float] = {}
    for key, value in entry.items():
        name = str(key).removeprefix(_PREFIX)
        is_metric = name != key and name != "num_input_tokens_seen"
        is_memory = "mem_cpu_" in name or "mem_gpu_" in name
        if not is_metric or is_memory or name.endswith(_SPEED_SUFFIXES):
            continue
        number = number_of(value)
        if number is not None:
            metrics[name] = number
    return metrics
