"""Samples and batches of (features, labels), which is what Keras models are trained on."""

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
"""The label that does not count."""


class PairCollator:
    """As `default_data_collator`, but of (features, labels): makes
    `{"features": ..., "labels": ...}` of samples.

    A sample is a pair, each of its parts a number, an array, or a dict or tuple of these; or a
    dict, as the rows of a `datasets.Dataset` are, whose columns become both. One column of features
    stands for itself, several are a dict.

    Args:
        label_names: columns that are labels; by default the first of `LABELS` that there is.
    """

    def __init__(self, label_names: Sequence[str] | None = None) -> None:
        self.label_names = label_names

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Stack samples.

        Raises:
            TypeError: a sample is no pair, or holds what is no number.
            ValueError: the samples have different shapes, or no labels.
        """
        pairs = [self.pair(sample) for sample in samples]
        features, labels = ([pair[part] for pair in pairs] for part in (0, 1))
        return {"features": stacked(features), "labels": stacked(labels)}

    def pair(self, sample: Any) -> tuple[Any, Any]:
        """Return features and labels of a sample."""
        if isinstance(sample, Mapping):
            return self._columns(sample)
        if isinstance(sample, (tuple, list)) and len(sample) == 2:
            return sample[0], sample[1]
        raise TypeError(
            f"A sample is a {type(sample).__name__}, not (features, labels) or a dict: "
            f"{sample!r:.60}."
        )

    def _columns(self, sample: Mapping[str, Any]) -> tuple[Any, Any]:
        found = self.label_names or [name for name in LABELS if name in sample][:1]
        lacking = [name for name in found if name not in sample]
        if lacking or not found:
            raise ValueError(
                f"No column {' or '.join(map(repr, lacking or LABELS))} in {', '.join(sample)}: "
                "set label_names=[...]."
            )
        features = {name: value for name, value in sample.items() if name not in found}
        if not features:
            raise ValueError(f"The samples have no features, but only {', '.join(sample)}.")
        return _one_or_all(features), _one_or_all({name: sample[name] for name in found})


def stacked(values: Sequence[Any]) -> Any:
    """Stack the same part of several samples; floating-point numbers become torch's default ones,
    as Keras's do.

    Args:
        values: one for each sample.

    Raises:
        TypeError: they are no numbers.
        ValueError, RuntimeError: their shapes differ.
    """
    first = values[0]
    if isinstance(first, Mapping):
        return {key: stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked(part) for part in zip(*values, strict=True))
    if all(isinstance(value, torch.Tensor) for value in values):
        return as_tensor(torch.stack(list(values)))
    return as_tensor(np.stack([np.asarray(value) for value in values]))


def as_tensor(value: Any) -> torch.Tensor:
    """Return a number or an array, of any library, as a tensor of torch.

    Raises:
        TypeError: it is neither.
    """
    if not isinstance(value, torch.Tensor):
        # others may hand out what cannot be written to
        value = torch.from_numpy(np.asarray(value).copy())
    return value.to(torch.get_default_dtype()) if value.dtype == torch.float64 else value


def count_instances(labels: Any) -> torch.Tensor | int:
    """Count what a loss is a mean over: labels other than -100; where labels are a dict without
    `labels`, samples.
    """
    if isinstance(labels, Mapping) and "labels" in labels:
        labels = labels["labels"]
    if isinstance(labels, torch.Tensor):
        return (labels != IGNORED).sum()
    return next((len(leaf) for leaf in leaves(labels) if isinstance(leaf, torch.Tensor)), 0)


def summed_loss(losses: torch.Tensor, labels: Any) -> torch.Tensor:
    """Add up the losses of a batch, so that divided by `count_instances` the result is their mean.

    Models give one for each instance, or for each sample of several labels, such as one-hot ones,
    or just their mean.

    Args:
        losses: of any shape.
        labels: of the same batch.
    """
    if isinstance(labels, torch.Tensor) and losses.numel() >= labels.numel():
        return losses.sum()
    count = count_instances(labels)
    return losses.sum() if losses.numel() >= count else losses.mean() * count


class IterablePairs(IterableDataset):
    """An iterable as a dataset of torch; each iteration begins it anew."""

    def __init__(self, samples: Iterable[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


def as_dataset(data: Any) -> Any:
    """Return what torch's loaders can read: a sequence, or an `IterableDataset` around anything
    else.
    """
    if (
        data is None
        or isinstance(data, IterableDataset)
        or (hasattr(data, "__getitem__") and has_length(data))
    ):
        return data
    return IterablePairs(data)


def first_sample(data: Any) -> Any:
    """Return one sample, with the generators as they were; None where there is none."""
    rng = capture_host_rng()
    try:
        if hasattr(data, "__getitem__") and has_length(data):
            return data[0] if len(data) else None
        return next(iter(data), None)
    finally:
        restore_host_rng(rng)


def _one_or_all(columns: dict[str, Any]) -> Any:
    return next(iter(columns.values())) if len(columns) == 1 else columns
