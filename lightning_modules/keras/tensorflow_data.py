"""Loaders of `tf.data.Dataset`s, from which each process reads its rows of the global batches.

TensorFlow is not imported: datasets are recognized by their methods.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from ..common.nested import find_batch_size, map_nested
from ..data.epoch_loader import EpochLoader
from .pairs import as_tensor


def is_tensorflow_dataset(data: object) -> bool:
    """Return whether data is a `tf.data.Dataset`."""
    return all(hasattr(data, name) for name in ("element_spec", "cardinality", "shuffle", "batch"))


def require_cardinality(dataset: Any, name: str) -> int:
    """Return the number of samples, or batches, of a `tf.data.Dataset`.

    Raises:
        ValueError: the number is unknown or infinite.
    """
    count = int(dataset.cardinality())
    if count < 0:
        problem = "has an unknown number of samples"
        if count == -1:
            problem = "is infinite"
        raise ValueError(
            f"{name} {problem} (cardinality {count}). Call "
            f"{name}.apply(tf.data.experimental.assert_cardinality(number))."
        )
    return count


def sample_like(dataset: Any) -> tuple[object, object]:
    """Return a batch with one sample of zeros, in the shapes of a `tf.data.Dataset`.

    The dataset itself is not read.

    Args:
        dataset: a dataset of (features, labels).

    Raises:
        TypeError: the elements are not pairs of dense tensors.
    """
    features, labels = pair_of(dataset.element_spec)
    return map_nested(_zeros_like, features), map_nested(_zeros_like, labels)


def _zeros_like(spec: Any) -> torch.Tensor:
    """Return a batch of one sample of zeros, with the shape and dtype of a `tf.TensorSpec`."""
    dtype = getattr(spec, "dtype", None)
    if not hasattr(spec, "shape") or not hasattr(dtype, "as_numpy_dtype"):
        raise TypeError(
            f"The dataset has elements of the type {type(spec).__name__}: convert them to dense "
            "tensors."
        )
    shape = [1]
    for size in spec.shape:
        # Use size 1 for a dimension of unknown size.
        if size is None:
            size = 1
        shape.append(int(size))
    zero = as_tensor(spec.dtype.as_numpy_dtype(0))
    return torch.zeros(shape, dtype=zero.dtype)


def pair_of(element: object) -> tuple[object, object]:
    """Return the features and the labels of an element of a dataset.

    Raises:
        TypeError: the element is not a pair.
    """
    if isinstance(element, (tuple, list)) and len(element) == 2:
        return element[0], element[1]
    raise TypeError(
        f"An element of the dataset is a {type(element).__name__}, not (features, labels): "
        f"{element!r:.80}."
    )


class StepStream(IterableDataset):
    """The training batches of this process.

    An element of the dataset has all samples of one optimizer step. Each iterator over a shuffled
    `tf.data.Dataset` has another order. So `set_epoch` creates an iterator for each earlier epoch,
    which gives a resumed training the order of its epoch.

    Args:
        dataset: an iterable of batches of (features, labels); each iteration starts from the
            beginning.
        steps: number of elements in an epoch.
        parts: number of micro-batches in a step.
        rank: the rank of this process.
        world_size: number of processes that share each micro-batch.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        *,
        steps: int,
        parts: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.dataset = dataset
        self.steps = steps
        self.parts = parts
        self.rank = rank
        self.world_size = world_size
        self._iterators = 0

    def __len__(self) -> int:
        return self.steps * self.parts

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration use the order of this epoch."""
        while self._iterators < epoch:
            iter(self.dataset)
            self._iterators += 1

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._iterators += 1
        for element in itertools.islice(iter(self.dataset), self.steps):
            batch = as_batch(element)
            rows = find_batch_size(batch) or 0
            size = self._share(rows)
            for part in range(self.parts):
                start = (part * self.world_size + self.rank) * size
                yield rows_of(batch, start, start + size)

    def _share(self, rows: int) -> int:
        """Return the number of rows in a micro-batch of one process."""
        shares = self.parts * self.world_size
        is_uneven = self.world_size > 1 and rows % shares > 0
        if rows < shares or is_uneven:
            raise ValueError(
                f"A batch of {rows} samples cannot be divided among {self.world_size} processes "
                f"and gradient_accumulation_steps={self.parts}. Repeat the data, or call "
                "batch(..., drop_remainder=True)."
            )
        return math.ceil(rows / shares)


class EvaluationStream(IterableDataset):
    """The evaluation batches of this process.

    They have `size` rows each, independently of the size of the dataset's batches.

    Args:
        dataset: an iterable of batches of (features, labels).
        batches: number of batches to read; None for all.
        size: number of samples of one process in a batch.
        rank: the rank of this process.
        world_size: number of processes that share each batch.

    Attributes:
        last_round: number of samples in the last batch of all processes, without padding.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        *,
        batches: int | None,
        size: int,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.dataset = dataset
        self.batches = batches
        self.size = size
        self.rank = rank
        self.world_size = world_size
        self.last_round = -1

    def __iter__(self) -> Iterator[dict[str, Any]]:
        elements = itertools.islice(iter(self.dataset), self.batches)
        first_batch: Any = None
        for batch in rebatched(map(as_batch, elements), self.size * self.world_size):
            if first_batch is None:
                first_batch = batch
            rows = find_batch_size(batch) or 0
            self.last_round = rows

            # Pad the last batch with the first samples, so that all processes get equal shares.
            share = math.ceil(rows / self.world_size)
            missing = share * self.world_size - rows
            while missing > 0:
                padding = rows_of(first_batch, 0, missing)
                batch = joined([batch, padding])
                missing -= find_batch_size(padding) or 0
            yield rows_of(batch, self.rank * share, (self.rank + 1) * share)


