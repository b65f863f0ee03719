"""The names under which Lightning users log, and those that callbacks look for."""

from __future__ import annotations

import re
from typing import Any

_EVALUATION = re.compile(r"^(?:validation|valid|val|eval|test)[_/]")
_TRAINING = re.compile(r"^(?:training|train)[_/]")


def as_evaluation(metrics: dict[str, Any], prefix: str = "eval") -> dict[str, float]:
    """`val_loss`, `val/loss` and `loss` become `eval_loss`; what is no single number is left out."""
    renamed = {f"{prefix}_{_EVALUATION.sub('', name)}": value for name, value in _once(metrics).items()}
    return _numbers(renamed)


def as_training(metrics: dict[str, Any]) -> dict[str, float]:
    """`train_loss` and `train/loss` become `loss`."""
    return _numbers({_TRAINING.sub("", name): value for name, value in _once(metrics).items()})


def as_metric_for_best_model(name: str | None) -> str | None:
    """What Lightning calls `val_loss` is `eval_loss`."""
    return None if name is None else f"eval_{_EVALUATION.sub('', name)}"


def _once(metrics: dict[str, Any]) -> dict[str, Any]:
    """Without the second and third name that Lightning gives to what is logged for the step and for the epoch."""
    doubles = {name for name in metrics if name.rpartition("_")[2] in ("step", "epoch")}
    return {name: v for name, v in metrics.items() if name not in doubles or name.rpartition("_")[0] not in metrics}


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Tensors of one element as numbers: the one place that waits for the device."""
    found = {}
    for name, value in metrics.items():
        if hasattr(value, "numel"):
            if value.numel() != 1:
                continue
            value = value.item()
        if isinstance(value, (int, float)):
            found[name] = value
    return found
