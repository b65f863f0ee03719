"""Samples and batches of (features, labels), the data of Keras models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from ..common.nested import leaves
from ..common.seeding import capture_host_rng, restore_host_rng
from ..data.lengths import has_length

LABELS = ("labels", "label", "label_ids")
"""Columns that are labels by default."""

IGNORED = -100
"""The label that the loss ignores."""


class PairCollator:
    """Collates samples to a batch `{"features": ..., "labels": ...}`.

    A sample is a pair of features and labels, or a dict such as a row of a `datasets.Dataset`. Each
    part of a pair is a number, an array, or a dict or tuple of these. The columns of a dict are
    divided into features and labels; a single column is passed without its name, several columns
    as a dict.

    Args:
        label_names: columns that are labels; by default the first of `LABELS` that exists.
    """

    def __init__(self, label_names: Sequence[str] | None = None) -> None:
        self.label_names = label_names

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Stack samples.

        Raises:
            TypeError: a sample is not a pair, or contains something other than numbers.
            ValueError: the samples have different shapes, or no labels.
        """
        features: list[Any] = []
        labels: list[Any] = []
        for sample in samples:
            sample_features, sample_labels = self.pair(sample)
            features.append(sample_features)
            labels.append(sample_labels)
        return {"features": stacked(features), "labels": stacked(labels)}

    def pair(self, sample: object) -> tuple[Any, Any]:
        """Return the features and labels of a sample."""
        if isinstance(sample, Mapping):
            return self._columns(sample)
        if isinstance(sample, (tuple, list)) and len(sample) == 2:
            return sample[0], sample[1]
        raise TypeError(
            f"A sample is a {type(sample).__name__}, not (features, labels) or a dict: "
            f"{sample!r:.60}."
        )

    def _columns(self, sample: Mapping[str, object]) -> tuple[Any, Any]:
        """Divide the columns of a sample into features and labels."""
        label_names = self.label_names or [name for name in LABELS if name in sample][:1]
        missing = [name for name in label_names if name not in sample]
        if missing or not label_names:
            expected = " or ".join(map(repr, missing or LABELS))
            raise ValueError(f"No column {expected} in {', '.join(sample)}: set label_names=[...].")

        features = {name: value for name, value in sample.items() if name not in label_names}
        if not features:
            raise ValueError(
                f"The samples have no features, only {', '.join(sample)}: add a column that is "
                "not a label."
            )
        labels = {name: sample[name] for name in label_names}
        return _single_or_all(features), _single_or_all(labels)


def stacked(values: Sequence[Any]) -> object:
    """Stack the same part of several samples.

    float64 becomes torch's default dtype, as in Keras.

    Args:
        values: for each sample a number or an array, or a dict or tuple of these.

    Raises:
        TypeError: a value is not a number.
        ValueError: arrays have different shapes.
        RuntimeError: tensors have different shapes.
    """
    first = values[0]
    if isinstance(first, Mapping):
        return {key: stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked(part) for part in zip(*values, strict=True))
    if all(isinstance(value, torch.Tensor) for value in values):
        return as_tensor(torch.stack(list(values)))
    return as_tensor(np.stack([np.asarray(value) for value in values]))


def as_tensor(value: object) -> torch.Tensor:
    """Convert a number or an array of any library to a torch tensor.

    Raises:
        TypeError: the value is neither.
    """
    if not isinstance(value, torch.Tensor):
        # Copy the array, because torch does not accept read-only arrays of other libraries.
        value = torch.from_numpy(np.asarray(value).copy())
    if value.dtype == torch.float64:
        value = value.to(torch.get_default_dtype())
    return value


def count_instances(labels: object) -> torch.Tensor | int:
    """Count the items that the loss is averaged over, which are the labels other than -100.

    If the labels are a dict without `labels`, count the samples.
    """
    if isinstance(labels, Mapping) and "labels" in labels:
        labels = labels["labels"]
    if isinstance(labels, torch.Tensor):
        return (labels != IGNORED).sum()
    for leaf in leaves(labels):
        if isinstance(leaf, torch.Tensor):
            return len(leaf)
    return 0


def summed_loss(losses: torch.Tensor, labels: object) -> torch.Tensor:
    """Return the sum of a batch's losses, which is divided by `count_instances` for the mean.

    Models may return a loss for each instance, a loss for each sample with several labels (such as
    one-hot labels), or only the mean.

    Args:
        losses: the losses, of any shape.
        labels: the labels of the same batch.
    """
    if isinstance(labels, torch.Tensor) and losses.numel() >= labels.numel():
        return losses.sum()
    count = count_instances(labels)
    if losses.numel() >= count:
        return losses.sum()
    # Fewer losses than instances are means, so scale their mean to a sum.
    return losses.mean() * count


class IterablePairs(IterableDataset):
    """A torch dataset over an iterable; each iteration starts from the beginning."""

    def __init__(self, samples: Iterable[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


def as_dataset(data: Any) -> object:
    """Return data in a form that torch's DataLoader can read.

    A sequence is returned unchanged; anything else is wrapped in an `IterableDataset`.
    """
    if data is None or isinstance(data, IterableDataset) or _is_sequence(data):
        return data
    return IterablePairs(data)


def first_sample(data: Any) -> object:
    """Return the first sample, or None, without changing the random generators."""
    rng = capture_host_rng()
    try:
        if not _is_sequence(data):
            return next(iter(data), None)
        if len(data) == 0:
            return None
        return data[0]
    finally:
        restore_host_rng(rng)


def _is_sequence(data: object) -> bool:
    """Return whether data has a length and can be indexed."""
    return hasattr(data, "__getitem__") and has_length(data)


def _single_or_all(columns: dict[str, Any]) -> object:
    """Return the value of a single column, or the dict of several columns."""
    if len(columns) == 1:
        return next(iter(columns.values()))
    return columns
