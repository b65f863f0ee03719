"""The metrics of training, validation and test: for each stage, and each loader in it, a set of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from .metrics import BatchMetrics

__all__ = ["StageMetrics", "is_number", "name_in_stage"]


class StageMetrics:
    """Metrics that are counted apart.

    Args:
        metrics: copied for each stage and loader; None for no metrics.
    """

    def __init__(self, metrics: BatchMetrics | None) -> None:
        self.metrics = metrics
        self._sets: dict[str, list[BatchMetrics]] = {}

    def begin(self, stage: str, loaders: int, device: torch.device) -> None:
        """Empty metrics for all loaders of a stage: every process has them, as they are synchronised."""
        if self.metrics is not None:
            sets = self._sets.setdefault(stage, [])
            sets += [copy.deepcopy(self.metrics) for _ in range(loaders - len(sets))]
            del sets[loaders:]
            for metrics in sets:
                metrics.to(device).reset()

    def update(
        self, stage: str, loader: int, predictions: Any, labels: Any, *, counts: bool = True, **further: Any
    ) -> None:
        """Count a batch, see `BatchMetrics.update`; or only show it, where none of its samples counts."""
        if self.metrics is not None:
            metrics = self._sets[stage][loader]
            (metrics.update if counts else metrics.update_without_counting)(predictions, labels, **further)

    def take(self, stage: str) -> list[dict[str, Any]]:
        """The values by name, for each loader; the metrics are empty then."""
        values = []
        for metrics in self._sets.get(stage, []):
            values.append(metrics.compute())
            metrics.reset()
        return values


def name_in_stage(stage: str, name: str, loaders: Any, index: int) -> str:
    """What a value is called: `val_loss`, `val_<loader>_loss` in a dict of loaders, with Lightning's suffix in a list.

    Args:
        stage: train, val or test.
        name: of the value.
        loaders: what the trainer has for this stage.
        index: which of them.
    """
    if isinstance(loaders, Mapping):
        return f"{stage}_{list(loaders)[index]}_{name}"
    several = isinstance(loaders, (list, tuple)) and len(loaders) > 1
    return f"{stage}_{name}/dataloader_idx_{index}" if several else f"{stage}_{name}"


def is_number(value: Any) -> bool:
    """Whether it can be logged: a matrix of confusion, or a value for each class, cannot."""
    return isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)
