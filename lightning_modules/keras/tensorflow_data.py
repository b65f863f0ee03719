"""`tf.data.Dataset`s as loaders: whole batches of all processes, of which each takes its rows.

TensorFlow is not imported: a dataset is what has the methods of one.
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


def is_tensorflow_dataset(data: Any) -> bool:
    """Tell whether this is a `tf.data.Dataset`."""
    return all(hasattr(data, name) for name in ("element_spec", "cardinality", "shuffle", "batch"))


def require_cardinality(dataset: Any, name: str) -> int:
    """Return how many samples, or batches, a `tf.data.Dataset` has.

    Raises:
        ValueError: the length is unknown, or there is no end.
    """
    count = int(dataset.cardinality())
    if count < 0:
        what = "has no end" if count == -1 else "does not know how many samples it has"
        raise ValueError(
            f"{name} {what} (cardinality {count}): "
            f"{name}.apply(tf.data.experimental.assert_cardinality(number))."
        )
    return count


def sample_like(dataset: Any) -> tuple[Any, Any]:
    """Return a batch of one sample of zeros, as large as those of a `tf.data.Dataset`; nothing is
    read for it.

    Args:
        dataset: of (features, labels).

    Raises:
        TypeError: it has other elements.
    """

    def zeros(spec: Any) -> torch.Tensor:
        if not hasattr(spec, "shape") or not hasattr(
            getattr(spec, "dtype", None), "as_numpy_dtype"
        ):
            raise TypeError(
                f"The dataset has elements of the kind {type(spec).__name__}: make dense tensors "
                "of them."
            )
        shape = [1, *(1 if size is None else int(size) for size in spec.shape)]
        return torch.zeros(shape, dtype=as_tensor(spec.dtype.as_numpy_dtype(0)).dtype)

    features, labels = pair_of(dataset.element_spec)
    return map_nested(zeros, features), map_nested(zeros, labels)


def pair_of(element: Any) -> tuple[Any, Any]:
    """Return features and labels.

    Raises:
        TypeError: an element is no pair.
    """
    if isinstance(element, (tuple, list)) and len(element) == 2:
        return element[0], element[1]
    raise TypeError(
        f"An element of the dataset is a {type(element).__name__}, not (features, labels): "
        f"{element!r:.80}."
    )


class StepStream(IterableDataset):
    """The training batches of this process: each element of a dataset is all that is read in one
    optimizer step.

    Each iterator over a shuffled `tf.data.Dataset` has an order of its own, so as many are made as
    there were epochs before: a resumed training finds the order of its epoch.

    Args:
        dataset: gives batches of (features, labels), anew for each iteration.
        steps: elements in an epoch.
        parts: micro-batches of a step.
        rank: of this process.
        world_size: how many processes share each micro-batch.
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
        self.dataset, self.steps, self.parts = dataset, steps, parts
        self.rank, self.world_size = rank, world_size
        self._iterators = 0

    def __len__(self) -> int:
        return self.steps * self.parts

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that of this epoch."""
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
        """Rows of one micro-batch of one process."""
        shares = self.parts * self.world_size
        if rows < shares or (self.world_size > 1 and rows % shares):
            raise ValueError(
                f"A batch of {rows} samples cannot be shared out to {self.world_size} processes "
                f"and gradient_accumulation_steps={self.parts}. Repeat the data, or batch(..., "
                "drop_remainder=True)."
            )
        return math.ceil(rows / shares)


class EvaluationStream(IterableDataset):
    """The batches of this process in an evaluation, of the same number of rows whatever those of
    the dataset have.

    Args:
        dataset: gives batches of (features, labels).
        batches: how many of them to read; None for all.
        size: samples of one process in a batch.
        rank: of this process.
        world_size: how many processes share each batch.

    Attributes:
        last_round: samples in the last batch of all processes, without those that fill it up to
            equal shares.
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
        self.dataset, self.batches, self.size = dataset, batches, size
        self.rank, self.world_size = rank, world_size
        self.last_round = -1

    def __iter__(self) -> Iterator[dict[str, Any]]:
        each = self.size * self.world_size
        first: Any = None
        for batch in rebatched(
            map(as_batch, itertools.islice(iter(self.dataset), self.batches)), each
        ):
            first = batch if first is None else first
            self.last_round = find_batch_size(batch) or 0
            share = math.ceil(self.last_round / self.world_size)
            while (missing := share * self.world_size - (find_batch_size(batch) or 0)) > 0:
                batch = joined([batch, rows_of(first, 0, missing)])
            yield rows_of(batch, self.rank * share, (self.rank + 1) * share)


class BatchLoader(EpochLoader):
    """An `EpochLoader` of a stream that gives whole batches.

    Args:
        stream: the batches of this process.
        examples: samples of all processes, None if unknown.
        batches: of this process, None if unknown.
        samples_per_round: samples that all processes take together in a batch.
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
        self.examples, self.batches = examples, batches

    @property
    def whole_dataset(self) -> Any:
        """The numbers of the samples of all processes."""
        if self.examples is None:
            raise AttributeError("The number of samples is unknown.")
        return range(self.examples)

    def __len__(self) -> int:
        if self.batches is None:
            raise TypeError("The number of batches is unknown.")
        return self.batches


def as_batch(element: Any) -> dict[str, Any]:
    """Return a pair of features and labels in tensors of torch."""
    features, labels = pair_of(element)
    return {
        "features": map_nested(as_tensor, features),
        "labels": map_nested(as_tensor, labels),
    }


def rebatched(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """Yield the same rows in batches of `size`, the last one may be shorter."""
    rest: Any = None
    for batch in batches:
        rest = batch if rest is None else joined([rest, batch])
        rows = find_batch_size(rest) or 0
        whole = rows - rows % size
        for start in range(0, whole, size):
            yield rows_of(rest, start, start + size)
        rest = rows_of(rest, whole, rows) if whole < rows else None
    if rest is not None:
        yield rest


def rows_of(batch: Any, start: int, stop: int) -> Any:
    """Return some of the rows of a nested batch."""
    return map_nested(lambda leaf: leaf[start:stop], batch)


def filled_up(batch: Any, rows: int) -> Any:
    """Return a nested batch with its last row repeated, so that it has so many."""
    return map_nested(
        lambda leaf: torch.cat([leaf, leaf[-1:].expand(rows - len(leaf), *leaf.shape[1:])]), batch
    )


def joined(batches: list[Any]) -> Any:
    """Return the rows of several nested batches in one."""
    first = batches[0]
    if isinstance(first, dict):
        return {key: joined([batch[key] for batch in batches]) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(joined(list(parts)) for parts in zip(*batches, strict=True))
    return torch.cat(batches)