class BatchLoader(EpochLoader):
    """An `EpochLoader` for a stream that yields complete batches.

    Args:
        stream: yields the batches of this process.
        examples: number of samples of all processes; None if unknown.
        batches: number of batches of this process; None if unknown.
        samples_per_round: number of samples in a batch, over all processes.
    """

    def __init__(
        self,
        stream: IterableDataset,
        *,
        examples: int | None,
        batches: int | None,
        samples_per_round: int,
    ) -> None:
        super().__init__(stream, total=None, samples_per_round=samples_per_round, batch_size=None)
        self.examples = examples
        self.batches = batches

    @property
    def full_dataset(self) -> range:
        """Return a range as long as the dataset of all processes.

        Raises:
            AttributeError: the number of samples is unknown.
        """
        if self.examples is None:
            raise AttributeError("The number of samples is unknown.")
        return range(self.examples)

    def __len__(self) -> int:
        if self.batches is None:
            raise TypeError("The number of batches is unknown.")
        return self.batches


def as_batch(element: object) -> dict[str, object]:
    """Convert an element of a dataset to a batch of torch tensors."""
    features, labels = pair_of(element)
    return {
        "features": map_nested(as_tensor, features),
        "labels": map_nested(as_tensor, labels),
    }


def rebatched(batches: Iterable[object], size: int) -> Iterator[object]:
    """Regroup the rows of batches into batches of `size` rows; the last one may be shorter."""
    remainder: Any = None
    for batch in batches:
        if remainder is not None:
            batch = joined([remainder, batch])
        rows = find_batch_size(batch) or 0
        stop = rows - rows % size
        for start in range(0, stop, size):
            yield rows_of(batch, start, start + size)
        remainder = None
        if stop < rows:
            remainder = rows_of(batch, stop, rows)
    if remainder is not None:
        yield remainder


def rows_of(batch: object, start: int, stop: int) -> Any:
    """Return some of the rows of a nested batch."""
    return map_nested(lambda leaf: leaf[start:stop], batch)


def padded_to(batch: object, rows: int) -> object:
    """Pad a nested batch to `rows` rows with copies of its last row."""

    def pad(leaf: torch.Tensor) -> torch.Tensor:
        padding = leaf[-1:].expand(rows - len(leaf), *leaf.shape[1:])
        return torch.cat([leaf, padding])

    return map_nested(pad, batch)


def joined(batches: list[Any]) -> Any:
    """Concatenate nested batches."""
    first = batches[0]
    if isinstance(first, dict):
        return {key: joined([batch[key] for batch in batches]) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(joined(list(parts)) for parts in zip(*batches, strict=True))
    return torch.cat(batches)
