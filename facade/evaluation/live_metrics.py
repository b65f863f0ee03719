"""Support torchmetrics objects as `compute_metrics`: each process updates them with its own
samples, and torchmetrics synchronises them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ...lightning_modules.common.libraries import is_instance
from ...lightning_modules.common.nested import count_rows, map_nested
from ...lightning_modules.models.pretrained import predicts_next_token
from ...lightning_modules.models.wrappers import base_of_adapter
from ..arguments.rank_groups import copies_of_batches, data_parallel_rank, data_parallel_size

if TYPE_CHECKING:
    from .. import Trainer
    from ..arguments.training_arguments import TrainingArguments


def consists_of_metrics(compute_metrics: object) -> bool:
    """Return whether `compute_metrics` consists of torchmetrics objects, without importing
    torchmetrics.

    Returns True for any dict, whose values are validated later.
    """
    if isinstance(compute_metrics, Mapping):
        return True
    ours = "lightrainer.lightning_modules.evaluation.metrics"
    return is_instance(compute_metrics, ours, "BatchMetrics") or is_instance(
        compute_metrics, "torchmetrics", "Metric", "MetricCollection"
    )


def metrics_type_problem(compute_metrics: object) -> str | None:
    """Return the problem with the type of `compute_metrics`, or None."""
    if consists_of_metrics(compute_metrics):
        return _problem(compute_metrics, TypeError)
    if isinstance(compute_metrics, type) and not issubclass(compute_metrics, dict):
        return f"compute_metrics is the class {compute_metrics.__name__}: pass an instance of it."
    if compute_metrics is None or callable(compute_metrics):
        return None
    actual = f"{type(compute_metrics).__name__} ({compute_metrics!r:.60})"
    return f"compute_metrics must be callable, or made of torchmetrics objects, but is {actual}."


def metrics_value_problem(args: TrainingArguments, compute_metrics: object) -> str | None:
    """Return a conflict within torchmetrics objects, or between them and the arguments; or None."""
    if not consists_of_metrics(compute_metrics):
        return None
    if args.include_for_metrics:
        instead = (
            "BatchMetrics(metrics, prepare=...) with a function of predictions, labels, inputs and "
            "loss"
        )
        return (
            f"include_for_metrics={args.include_for_metrics} is for a compute_metrics function. "
            f"Pass {instead}."
        )
    return _problem(compute_metrics, ValueError)


def _problem(compute_metrics: object, kind: type[Exception]) -> str | None:
    from ...lightning_modules.evaluation.metrics import as_batch_metrics

    try:
        as_batch_metrics(compute_metrics)
    except (TypeError, ValueError) as error:
        return f"compute_metrics: {error}" if isinstance(error, kind) else None
    return None


class LiveMetrics:
    """Update torchmetrics objects with each batch, so that no predictions are kept.

    The metrics are reset before and after the evaluation. Duplicate samples that fill up the last
    round of batches are excluded.

    Args:
        trainer: the Trainer; its `compute_metrics` are torchmetrics objects.
        to_device: moves inputs to the device, for metrics that use them.
    """

    def __init__(self, trainer: Trainer, to_device: Callable[[object], object]) -> None:
        from ...lightning_modules.evaluation.metrics import as_batch_metrics

        self.trainer = trainer
        self.to_device = to_device
        self.metrics = as_batch_metrics(trainer.compute_metrics).to(trainer.args.device)
        self.metrics.reset()
        self.shift = predicts_next_token(base_of_adapter(trainer.model))
        self.updated = False

    def update(self, loss: object, batch: object, logits: object, labels: object) -> None:
        """Update the metrics with the samples of this process.

        Args:
            loss: the loss of its batch.
            batch: the batch from the loader.
            logits: the predictions for the batch, or None.
            labels: the labels of the batch, or None.
        """
        if logits is None or (labels is None and self.metrics.prepare is None):
            return
        self.updated = True

        # The last batch may end with repeated samples.
        size = count_rows(batch) or 0
        count = self._own_samples(size)
        if 0 < count < size:
            logits = _first_samples(logits, count, size)
            labels = _first_samples(labels, count, size)
            batch = _first_samples(batch, count, size)
        if "inputs" in self.metrics.takes:
            batch = self.to_device(batch)

        update = self.metrics.update
        if size and not count:
            update = self.metrics.update_without_counting
        update(logits, labels, inputs=batch, loss=loss, shift=self.shift)

    def values(self) -> dict[str, float | list[object]]:
        """Return the metrics over all batches and processes by name, and reset them; empty without
        labels.
        """
        try:
            if not self.updated:
                return {}
            return map_nested(_plain, self.metrics.compute())
        finally:
            self.metrics.reset()

    def _own_samples(self, size: int) -> int:
        """Return how many samples of the batch, from the start, are not duplicates."""
        args = self.trainer.args
        if args.process_index % copies_of_batches(args):  # another rank counts the same batch
            return 0
        if data_parallel_size(args) == 1:
            return size
        return samples_that_count(self.trainer, size)


def samples_that_count(trainer: Trainer, size: int) -> int:
    """Return how many samples of a batch, from the start, are not duplicates in the last round.

    Args:
        trainer: the Trainer, whose accelerator tracks the position in the loader.
        size: number of samples in the batch.
    """
    accelerator = trainer.accelerator
    if not accelerator.end_of_dataloader or accelerator.remainder <= 0:
        return size
    before = data_parallel_rank(trainer.args) * size
    return min(max(accelerator.remainder - before, 0), size)


def _first_samples(value: object, count: int, size: int) -> object:
    """Return the first samples of a batch, each of which may have several rows."""
    if isinstance(value, list) and len(value) == size and isinstance(value[0], (Mapping, str)):
        return value[:count]

    def cut(leaf: Any) -> object:
        has_rows = isinstance(leaf, torch.Tensor) and leaf.ndim > 0 and len(leaf) % size == 0
        if not has_rows:
            return leaf
        return leaf[: len(leaf) * count // size]

    if isinstance(value, Mapping):
        return {key: _first_samples(part, count, size) for key, part in value.items()}
    return map_nested(cut, value)


def _plain(value: Any) -> Any:
    """Return tensors and NumPy values as numbers or lists of numbers, for logs and JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value
