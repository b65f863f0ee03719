"""Metrics of the stages of a LightningModule, and the names of their values in logs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from .metrics import BatchMetrics

LONGEST_VECTOR = 1000
"""Maximum length of a vector whose entries are logged. Longer ones have values of samples, not of
classes.
"""


class StageMetrics:
    """Metrics of training, validation and test, with a separate copy for each stage and loader.

    Args:
        metrics: the metrics to copy for each stage and loader, or None.
    """

    def __init__(self, metrics: BatchMetrics | None) -> None:
        self.metrics = metrics
        self._sets: dict[str, list[BatchMetrics]] = {}
        self._stages_with_batches: set[str] = set()

    def begin(self, stage: str, loaders: int, device: torch.device) -> None:
        """Reset the metrics of all loaders of a stage. Must be called on all ranks.

        Args:
            stage: train, val or test.
            loaders: number of loaders of the stage.
            device: the device of the batches.
        """
        self._stages_with_batches.discard(stage)
        if self.metrics is not None:
            # Use one set for each loader, whose number may have changed since the last epoch.
            sets = self._sets.setdefault(stage, [])
            del sets[loaders:]
            while len(sets) < loaders:
                sets.append(copy.deepcopy(self.metrics))
            for metrics in sets:
                metrics.to(device).reset()

    def update(
        self,
        stage: str,
        loader: int,
        predictions: object,
        labels: object,
        *,
        counts: bool = True,
        **further: Any,
    ) -> None:
        """Count a batch.

        Does nothing if the stage has not begun. Lightning's `Tuner` trains without callbacks, so
        `begin` is not called and nothing is logged.

        Args:
            stage: train, val or test.
            loader: the index of the loader.
            predictions: the outputs of the model, except the loss.
            labels: the labels, or None.
            counts: False if no sample of the batch counts; metrics only get its shapes.
            further: the other arguments of `BatchMetrics.update`.
        """
        sets = self._sets.get(stage, [])
        if loader >= len(sets):
            return
        self._stages_with_batches.add(stage)
        if counts:
            sets[loader].update(predictions, labels, **further)
        else:
            sets[loader].update_without_counting(predictions, labels, **further)

    def compute_and_reset(self, stage: str, process_group: object = None) -> list[dict[str, Any]]:
        """Return the values of each loader by name, and reset the metrics.

        The list is empty if no batch was counted, for example if a training resumes after the last
        batch of an epoch.

        Args:
            stage: train, val or test.
            process_group: see `BatchMetrics.compute`.
        """
        if stage not in self._stages_with_batches:
            return []
        self._stages_with_batches.discard(stage)
        values = []
        for metrics in self._sets.get(stage, []):
            values.append(metrics.compute(process_group))
            metrics.reset()
        return values


def name_in_stage(stage: str, name: str, loaders: object, index: int, separator: str = "_") -> str:
    """Return the name of a value in the logs.

    It is `val_loss`; for a dict of loaders `val_<loader>_loss`; for a list of several loaders it
    has Lightning's suffix, as in `val_loss/dataloader_idx_1`.

    Args:
        stage: train, val or test.
        name: the name of the value.
        loaders: the loaders of the trainer for this stage.
        index: the index of the loader.
        separator: the text after the stage; "/" gives `val/loss` and `val/<loader>_loss`.
    """
    if isinstance(loaders, Mapping):
        return f"{stage}{separator}{list(loaders)[index]}_{name}"
    if isinstance(loaders, (list, tuple)) and len(loaders) > 1:
        return f"{stage}{separator}{name}/dataloader_idx_{index}"
    return f"{stage}{separator}{name}"


def as_numbers(name: str, value: object) -> dict[str, Any]:
    """Convert a value of a metric to numbers for a logger.

    Args:
        name: the name of the value.
        value: the value that a metric computed.

    Returns:
        A number by its name, or the entries of a vector, such as values of classes, by the names
        `<name>_0`, `<name>_1`, .... It is empty for a confusion matrix, and for a vector with more
        than `LONGEST_VECTOR` entries.
    """
    if isinstance(value, Number):
        return {name: value}
    if not isinstance(value, Tensor):
        return {}
    if value.numel() == 1:
        return {name: value}
    if value.ndim != 1 or len(value) > LONGEST_VECTOR:
        return {}

    numbers: dict[str, Any] = {}
    for index, entry in enumerate(value):
        numbers[f"{name}_{index}"] = entry
    return numbers
